"""The table of axes: how often each axis of a prompt changes the answer, and what calibration and averages change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from jaxtyping import Float

from flip_flop.arrays import LabelScores
from flip_flop.metrics.agreement import FLIP_RATE, label_probs, vote_weights
from flip_flop.metrics.bootstrap import bootstrap_interval
from flip_flop.metrics.calibration import batch_offsets
from flip_flop.metrics.data import AXES, TAGS, Design, Scores
from flip_flop.metrics.f1 import accuracy_per_template

AxisKey = tuple[str, str | None, str]
AveragedAxis = Literal["order"]


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
        tokens: The mean length of the prompts of one answer, those of all orders for an average.
    """

    variants: int
    pairs: int
    flips: float = np.nan
    low: float = np.nan
    high: float = np.nan
    accuracy: float = np.nan
    worst: float = np.nan
    best: float = np.nan
    tokens: float | None = None


def order_groups(design: Design) -> list[list[int]]:
    """Return the templates in groups that differ in nothing but the order of the options. Others are alone.

    Example:
        >>> levels = [{"wording": "ask", "order": "1 2"}, {"wording": "say"}, {"wording": "ask", "order": "2 1"}]
        >>> order_groups(Design(levels=levels))
        [[0, 2], [1]]
    """
    groups = [sorted(chain(*group.values())) for group in design.groups("order")]
    alone = {*range(len(design.levels))}.difference(*groups)
    return sorted(groups + [[place] for place in alone])


def mean_over(scores: LabelScores, groups: Iterable[Sequence[int]]) -> Float[np.ndarray, "instances groups labels"]:
    r"""Average the probabilities of the labels over groups of templates.

    .. math:: \log \frac{1}{|g|} \sum_{v \in g} \pi_{i,v,c}

    Example:
        >>> np.exp(mean_over(np.log([[[0.9, 0.1], [0.3, 0.7]]]), [[0, 1]])).round(2).tolist()
        [[[0.6, 0.4]]]
    """
    probs = label_probs(scores)
    means = [vote_weights(probs[:, group]) / len(group) for group in groups]
    with np.errstate(divide="ignore"):
        return np.log(np.stack(means, axis=1))


def _several_orders(design: Design) -> list[list[int]]:
    return [group for group in order_groups(design) if len(group) > 1]


def averaged(data: Scores) -> Scores | None:
    """Average over the orders of the options. None without two orders, or without probabilities."""
    groups = _several_orders(data.design)
    if not groups or data.is_generated:
        return None
    levels = [{**data.design.levels[first], "order": "all"} for first, *_ in groups]
    design = replace(data.design, levels=levels)
    return Scores(mean_over(data.values, groups), data.gold, ids=data.ids, design=design)


def forms_of(
    data: Scores, calibrated: Scores | None = None, label_prior: Sequence[float] | None = None
) -> dict[str, Scores]:
    """Return the answers raw, calibrated, averaged over the orders, and both.

    A calibrated average is divided by its mean over the instances, as in batch calibration with this ``label_prior``.
    """
    forms = {"raw": data}
    if calibrated is not None:
        forms["calibrated"] = calibrated
    mean = averaged(data)
    if mean is not None:
        forms["average"] = mean
        if calibrated is not None:
            forms["calibrated average"] = replace(mean, values=mean.values + batch_offsets(mean.values, label_prior))
    return forms


def along(design: Design, axis: str, wording: str | None = None) -> list[int]:
    """Return the variants of an axis, or of one wording; averages over the orders are all variants of the order."""
    compared = [place for group in design.groups(axis) for same in group.values() for place in same]
    if axis == "order" and not compared:
        compared = [*range(len(design.levels))]
    return [place for place in compared if wording in (None, design.levels[place].get("wording"))]


def axis_rows(forms: Mapping[str, Scores], tokens: Sequence[float] = (), *, seed: int = 0) -> dict[AxisKey, AxisRow]:
    """Compute the table of axes: a row per axis with pairs of templates, or per wording with several orders, and form.

    Args:
        forms: Those of :func:`forms_of`.
        tokens: The mean length of the prompts of each template, if it is known.
        seed: The seed of the bootstrap.

    Returns:
        The rows by axis, wording and form, the axis with most flips first.
    """
    raw = forms["raw"]
    lengths = np.array(tokens)
    sums = np.array([lengths[group].sum() for group in _several_orders(raw.design) if tokens])
    rates = {axis: FLIP_RATE(raw.flips_along(axis)) for axis in (*AXES, *TAGS) if raw.design.groups(axis)}
    rows = {}
    for axis in sorted(rates, key=lambda axis: -np.nan_to_num(rates[axis] or 0.0)):
        names = {raw.design.levels[place].get("wording"): None for place in along(raw.design, axis) if axis == "order"}
        for wording in [None, *names] if len(names) > 1 else [None]:
            for form, data in forms.items():
                costs = lengths if data.values.shape[1] == len(lengths) else sums
                variants = along(data.design, axis, wording)
                if variants:
                    row = _row(data.select(variants), axis, seed)
                    mean = float(costs[variants].mean()) if tokens else None
                    rows[axis, wording, form] = replace(row, tokens=mean)
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
