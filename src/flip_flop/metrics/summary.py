"""All metrics of one run, as they stand in its ``metrics.json``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.collapse import is_collapsed, label_shares, label_shares_per_template
from flip_flop.metrics.data import EvalData
from flip_flop.metrics.f1 import Average, accuracy_per_template, f1_per_template
from flip_flop.metrics.table import METRICS


def summarise(
    scores: Float[np.ndarray, "instances templates labels"],
    gold: Int[np.ndarray, " instances"],
    template_names: Sequence[str],
    *,
    f1: Average = "auto",
    intervals: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Every metric of one model on one task, ready for JSON.

    Args:
        scores: Mean log-probability of each answer's tokens, in nats.
        gold: Label indices, -1 where there is none.
        template_names: One name for each template, in the order of ``scores``.
        f1: Which F1 is meant, wherever it is not called macro.
        intervals: Whether to add bootstrap intervals of 95 %, over instances.
        seed: Fixes the intervals' resamples.

    Returns:
        Plain Python values: each of :data:`METRICS` by name, fractions not percent, None where it has no value;
        what tells templates and labels apart; and ``intervals``: ``[low, high]`` or None for each metric that
        has them, empty if not asked for.

    Raises:
        ValueError: There are no instances, the names do not fit, a gold label is no label's index, or a score
            is NaN or +inf.

    Example:
        >>> scores = np.log([[[0.9, 0.1], [0.6, 0.4]], [[0.2, 0.8], [0.7, 0.3]]])
        >>> summary = summarise(scores, np.array([0, 1]), ["plain", "formal"])
        >>> summary["observed_agreement"], summary["f1_per_template"]
        (0.5, {'plain': 1.0, 'formal': 0.0})
    """
    names = list(template_names)
    num_instances, num_templates, num_labels = scores.shape
    if len(names) != num_templates or len(set(names)) != num_templates:
        raise ValueError(f"Each of {num_templates} templates needs a name of its own; the names are {names}.")
    if num_instances == 0:
        raise ValueError("There are no instances to summarise.")
    data = EvalData(scores, gold, f1)
    predictions = data.predictions

    def by_template(values: np.ndarray | None) -> dict[str, Any] | None:
        return None if values is None else dict(zip(names, values.tolist(), strict=True))

    def interval(name: str) -> list[float] | None:
        found = METRICS[name].interval(data, seed=seed)
        return None if found is None else list(found)

    return {
        **{name: metric.value(data) for name, metric in METRICS.items()},
        "f1_per_template": by_template(f1_per_template(predictions, gold, num_labels=num_labels, average=f1)),
        "accuracy_per_template": by_template(accuracy_per_template(predictions, gold)),
        "label_shares": label_shares(predictions, num_labels).tolist(),
        "label_shares_per_template": by_template(label_shares_per_template(predictions, num_labels)),
        "collapsed": is_collapsed(predictions, num_labels, gold),
        "num_instances": num_instances,
        "num_templates": num_templates,
        "num_labels": num_labels,
        "intervals": {name: interval(name) for name, each in METRICS.items() if intervals and each.has_interval},
    }
