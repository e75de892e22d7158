"""Intervals by the bootstrap over instances.

An instance is resampled with all its templates, which are fixed. Its templates are not independent, so that an interval
over the cells of instances x templates would be too narrow. ``python -m benchmarks.coverage`` measures how often the
intervals contain the true value.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int

from flip_flop.arrays import Extremes, PerInstance
from flip_flop.console import Interval
from flip_flop.files import generator

RESAMPLES = 2000  # at least: each end of an interval has a resample beyond it
ROUNDING = 1e-9  # by which a value may be outside of its bounds
BLOCK = 2**20  # weights drawn at a time
# More instances are divided into this number of random groups, and groups are resampled, which limits the cost of a
# resample. The variance between the groups has an error of 2%, the variance of 2,000 resamples an error of 3%.
GROUPS = 2**13


@dataclass(frozen=True)
class SumStatistic:
    r"""A statistic of the form :math:`f(\sum_i g(x_i))`, where g looks at one instance at a time.

    A resample of the instances changes only the weight of each :math:`g(x_i)`, so that
    :func:`~flip_flop.metrics.bootstrap_interval` needs no loop over resamples. A call returns the value without
    resampling.

    ``contributions`` is g, from the data to an array of any shape for each instance. ``value`` is f, from sums stacked
    on the first axis to one value each, NaN without a value. ``plain`` computes the value without resampling, if sums
    in another order would change its last bit. ``extremes`` returns the contributions of the worst and of the best
    possible instances, for example one of each gold label.

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
    extremes: Callable[..., Extremes] | None = None

    def __call__(self, *data: Any) -> float | None:
        """Compute the statistic of the instances in ``data``, without resampling."""
        if self.plain is not None:
            return self.plain(*data)
        return float(self.value(self.contributions(*data).sum(axis=0)[None])[0])

    def of(self, view: Callable[[Any], Any]) -> "SumStatistic":
        """Return the statistic of ``view(data)``, for example of the votes instead of the templates."""

        def viewed(function: Any) -> Any:
            return function and (lambda data: function(view(data)))

        return SumStatistic(viewed(self.contributions), self.value, viewed(self.plain), viewed(self.extremes))


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
    per_instance: Callable[..., PerInstance | None],
    plain: Callable[..., float | None] | None = None,
    bounds: Interval | None = None,
) -> SumStatistic:
    """Return the mean over instances of a number per instance. It is NaN if ``per_instance`` returns None.

    ``bounds`` are the lowest and the highest possible number. With them, intervals of few instances are exact.
    A call raises ``ValueError`` if a number is outside of them, or if some of the numbers are NaN.

    Example:
        >>> mean_statistic(lambda x: x**2)(np.array([1.0, 3.0]))
        5.0
    """

    def contributions(*data: Any) -> Float[np.ndarray, "instances 2"]:
        values = per_instance(*data)
        ones = np.ones(len(data[0]))
        if values is None:
            values = ones * np.nan
        missing = int(np.isnan(values).sum())
        if 0 < missing < len(ones):
            raise ValueError(f"{missing} of {len(ones)} instances have the value NaN")
        if len(ones) and (np.min(values) < low or np.max(values) > high):
            raise ValueError(f"a value is outside of the bounds {bounds}: {np.min(values):g} to {np.max(values):g}")
        return np.stack([values, ones], axis=1)

    low, high = np.add(bounds or (-np.inf, np.inf), (-ROUNDING, ROUNDING))
    if bounds is None:
        ends = None
    else:
        ends = (np.array([[bounds[0], 1.0]]), np.array([[bounds[1], 1.0]]))
    return SumStatistic(
        contributions,
        lambda sums: ratio(sums[:, 0], sums[:, 1], otherwise=np.nan),
        plain,
        None if ends is None else lambda *data: ends,
    )


Statistic = SumStatistic | Callable[..., float | None]


