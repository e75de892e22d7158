"""Over templates: study 3, what training on the first K does for unseen ones; and how far the base's F1 spreads."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from flip_flop.studies import paper
from flip_flop.studies.averages import Quartiles, quartiles
from flip_flop.studies.paper import FIGURES
from flip_flop.studies.summary import BASE, Entry, Summary, method_title, task_order, task_title
from flip_flop.studies.tables import notes
from flip_flop.studies.tables.changes import change_cells, change_headings
from flip_flop.studies.tables.methods import DECIMALS, TITLES, spread_words
from flip_flop.studies.tables.table import Cell, Column, Row, Table, count_missing
from flip_flop.text import MISSING, percent

WIDE_RANGE = 0.15  # the paper counts the datasets whose interquartile range exceeds this


def unseen_table(summary: Summary) -> Table:
    """By task and K: the figures on templates that the training never saw, and their changes."""
    entries = sorted(summary.about("unseen"), key=_by_task)
    rows: list[Row] = []
    for number, entry in enumerate(entries):
        is_first = number == 0 or _bench(entries[number - 1]) != _bench(entry)
        cells = [Cell(task_title(entry.task) if is_first else "", is_name=True), Cell(trained_words(entry))]
        for figure in FIGURES:
            is_base = entry.method == BASE
            blank = [Cell("")] * len(change_headings(figure, with_paper=False))
            changes = blank if is_base else change_cells(entry, None, figure, with_paper=False)
            cells += [Cell(spread_words(entry.spread(figure))), *changes]
        rows.append(Row(tuple(cells), rule=bool(rows) and is_first))
    columns = [Column("task", is_text=True), Column("trained on", is_text=True)]
    for figure in FIGURES:
        columns += [
            Column(heading, group=TITLES[figure]) for heading in ("%", *change_headings(figure, with_paper=False))
        ]
    lines = [
        *notes.about(summary, entries),
        *notes.deviation(entries),
        "All rows of a task are audited on the same templates, the ones held out from training on the first K.",
        *(["Rows marked (seen): trained on these templates too."] if any(map(_has_seen, entries)) else []),
        "Changes are in points against the base; lower sigma_F1 is better. " + notes.INTERVAL,
        "The paper gives this study as a picture, without numbers.",
        *notes.missing(summary, "unseen", count_missing(rows)),
    ]
    records = tuple(_record(entry, figure) for entry in entries for figure in FIGURES)
    return Table(
        "study3_unseen_templates",
        "Unseen templates after training on the first K (the paper's study 3)",
        tuple(columns),
        tuple(rows),
        tuple(lines),
        records,
    )


def spread_table(summary: Summary) -> Table:
    """F1 over templates of the base: quartiles by task, and their mean range beside the paper's."""
    entries = [entry for entry in summary.about("own") if entry.method == BASE]
    found = {entry.task: quartiles(list(entry.f1_per_template.values())) for entry in entries if entry.f1_per_template}
    tasks = summary.tasks("own")
    with_paper = any(task in paper.dataset_names() for task in tasks)
    body = [
        Row((Cell(task_title(task), is_name=True), *_quartile_cells(found.get(task), with_paper))) for task in tasks
    ]
    columns = [Column("task", is_text=True)]
    columns += [Column(heading) for heading in ("min", "Q1", "median", "Q3", "max", "Q3-Q1")]
    lines = [
        *notes.about(summary, entries),
        "F1 over templates, percent; quartiles by linear interpolation.",
        *(notes.paper("Beside the mean range", entries) if with_paper else []),
        *(["Its mean range: over its eleven datasets."] if with_paper else []),
        *notes.missing(summary, "own", count_missing(body)),
    ]
    records = [
        {"task": entry.task, "template": name, "f1": value}
        for entry in entries
        for name, value in entry.f1_per_template.items()
    ]
    return Table(
        "base_spread",
        "F1 of the base over templates (the paper's appendix)",
        tuple([*columns, Column("paper")] if with_paper else columns),
        (*body, *_range_rows([each.range for each in found.values()], with_paper)),
        tuple(lines),
        tuple(records),
        is_wide=False,
    )


def _range_rows(ranges: Sequence[float], with_paper: bool) -> list[Row]:
    if not ranges:
        return []
    stated, blank = paper.text(), [Cell("")] * 5
    wide = sum(each > WIDE_RANGE for each in ranges)
    printed = f"{stated['base mean interquartile range']:.2f}"
    printed_wide = f"{stated['base tasks with interquartile range above 15']:.0f} of 11"
    pairs = [("mean", percent(fmean(ranges), DECIMALS), printed)]
    pairs.append(("above 15 points", f"{wide} of {len(ranges)}", printed_wide))
    rows = [
        (Cell(title), *blank, Cell(own), *([Cell(theirs, is_paper=True)] if with_paper else []))
        for title, own, theirs in pairs
    ]
    return [Row(cells, rule=number == 0) for number, cells in enumerate(rows)]


def trained_words(entry: Entry) -> str:
    """What an entry of study 3 was trained on."""
    if entry.method == BASE:
        return "base"
    count = "some" if entry.num_templates is None else f"{entry.num_templates}"
    return f"{method_title(entry.method)}, {count} templates" + (" (seen)" if _has_seen(entry) else "")


def _has_seen(entry: Entry) -> bool:
    return entry.method != BASE and not entry.held_out


def _bench(entry: Entry) -> tuple[str, int]:
    return entry.task, entry.audited


def _by_task(entry: Entry) -> Any:
    return (
        task_order(entry.task),
        entry.audited,
        entry.method != BASE,
        method_title(entry.method),
        entry.num_templates or 0,
    )


def _quartile_cells(found: Quartiles | None, with_paper: bool) -> list[Cell]:
    blank = [Cell("", is_paper=True)] if with_paper else []
    if found is None:
        return [*[Cell(MISSING)] * 6, *blank]
    values = (found.low, found.first, found.median, found.third, found.high, found.range)
    return [*(Cell(percent(value, DECIMALS)) for value in values), *blank]


def _record(entry: Entry, figure: str) -> dict[str, Any]:
    spread, interval = entry.spread(figure), entry.intervals.get(figure)
    return {
        "task": entry.task,
        "method": entry.method,
        "templates_trained_on": entry.num_templates,
        "held_out": entry.held_out,
        "templates": entry.audited,
        "figure": figure,
        "mean": spread and spread.mean,
        "std_over_seeds": spread and spread.std,
        "change": entry.change(figure),
        "change_low": interval and interval[0],
        "change_high": interval and interval[1],
    }
