"""Statistics that depend on the instances only through sums: what makes the bootstrap one matrix product."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class SumStatistic:
    r"""A statistic of the form :math:`f(\sum_i g(x_i))`, where g looks at one instance at a time.

    A resample of the instances changes only how often each :math:`g(x_i)` is counted, so
    :func:`~flip_flop.metrics.bootstrap_interval` needs no loop over resamples. Calling the statistic gives
    its value on the instances as they are.

    Args:
        contributions: g; from the arrays to one row of numbers for each instance.
        value: f; from sums, features on the last axis and any axes before it, to one value each. NaN where
            the statistic has no value.

    Example:
        >>> mean = SumStatistic(
        ...     contributions=lambda x: np.stack([x, np.ones_like(x)], axis=1),
        ...     value=lambda sums: sums[..., 0] / sums[..., 1],
        ... )
        >>> mean(np.array([1.0, 2.0, 6.0]))
        3.0
    """

    contributions: Callable[..., Float[np.ndarray, "instances features"]]
    value: Callable[[Float[np.ndarray, "*samples features"]], Float[np.ndarray, "*samples"]]

    def __call__(self, *arrays: np.ndarray) -> float:
        """The statistic of the instances in ``arrays``, each counted once."""
        sums = self.contributions(*arrays).sum(axis=0)
        return float(self.value(sums[None])[0])


def ratio(
    numerators: Float[np.ndarray, "*shape"], denominators: Float[np.ndarray, "*shape"], *, otherwise: float
) -> Float[np.ndarray, "*shape"]:
    """The quotient, and ``otherwise`` where the denominator is 0; no warning."""
    out = np.full(numerators.shape, otherwise)
    return np.divide(numerators, denominators, out=out, where=denominators != 0)


def mean_statistic(
    per_instance: Callable[..., Float[np.ndarray, " instances"] | None],
) -> SumStatistic:
    """The mean over instances of one number for each; NaN where ``per_instance`` has no answer (None).

    Example:
        >>> mean_statistic(lambda x: x**2)(np.array([1.0, 3.0]))
        5.0
    """

    def contributions(*arrays: np.ndarray) -> Float[np.ndarray, "instances features"]:
        values = per_instance(*arrays)
        ones = np.ones(len(arrays[0]))
        return np.stack([ones * np.nan if values is None else values, ones], axis=1)

    def value(sums: Float[np.ndarray, "*samples features"]) -> Float[np.ndarray, "*samples"]:
        return ratio(sums[..., 0], sums[..., 1], otherwise=np.nan)

    return SumStatistic(contributions, value)


def mean_over_runs(statistic: SumStatistic, num_runs: int) -> SumStatistic:
    """The mean of a statistic over several runs on the same instances; it takes the arrays of one run after the other.

    Example:
        >>> mean = mean_statistic(lambda x: x)
        >>> mean_over_runs(mean, 2)(np.array([1.0, 3.0]), np.array([5.0, 7.0]))
        4.0
    """

    def contributions(*arrays: np.ndarray) -> Float[np.ndarray, "instances features"]:
        size = len(arrays) // num_runs
        runs = [arrays[start : start + size] for start in range(0, len(arrays), size)]
        return np.concatenate([statistic.contributions(*run) for run in runs], axis=1)

    def value(sums: Float[np.ndarray, "*samples features"]) -> Float[np.ndarray, "*samples"]:
        return np.mean([statistic.value(part) for part in np.split(sums, num_runs, axis=-1)], axis=0)

    return SumStatistic(contributions, value)
