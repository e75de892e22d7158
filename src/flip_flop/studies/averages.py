"""Means over tasks, counts of better and worse, and quartiles over templates: what the paper says in one number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from flip_flop.studies.paper import FIGURES
from flip_flop.studies.summary import Entry, Spread


@dataclass(frozen=True)
class Balance:
    """How many changes are for the better and for the worse, the paper's P/N; what has not moved is neither."""

    better: int
    worse: int

    def words(self) -> str:
        """As the paper prints it.

        Example:
            >>> Balance(7, 3).words()
            '7/3'
        """
        return f"{self.better}/{self.worse}"


@dataclass(frozen=True)
class Transfer:
    """Table 2's row: what training on one task does to the others, on average.

    Attributes:
        source: The task trained on; ``None`` for all pairs.
        num_pairs: How many targets were audited.
        improvements: Each figure's mean improvement; of sigma, how much lower it is.
        balances: Each figure's P/N over the targets.
    """

    source: str | None
    num_pairs: int
    improvements: Mapping[str, Spread]
    balances: Mapping[str, Balance]


@dataclass(frozen=True)
class Quartiles:
    """F1 over templates of the base on one task."""

    low: float
    first: float
    median: float
    third: float
    high: float

    @property
    def range(self) -> float:
        """The interquartile range."""
        return self.third - self.first


def mean_change(entries: Sequence[Entry], figure: str) -> float | None:
    """The mean over tasks of a figure's change from the base; ``None`` where no task has one."""
    changes = [change for entry in entries if (change := entry.change(figure)) is not None]
    return fmean(changes) if changes else None


def balance(entries: Sequence[Entry], figure: str) -> Balance | None:
    """How many tasks a figure is better on than the base, and on how many worse."""
    found = [entry.improvement(figure) for entry in entries]
    values = [value for value in found if value is not None]
    return Balance(sum(v > 0 for v in values), sum(v < 0 for v in values)) if values else None


def transfers(entries: Sequence[Entry]) -> list[Transfer]:
    """One row for all pairs, and one for each source, in the order of the entries."""
    compared = [entry for entry in entries if entry.base]
    sources = list(dict.fromkeys(entry.source for entry in compared))
    groups = [compared, *([entry for entry in compared if entry.source == source] for source in sources)]
    return [_transfer(source, group) for source, group in zip([None, *sources], groups, strict=True)]


def _transfer(source: str | None, entries: Sequence[Entry]) -> Transfer:
    improvements, balances = {}, {}
    for figure in FIGURES:
        values = [value for entry in entries if (value := entry.improvement(figure)) is not None]
        count = balance(entries, figure)
        if values and count:
            improvements[figure] = Spread(fmean(values), _std_over_seeds(entries, figure))
            balances[figure] = count
    return Transfer(source, len(entries), improvements, balances)


def _std_over_seeds(entries: Sequence[Entry], figure: str) -> float | None:
    """How far the mean over the pairs moves from seed to seed, where every pair has the same seeds."""
    if len({entry.seeds for entry in entries}) != 1 or len(entries[0].seeds) < 2:
        return None
    columns = zip(*(entry.values[figure] for entry in entries if figure in entry.values), strict=True)
    return stdev(fmean(column) for column in columns)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Smallest, quartiles (linear interpolation), largest.

    Example:
        >>> quartiles([0.1, 0.2, 0.3, 0.4, 0.9]).range
        0.2
    """
    return Quartiles(*(round(float(value), 12) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))
