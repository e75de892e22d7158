"""Differences between runs, with paired bootstrap intervals over instances."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flip_flop.metrics import METRICS
from flip_flop.report.runs import Run
from flip_flop.text import point_interval, points


@dataclass(frozen=True)
class Difference:
    """How far a metric has moved, as a fraction, and the 95% interval of that where there is one."""

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


def mean_difference(metric: str, before: Run, after: Sequence[Run]) -> Difference | None:
    """How a metric's mean over several runs differs from that of one; ``None`` where a run has no value.

    The interval is over instances: every resample draws the same ones in all runs. It says nothing about how far
    another training seed would have gone.
    """
    start = before.value(metric)
    values = [value for run in after if (value := run.value(metric)) is not None]
    if start is None or len(values) < len(after):
        return None
    interval = METRICS[metric].change_interval(before.data, *(run.data for run in after))
    return Difference(fmean(values) - start, interval)


def difference_from_vote(before: Run, after: Run) -> Difference:
    """How the mean F1 of single templates after differs from the F1 of the free vote before."""
    interval = METRICS["mean_f1"].change_interval(before.data.voted, after.data)
    return Difference(after.metrics["mean_f1"] - before.metrics["vote_f1"], interval)
