"""Sensitivity to formatting: the same templates under random formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.console import align_columns, count, percent, percent_interval
from flip_flop.drafting.formats import apply_format, draw_format, draw_order
from flip_flop.files import generator
from flip_flop.metrics import (
    FLIP_RATE,
    bootstrap_interval,
    count_flips,
    f1_per_template,
    gold_of,
    predicted,
    resolve_average,
    template_agreement_matrix,
)
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import DEFAULT_SCORING, ModelGiven, Scorer, ScoringOptions, as_scorer, ids_of
from flip_flop.tasks import Task

RESAMPLES = 1000
MIN_FORMATS = 5  # two formats are one pair, which would have an interval without width


def format_spread(
    model: ModelGiven | Scorer,
    task: Task,
    num_formats: int,
    *,
    split: str = "test",
    limit: int | None = None,
    scoring: ScoringOptions = DEFAULT_SCORING,
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    r"""Score each template under ``num_formats`` formats, sampled with replacement, with the options in their order.

    The spread of a template is the difference between its best and worst format, as in FormatSpread (Sclar et al.
    2024). The summary is the mean over templates.

    Templates that list their options are also scored with the options in another order. :math:`D_o` is the flip rate of
    two variants with different orders. :math:`D_f` is the flip rate of two formats with one order. ``share`` is
    :math:`D_o / (D_o + D_f)`, or None if nothing changes.

    The 95 % intervals, from five formats on, are a bootstrap over formats. It resamples the i-th format of all
    templates together, and two copies of one format are not a pair. A range only grows with more formats, so its
    interval ends at its value.

    An instance that is too long under one format is rejected, or skipped under all formats.

    Returns:
        Plain values for ``metrics.json``: ``f1_min``, ``f1_max`` and ``f1_spread`` of labelled rows,
        ``observed_agreement`` of two formats, and their ``intervals``. ``per_template`` has the same values with the
        formats, ``order`` the effect of the order.
    """
    formats: dict[str, list[dict[str, Any]]] = {}
    ordered: dict[str, list[dict[str, Any]]] = {}
    for template in task.templates:
        draws = [generator(seed, "format", template.name, index) for index in range(num_formats)]
        formats[template.name] = [draw_format(template, random, order=False) for random in draws]
        orders = [draw_order(template, random) for random in draws]
        if any(orders):
            ordered[template.name] = [c | {"order": o} for c, o in zip(formats[template.name], orders, strict=True)]
    task, names = replace(task, data={split: task.rows(split)}), list[str]()
    rendered: list[Sequence[RenderedInstance]] = []
    for what, changes in (("", formats), (" in another order", ordered)):
        for index in range(num_formats if changes else 0):
            # Random choices depend on the template's name, so a variant keeps it.
            own = task.templates.select(changes)
            variants = tuple(apply_format(template, changes[template.name][index], template.name) for template in own)
            asked = replace(task, templates=replace(own, templates=variants), held_out_templates=())
            rendered.append(asked.instances(split, limit=limit, seed=seed))
            names += [f"{name}, format {index + 1}{what}" for name in changes]
    # One call, so that an instance that is too long under one format is skipped under all.
    instances = [
        replace(
            variants[0],
            prompts=tuple(chain(*(one.prompts for one in variants))),
            choices=tuple(chain(*(one.choices for one in variants))),
        )
        for variants in zip(*rendered, strict=True)
    ]
    table = as_scorer(model).checked_scores(instances, scoring, names=names, label="formats", quiet=quiet)
    skipped = ids_of(table.too_long)
    gold = gold_of(one for one in instances if one.id not in skipped)
    average = resolve_average(task.f1, num_labels := table.scores.shape[2])
    both = np.split(predicted(table.scores), [num_formats * len(formats)], axis=1)
    plain, other = (predictions.reshape(len(gold), num_formats, -1 if predictions.size else 0) for predictions in both)
    f1, agreement = {}, {}
    order_flips = np.zeros((num_formats, 3), int)
    format_flips = np.zeros((num_formats, num_formats, 3), int)
    for name, ours in zip(formats, np.moveaxis(plain, 2, 0), strict=True):
        f1[name] = f1_per_template(ours, gold, num_labels=num_labels, average=average)
        agreement[name] = template_agreement_matrix(ours)
        if name in ordered:
            theirs = other[:, :, [*ordered].index(name)]
            order_flips += count_flips(ours.T, theirs.T)
            format_flips += np.stack([count_flips(ours.T, np.broadcast_to(one, ours.T.shape)) for one in ours.T])

    def summary(names: list[str]) -> dict[str, Any]:
        pairs = np.mean([agreement[name] for name in names], axis=0)
        statistics: dict[str, Statistic] = {"observed_agreement": partial(_pair_mean, pairs)}
        if gold := [values for name in names if (values := f1[name]) is not None]:
            values = np.stack(gold)
            for end, reduce in (("f1_min", np.min), ("f1_max", np.max), ("f1_spread", np.ptp)):
                statistics[end] = partial(_over_formats, reduce, values)
        return _with_intervals(statistics, num_formats, seed)

    order = None
    if ordered:

        def share(rows: Rows) -> float:
            first, second = _flip_rate(order_flips[rows]), _flip_rate(format_flips[_pairs(rows)])
            return first / (first + second) if first + second else np.nan

        shares: dict[str, Statistic] = {
            "order": lambda rows: _flip_rate(order_flips[rows]),
            "format": lambda rows: _flip_rate(format_flips[_pairs(rows)]),
            "share": share,
        }
        by_format = format_flips[_pairs(np.arange(num_formats))]
        num_pairs = {"order": int(order_flips[:, 1].sum()), "format": int(by_format[:, 1].sum()) // 2}
        order = {"templates": list(ordered), "flip_pairs": num_pairs, **_with_intervals(shares, num_formats, seed)}
    per_template = {name: {**summary([name]), "formats": formats[name]} for name in formats}
    found = {"num_formats": num_formats, "seed": seed, "num_instances": len(gold), "num_too_long": len(skipped)}
    found |= summary([*formats])
    return found | {"order": order, "per_template": per_template}


Rows = Int[np.ndarray, " formats"]
Statistic = Callable[[Rows], float]


def _with_intervals(statistics: Mapping[str, Statistic], num_formats: int, seed: int) -> dict[str, Any]:
    rows, found, intervals = np.arange(num_formats), {}, {}
    for name, statistic in statistics.items():
        value = float(statistic(rows))
        found[name] = None if np.isnan(value) else value
        is_valid = not np.isnan(value) and num_formats >= MIN_FORMATS
        intervals[name] = [*bootstrap_interval(statistic, rows, resamples=RESAMPLES, seed=seed)] if is_valid else None
    return {**found, "intervals": intervals}


def _pairs(rows: Rows) -> tuple[Rows, Rows]:
    """Return the first and the second format of each pair of different formats."""
    first, second = np.nonzero(rows[:, None] != rows)
    return rows[first], rows[second]


def _flip_rate(flips: Int[np.ndarray, "pairs 3"]) -> float:
    rate = FLIP_RATE(flips)
    assert rate is not None
    return rate


def _pair_mean(values: Float[np.ndarray, "formats formats"], rows: Rows) -> float:
    pairs = values[_pairs(rows)]
    return float(pairs.mean()) if pairs.size else np.nan


def _over_formats(
    reduce: Callable[..., np.ndarray], values: Float[np.ndarray, "templates formats"], rows: Rows
) -> float:
    return float(reduce(values[:, rows], axis=1).mean())


def render_formats(found: Mapping[str, Any]) -> str:
    """Render the spread over formats for a terminal, in percent."""
    lines = [["template", "F1 min..max", "max-min", "95% of max-min", "P_o of two formats", "95% of P_o"]]
    for name, values in [*found["per_template"].items(), ("mean", found)]:
        low, high, spread, agreed = (values.get(key) for key in ("f1_min", "f1_max", "f1_spread", "observed_agreement"))
        ends = [percent_interval(values["intervals"].get(key)) for key in ("f1_spread", "observed_agreement")]
        name += "" if any(values.get("formats", [name])) else " (one format)"
        lines.append([name, f"{percent(low)}..{percent(high)}", percent(spread), ends[0], percent(agreed), ends[1]])
    text = f"{found['num_formats']} formats of each template, sampled like FormatSpread; intervals over formats\n"
    text += align_columns(lines, num_left=1, rule=True)
    if found["num_too_long"]:
        text += f"\nskipped under all formats, too long under some: {count(found['num_too_long'], 'instance')}"
    order = found["order"]
    if order is None:
        return f"{text}\nno template lists its answers as options, so the effect of their order is unknown"
    rates = [f"{percent(order[name])} % of {count(number, 'pair')}" for name, number in order["flip_pairs"].items()]
    return (
        f"{text}\noptions in another order change {rates[0]} of answers, another format {rates[1]}; "
        f"the order's part in both: {percent(order['share'])} % "
        f"({percent_interval(order['intervals']['share'])}), of {count(len(order['templates']), 'template')}"
    )
