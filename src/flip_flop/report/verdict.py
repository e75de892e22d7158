"""The verdict in words and figures, and the sentences that keep it honest."""

from typing import Any

from flip_flop.report import charts
from flip_flop.report.differences import difference, difference_from_vote
from flip_flop.report.groups import Group
from flip_flop.report.runs import Run
from flip_flop.report.text import MISSING, count, percent, percent_interval, point_interval, points

_WITH_GOLD = {
    "observed_agreement": "Agreement Pₒ",
    "mean_f1": "Mean F1",
    "f1_std": "σ of F1",
    "span": "F1 min..max",
    "macro_f1": "Macro-F1",
    "accuracy": "Accuracy",
    "vote_f1": "Vote F1",
    "vote_accuracy": "Vote accuracy",
}
_WITHOUT_GOLD = {
    "observed_agreement": "Agreement Pₒ",
    "no_consensus_share": "No majority",
    "label_shares": "Label shares",
}
_LESS_IS_BETTER = frozenset({"f1_std", "no_consensus_share"})


def verdict(group: Group) -> str:
    """The outcome in one line."""
    base, after = group.base, group.after
    instances, templates, _ = base.scores.shape
    size = f"{count(templates, 'template')}, {count(instances, 'instance')}."
    parts = []
    for figure, name in (("observed_agreement", "agreement"), ("mean_f1", "mean F1"), ("f1_std", "σ_F1")):
        now = after.metrics[figure]
        if now is None:
            continue
        if len(group.runs) == 1:
            interval = _own_interval(base, figure)
            parts.append(f"{name} {percent(now)}{f' (95% CI {percent_interval(interval)})' if interval else ''}")
            continue
        change = difference(figure, base, after) if not parts else None
        detail = f" ({change.words()})" if change else ""
        parts.append(f"{name} {percent(base.metrics[figure])} → {percent(now)}{detail}")
    if not parts:
        return f"One template has nothing to agree with, and there are no gold labels for F1. {size}"
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. {size}"


def tiles(group: Group) -> list[dict[str, Any]]:
    """The headline figures: agreement, mean F1, its spread, and the free vote as the yardstick."""
    base, after = group.base, group.after
    titles = {"observed_agreement": "Agreement Pₒ", "mean_f1": "Mean F1", "f1_std": "Spread of F1, σ"}
    if not base.has_gold:
        titles = {"observed_agreement": "Agreement Pₒ", "no_consensus_share": "Without a majority"}
    found = []
    for figure, title in titles.items():
        now = after.metrics[figure]
        change = difference(figure, base, after) if len(group.runs) > 1 else None
        interval = _own_interval(after, figure)
        own = f"95% CI {percent_interval(interval)}" if interval else ""
        found.append(
            {
                "title": title,
                "yardstick": False,
                "before": percent(base.metrics[figure]) if len(group.runs) > 1 else None,
                "now": percent(now),
                "detail": change.words() if change else own,
            }
        )
    if base.has_gold and len(base.template_names) > 1:
        passes = f"{base.name}, {len(base.template_names)} passes an answer"
        found.append(
            {
                "title": "Free vote F1",
                "before": None,
                "yardstick": True,
                "now": percent(base.metrics["vote_f1"]),
                "detail": passes,
            }
        )
    return found


def badges(group: Group) -> list[dict[str, Any]]:
    """Collapse, the share of instances without a majority, and missing labels."""
    found = [{"text": f"{run.name} collapsed", "warn": True} for run in group.runs if run.metrics.get("collapsed")]
    shares = [group.base.metrics["no_consensus_share"]]
    if len(group.runs) > 1:
        shares.append(group.after.metrics["no_consensus_share"])
    if None not in shares and group.base.has_gold:  # without gold labels it is a headline figure
        found.append({"text": f"no majority {' → '.join(percent(share) for share in shares)}%", "warn": False})
    if not group.base.has_gold:
        found.append({"text": "no gold labels", "warn": False})
    elif (group.base.gold < 0).any():
        labelled = count(int((group.base.gold >= 0).sum()), "instance")
        found.append({"text": f"gold labels for {labelled}", "warn": False})
    if group.held_out:
        found.append({"text": "templates never used in training", "warn": False})
    return found


def honest_notes(group: Group) -> list[str]:
    """What a reader should know before believing the figures: the vote, other methods beside F2C, missing labels."""
    notes = []
    if not group.base.has_gold:
        notes.append("F1 needs labels: without them the report shows how far the templates agree, not who is right.")
    if len(group.base.template_names) == 1:
        notes.append("One template has nothing to agree with: agreement and spread need two.")
    notes += _vote_note(group)
    notes += _objective_note(group)
    return notes


