"""The outcome in words and numbers, and the caveats that belong to it."""

from collections.abc import Sequence
from typing import Any

from flip_flop.console import MISSING, count, percent, percent_interval, point_interval, points
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS
from flip_flop.report import charts
from flip_flop.report.compare import Group, difference_from_vote, mean_difference
from flip_flop.report.tables import assumption, constant_count, range_words, table_caveats

_HEADLINE = ("observed_agreement", "mean_f1", "f1_std")
_COLUMNS = (*_HEADLINE, "f1_range", "macro_f1", "accuracy", "vote_f1", "vote_accuracy")
_HEADLINE_WITHOUT_GOLD = ("observed_agreement", "no_consensus_share")
_COLUMNS_WITHOUT_GOLD = (*_HEADLINE_WITHOUT_GOLD, "label_shares")


# What the page's script shows for a metric's number: by default, answers that differ from the others on their instance.
_BEHIND = {
    **dict.fromkeys(("mean_f1", "f1_std", "f1_range", "f1_spread", "macro_f1", "accuracy"), "right=some-wrong"),
    **dict.fromkeys(("vote_f1", "vote_accuracy", "ensemble_f1"), "right=vote-wrong"),
    **dict.fromkeys(("fragile_share", "fragile_vote_share", "label_shares"), "sort=margin"),
}


def _share_words(run: Audit) -> str:
    return " / ".join(map(percent, run.metrics["label_shares"]))


# Columns that are no metrics: a heading, what it means, and the cell.
_OTHER_COLUMNS = {
    "f1_range": ("F1 min..max", "F1 of the worst template and of the best.", range_words),
    "label_shares": ("Label shares", "How often each label is the answer.", _share_words),
}


def verdict(group: Group) -> str:
    """The outcome in one line."""
    base, after = group.base, group.after
    instances, templates, _ = base.scores.shape
    size = f"{count(templates, 'template')}, {count(instances, 'instance')}."
    parts: list[str] = []
    for metric in _HEADLINE:
        if after.value(metric) is None:
            continue
        detail = ""
        if not group.is_comparison and (interval := base.interval(metric)):
            detail = f" (95% CI {percent_interval(interval)})"
        elif group.is_comparison and not parts and (change := mean_difference(metric, base, [after])):
            detail = f" ({change.words()})"
        before = f"{percent(base.value(metric))} → " if group.is_comparison else ""
        label = METRICS[metric].label
        parts.append(f"{label[0].lower()}{label[1:]} {before}{percent(after.value(metric))}{detail}")
    if not parts:
        return f"One template has nothing to agree with, and there are no gold labels for F1. {size}"
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. {size}"


def tiles(group: Group) -> list[dict[str, Any]]:
    """The headline numbers, and the free vote as the baseline."""
    base, after = group.base, group.after
    found = []
    for metric in _HEADLINE if base.has_gold else _HEADLINE_WITHOUT_GOLD:
        change = mean_difference(metric, base, [after]) if group.is_comparison else None
        interval = after.interval(metric)
        detail = change.words() if change else f"95% CI {percent_interval(interval)}" if interval else ""
        before = percent(base.value(metric)) if group.is_comparison else None
        found.append(_tile(metric, METRICS[metric].label, before, after, detail))
    if base.has_gold and len(base.template_names) > 1:
        detail = f"{base.name}, {len(base.template_names)} passes an answer"
        found.append(_tile("vote_f1", "Free vote F1", None, base, detail) | {"is_baseline": True})
    return found


def _tile(metric: str, title: str, before: str | None, now: Audit, detail: str) -> dict[str, Any]:
    tile = {"title": title, "meaning": METRICS[metric].meaning, "before": before, "detail": detail}
    return {**tile, "now": percent(now.value(metric)), "is_baseline": False}