def bootstrap_interval(statistic: Statistic, *data: Any, confidence: float = 0.95, seed: int = 0) -> Interval:
    r"""Compute a bootstrap interval of a statistic over instances: the lower and the upper end.

    A resample weighs the instances at random: :math:`w \sim \mathrm{Dirichlet}(1, \dots, 1)`. No instance is lost, and
    so no label. For the lower end, the worst possible instance is added to the data, and for the upper end the best
    possible one. The ends are quantiles of the resampled values.

    For the mean of a bounded number, these are the bounds of Gaffke ("Three test statistics for a nonparametric
    one-sided hypothesis on the mean of a nonnegative variable", 2005). For a share, they are the exact interval of
    Clopper and Pearson: 60 of 60 gives 94.0 to 100. A statistic without known extremes has the percentiles of the
    resampled values. Rubin, "The Bayesian Bootstrap", 1981.

    Args:
        statistic: A function from ``data`` to a number, None or NaN. A :class:`~flip_flop.metrics.SumStatistic` needs
            one matrix product for all resamples, and resamples groups of more than 8,192 instances. Any other
            function is called once per resample, on instances drawn with replacement.
        data: Arrays with instances on the first axis, or :class:`~flip_flop.metrics.Scores`. All have the same
            resamples.
        confidence: The share of the values in the interval.
        seed: The seed. Seed and number of instances determine the resamples.

    Raises:
        ValueError: An empty set of instances, arrays of different lengths, an invalid setting, or resamples without
            values.

    Example:
        >>> from flip_flop.metrics.agreement import instance_agreement, observed_agreement
        >>> predictions = np.array([[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 0, 1], [0, 0, 0]])
        >>> low, high = bootstrap_interval(mean_statistic(instance_agreement), predictions)
        >>> low < observed_agreement(predictions) < high
        True
    """
    low, high, *_ = _resampled(statistic, data, confidence, seed)
    return _ends(low, high, confidence)


def paired_bootstrap_interval(
    statistic: Statistic,
    before: Sequence[Any],
    *after: Sequence[Any],
    confidence: float = 0.95,
) -> Interval:
    """Compute the bootstrap interval of a statistic's change from ``before`` to ``after``.

    Each resample has the same weights on both sides. The difficulty of an instance cancels out, so that the interval
    is narrower than the intervals of the two values suggest. The added instance has the best possible value on one
    side, drawn at random (for F1 at random for each label), and the worst on the other; each resample counts twice,
    also with the sides exchanged. Equal answers to all instances therefore have an interval around 0, and the change
    from ``after`` to ``before`` has the same interval with the opposite sign.

    Arguments and errors are explained in :func:`bootstrap_interval`. ``before`` and ``after`` have the same instances
    in the same order. Their templates may differ. With several runs ``after``, the change is that of their mean.

    Example:
        >>> from flip_flop.metrics.agreement import instance_agreement
        >>> before, after = np.array([[0, 1], [0, 0], [1, 0]]), np.array([[1, 1], [0, 0], [0, 0]])
        >>> agreement = mean_statistic(instance_agreement, bounds=(0.0, 1.0))
        >>> low, high = paired_bootstrap_interval(agreement, [before], [after])
        >>> low < 1 / 3 < high
        True
    """
    _num_instances([data for run in (before, *after) for data in run])
    *_, mixed, opposite = np.mean([_resampled(statistic, run, confidence) for run in after], axis=0)
    *_, mixed_before, opposite_before = _resampled(statistic, before, confidence)
    changes = np.concatenate([mixed - opposite_before, opposite - mixed_before])
    return _ends(changes, changes, confidence)


def simultaneous_width(statistic: SumStatistic, data: Any, *, confidence: float = 0.95) -> float:
    r"""Compute the half-width of simultaneous intervals of all differences between the columns of a statistic.

    .. math:: Q_{1-\alpha}\left[ \max_{u,v} \left| (T_{b,u} - T_u) - (T_{b,v} - T_v) \right| \right]

    with the quantile Q over resamples b. All intervals together contain the true differences with the confidence
    :math:`1 - \alpha`, also for columns that were chosen by their values. In a resample, each column has either the
    worst or the best possible instance added, so that equal columns have a width above 0. Romano and Wolf, "Stepwise
    Multiple Testing as Formalized Data Snooping", 2005.

    Args:
        statistic: Its ``value`` has a column per number to compare.
        data: The instances, see :func:`bootstrap_interval`.
        confidence: The share of audits in which all intervals contain their differences.
    """
    low, high, *_ = _resampled(statistic, [data], confidence)
    values = np.where(generator(0, "bootstrap columns", len(data)).integers(2, size=low.shape), high, low)
    return float(np.quantile(np.ptp(values - values.mean(axis=0), axis=1), confidence))


def column_intervals(statistic: SumStatistic, data: Any) -> list[Interval]:
    """Compute the 95% interval of :func:`bootstrap_interval` for each column of a statistic's value."""
    low, high, *_ = _resampled(statistic, [data], 0.95)
    return [_ends(*column, 0.95) for column in zip(low.T, high.T, strict=True)]