def _vote_note(group: Group) -> list[str]:
    """Training beside the free vote, whichever is ahead."""
    base, others = group.base, group.runs[1:]
    if not others or not base.has_gold or len(base.template_names) == 1:
        return []
    clauses, places = [], set()
    for run in others:
        change = difference_from_vote(base, run)
        place = "level with it" if not change.is_clear else "ahead of it" if change.value > 0 else "behind it"
        places.add(place)
        clauses.append(f"{run.name} is {place} at {percent(run.metrics['mean_f1'])} ({change.words()})")
    templates, vote = len(base.template_names), percent(base.metrics["vote_f1"])
    text = (
        f"The free yardstick: the majority vote of {base.name}'s {templates} templates takes no training "
        f"and has F1 {vote}. With a single template an answer, {'; '.join(clauses)}."
    )
    if "behind it" in places:
        text += " Where training is behind, the vote answers better."
    if "level with it" in places:
        text += f" Where it is level, training buys one forward pass an answer in place of {templates}."
    return [text]


_OTHER_METHODS = {"swarm": "Swarm distillation", "cce": "CCE alone"}


def _objective_note(group: Group) -> list[str]:
    """The other methods beside F2C, wherever F2C is not clearly better."""
    figure, name = ("mean_f1", "mean F1") if group.base.has_gold else ("observed_agreement", "agreement")
    notes = []
    for f2c in [run for run in group.runs if run.method == "f2c"]:
        for other in [run for run in group.runs if run.method in _OTHER_METHODS]:
            change = difference(figure, other, f2c)
            if change is None or (change.is_clear and change.value > 0):
                continue
            place = "ahead of" if change.is_clear else "level with"
            notes.append(
                f"{_OTHER_METHODS[str(other.method)]} is {place} F2C here: {name} {percent(other.metrics[figure])} for "
                f"{other.name} and {percent(f2c.metrics[figure])} for {f2c.name} "
                f"({f2c.name} less {other.name} {change.words()})."
            )
    return notes


def figure_table(group: Group) -> dict[str, Any]:
    """The before/after table: each run's figures, and their differences from the first run."""
    columns = _WITH_GOLD if group.base.has_gold else _WITHOUT_GOLD
    total = len(group.runs)
    best = {figure: _best(group, figure) for figure in columns}
    rows = []
    for index, run in enumerate(group.runs):
        cells = [{**_cell(group, run, figure), "best": run in best[figure]} for figure in columns]
        collapsed = bool(run.metrics.get("collapsed"))
        rows.append({"name": run.name, "mark": charts.mark(index, total), "collapsed": collapsed, "cells": cells})
    caption = "In percent; differences in percentage points."
    if total > 1:
        caption += f" Differences are from {group.base.name}, with their 95% interval."
        caption += " The best figure of a column is bold; a collapsed run is never best."
    if group.base.has_gold:
        kind = "label 1" if group.base.record["task"].get("f1") == "binary" else "all labels, averaged"
        caption += f" F1 is of {kind}; σ is its population standard deviation over templates."
    title = "Before and after" if total > 1 else "Figures"
    return {"title": title, "titles": list(columns.values()), "rows": rows, "caption": caption}


def _cell(group: Group, run: Run, figure: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"difference": None, "interval": None}
    if figure == "span":
        values = list(run.metrics["f1_per_template"].values())
        return {**cell, "value": f"{percent(min(values))}..{percent(max(values))}"}
    if figure == "label_shares":
        return {**cell, "value": " / ".join(percent(share) for share in run.metrics["label_shares"])}
    change = None if run is group.base else difference(figure, group.base, run)
    if change is not None:
        cell["difference"] = points(change.value)
        cell["interval"] = point_interval(change.interval) if change.interval else None
    elif run is group.base and (interval := _own_interval(run, figure)):
        cell["interval"] = percent_interval(interval)
    return {**cell, "value": percent(run.metrics[figure])}


def _best(group: Group, figure: str) -> list[Run]:
    """The runs with the best figure as printed; not the collapsed ones, whose agreement is cheap."""
    sound = [run for run in group.runs if not run.metrics.get("collapsed")]
    values = [
        (percent(run.metrics[figure]), run) for run in sound if figure in run.metrics and figure != "label_shares"
    ]
    values = [(value, run) for value, run in values if value != MISSING]
    if len(group.runs) < 2 or not values:
        return []
    top = (min if figure in _LESS_IS_BETTER else max)((value for value, _ in values), key=float)
    return [run for value, run in values if value == top]


def _own_interval(run: Run, figure: str) -> tuple[float, float] | None:
    interval = (run.metrics.get("intervals") or {}).get(figure)
    return (float(interval[0]), float(interval[1])) if interval else None
