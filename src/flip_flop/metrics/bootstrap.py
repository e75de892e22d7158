"""Intervals by the bootstrap over instances.

What is resampled is the instance with all its templates: its templates are no independent draws, and an
interval over the cells of instances x templates would be too narrow. The templates are taken as given.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt16

from flip_flop.randomness import generator

BLOCK = 2**20  # indices drawn at a time: bounds the memory, whatever the number of instances
PATTERNS = 2**12  # kinds of instances up to which those of one kind are counted together
KEPT = 2**25  # counts kept for the next question over the same instances: 64 MB, 16,000 instances


@dataclass(frozen=True)
class SumStatistic:
    r"""A statistic of the form :math:`f(\sum_i g(x_i))`, where g looks at one instance at a time.

    A resample of the instances changes only how often each :math:`g(x_i)` is counted, so
    :func:`~flip_flop.metrics.bootstrap_interval` needs no loop over resamples. Calling the statistic gives
    its value on the instances as they are.

    ``contributions`` is g, from the data to an array of any shape for each instance. ``value`` is f, from one sum or
    more, stacked on the first axis, to one value each, NaN for none. ``plain`` is the value on the instances as they
    are, where sums in another order would not agree with its definition to the last bit.

    Example:
        >>> mean = SumStatistic(
        ...     contributions=lambda x: np.stack([x, np.ones_like(x)], axis=1),
        ...     value=lambda sums: sums[:, 0] / sums[:, 1],
        ... )
        >>> mean(np.array([1.0, 2.0, 6.0]))
        3.0
    """

    contributions: Callable[..., Float[np.ndarray, "instances ..."]]
    value: Callable[[Float[np.ndarray, "samples ..."]], Float[np.ndarray, " samples"]]
    plain: Callable[..., float | None] | None = None

    def __call__(self, *data: Any) -> float | None:
        """The statistic of the instances in ``data``, each counted once."""
        if self.plain is not None:
            return self.plain(*data)
        return float(self.value(self.contributions(*data).sum(axis=0)[None])[0])

    def of(self, view: Callable[[Any], Any]) -> "SumStatistic":
        """The statistic of ``view(data)``, such as that of the votes in place of the templates."""
        plain = self.plain
        return SumStatistic(
            lambda data: self.contributions(view(data)),
            self.value,
            None if plain is None else lambda data: plain(view(data)),
        )


def row_counts(values: Int[np.ndarray, "rows cells"], num_values: int) -> Int[np.ndarray, "rows values"]:
    """How often each row holds each of 0 to ``num_values - 1``."""
    cells = values + num_values * np.arange(len(values))[:, None]
    return np.bincount(cells.ravel(), minlength=len(values) * num_values).reshape(len(values), num_values)


def ratio(
    numerators: Float[np.ndarray, "*shape"], denominators: Float[np.ndarray, "*shape"], *, otherwise: float
) -> Float[np.ndarray, "*shape"]:
    """The quotient, and ``otherwise`` where the denominator is 0; no warning."""
    out = np.full(numerators.shape, otherwise)
    return np.divide(numerators, denominators, out=out, where=denominators != 0)


def mean_statistic(
    per_instance: Callable[..., Float[np.ndarray, " instances"] | None],
    plain: Callable[..., float | None] | None = None,
) -> SumStatistic:
    """The mean over instances of one number for each; NaN where ``per_instance`` gives None.

    Example:
        >>> mean_statistic(lambda x: x**2)(np.array([1.0, 3.0]))
        5.0
    """

    def contributions(*data: Any) -> Float[np.ndarray, "instances 2"]:
        values, ones = per_instance(*data), np.ones(len(data[0]))
        return np.stack([ones * np.nan if values is None else values, ones], axis=1)

    return SumStatistic(contributions, lambda sums: ratio(sums[:, 0], sums[:, 1], otherwise=np.nan), plain)


Statistic = SumStatistic | Callable[..., float | None]


def bootstrap_interval(
    statistic: Statistic, *data: Any, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic, over instances: the lower and the upper end.

    Each resample draws as many instances as there are, with replacement; the interval is what the middle
    ``confidence`` of the statistic's values spans. Resamples on which it has no value are left out. Efron and
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

    ``statistic`` goes from ``data`` to a number, or to None or NaN where it has no value: a
    :class:`~flip_flop.metrics.SumStatistic` takes one matrix product for all resamples, any other is called once for
    each. ``data`` are arrays with instances on the first axis, or an :class:`~flip_flop.metrics.EvalData`; all are
    resampled alike. Nothing but ``seed`` and the number of instances fixes the resamples.

    Raises:
        ValueError: No instances, arrays that differ in how many, a setting out of range, or no resample with a value.

    Example:
        >>> predictions = np.array([[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 0, 1], [0, 0, 0]])
        >>> low, high = bootstrap_interval(mean_statistic(instance_agreement), predictions)
        >>> low < observed_agreement(predictions) < high
        True
    """
    return _percentiles(_resampled(statistic, data, resamples, seed), confidence)


