"""The report's pictures and examples, as values that the page only has to place."""

from typing import Any

import numpy as np

from flip_flop.metrics import majority_vote, template_agreement_matrix
from flip_flop.report import changes, charts
from flip_flop.report.groups import Group
from flip_flop.report.runs import Example, Run
from flip_flop.report.text import MISSING, count, percent

_MAX_PROMPT = 4000
_SIGNS = {"better": "▲", "worse": "▼", "other": "◆"}


def template_order(group: Group) -> list[int]:
    """The templates' indices, the best under the base first: every picture lists them in this order."""
    values = template_figures(group.base)
    return sorted(range(len(values)), key=lambda index: (-(values[index] or 0.0), index))


def template_figures(run: Run) -> list[float | None]:
    """Each template's F1; without gold labels its agreement with the majority, where there is a majority."""
    if run.has_gold:
        return [run.metrics["f1_per_template"][name] for name in run.template_names]
    predictions = run.predictions
    votes = majority_vote(run.scores)
    agrees = predictions == votes[:, None]
    has_majority = 2 * agrees.sum(axis=1) > predictions.shape[1]
    if not has_majority.any():
        return [None] * predictions.shape[1]
    return [float(share) for share in agrees[has_majority].mean(axis=0)]


def strip_section(group: Group) -> dict[str, Any]:
    """The chart of each template's figure before and after."""
    columns = [template_figures(run) for run in group.runs]
    vote = group.base.metrics["vote_f1"] if group.base.has_gold else None
    known = [value for column in columns for value in column if value is not None]
    domain = charts.nice_domain([*known, *([] if vote is None else [vote])] or [0.0])
    rows = []
    for index in template_order(group):
        values = [column[index] for column in columns]
        rows.append(
            {
                "name": group.base.template_names[index],
                "chart": charts.strip(values, domain, vote),
                "figures": [percent(value) for value in values],
            }
        )
    if group.base.has_gold:
        title, caption = (
            "F1 of each template",
            f"F1 in percent, sorted by {group.base.name}, the best template first.",
        )
    else:
        title = "Each template's agreement with the majority"
        caption = (
            "Percentage of instances on which a template gives the majority's answer, where there is one; "
            f"sorted by {group.base.name}. It stands in for F1, which needs labels."
        )
    reference = None if vote is None else f"free vote of {group.base.name}: {percent(vote)}"
    return {
        "title": title,
        "caption": caption,
        "reference": reference,
        "rows": rows,
        "axis": charts.axis(domain, "%"),
    }


def matrix_section(group: Group) -> dict[str, Any]:
    """The agreement of every two templates, for each run on one scale."""
    order = template_order(group)
    if len(order) < 2:
        return {"matrices": [], "matrix_low": ""}
    tables = [template_agreement_matrix(run.predictions)[np.ix_(order, order)] for run in group.runs]
    low = min(0.9, int(min(table.min() for table in tables) * 10) / 10)
    matrices = []
    for run, table in zip(group.runs, tables, strict=True):
        rows = [
            {
                "name": run.template_names[order[i]],
                "cells": [
                    {
                        "value": percent(value, 0),
                        "strength": None if i == j else round(float((value - low) / (1 - low)), 3),
                    }
                    for j, value in enumerate(line)
                ],
            }
            for i, line in enumerate(table.tolist())
        ]
        matrices.append({"name": run.name, "rows": rows})
    return {"matrices": matrices, "matrix_low": percent(low, 0)}


def share_section(group: Group) -> dict[str, Any]:
    """How often each template gives each label."""
    base = group.base
    names = base.label_names
    rows: list[dict[str, Any]] = []
    labelled = base.gold[base.gold >= 0]
    if base.has_gold and len(labelled):
        gold = np.bincount(labelled, minlength=len(names)) / len(labelled)
        rows.append(
            {
                "name": "gold labels",
                "bars": [charts.share_bar(gold.tolist(), names)],
                "total": True,
                "gold": True,
            }
        )
    totals = [charts.share_bar(run.metrics["label_shares"], names) for run in group.runs]
    rows.append({"name": "all templates", "bars": totals, "total": True, "gold": False})
    for index in template_order(group):
        name = base.template_names[index]
        bars = [charts.share_bar(run.metrics["label_shares_per_template"][name], names) for run in group.runs]
        rows.append({"name": name, "bars": bars, "total": False, "gold": False})
    return {
        "labels": names,
        "rows": rows,
        "warnings": [w for run in group.runs if (w := collapse_warning(run))],
    }


def collapse_warning(run: Run) -> str | None:
    """What a collapsed run looks like, in a sentence."""
    if not run.metrics.get("collapsed"):
        return None
    shares = run.metrics["label_shares"]
    top = int(np.argmax(shares))
    return (
        f"{run.name} has collapsed: {percent(shares[top])}% of its answers are {run.label_names[top]}. "
        "Templates that all give one label agree without having read the input."
    )


