"""Which checkpoint each rule of selection would have chosen, and what the label-free one costs."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from flip_flop.studies.selection import Candidate, Choice
from flip_flop.studies.summary import Summary, method_order, method_title, task_order, task_title
from flip_flop.studies.tables import notes
from flip_flop.studies.tables.methods import DECIMALS
from flip_flop.studies.tables.table import Cell, Column, Row, Table
from flip_flop.text import MISSING, count, percent, points

_RULES = ("by mean F1 (labels)", "by agreement (no labels)")


def selection_table(summary: Summary, choices: Sequence[Choice]) -> Table:
    """One row per training: both choices with both criteria, on the validation split."""
    choices = sorted(choices, key=_order)
    rows = tuple(_row(choice) for choice in choices)
    both = [
        (labelled, free) for c in choices if (labelled := c.by_mean_f1()) is not None and (free := c.by_agreement())
    ]
    costs = [
        free.mean_f1 - labelled.mean_f1
        for labelled, free in both
        if free.mean_f1 is not None and labelled.mean_f1 is not None
    ]
    lines = [
        *notes.about(summary, []),
        "Figures are of the validation split, percent; a rule takes the first of the best. Agreement counts only while "
        "drift is within max_share_drift. Drift: how far the label shares are from the base's majority votes (total "
        "variation).",
        *_verdict(both, costs),
    ]
    unscored = sum(not choice.candidates for choice in choices)
    if unscored:
        lines.append(f"No checkpoint was scored on the validation split: {count(unscored, 'training')}.")
    scored = [choice for choice in choices if choice.candidates]
    collapsed = sum(choice.is_guarded and choice.by_agreement() is None for choice in scored)
    if collapsed:
        lines.append(f"No checkpoint within max_share_drift: {count(collapsed, 'training')}.")
    unknown = sum(not choice.is_guarded for choice in scored)
    if unknown:
        lines.append(f"The log does not hold the base's votes, so the guard is unknown: {count(unknown, 'training')}.")
    columns = (
        *(Column(heading, is_text=True) for heading in ("method", "trained on", "seed")),
        *(Column(heading, group=rule) for rule in _RULES for heading in ("step", "mean F1", "P_o", "drift")),
    )
    title = "Checkpoints by either rule of selection"
    return Table("selection", title, columns, rows, tuple(lines), tuple(map(_record, choices)))


def _order(choice: Choice) -> Any:
    seed = -1 if choice.seed is None else choice.seed
    return method_order(choice.method), task_order(choice.task), choice.num_templates, seed


def _row(choice: Choice) -> Row:
    name = f"{task_title(choice.task)}, {choice.num_templates} templates"
    seed = "" if choice.seed is None else str(choice.seed)
    head = [Cell(method_title(choice.method)), Cell(name, is_name=True), Cell(seed)]
    return Row((*head, *_cells(choice.by_mean_f1()), *_cells(choice.by_agreement())))


def _cells(candidate: Candidate | None) -> list[Cell]:
    if candidate is None:
        return [Cell(MISSING)] * 4
    figures = (candidate.mean_f1, candidate.agreement, candidate.drift)
    return [Cell(str(candidate.step)), *(Cell(percent(figure, DECIMALS)) for figure in figures)]


def _verdict(both: Sequence[tuple[Candidate, Candidate]], costs: Sequence[float]) -> list[str]:
    if not both:
        return []
    same = sum(labelled.step == free.step for labelled, free in both)
    line = f"Both rules choose the same checkpoint in {same} of {count(len(both), 'training')}"
    return [f"{line}; choosing without labels moves validation mean F1 by {points(fmean(costs), DECIMALS)} on average."]


def _record(choice: Choice) -> dict[str, Any]:
    labelled, free = choice.by_mean_f1(), choice.by_agreement()
    return {
        "method": choice.method,
        "task": choice.task,
        "seed": choice.seed,
        "templates": choice.num_templates,
        "selected_by": choice.selected_by,
        "max_share_drift": choice.max_share_drift,
        "mean_f1_step": labelled and labelled.step,
        "mean_f1_value": labelled and labelled.mean_f1,
        "mean_f1_agreement": labelled and labelled.agreement,
        "mean_f1_drift": labelled and labelled.drift,
        "agreement_step": free and free.step,
        "agreement_mean_f1": free and free.mean_f1,
        "agreement_value": free and free.agreement,
        "agreement_drift": free and free.drift,
    }
