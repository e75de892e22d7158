"""The table *What changes the answer* of an audit."""

import math

from flip_flop.console import MISSING, percent
from flip_flop.evaluation.causes import CAUSES
from flip_flop.evaluation.result import Audit
from flip_flop.metrics import AxisRow
from flip_flop.report.table import Column, Table, TableCell

FORMS = {"raw": "one pass", "calibrated": "calibrated", "average": "averaged", "calibrated average": "both"}
LEGEND = (
    "flips: share of the pairs of variants, different only along this axis, whose answers differ, if both were read; "
    "with 95% intervals.",
    "averaged: mean probabilities over the orders of the options, one pass for each, of variants with several orders. "
    "both: divided by their mean over the rows, too.",
    "accuracy: the mean over the variants, and its range from the worst to the best.",
    "tokens: the mean length of the prompts of one answer.",
)


def axis_table(run: Audit) -> Table:
    """Return the table, without rows if no axis is known: the axis with most flips first, its wordings below it."""
    forms = [form for form in FORMS if form in run.forms]
    costs = [form for form in ("raw", "average") if form in forms and "prompt_tokens_per_template" in run.metrics]
    groups = ["flips", "accuracy"][: 1 + run.has_gold]
    columns = [Column("", is_text=True), *(Column(FORMS[form], group=group) for group in groups for form in forms)]
    columns += [Column(FORMS[form], group="tokens") for form in costs]
    lines = []
    for axis, wording, form in run.axis_rows:
        if form == "raw":
            found = {each: run.axis_rows.get((axis, wording, each), AxisRow(0, 0)) for each in forms}
            title = CAUSES[axis].removeprefix("the ") if wording is None else f"- in {wording}"
            texts = [_text(row.flips, row.low, row.high) for row in found.values()]
            texts += [_text(row.accuracy, row.worst, row.best) for row in found.values() if run.has_gold]
            texts += [percent(found[each].tokens, 0, scale=1) for each in costs]
            lines.append([TableCell(title, "name"), *map(TableCell, texts)])
    return Table("axes", "What changes the answer, in percent", columns, lines)


def _text(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return MISSING
    return percent(value) if low == high else f"{percent(value)} ({percent(low)} to {percent(high)})"
