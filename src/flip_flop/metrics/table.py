"""The table of metrics: names, directions and statistics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flip_flop.arrays import CellFlags, InstanceLabels, LabelScores, PerInstance
from flip_flop.console import Interval, warn_once
from flip_flop.errors import InputError, Value, reason_of
from flip_flop.metrics.agreement import (
    AGREEMENT,
    ANSWERED,
    FLEISS_KAPPA,
    FLIP_RATE,
    constant_templates,
    instance_posix,
    is_collapsed,
    label_shares,
    label_shares_per_template,
    lacks_consensus,
    vote_counts,
)
from flip_flop.metrics.bootstrap import (
    Statistic,
    SumStatistic,
    bootstrap_interval,
    mean_statistic,
    paired_bootstrap_interval,
)
from flip_flop.metrics.certainty import calibration_error_per_template, decidable_share
from flip_flop.metrics.data import AXES, Design, Scores, read_only
from flip_flop.metrics.f1 import ACCURACY, COHEN_KAPPA, MEAN_F1, accuracy_per_template
from flip_flop.metrics.probabilities import (
    answer_probs,
    brier_scores,
    ensemble_probs,
    log_losses,
    mean_loss,
    temperature,
)
from flip_flop.plugins import PluginTable, import_object

ALIASES = {"agreement": "observed_agreement"}
# Flips between two runs, each of a template and a row, with their axis in the table of axes.
BETWEEN_RUNS = {"repeat_flips": "again", "chat_flips": "chat"}
# Other keys of metrics.json, and of the tables of runs.
RESERVED = {
    *("label_shares", "collapsed", "constant_templates", "num_instances", "num_templates", "num_labels", "intervals"),
    *("absent", "calibrated", "label_inside_share", "run", "agreement_interval", "f1_range", *ALIASES, *BETWEEN_RUNS),
    *("flip_pairs", "method", "label_prior", "offsets", "votes_changed", "vote_share_drift"),
    *("templates", "instances", "f1_min", "f1_max", "calibration"),
}
MIN_UNBOUNDED = 50  # instances; below, percentiles of resamples are too narrow


@dataclass(frozen=True)
class Metric:
    """A number about a run. Metrics in :data:`METRICS` are in ``metrics.json``, reports and ``--fail-under``.

    If the statistic of a custom metric fails, the metric has no value, and a warning names it (``W-PLUGIN``).

    Attributes:
        name: The key in ``metrics.json``.
        title: The name in plain text.
        label: The name in the HTML report, by default the title.
        statistic: A function from :class:`~flip_flop.metrics.Scores` to a number, or None without a value. It must
            not change the data. Intervals need one matrix product for a :class:`~flip_flop.metrics.SumStatistic`, and a
            call per resample for any other function.
        meaning: A sentence for the report.
        higher_is_better: None: neither is better. Gates take only metrics of which more is better.
        needs_gold: Only instances with a gold label count. Without gold labels, the metric has no value.
        in_percent: The number is a fraction. Tables print it in percent.
        needs_labels: The metric depends on labels that all instances share. It has no value for open answers.
        needs_probabilities: The metric depends on scores, and not only on predictions. It has no value for generated
            answers.
        has_interval: The bootstrap interval is valid, from 50 instances on or with known extremes. It is not valid for
            spreads and extremes over templates, because resampling adds noise to the F1 of each template. In
            simulations with 300 instances, 8 templates and a spread of 0.01, half of the intervals miss the value.
    """

    name: str
    title: str
    statistic: Statistic
    label: str = ""
    meaning: str = ""
    higher_is_better: bool | None = True
    needs_gold: bool = False
    in_percent: bool = True
    has_interval: bool = True
    needs_probabilities: bool = False
    needs_labels: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.title)
        if self.name in RESERVED or self.name.endswith("_per_template"):
            raise ValueError(f"{self.name!r} is the name of another number, so a metric needs another name")

    @property
    def form(self) -> dict[str, int]:
        """The arguments of :func:`~flip_flop.console.percent` and its siblings that print the number."""
        if self.in_percent:
            return {}
        return {"decimals": 2, "scale": 1}

    def value(self, data: Scores) -> float | None:
        """Return the number, or None without a value."""
        if (self.needs_probabilities and data.is_generated) or (self.needs_labels and data.answered):
            return None
        return self._tried(self._number, self.judged(data))

    def interval(self, data: Scores, *, seed: int = 0) -> Interval | None:
        """Return the 95% bootstrap interval over instances."""
        return self._interval(partial(bootstrap_interval, self.statistic, seed=seed), data)

    def change_interval(self, before: Scores, *after: Scores, confidence: float = 0.95) -> Interval | None:
        """Return the paired interval of the change from ``before`` to the mean of the runs ``after``."""

        def change(*runs: Scores) -> Interval:
            return paired_bootstrap_interval(self.statistic, *([run] for run in runs), confidence=confidence)

        return self._interval(change, before, *after)

    @property
    def _is_built_in(self) -> bool:
        return METRICS.built_in.get(self.name) is self

    def _number(self, data: Scores) -> float | None:
        number = self.statistic(data) if len(data) else None
        array = np.array(np.nan if number is None else number)
        may_be_nan = number is None or self._is_built_in or isinstance(self.statistic, SumStatistic)
        if array.ndim or array.dtype.kind not in "biuf" or np.isinf(array) or (np.isnan(array) and not may_be_nan):
            raise TypeError(f"{number!r} is not a number")
        return None if np.isnan(array) else float(array)

    def _tried(self, compute: Callable[..., Value], *data: Any) -> Value | None:
        """Compute a result, or warn if a custom metric fails: the results of an audit must not be lost."""
        try:
            return compute(*data)
        except Exception as error:  # a custom statistic can raise anything
            if self._is_built_in:
                raise
            warn_once(f"W-PLUGIN: metric {self.name!r} has no value or no interval: {reason_of(error)}")
            return None

    def _interval(self, compute: Callable[..., Interval], *runs: Scores) -> Interval | None:
        """Return None without known extremes if the instances are few or equal: they say nothing of others."""
        if not self.has_interval or any(self.value(data) is None for data in runs):
            return None
        judged = [self.judged(data) for data in runs]
        has_extremes = getattr(self.statistic, "extremes", None) is not None
        ends = self._tried(compute, *judged)
        if ends is None or not np.isfinite(ends).all():
            return None
        if has_extremes or (len(judged[0]) >= MIN_UNBOUNDED and ends[0] < ends[1]):
            return ends
        return None

    def judged(self, data: Scores) -> Scores:
        """Return the instances that count."""
        return data.labelled if self.needs_gold else data


NO_PROBABILITIES = "Answers were generated: they have no probabilities."
NO_LABELS = "Answers are open: instances share no labels."


def _over_templates(spread: Callable[[np.ndarray], np.floating]) -> Statistic:
    r"""Return a statistic of the F1 of two or more templates: their standard deviation, or their range.

    .. math:: \sigma_{F_1} = \sqrt{\frac{1}{V} \sum_v \left( F_{1,v} - \bar F_1 \right)^2}, \qquad
        \max_v F_{1,v} - \min_v F_{1,v}
    """

    def statistic(data: Scores) -> float | None:
        if data.f1 is None or len(data.f1) < 2:
            return None
        return float(spread(data.f1))

    return statistic


def _posix(data: Scores) -> PerInstance | None:
    """Return the sensitivity of each instance, or None if one has no value."""
    sensitivity = instance_posix(data.values)
    if sensitivity is None or np.isnan(sensitivity).any():
        return None
    return sensitivity


def _unread(data: Scores) -> CellFlags | None:
    """Return the answers that cannot be read, or None if the model chose among the labels."""
    unread = data.predictions < 0
    if data.is_generated or unread.any():
        return unread
    return None


def _unread_share(data: Scores) -> PerInstance | None:
    """Return the share of unreadable answers to each instance."""
    unread = _unread(data)
    return None if unread is None else unread.mean(axis=1)


def _num_distinct(data: Scores) -> InstanceLabels | None:
    """Count the different readable answers to each instance, if answers are open."""
    if not data.answered:
        return None
    return (vote_counts(data.predictions, data.num_labels) > 0).sum(axis=1)


_voted = attrgetter("voted")
_STATISTICS: dict[str, Statistic] = {
    "observed_agreement": AGREEMENT,
    "mean_f1": MEAN_F1,
    "f1_std": _over_templates(np.std),
    "macro_f1": MEAN_F1.of(lambda data: data.by_f1("macro")),
    "accuracy": ACCURACY,
    "vote_f1": MEAN_F1.of(_voted),
    "vote_accuracy": ACCURACY.of(_voted),
    "fleiss_kappa": FLEISS_KAPPA,
    "cohen_kappa": COHEN_KAPPA,
    "f1_spread": _over_templates(np.ptp),
}
_STATISTICS |= {
    "no_consensus_share": mean_statistic(lambda data: lacks_consensus(data.predictions), bounds=(0.0, 1.0)),
    "posix": mean_statistic(_posix),
    "ensemble_f1": MEAN_F1.of(attrgetter("ensembled")),
    "vote_kappa": COHEN_KAPPA.of(_voted),
    "token_f1": ANSWERED["token_f1"],
    "unmapped_share": mean_statistic(_unread_share, bounds=(0.0, 1.0)),
    "distinct_answers": mean_statistic(_num_distinct),
    "answer_length": ANSWERED["length"],
}
_STATISTICS |= {f"{axis}_flips": FLIP_RATE.of(partial(Scores.flips_along, axis=axis)) for axis in AXES}
_STATISTICS |= {
    "brier": mean_loss(brier_scores, answer_probs, 2.0),
    "ensemble_brier": mean_loss(brier_scores, ensemble_probs, 2.0),
    "nll": mean_loss(log_losses, answer_probs, np.inf),
    "ensemble_nll": mean_loss(log_losses, ensemble_probs, np.inf),
    "temperature": temperature,
    "decidable_share": decidable_share,
    "ece": lambda data: float(calibration_error_per_template(data).mean()),
}


def _built_in() -> dict[str, Metric]:
    """Return the metrics of ``table.yaml`` with their statistics."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: Metric(name, statistic=_STATISTICS[name], **values) for name, values in table.items()}


