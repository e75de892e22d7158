"""The report's charts and examples, as values that the page only has to print."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np

from flip_flop.console import count, percent
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import template_agreement_matrix
from flip_flop.prompts import RenderedInstance
from flip_flop.report import changes, charts
from flip_flop.report.compare import Group
from flip_flop.report.instances import Embedded, embed
from flip_flop.report.tables import constant_count

_MAX_PROMPT = 4000
_MOVES = (("wrong", "fixed"), ("broken", "right"))  # a single answer's, by whether it was right, and is
_SIGNS = {"better": "▲", "worse": "▼", "other": "◆"}


def template_order(group: Group) -> list[int]:
    """The templates' indices, the best under the base first: every chart lists them in this order."""
    values = template_values(group.base)
    return sorted(range(len(values)), key=lambda index: (-(values[index] or 0.0), index))


def template_values(run: Audit) -> list[float | None]:
    """Each template's F1; without gold labels its agreement with the majority, where there is a majority."""
    if run.has_gold:
        return [run.metrics["f1_per_template"][name] for name in run.template_names]
    agrees = (run.predictions == run.data.votes[:, None]) & (run.predictions >= 0)
    has_majority = 2 * agrees.sum(axis=1) > agrees.shape[1]
    if not has_majority.any():
        return [None] * agrees.shape[1]
    return [float(share) for share in agrees[has_majority].mean(axis=0)]


def strip_section(group: Group, number: int) -> dict[str, Any]:
    """The chart of each template's F1 before and after."""
    base = group.base
    columns = [template_values(run) for run in group.runs]
    vote = base.value("vote_f1") if base.has_gold else None
    known = [value for value in (*(value for column in columns for value in column), vote) if value is not None]
    domain = charts.nice_domain(known or [0.0])
    rows = []
    fault = {"right": "some-wrong"} if base.has_gold else {"agree": "no"}
    for place, index in enumerate(template_order(group)):
        values = [column[index] for column in columns]
        links = [_show(number, t=place, run=run, **fault) for run in range(len(group.runs))]
        rows.append(
            {
                "name": base.template_names[index],
                "chart": charts.strip(values, domain, vote),
                "values": list(zip(values, links, strict=True)),
                "show": _show(number, t=place, agree="no"),
            }
        )
    title, caption = "F1 of each template", f"F1 in percent, sorted by {base.name}, the best template first."
    if not base.has_gold:
        title = "Each template's agreement with the majority"
        caption = (
            "Percentage of instances on which a template gives the majority's answer, where there is one; "
            f"sorted by {base.name}. It stands in for F1, which needs labels."
        )
    return {
        "title": title,
        "caption": caption,
        "reference": None if vote is None else f"free vote of {base.name}: {percent(vote)}",
        "rows": rows,
        "axis": charts.axis(domain, "%"),
    }


def matrix_section(group: Group, number: int) -> dict[str, Any]:
    """The agreement of every two templates, for each run on one scale from ``low`` to 1."""
    order = template_order(group)
    if len(order) < 2:
        return {"runs": []}
    tables = [template_agreement_matrix(run.predictions)[np.ix_(order, order)] for run in group.runs]
    places = range(len(order))
    links = [
        [[_show(number, run=run, t=i, u=j, agree="no") for j in places] for i in places] for run in range(len(tables))
    ]
    cells = [
        [list(zip(*lines, strict=True)) for lines in zip(table.tolist(), shown, strict=True)]
        for table, shown in zip(tables, links, strict=True)
    ]
    return {
        "names": [group.base.template_names[index] for index in order],
        "links": [_show(number, t=place, agree="no") for place in places],
        "runs": [(run.name, each) for run, each in zip(group.runs, cells, strict=True)],
        "low": min(0.9, int(min(table.min() for table in tables) * 10) / 10),
    }


def share_section(group: Group, number: int) -> dict[str, Any]:
    """How often each template gives each label."""
    base = group.base
    names = base.label_names
    rows: list[dict[str, Any]] = []

    def add(name: str, shares: list[list[float]], total: bool = False, **filters: int) -> None:
        kinds = [{"run": run} | filters for run in range(len(group.runs))]
        links = [[_show(number, **kind, label=label) for label in range(len(names))] for kind in kinds]
        bars = [charts.share_bar(each, names, link) for each, link in zip(shares, links, strict=True)]
        mass = [(run.metrics.get("own_label_mass_per_template") or {}).get(name) for run in group.runs]
        rows.append({"name": name, "bars": bars, "total": total, "mass": mass})

    labelled = base.gold[base.gold >= 0]
    if base.has_gold and len(labelled):
        gold = (np.bincount(labelled, minlength=len(names)) / len(labelled)).tolist()
        bar = charts.share_bar(gold, names, [_show(number, gold=label) for label in range(len(names))])
        rows.append({"name": "gold labels", "bars": [bar], "total": True, "mass": [None]})
    add("all templates", [run.metrics["label_shares"] for run in group.runs], total=True)
    for place, index in enumerate(template_order(group)):
        name = base.template_names[index]
        add(name, [run.metrics["label_shares_per_template"][name] for run in group.runs], t=place)
    warnings = [f"{run.name}: {run.low_mass}." for run in group.runs if run.low_mass]
    warnings += [
        f"{run.name} has collapsed: {percent(max(shares))}% of its answers are {names[int(np.argmax(shares))]}"
        f"{f', and {constant_count(run)} templates are constant' if run.constant_templates else ''}. "
        "Such answers hardly depend on the input."
        for run, shares in ((run, run.metrics["label_shares"]) for run in group.runs if run.is_collapsed)
    ] + [
        f"{run.name}: {percent(share)}% of its generated answers are no label: wrong, and in agreement with none."
        f"{f' Most frequent: {run.unparsed}.' if run.unparsed else ''}"
        for run in group.runs
        if (share := run.value("unmapped_share"))
    ]
    return {"labels": names, "rows": rows, "warnings": warnings}


