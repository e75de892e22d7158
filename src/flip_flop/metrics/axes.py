"""The table of axes: how often each axis of a prompt changes the answer, and what calibration and averages change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from flip_flop.metrics.agreement import FLIP_RATE, label_probs, vote_weights
from flip_flop.metrics.bootstrap import bootstrap_interval
from flip_flop.metrics.calibration import batch_offsets
from flip_flop.metrics.data import AXES, TAGS, Scores
from flip_flop.metrics.f1 import accuracy_per_template

AxisKey = tuple[str, str | None, str]


@dataclass(frozen=True)
class AxisRow:
    """The flips along an axis, of all variants or of one wording, in one form. Shares are from 0 to 1.

    Attributes:
        variants: The number of variants.
        pairs: The number of pairs of answers that were both read.
        flips: The share of these pairs whose answers differ. NaN without a pair.
        low, high: Its 95 % interval.
        accuracy: The mean over the variants. NaN without gold labels.
        worst, best: The accuracy of the worst and of the best variant.
    """

    variants: int
    pairs: int
    flips: float = np.nan
    low: float = np.nan
    high: float = np.nan
    accuracy: float = np.nan
    worst: float = np.nan
    best: float = np.nan


def averaged(data: Scores) -> Scores | None:
    r"""Average the probabilities of the labels over the orders of the options.

    .. math:: \bar q_{i,g,c} = \frac{1}{|g|} \sum_{v \in g} q_{i,v,c}

    for each group g of templates that differ in nothing but the order. The scores are :math:`\log \bar q`, and the
    groups are their templates. None without two orders, or without probabilities.

    Example:
        >>> from flip_flop.metrics import Design
        >>> values = np.log([[[0.9, 0.1], [0.3, 0.7]]])
        >>> levels = [{"wording": "ask", "order": order} for order in ("1 2", "2 1")]
        >>> np.exp(averaged(Scores(values, np.array([0]), design=Design(levels=levels))).values).round(2).tolist()
        [[[0.6, 0.4]]]
    """
    groups = [[*chain(*group.values())] for group in data.design.groups("order")]
    if not groups or data.is_generated:
        return None
    probs = label_probs(data.values)
    means = np.stack([vote_weights(probs[:, members]) / len(members) for members in groups], axis=1)
    levels = [{**data.design.levels[first], "order": "all"} for first, *_ in groups]
    with np.errstate(divide="ignore"):
        return Scores(np.log(means), data.gold, ids=data.ids, design=replace(data.design, levels=levels))


def forms_of(data: Scores, calibrated: Scores | None = None) -> dict[str, Scores]:
    """Return the answers raw, calibrated, averaged over the orders, and both.

    A calibrated average is divided by its mean over the instances, as in batch calibration.
    """
    forms = {"raw": data}
    if calibrated is not None:
        forms["calibrated"] = calibrated
    mean = averaged(data)
    if mean is not None:
        forms["average"] = mean
    if mean is not None and calibrated is not None and np.isfinite(mean.values).all():
        forms["calibrated average"] = replace(mean, values=mean.values + batch_offsets(mean.values))
    return forms


def along(data: Scores, axis: str, wording: str | None = None) -> Scores:
    """Return the variants of an axis, or of one wording; averages over the orders are all variants of the order."""
    levels = data.design.levels
    compared = [place for group in data.design.groups(axis) for same in group.values() for place in same]
    if axis == "order" and not compared:
        compared = [*range(len(levels))]
    return data.select([place for place in compared if wording in (None, levels[place].get("wording"))])


def axis_rows(forms: Mapping[str, Scores], *, seed: int = 0) -> dict[AxisKey, AxisRow]:
    """Compute the table of axes: a row per axis with pairs of templates, or per wording with several orders, and form.

    Args:
        forms: Those of :func:`forms_of`.
        seed: The seed of the bootstrap.

    Returns:
        The rows by axis, wording and form, the axis with most flips first.
    """
    raw = forms["raw"]
    rates = {axis: FLIP_RATE(raw.flips_along(axis)) for axis in (*AXES, *TAGS) if raw.design.groups(axis)}
    rows = {}
    for axis in sorted(rates, key=lambda axis: -np.nan_to_num(rates[axis] or 0.0)):
        names = {own.get("wording"): None for own in along(raw, axis).design.levels if axis == "order"}
        for wording in [None, *names] if len(names) > 1 else [None]:
            for form, data in forms.items():
                variants = along(data, axis, wording)
                if variants.values.size:
                    rows[axis, wording, form] = _row(variants, axis, seed)
    return rows


def _row(data: Scores, axis: str, seed: int) -> AxisRow:
    counts = data.flips_along(axis)
    num_flips, pairs, _ = counts.sum(axis=0).tolist()
    rate = (num_flips / pairs, *bootstrap_interval(FLIP_RATE, counts, seed=seed)) if pairs else ()
    row = AxisRow(data.values.shape[1], pairs, *rate)
    found = accuracy_per_template(data)
    if found is None:
        return row
    return replace(row, accuracy=found.mean(), worst=found.min(), best=found.max())