METRICS = PluginTable("flip_flop.metrics", _built_in())


def answers_by_position(data: Scores, calibrated: Scores | None = None) -> bool:
    """Return whether the answers depend on the position of the options rather than on their content.

    The order changes clearly more answers than if each were drawn at random, :math:`1 - 1/L`, also if it changes none
    of those that could not be read, and calibration does not reduce that to clearly fewer. False for templates without
    several orders.
    """
    at_random = 1 - 1 / data.num_labels
    flips = METRICS["order_flips"]
    interval = flips.interval(data)
    after = flips.interval(calibrated) if calibrated else None
    _, num_read, num_pairs = data.flips_along("order").sum(axis=0)
    is_stable_after = after is not None and after[1] < at_random
    return interval is not None and bool(interval[0] * num_read > num_pairs * at_random) and not is_stable_after


def add_metric(reference: str) -> None:
    """Add the metric at ``module:name`` to :data:`METRICS`, as ``--metric`` does.

    Raises:
        InputError: ``E-CONFIG`` if it does not exist, or has the name of another metric.
    """
    metric = import_object("metric", reference, Metric)
    if METRICS.setdefault(metric.name, metric) is not metric:
        raise InputError("E-CONFIG", f"metric: {metric.name!r} is the name of another metric.", "Rename it.")