def paired_bootstrap_interval(
    statistic: Statistic,
    before: Sequence[Any],
    *after: Sequence[Any],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic's change, after less before, over the same instances.

    Every resample draws the same instances on both sides, so what makes an instance hard cancels out: the
    interval is narrower than those of the two values suggest.

    The arguments and errors are those of :func:`bootstrap_interval`, with the statistic's data ``before`` and
    ``after``: the same instances in the same order; the templates may differ. Of several runs after, one sequence
    each, it is the change of their mean.

    Example:
        >>> before, after = np.array([[0, 1], [0, 0], [1, 0]]), np.array([[1, 1], [0, 0], [0, 0]])
        >>> paired_bootstrap_interval(mean_statistic(instance_agreement), [before], [after])
        (0.0, 1.0)
    """
    _num_instances([each for run in (before, *after) for each in run])
    reached = np.mean([_resampled(statistic, run, resamples, seed) for run in after], axis=0)
    return _percentiles(reached - _resampled(statistic, before, resamples, seed), confidence)


def keep_resampled(questions: Iterable[tuple[SumStatistic, Any]], *, resamples: int = 2000, seed: int = 0) -> None:
    """Compute statistics' values on all resamples, and keep them in each data's dict ``resampled``.

    Data of equally many instances share the draws, which take most of the time where there are many. Intervals of
    these statistics are then there at once, and the same as without.
    """
    left = list(dict.fromkeys(questions))
    for num_instances in {len(data) for _, data in left}:
        asked = [(statistic, data) for statistic, data in left if len(data) == num_instances]
        given = [(statistic, _compact(statistic.contributions(data))) for statistic, data in asked]
        found = _on_resamples(given, num_instances, resamples, seed)
        for (statistic, data), values in zip(asked, found, strict=True):
            data.resampled[statistic, resamples, seed] = values


def _resampled(statistic: Statistic, data: Sequence[Any], resamples: int, seed: int) -> Float[np.ndarray, " resamples"]:
    num_instances = _num_instances(data)
    if isinstance(statistic, SumStatistic):
        kept = getattr(data[0], "resampled", {}).get((statistic, resamples, seed))
        if kept is None:
            (kept,) = _on_resamples(
                [(statistic, _compact(statistic.contributions(*data)))], num_instances, resamples, seed
            )
        return kept
    draws = _resampled_instances(num_instances, resamples, seed)
    values = [statistic(*(each[row] for each in data)) for block in draws for row in block]
    return np.array([np.nan if value is None else float(value) for value in values])


def _on_resamples(
    given: Sequence[tuple[SumStatistic, np.ndarray]], num_instances: int, resamples: int, seed: int
) -> list[Float[np.ndarray, " resamples"]]:
    """Each statistic's values on the resamples, from its contributions."""
    count = _kept_counts if num_instances * resamples <= KEPT else _draw_counts
    found: list[list[np.ndarray]] = [[] for _ in given]
    bundles = _bundle([contributions for _, contributions in given])
    for block in count(num_instances, resamples, seed):
        for members, order, starts, features in bundles:
            counts = block if order is None else np.add.reduceat(block[:, order], starts, axis=1, dtype=np.int64)
            sums, at = counts.astype(np.float64) @ features, 0
            for member in members:
                statistic, contributions = given[member]
                shape = contributions.shape[1:]
                size = int(np.prod(shape))
                found[member].append(statistic.value(sums[:, at : at + size].reshape(-1, *shape)))
                at += size
    return [np.concatenate(values) for values in found]


Bundle = tuple[list[int], np.ndarray | None, np.ndarray, np.ndarray]


def _bundle(given: Sequence[np.ndarray]) -> list[Bundle]:
    """Put contributions together whose instances are of few kinds, or of many: then an instance is its own kind.

    Returns:
        For each bundle its members; the instances kind by kind, and where each kind begins, or None where an instance
        is a kind; and a row of contributions for each kind.
    """
    few: list[tuple[list[int], np.ndarray]] = []
    many = []
    for index, contributions in enumerate(given):
        kinds = _kinds(contributions)
        if kinds is None:
            many.append(index)
            continue
        members, last = few[-1] if few else ([], np.zeros_like(kinds))
        joint = np.unique(last * (kinds.max() + 1) + kinds, return_inverse=True)[1]
        if members and joint.max() >= PATTERNS:
            few.append(([index], kinds))
        else:
            few[-1:] = [([*members, index], joint)]
    bundles: list[Bundle] = []
    for members, kinds in few:
        order = np.argsort(kinds, kind="stable")
        starts = np.searchsorted(kinds[order], np.arange(kinds.max() + 1))
        bundles.append((members, order, starts, _features([given[member][order[starts]] for member in members])))
    if many:
        bundles.append((many, None, np.empty(0), _features([given[member] for member in many])))
    return bundles


def _features(given: Sequence[np.ndarray]) -> Float[np.ndarray, "kinds features"]:
    return np.concatenate([each.reshape(len(each), -1) for each in given], axis=1).astype(np.float64)


def _kinds(contributions: np.ndarray) -> Int[np.ndarray, " instances"] | None:
    """A number for each instance, equal where its contributions are; None where there are more than a few."""
    rows = contributions.reshape(len(contributions), -1)
    keys = rows @ generator(0, "bootstrap kinds", rows.shape[1]).normal(size=rows.shape[1])
    _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
    is_few = len(first) < PATTERNS and np.array_equal(rows[first][kinds], rows)
    return kinds if is_few else None


def _compact(contributions: Float[np.ndarray, "instances ..."]) -> np.ndarray:
    """The same in a byte each where they are small whole numbers."""
    small = contributions.astype(np.uint8) if (contributions >= 0).all() and contributions.max() < 256 else None
    return small if small is not None and np.array_equal(small, contributions) else contributions


def _resampled_instances(
    num_instances: int, resamples: int, seed: int
) -> Iterator[Int[np.ndarray, "resamples instances"]]:
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; a bootstrap takes at least 1, and 1000 to be of use.")
    random = generator(seed, "bootstrap", num_instances)
    size = max(1, BLOCK // num_instances)
    for start in range(0, resamples, size):
        yield random.integers(num_instances, size=(min(size, resamples - start), num_instances))


def _draw_counts(num_instances: int, resamples: int, seed: int) -> Iterator[UInt16[np.ndarray, "resamples instances"]]:
    """How often each resample holds each instance, in blocks."""
    for block in _resampled_instances(num_instances, resamples, seed):
        yield row_counts(block, num_instances).astype(np.uint16)


@functools.lru_cache(maxsize=2)
def _kept_counts(num_instances: int, resamples: int, seed: int) -> tuple[np.ndarray, ...]:
    return tuple(_draw_counts(num_instances, resamples, seed))


def _percentiles(values: Float[np.ndarray, " resamples"], confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must be between 0 and 1, such as 0.95.")
    values = values[~np.isnan(values)]
    if len(values) == 0:
        raise ValueError("The statistic has no value on any resample, so it has no interval.")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _num_instances(data: Sequence[Any]) -> int:
    numbers = {len(each) for each in data}
    if len(numbers) != 1:
        raise ValueError(f"The arrays must have the same instances; they have {sorted(numbers)} of them.")
    (number,) = numbers
    if number == 0:
        raise ValueError("There are no instances to resample.")
    return number