def _resampled(
    statistic: Statistic, data: Sequence[Any], confidence: float, seed: int = 0
) -> Float[np.ndarray, "4 resamples ..."]:
    """Compute the values of all resamples with the instances that :func:`_with_instance` adds."""
    num_instances = _num_instances(data)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must be between 0 and 1, such as 0.95.")
    # The most extreme resample consists almost only of the added instance: the quantiles must not depend on it.
    resamples = max(RESAMPLES, 2 + int(2 / (1 - confidence)))
    if not isinstance(statistic, SumStatistic):
        random = generator(seed, "bootstrap", num_instances)
        values = []
        for _ in range(resamples):
            rows = random.integers(num_instances, size=num_instances)
            values.append(statistic(*(array[rows] for array in data)))
        return np.array([values] * 4, dtype=np.float64)  # None is NaN
    kept = getattr(data[0], "resampled", {}) if len(data) == 1 else {}
    key = (statistic, resamples, seed)
    if key not in kept:
        contributions = statistic.contributions(*data)
        features = _grouped(contributions.reshape(num_instances, -1))
        shape = contributions.shape[1:]
        blocks = _weights(len(features), resamples, seed)
        sums = np.concatenate([block.astype(np.float64) @ features for block in blocks]).reshape(resamples, *shape)
        extremes = statistic.extremes and statistic.extremes(*data)
        totals: Iterable[np.ndarray] = [sums] * 4
        if extremes is not None:
            totals = _with_instance(sums, extremes, num_instances, seed)
        kept[key] = np.stack([statistic.value(total) for total in totals])
    return kept[key]


def _with_instance(
    sums: Float[np.ndarray, "resamples ..."], extremes: Extremes, num_instances: int, seed: int
) -> Iterator[Float[np.ndarray, "resamples ..."]]:
    """Add an instance, in four ways, with a share that is independent of the other weights.

    It is the worst for all labels, the best for all, the worst or the best at random for each label, or the opposite.
    """
    random = generator(seed, "bootstrap extremes", num_instances)
    num_kinds = len(extremes[0])
    # Quantiles of Beta(1, n) make the interval of a share exact. For F1, half an instance of each label is added.
    quantiles = 1 - np.linspace(1, 0, len(sums)) ** (max(1, num_kinds / 2) / num_instances)
    share = random.permutation(quantiles).reshape(-1, *(1,) * (sums.ndim - 1))
    parts = random.dirichlet([0.5] * num_kinds, size=len(sums))
    # With one side for all labels, the interval of a change would grow with their number.
    is_best = generator(seed, "bootstrap pairs", num_instances).integers(2, size=parts.shape)
    worst, best = extremes
    for side in (np.zeros_like(is_best), np.ones_like(is_best), is_best, 1 - is_best):
        added = np.tensordot(parts * (1 - side), worst, axes=1) + np.tensordot(parts * side, best, axes=1)
        yield (1 - share) * sums + share * num_instances * added


def _grouped(contributions: Float[np.ndarray, "instances features"]) -> Float[np.ndarray, "groups features"]:
    """Return the sums over each group. Up to :data:`GROUPS` instances, each instance is a group."""
    num_instances = len(contributions)
    if num_instances <= GROUPS:
        return contributions.astype(np.float64)
    group = generator(0, "bootstrap groups", num_instances).permutation(num_instances) % GROUPS
    return np.stack([np.bincount(group, weights=feature) for feature in contributions.T], axis=1)


@functools.lru_cache(maxsize=1)
def _weights(num_instances: int, resamples: int, seed: int) -> tuple[Float32[np.ndarray, "resamples instances"], ...]:
    """Dirichlet weights with a mean of 1, in blocks, kept for the next statistic: 66 MB at most of 2,000 resamples."""
    random = generator(seed, "bootstrap weights", num_instances)
    size = max(1, BLOCK // num_instances)
    rows = (min(size, resamples - start) for start in range(0, resamples, size))
    blocks = (random.standard_exponential((number, num_instances), dtype=np.float32) for number in rows)
    return tuple(block / block.mean(axis=1, keepdims=True) for block in blocks)


def _ends(low: Float[np.ndarray, " resamples"], high: Float[np.ndarray, " resamples"], confidence: float) -> Interval:
    if np.isnan(low).all():
        raise ValueError("The statistic has no value on any resample, so it has no interval.")
    tail = (1 - confidence) / 2
    return float(np.nanquantile(low, tail)), float(np.nanquantile(high, 1 - tail))


def _num_instances(data: Sequence[Any]) -> int:
    numbers = {len(array) for array in data}
    if len(numbers) != 1:
        raise ValueError(f"The arrays must have the same instances; they have {sorted(numbers)} of them.")
    (number,) = numbers
    if number == 0:
        raise ValueError("There are no instances to resample.")
    return number