def example_section(group: Group, number: int, size: int | None) -> dict[str, Any]:
    """The instances whose answers changed; of one run alone, those that are split or wrong.

    And all instances for the page's script, within this size (:func:`~flip_flop.report.instances.embed`).
    """
    base, after = group.base, group.after if group.is_comparison else None
    found = changes.find_changes(base, after)
    order = template_order(group)
    states = changes.state_names(base)
    chosen = changes.select_examples(found)
    embedded = embed(group, order, {change.instance for members in chosen.values() for change in members}, size)
    return {
        "content": embedded.content,
        "num_held": embedded.held,
        "num_instances": len(base.instance_ids),
        "left_out": _left_out(embedded, group),
        "title": "Examples" if after is None else "Instances whose answers flipped",
        "has_gold": base.has_gold,
        "counts": []
        if after
        else [
            (state, total, _show(number, was=at))
            for at, (state, total) in enumerate(zip(states, changes.state_counts(base), strict=True))
        ],
        "transitions": _counts_table(
            states,
            changes.transition_counts(base, after),
            lambda i, j: _show(number, a=0, b=len(group.runs) - 1, was=i, now=j),
        )
        if after
        else None,
        "answers": _counts_table(
            ("wrong", "right"),
            changes.answer_counts(base, after),
            lambda i, j: _show(number, a=0, b=len(group.runs) - 1, right=_MOVES[i][j]),
        )
        if after and base.has_gold
        else None,
        "kinds": [
            {
                "title": kind.title,
                "tone": kind.tone,
                "sign": _SIGNS[kind.tone],
                "shown": f"{len(members)} of {sum(change.kind == kind for change in found)}",
                "examples": [
                    _example(change.instance, base, after, order, embedded.printed.get(change.instance))
                    for change in members
                ],
            }
            for kind, members in chosen.items()
        ],
        "caption": (
            "Chosen by rule: one of each kind in turn, within a kind those where most templates "
            f"{'disagree' if after is None else 'changed their answer'}. "
            "The numbers after the cells count the answers per label."
        ),
        "none": "No instance to show: every template gives the right answer everywhere."
        if after is None
        else "No instance changed its kind of answer.",
    }


def _left_out(embedded: Embedded, group: Group) -> list[str]:
    """What the page does not hold, in sentences."""
    found, total = [], len(group.base.instance_ids)
    if embedded.held < total:
        found.append(
            f"This file holds {embedded.held:,} of {count(total, 'instance')}: those whose answers changed first, then "
            "those with the smallest margin. flip-flop report --all leaves nothing out."
        )
    if embedded.with_prompts < embedded.held:
        found.append(f"The runs kept the prompts of {embedded.with_prompts:,} of these {embedded.held:,} only.")
    if embedded.with_prompts and len(set(map(_chat_template, group.runs))) > 1:
        found.append(f"Prompts are shown as {embedded.read_by} read them: the runs' chat templates differ.")
    return found


def _chat_template(run: Audit) -> Any:
    """What tells a run's chat template from another one's; None where its prompts are in none."""
    in_chat = run.record.scoring.get("chat_template")
    return (in_chat, run.record.model.digests.get("chat_template")) if in_chat else None


def _show(group: int, **filters: int | str) -> str:
    """What the page's script filters by, as a link."""
    return f"#show?{urlencode({'g': group, **filters})}"


def _counts_table(names: tuple[str, ...], table: list[list[int]], show: Callable[[int, int], str]) -> dict[str, Any]:
    """Counts from each state to each, the worst state first, and whether a move is for the better."""
    rows = []
    for i, (name, line) in enumerate(zip(names, table, strict=True)):
        tones = ["same" if j == i or not value else "better" if j > i else "worse" for j, value in enumerate(line)]
        rows.append(
            (name, [(value, tone, show(i, j)) for j, (value, tone) in enumerate(zip(line, tones, strict=True))])
        )
    return {"names": names, "rows": rows, "total": sum(map(sum, table))}


def _example(
    index: int, base: Audit, after: Audit | None, order: list[int], texts: RenderedInstance | None
) -> dict[str, Any]:
    identifier, gold = base.instance_ids[index], int(base.gold[index])
    runs = [base] if after is None else [base, after]
    labels, given = range(len(base.label_names)), [run.predictions[index].tolist() for run in runs]
    return {
        "id": identifier,
        "gold": base.label_names[gold] if gold >= 0 else None,
        "gold_index": gold,
        "cells": [_cells(index, run, order) for run in runs],
        "counts": " → ".join("–".join(str(answers.count(label)) for label in labels) for answers in given),
        "prompts": [] if texts is None else [_prompt(texts, v, index, runs, gold) for v in order],
    }


def _cells(index: int, run: Audit, order: list[int]) -> Any:
    labels, gold = run.predictions[index, order], run.gold[index]
    leads = changes.margins(run.scores[index : index + 1])[0, order].tolist()
    titles = [
        f"{run.template_names[v]}: {run.label_name(label)}, margin {percent(lead)}"
        for v, label, lead in zip(order, labels.tolist(), leads, strict=True)
    ]
    wrong = (gold >= 0) & (labels != gold)
    return charts.answer_cells(labels.tolist(), leads, wrong.tolist(), titles)


def _prompt(texts: RenderedInstance, template: int, index: int, runs: list[Audit], gold: int) -> dict[str, Any]:
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