def badges(group: Group) -> list[dict[str, Any]]:
    """Collapse, constant templates, instances without a majority, missing labels, and labels used in training."""
    base = group.base
    found = [{"text": f"{run.name} collapsed", "warn": True} for run in group.runs if run.is_collapsed]
    found += [
        {"text": f"{run.name}: {constant_count(run)} templates constant", "warn": True}
        for run in group.runs
        if run.constant_templates and not run.is_collapsed
    ]
    shares = [run.value("no_consensus_share") for run in dict.fromkeys((base, group.after))]
    if None not in shares and base.has_gold:  # without gold labels it is in the headline
        found.append({"text": f"no majority {' → '.join(map(percent, shares))}%", "warn": False})
    if not base.has_gold:
        found.append({"text": "no gold labels", "warn": False})
    elif (base.gold < 0).any():
        labelled = count(int((base.gold >= 0).sum()), "instance")
        found.append({"text": f"gold labels for {labelled}", "warn": False})
    found += [{"text": f"{run.name}: trained with labels", "warn": False} for run in group.runs if run.uses_labels]
    if group.held_out:
        found.append({"text": "templates never used in training", "warn": False})
    return found


def caveats(group: Group) -> list[str]:
    """What a reader should know before believing the numbers: missing labels, the vote, other methods beside F2C."""
    notes = []
    if not group.base.has_gold:
        notes.append("F1 needs labels: without them the report shows how far the templates agree, not who is right.")
    if len(group.base.template_names) == 1:
        notes.append("One template has nothing to agree with: agreement and spread need two.")
    for run in group.runs:
        skipped = run.record.task.num_too_long
        if isinstance(skipped, int) and skipped:
            notes.append(f"{run.name} leaves out {count(skipped, 'instance')}: longer than the model's context.")
    return [*notes, *table_caveats(group.runs), *_vote_caveat(group), *_method_caveats(group)]


def _vote_caveat(group: Group) -> list[str]:
    base, others, num_templates = group.base, group.runs[1:], len(group.base.template_names)
    if not others or not base.has_gold or num_templates == 1:
        return []
    clauses, places = [], set()
    for run in others:
        change = difference_from_vote(base, run)
        place = "level with it" if not change.is_clear else "ahead of it" if change.value > 0 else "behind it"
        places.add(place)
        clauses.append(f"{run.name} is {place} at {percent(run.value('mean_f1'))} ({change.words()})")
    text = (
        f"The free baseline: the majority vote of {base.name}'s {num_templates} templates needs no training "
        f"and has F1 {percent(base.value('vote_f1'))}. With one template per answer, {'; '.join(clauses)}."
    )
    if "behind it" in places:
        text += " Where training is behind, the vote answers better."
    if "level with it" in places:
        text += f" Where it is level, training buys one forward pass per answer in place of {num_templates}."
    return [text]


def _method_caveats(group: Group) -> list[str]:
    metric = "mean_f1" if group.base.has_gold else "observed_agreement"
    ours = [run for run in group.runs if run.method == "f2c"]
    others = [run for run in group.runs if run.method not in (None, "f2c")]
    if not ours or not others:
        return []
    from flip_flop.method import METHODS  # with it comes torch, which most reports need not wait for

    notes = []
    for f2c in ours:
        for other in others:
            change = mean_difference(metric, other, [f2c])
            if change is None or (change.is_clear and change.value > 0):
                continue
            title = METHODS[str(other.method)].title if other.method in METHODS else other.method
            place = "ahead of" if change.is_clear else "level with"
            own = METHODS["f2c"].title if len(ours) == 1 else f2c.name  # of several, one does not stand for the method
            notes.append(
                f"{title} is {place} {own} here: {METRICS[metric].title} "
                f"{percent(other.value(metric))} for {other.name} and {percent(f2c.value(metric))} for {f2c.name} "
                f"({f2c.name} less {other.name} {change.words()})."
            )
    return notes


