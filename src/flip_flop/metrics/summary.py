"""All metrics of one run, as they stand in its ``metrics.json``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.agreement import (
    agreement_statistic,
    no_consensus_share,
    no_consensus_statistic,
    observed_agreement,
)
from flip_flop.metrics.bootstrap import bootstrap_interval
from flip_flop.metrics.collapse import is_collapsed, label_shares, label_shares_per_template
from flip_flop.metrics.f1 import (
    Average,
    accuracy_per_template,
    accuracy_statistic,
    f1_per_template,
    f1_std,
    mean_f1,
    mean_f1_statistic,
)
from flip_flop.metrics.sums import SumStatistic
from flip_flop.metrics.vote import majority_vote

AGAINST_GOLD = (
    "mean_f1",
    "f1_std",
    "macro_f1",
    "accuracy",
    "f1_per_template",
    "accuracy_per_template",
    "vote_f1",
    "vote_accuracy",
)


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
        f1: Which F1 ``mean_f1``, ``f1_std``, ``f1_per_template`` and ``vote_f1`` are. ``macro_f1`` is macro.
        intervals: Whether to add bootstrap intervals of 95 %, over instances.
        seed: Fixes the intervals' resamples.

    Returns:
        Plain Python values, fractions from 0 to 1. None where there is no answer: F1 and accuracy without
        gold labels; agreement, consensus and spread of a single template. ``intervals`` has ``[low, high]``
        or None for each metric but the spread (see :func:`~flip_flop.metrics.f1_std`), and is empty if not
        asked for.

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
    votes = majority_vote(scores)[:, None]
    predictions = scores.argmax(axis=2)
    shares = label_shares_per_template(predictions, num_labels)
    summary = {
        "observed_agreement": observed_agreement(predictions),
        **_against_gold(predictions, votes, gold, names, num_labels, f1),
        "no_consensus_share": no_consensus_share(predictions),
        "label_shares": label_shares(predictions, num_labels).tolist(),
        "label_shares_per_template": dict(zip(names, shares.tolist(), strict=True)),
        "collapsed": is_collapsed(predictions, num_labels, gold),
        "num_instances": num_instances,
        "num_templates": num_templates,
        "num_labels": num_labels,
    }
    found = _intervals(summary, predictions, votes, gold, f1, seed) if intervals else {}
    return {**summary, "intervals": found}


def _against_gold(
    predictions: Int[np.ndarray, "instances templates"],
    votes: Int[np.ndarray, "instances 1"],
    gold: Int[np.ndarray, " instances"],
    names: list[str],
    num_labels: int,
    average: Average,
) -> dict[str, Any]:
    f1 = f1_per_template(predictions, gold, num_labels=num_labels, average=average)
    macro_f1 = f1_per_template(predictions, gold, num_labels=num_labels, average="macro")
    vote_f1 = f1_per_template(votes, gold, num_labels=num_labels, average=average)
    accuracy = accuracy_per_template(predictions, gold)
    vote_accuracy = accuracy_per_template(votes, gold)
    if f1 is None:
        return dict.fromkeys(AGAINST_GOLD)
    assert macro_f1 is not None and accuracy is not None  # noqa: PT018
    assert vote_f1 is not None and vote_accuracy is not None  # noqa: PT018
    values = (
        mean_f1(f1),
        f1_std(f1),
        mean_f1(macro_f1),
        float(accuracy.mean()),
        dict(zip(names, f1.tolist(), strict=True)),
        dict(zip(names, accuracy.tolist(), strict=True)),
        float(vote_f1[0]),
        float(vote_accuracy[0]),
    )
    return dict(zip(AGAINST_GOLD, values, strict=True))


def _intervals(
    summary: dict[str, Any],
    predictions: Int[np.ndarray, "instances templates"],
    votes: Int[np.ndarray, "instances 1"],
    gold: Int[np.ndarray, " instances"],
    average: Average,
    seed: int,
) -> dict[str, list[float] | None]:
    num_labels = summary["num_labels"]
    labelled = gold >= 0  # instances without a gold label are no part of what is measured against it
    judged = (predictions[labelled], gold[labelled])
    judged_votes = (votes[labelled], gold[labelled])
    statistics: dict[str, tuple[SumStatistic, tuple[np.ndarray, ...]]] = {
        "observed_agreement": (agreement_statistic(), (predictions,)),
        "no_consensus_share": (no_consensus_statistic(), (predictions,)),
        "mean_f1": (mean_f1_statistic(num_labels, average), judged),
        "macro_f1": (mean_f1_statistic(num_labels, "macro"), judged),
        "accuracy": (accuracy_statistic(), judged),
        "vote_f1": (mean_f1_statistic(num_labels, average), judged_votes),
        "vote_accuracy": (accuracy_statistic(), judged_votes),
    }
    return {
        name: None if summary[name] is None else list(bootstrap_interval(statistic, *arrays, seed=seed))
        for name, (statistic, arrays) in statistics.items()
    }