def example_section(group: Group) -> dict[str, Any]:
    """The instances whose answers changed; of one run alone, those that are split or wrong."""
    base, after = group.base, group.after if len(group.runs) > 1 else None
    found = changes.find_changes(base, after)
    chosen = changes.select_examples(found)
    kinds = _kinds(found, chosen, base, after, template_order(group))
    states = changes.state_names(base)
    section: dict[str, Any] = {
        "title": "Examples" if after is None else "Instances whose answers flipped",
        "states": states,
        "kinds": kinds,
        "has_gold": base.has_gold,
        "transitions": [],
        "votes": None,
        "caption": (
            "Chosen by rule: one of each kind in turn, within a kind those where most templates "
            f"{'disagree' if after is None else 'changed their answer'}. "
            "The figures after the cells count the answers per label."
        ),
        "none": "No instance to show: every template gives the right answer everywhere."
        if after is None
        else "No instance changed its kind of answer.",
    }
    if after is None:
        counts = changes.state_counts(base)
        section["counts"] = [{"name": n, "value": f"{c:,}"} for n, c in zip(states, counts, strict=True)]
        return section
    section["transitions"] = _transitions(changes.transition_counts(base, after), states)
    if base.has_gold:
        votes = changes.vote_counts(base, after)
        section["votes"] = {name: f"{value:,}" for name, value in vars(votes).items()}
        section["votes"]["total"] = f"{sum(vars(votes).values()):,}"
    return section


def _kinds(
    found: list[changes.Change], chosen: list[changes.Change], base: Run, after: Run | None, order: list[int]
) -> list[dict[str, Any]]:
    kinds = []
    for kind in dict.fromkeys(change.kind for change in chosen):
        members = [change for change in chosen if change.kind == kind]
        total = sum(change.kind == kind for change in found)
        kinds.append(
            {
                "title": kind.title,
                "tone": kind.tone,
                "sign": _SIGNS[kind.tone],
                "shown": f"{len(members)} of {total}",
                "examples": [_example(change.instance, base, after, order) for change in members],
            }
        )
    return kinds


def _transitions(table: list[list[int]], states: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for i, (name, line) in enumerate(zip(states, table, strict=True)):
        tones = ["same" if j == i or not value else "better" if j > i else "worse" for j, value in enumerate(line)]
        cells = [{"value": f"{v:,}" if v else MISSING, "tone": tone} for v, tone in zip(line, tones, strict=True)]
        rows.append({"name": name, "cells": cells})
    return rows


def _example(index: int, base: Run, after: Run | None, order: list[int]) -> dict[str, Any]:
    identifier = base.instance_ids[index]
    runs = [base] if after is None else [base, after]
    texts = base.examples.get(identifier)
    gold = int(base.gold[index])
    return {
        "id": identifier,
        "gold": base.label_names[gold] if gold >= 0 else None,
        "gold_index": gold,
        "before": _cells(index, base, order),
        "after": None if after is None else _cells(index, after, order),
        "tally": " → ".join(_tally(index, run) for run in runs),
        "prompts": [] if texts is None else [_prompt(texts, v, index, runs, gold) for v in order],
    }


def _cells(index: int, run: Run, order: list[int]) -> Any:
    labels = run.predictions[index, order].tolist()
    leads = changes.margins(run)[index, order].tolist()
    wrong = changes.wrong_answers(run)[index, order].tolist()
    titles = [
        f"{run.template_names[v]}: {run.label_names[label]}, margin {percent(lead)}"
        for v, label, lead in zip(order, labels, leads, strict=True)
    ]
    return charts.answer_cells(labels, leads, wrong, titles)


def _tally(index: int, run: Run) -> str:
    counts = np.bincount(run.predictions[index], minlength=len(run.label_names))
    return "–".join(str(number) for number in counts.tolist())


def _prompt(texts: Example, template: int, index: int, runs: list[Run], gold: int) -> dict[str, Any]:
    answers = [int(run.predictions[index, template]) for run in runs]
    words = ["before", "after"] if len(runs) > 1 else ["answer"]
    choices = []
    for label, text in enumerate(texts.choices[template]):
        marks = [word for word, answer in zip(words, answers, strict=True) if answer == label]
        choices.append({"text": text, "marks": marks + (["gold"] if label == gold else [])})
    text = texts.prompts[template]
    if len(text) > _MAX_PROMPT:
        text = f"{text[:_MAX_PROMPT]}\n[{count(len(text) - _MAX_PROMPT, 'more character')}]"
    return {"name": runs[0].template_names[template], "text": text, "choices": choices}