def metric_table(group: Group) -> dict[str, Any]:
    """The before/after table: each run's numbers, and their differences from the first run."""
    base, title, caption = group.base, "Metrics", "In percent; differences in percentage points."
    if group.is_comparison:
        title = "Before and after"
        caption += f" Differences are from {base.name}, with their 95% interval."
        caption += " The best value of a column is bold; a collapsed run is never best."
    if base.has_gold:
        caption += f" F1 is of {'label 1' if base.data.is_binary else 'all labels, averaged'}"
        caption += "; σ is its population standard deviation over templates."
    return {"title": title, "caption": caption, **_table(group, _columns(group))}


def more_metrics(group: Group) -> dict[str, Any]:
    """The same of all metrics that the first table leaves out."""
    known = (name for name in METRICS if any(run.value(name) is not None for run in group.runs))
    return _table(group, [name for name in known if name not in _columns(group)])


def calibration_section(group: Group) -> dict[str, Any] | None:
    """The raw and calibrated metrics of each calibrated run, with the assumption; None if no run is calibrated."""
    pairs = [Group((run, run.calibrated)) for run in group.runs if run.calibrated is not None]
    if not pairs:
        return None
    notes = []
    for pair in pairs:
        found = pair.after.metrics
        notes.append(
            f"{pair.after.name}: {assumption(pair.after)}. It changes {percent(found['votes_changed'])}% of the "
            f"majority votes and moves their label shares by {percent(found['vote_share_drift'])} points."
        )
    tables = [_table(pair, _columns(pair)) for pair in pairs]
    return {"columns": tables[0]["columns"], "rows": [row for table in tables for row in table["rows"]], "notes": notes}


def _columns(group: Group) -> Sequence[str]:
    return _COLUMNS if group.base.has_gold else _COLUMNS_WITHOUT_GOLD


def _table(group: Group, columns: Sequence[str]) -> dict[str, Any]:
    own = {name: (metric.label or name, metric.meaning) for name, metric in METRICS.items()}
    heads = [_OTHER_COLUMNS[name][:2] if name in _OTHER_COLUMNS else own[name] for name in columns]
    best = {name: _best(group, name) for name in columns}
    rows = [
        {
            "name": run.name,
            "mark": charts.mark(index, len(group.runs)),
            "collapsed": run.is_collapsed,
            "cells": [{**_cell(group, run, name), "best": run in best[name]} for name in columns],
        }
        for index, run in enumerate(group.runs)
    ]
    behind = (_BEHIND.get(name, "agree=no") for name in columns)
    named = [
        {"label": label, "meaning": meaning, "show": show} for (label, meaning), show in zip(heads, behind, strict=True)
    ]
    return {"columns": named, "rows": rows}


def _cell(group: Group, run: Audit, name: str) -> dict[str, str | None]:
    if name in _OTHER_COLUMNS:
        return {"value": _OTHER_COLUMNS[name][2](run), "difference": None, "interval": None}
    style = _style(name)
    cell = {"value": percent(run.value(name), **style), "difference": None, "interval": None}
    if run is group.base:
        interval = run.interval(name)
        return {**cell, "interval": percent_interval(interval, **style) if interval else None}
    if change := mean_difference(name, group.base, [run]):
        cell["difference"] = points(change.value, **style)
        cell["interval"] = point_interval(change.interval, **style) if change.interval else None
    return cell


def _style(name: str) -> dict[str, Any]:
    return {} if METRICS[name].in_percent else {"decimals": 2, "scale": 1}


def _best(group: Group, name: str) -> list[Audit]:
    """The runs with the best value as printed; not the collapsed ones, whose agreement is cheap."""
    if not group.is_comparison or name in _OTHER_COLUMNS:
        return []
    printed = [(percent(run.value(name), **_style(name)), run) for run in group.runs if not run.is_collapsed]
    values = [(float(text), run) for text, run in printed if text != MISSING]
    choose = max if METRICS[name].higher_is_better else min
    top = choose((value for value, _ in values), default=None)
    return [run for value, run in values if value == top]