def summarise(
    scores: LabelScores,
    gold: InstanceLabels,
    template_names: Sequence[str],
    *,
    answered: Mapping[str, np.ndarray] | None = None,
    intervals: bool = True,
    seed: int = 0,
    **design: Any,
) -> dict[str, Any]:
    """Compute all metrics of one model on one task, as JSON values.

    Args:
        scores: Mean log-probabilities of answers' tokens, in nats.
        gold: Label indices, -1 without a gold label.
        template_names: A name per template.
        answered: Open answers, as in :class:`~flip_flop.metrics.Scores`.
        intervals: Add 95% bootstrap intervals over instances.
        seed: The seed of the bootstrap.
        design: The values of :class:`~flip_flop.metrics.Design`.

    Returns:
        Each of :data:`METRICS` by name, as a fraction or None; values per template and per label; for generated
        answers the share that matches no label; ``intervals`` with ``[low, high]`` or None per metric; and
        ``flip_pairs``, the number of pairs of each flip rate.

    Raises:
        ValueError: The set of instances is empty, the names do not fit, a gold label is not a label index, or a score
            is NaN or +inf.

    Example:
        >>> scores = np.log([[[0.9, 0.1], [0.6, 0.4]], [[0.2, 0.8], [0.7, 0.3]]])
        >>> summary = summarise(scores, np.array([0, 1]), ["plain", "formal"])
        >>> summary["observed_agreement"], summary["f1_per_template"]
        (0.5, {'plain': 1.0, 'formal': 0.0})
    """
    names = list(template_names)
    num_instances, num_templates, num_labels = scores.shape
    if not len(names) == len(set(names)) == num_templates:
        raise ValueError(f"Each of {num_templates} templates needs a unique name. The names are {names}.")
    if num_instances == 0:
        raise ValueError("The set of instances is empty.")
    data = Scores(read_only(scores.view()), read_only(gold.view()), design=Design(**design), answered=answered or {})
    predictions = data.predictions

    def by_template(values: np.ndarray | None) -> dict[str, Any] | None:
        if values is None:
            return None
        return dict(zip(names, values.tolist(), strict=True))

    kappas = [METRICS["cohen_kappa"].value(data.single(template)) for template in range(num_templates)]
    interval_of = {}
    for metric in METRICS.values():
        if intervals and metric.has_interval:
            interval = metric.interval(data, seed=seed)
            interval_of[metric.name] = interval and list(interval)
    summary: dict[str, Any] = {name: metric.value(data) for name, metric in METRICS.items()}
    gold_answers = None
    gold_f1 = None
    if not data.answered:
        gold_answers = gold
        gold_f1 = data.f1
    is_constant = constant_templates(data.answers, gold_answers)
    summary |= {
        "f1_per_template": by_template(gold_f1),
        "accuracy_per_template": by_template(accuracy_per_template(data)),
        "cohen_kappa_per_template": None if kappas == [None] * num_templates else by_template(np.array(kappas)),
        "label_shares": label_shares(predictions, num_labels).tolist(),
        "label_shares_per_template": by_template(label_shares_per_template(predictions, num_labels)),
    }
    summary |= {
        "collapsed": is_collapsed(data.answers, data.num_answers, gold_answers),
        "constant_templates": np.array(names)[is_constant].tolist(),
        "num_instances": num_instances,
        "num_templates": num_templates,
        "num_labels": num_labels,
        "intervals": interval_of,
        "flip_pairs": _num_pairs(data),
    }
    unread = _unread(data)
    if unread is not None:
        summary["unmapped_share_per_template"] = by_template(unread.mean(axis=0))
    for name, values in data.labelled.answered.items():
        if name in ANSWERED:
            summary[f"{name}_per_template"] = by_template(values.mean(axis=0) if len(values) else None)
    if data.is_generated:
        summary["absent"] = _absent(data)
    return summary


def _num_pairs(data: Scores) -> dict[str, int]:
    """Return the number of pairs that were read, of each flip rate that has pairs."""
    result = {}
    for axis in AXES:
        _, num_read, num_pairs = data.flips_along(axis).sum(axis=0)
        if num_pairs:
            result[f"{axis}_flips"] = int(num_read)
    return result


def _absent(data: Scores) -> dict[str, str]:
    """Return the metrics without a value for generated answers, and why."""
    reasons = {metric.name: NO_PROBABILITIES for metric in METRICS.values() if metric.needs_probabilities}
    return reasons | {metric.name: NO_LABELS for metric in METRICS.values() if metric.needs_labels and data.answered}
