"""Intervals by the bootstrap over instances.

What is resampled is the instance with all its templates: its templates are no independent draws, and an
interval over the cells of instances x templates would be too narrow. The templates are taken as given.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt16

from flip_flop.files import generator

BLOCK = 2**20  # indices drawn at a time
# More instances than this are put into so many groups, at random, and whole groups are drawn: what a resample costs
# does not grow with them. The variance between so many groups is known to 1%; that of 2000 resamples, to 3%.
GROUPS = 2**14


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
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. Of more than 16,384 instances, a
    :class:`~flip_flop.metrics.SumStatistic` is resampled by groups of them.

    ``statistic`` goes from ``data`` to a number, or to None or NaN where it has no value: a
    :class:`~flip_flop.metrics.SumStatistic` takes one matrix product for all resamples, any other is called once for
    each. ``data`` are arrays with instances on the first axis, or an :class:`~flip_flop.metrics.Scores`; all are
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


def _resampled(statistic: Statistic, data: Sequence[Any], resamples: int, seed: int) -> Float[np.ndarray, " resamples"]:
    num_instances = _num_instances(data)
    if not isinstance(statistic, SumStatistic):
        draws = _resampled_instances(num_instances, resamples, seed)
        values = [statistic(*(each[row] for each in data)) for block in draws for row in block]
        return np.array([np.nan if value is None else float(value) for value in values])
    kept = getattr(data[0], "resampled", {}) if len(data) == 1 else {}
    key = (statistic, resamples, seed)
    if key not in kept:
        contributions = statistic.contributions(*data)
        features, shape = _grouped(contributions.reshape(num_instances, -1)), contributions.shape[1:]
        blocks = _counts(len(features), resamples, seed)
        sums = np.concatenate([block.astype(np.float64) @ features for block in blocks])
        kept[key] = statistic.value(sums.reshape(resamples, *shape))
    return kept[key]


def _grouped(contributions: Float[np.ndarray, "instances features"]) -> Float[np.ndarray, "groups features"]:
    """The sums over each group; a group is an instance where there are no more than :data:`GROUPS`."""
    num_instances = len(contributions)
    if num_instances <= GROUPS:
        return contributions.astype(np.float64)
    group = generator(0, "bootstrap groups", num_instances).permutation(num_instances) % GROUPS
    return np.stack([np.bincount(group, weights=feature) for feature in contributions.T], axis=1)


def _resampled_instances(
    num_instances: int, resamples: int, seed: int
) -> Iterator[Int[np.ndarray, "resamples instances"]]:
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; a bootstrap takes at least 1, and 1000 to be of use.")
    random = generator(seed, "bootstrap", num_instances)
    size = max(1, BLOCK // num_instances)
    for start in range(0, resamples, size):
        yield random.integers(num_instances, size=(min(size, resamples - start), num_instances))


@functools.lru_cache(maxsize=1)
def _counts(num_instances: int, resamples: int, seed: int) -> tuple[UInt16[np.ndarray, "resamples instances"], ...]:
    """How often each resample holds each instance, in blocks; kept for the next question: 66 MB at most."""
    draws = _resampled_instances(num_instances, resamples, seed)
    return tuple(row_counts(block, num_instances).astype(np.uint16) for block in draws)


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
