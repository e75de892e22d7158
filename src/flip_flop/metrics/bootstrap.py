"""Intervals by the bootstrap over instances.

An instance is resampled with all its templates, which are fixed. Its templates are not independent, so that an interval
over the cells of instances x templates would be too narrow.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt16

from flip_flop.files import generator

BLOCK = 2**20  # indices drawn at a time
# More instances are divided into this number of random groups, and groups are resampled, which limits the cost of a
# resample. The variance between the groups has an error of 1%, the variance of 2000 resamples an error of 3%.
GROUPS = 2**14


@dataclass(frozen=True)
class SumStatistic:
    r"""A statistic of the form :math:`f(\sum_i g(x_i))`, where g looks at one instance at a time.

    A resample of the instances changes only the count of each :math:`g(x_i)`, so that
    :func:`~flip_flop.metrics.bootstrap_interval` needs no loop over resamples. A call returns the value without
    resampling.

    ``contributions`` is g, from the data to an array of any shape for each instance. ``value`` is f, from sums stacked
    on the first axis to one value each, NaN without a value. ``plain`` computes the value without resampling, if sums
    in another order would change its last bit.

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
        """Compute the statistic of the instances in ``data``, without resampling."""
        if self.plain is not None:
            return self.plain(*data)
        return float(self.value(self.contributions(*data).sum(axis=0)[None])[0])

    def of(self, view: Callable[[Any], Any]) -> "SumStatistic":
        """Return the statistic of ``view(data)``, for example of the votes instead of the templates."""
        plain = self.plain
        return SumStatistic(
            lambda data: self.contributions(view(data)),
            self.value,
            None if plain is None else lambda data: plain(view(data)),
        )


def row_counts(values: Int[np.ndarray, "rows cells"], num_values: int) -> Int[np.ndarray, "rows values"]:
    """Count the values 0 to ``num_values - 1`` in each row."""
    cells = values + num_values * np.arange(len(values))[:, None]
    return np.bincount(cells.ravel(), minlength=len(values) * num_values).reshape(len(values), num_values)


def ratio(
    numerators: Float[np.ndarray, "*shape"], denominators: Float[np.ndarray, "*shape"], *, otherwise: float
) -> Float[np.ndarray, "*shape"]:
    """Return the quotient, or ``otherwise`` for a denominator of 0, without a warning."""
    out = np.full(numerators.shape, otherwise)
    return np.divide(numerators, denominators, out=out, where=denominators != 0)


def mean_statistic(
    per_instance: Callable[..., Float[np.ndarray, " instances"] | None],
    plain: Callable[..., float | None] | None = None,
) -> SumStatistic:
    """Return the mean over instances of a number per instance. It is NaN if ``per_instance`` returns None.

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
    """Compute the percentile bootstrap interval of a statistic over instances: the lower and the upper end.

    Each resample has the same number of instances, sampled with replacement. The interval spans the middle
    ``confidence`` of the values. Resamples without a value are ignored. Efron and Tibshirani, "An Introduction to the
    Bootstrap", 1993, chapter 13.

    Args:
        statistic: A function from ``data`` to a number, None or NaN. A :class:`~flip_flop.metrics.SumStatistic` needs
            one matrix product for all resamples, and resamples groups of more than 16,384 instances. Any other
            function is called once per resample.
        data: Arrays with instances on the first axis, or :class:`~flip_flop.metrics.Scores`. All have the same
            resamples.
        confidence: The share of the values in the interval.
        resamples: The number of resamples.
        seed: The seed. Seed and number of instances determine the resamples.

    Raises:
        ValueError: An empty set of instances, arrays of different lengths, an invalid setting, or resamples without
            values.

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
    """Compute the percentile bootstrap interval of a statistic's change from ``before`` to ``after``.

    Each resample has the same instances on both sides. The difficulty of an instance cancels out, so that the interval
    is narrower than the intervals of the two values suggest.

    Arguments and errors are explained in :func:`bootstrap_interval`. ``before`` and ``after`` have the same instances
    in the same order. Their templates may differ. With several runs ``after``, the change is that of their mean.

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
    """Return the sums over each group. Up to :data:`GROUPS` instances, each instance is a group."""
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
