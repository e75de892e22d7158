"""Statistics that depend on the instances only through sums: what makes the bootstrap one matrix product."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class SumStatistic:
    r"""A statistic of the form :math:`f(\sum_i g(x_i))`, where g looks at one instance at a time.

    A resample of the instances changes only how often each :math:`g(x_i)` is counted, so
    :func:`~flip_flop.metrics.bootstrap_interval` needs no loop over resamples. Calling the statistic gives
    its value on the instances as they are.

    Attributes:
        contributions: g; from the data to an array of any shape for each instance.
        value: f; from one sum or more, stacked on the first axis, to one value each. NaN: it has no value.
        plain: The value on the instances as they are, where it must agree with its definition to the last
            bit and sums in another order would round differently.

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
