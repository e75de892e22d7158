"""Differences between two runs, with paired bootstrap intervals over instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from flip_flop.metrics import (
    SumStatistic,
    accuracy_statistic,
    agreement_statistic,
    majority_vote,
    mean_f1_statistic,
    mean_over_runs,
    no_consensus_statistic,
    paired_bootstrap_interval,
)
from flip_flop.report.runs import Run
from flip_flop.report.text import point_interval, points


@dataclass(frozen=True)
class Difference:
    """How far a figure has moved, as a fraction, and the 95% interval of that where there is one."""

    value: float
    interval: tuple[float, float] | None

    @property
    def is_clear(self) -> bool:
        """Whether there is an interval, and it leaves out 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    def words(self) -> str:
        """The difference in points with its interval.

        Example:
            >>> Difference(0.198, (0.176, 0.22)).words()
            '+19.8, 95% CI +17.6 to +22.0'
        """
        if self.interval is None:
            return points(self.value)
        return f"{points(self.value)}, 95% CI {point_interval(self.interval)}"


def difference(figure: str, before: Run, after: Run) -> Difference | None:
    """How a figure of ``metrics.json`` differs between two runs; ``None`` where one of them has none.

    The spread over templates has no interval: resampling adds to it, see :func:`~flip_flop.metrics.f1_std`.
    """
    return mean_difference(figure, before, [after])


def mean_difference(figure: str, before: Run, after: Sequence[Run]) -> Difference | None:
    """How the mean of a figure over several runs differs from that of one; ``None`` where a run has none.

    The interval is over instances: every resample draws the same ones in all runs. It says nothing about how far
    another training seed would have gone.
    """
    values = [run.metrics[figure] for run in after]
    if before.metrics[figure] is None or None in values:
        return None
    interval = None
    if figure in _STATISTICS:
        statistic, arrays = _STATISTICS[figure]
        interval = paired_bootstrap_interval(
            mean_over_runs(statistic(before), len(after)),
            arrays(before) * len(after),
            [array for run in after for array in arrays(run)],
        )
    return Difference(fmean(values) - before.metrics[figure], interval)


def difference_from_vote(before: Run, after: Run) -> Difference:
    """How the mean F1 of single templates after differs from the F1 of the free vote before."""
    interval = paired_bootstrap_interval(_mean_f1(before), _judged_votes(before), _judged(after))
    return Difference(after.metrics["mean_f1"] - before.metrics["vote_f1"], interval)


def _predictions(run: Run) -> list[np.ndarray]:
    return [run.predictions]


def _judged(run: Run) -> list[np.ndarray]:
    labelled = run.gold >= 0
    return [run.predictions[labelled], run.gold[labelled]]


def _judged_votes(run: Run) -> list[np.ndarray]:
    labelled = run.gold >= 0
    return [majority_vote(run.scores)[labelled, None], run.gold[labelled]]


def _mean_f1(run: Run) -> SumStatistic:
    return mean_f1_statistic(len(run.label_names), run.record["task"].get("f1", "auto"))


def _macro_f1(run: Run) -> SumStatistic:
    return mean_f1_statistic(len(run.label_names), "macro")


# Each figure's statistic, and the arrays that it takes: the same as those behind ``metrics.json``.
_STATISTICS: dict[str, tuple[Callable[[Run], SumStatistic], Callable[[Run], list[np.ndarray]]]] = {
    "observed_agreement": (lambda run: agreement_statistic(), _predictions),
    "no_consensus_share": (lambda run: no_consensus_statistic(), _predictions),
    "mean_f1": (_mean_f1, _judged),
    "macro_f1": (_macro_f1, _judged),
    "accuracy": (lambda run: accuracy_statistic(), _judged),
    "vote_f1": (_mean_f1, _judged_votes),
    "vote_accuracy": (lambda run: accuracy_statistic(), _judged_votes),
}
