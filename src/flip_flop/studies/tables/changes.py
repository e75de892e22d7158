"""What each method has changed against the base: by task, on average, and how often for the better."""

from collections.abc import Sequence
from typing import Any

from flip_flop.studies.averages import Balance, balance, mean_change
from flip_flop.studies.paper import FIGURES
from flip_flop.studies.summary import BASE, Entry, Summary, method_title, task_title
from flip_flop.studies.tables import notes
from flip_flop.studies.tables.methods import DECIMALS, PAPER, TITLES, by_place, in_paper
from flip_flop.studies.tables.table import Cell, Column, Row, Table, count_missing
from flip_flop.text import MISSING, count, point_interval, points


def changes_table(summary: Summary) -> Table:
    """Tasks in rows, by method; below them the average and the P/N counts, beside the paper's over the same tasks."""
    entries, tasks = by_place(summary.about("own")), summary.tasks("own")
    trained = [method for method in summary.methods("own") if method != BASE]
    with_paper = in_paper(trained, tasks)
    body: list[Row] = []
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for method in trained:
        for number, task in enumerate(tasks):
            entry, printed = entries.get((method, task)), PAPER.get((method, task))
            cells = [cell for figure in FIGURES for cell in change_cells(entry, printed, figure, with_paper=with_paper)]
            head = Cell(method_title(method) if number == 0 else "", is_name=method_title(method) == method)
            body.append(Row((head, Cell(task_title(task), is_name=True), *cells), rule=bool(rows) and number == 0))
            rows.append(body[-1])
        own = [entries[method, task] for task in tasks if (method, task) in entries]
        rows += _averages(own, len(tasks), with_paper)
        records += [_record(method, own, figure) for figure in FIGURES]
    lines = [
        *notes.about(summary, [entry for entry in entries.values() if entry.method != BASE]),
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        notes.INTERVAL,
        *(
            [*notes.paper(notes.BESIDE, list(entries.values())), "Its averages: over the same tasks."]
            if with_paper
            else []
        ),
        *notes.missing(summary, "own", count_missing(body)),
    ]
    columns = [Column("", is_text=True), Column("", is_text=True)]
    for figure in FIGURES:
        columns += [Column(heading, group=TITLES[figure]) for heading in change_headings(figure, with_paper=with_paper)]
    return Table(
        "table1_changes", "Changes against the base", tuple(columns), tuple(rows), tuple(lines), tuple(records)
    )


def change_headings(figure: str, *, with_paper: bool) -> tuple[str, ...]:
    """The columns of a change; sigma has no interval, as resampling instances adds to it."""
    interval = () if figure == "f1_std" else ("95% CI",)
    return ("Δ", *interval, *(("paper",) if with_paper else ()))


def change_cells(entry: Entry | None, printed: Entry | None, figure: str, *, with_paper: bool) -> list[Cell]:
    """A change, its interval, and the paper's change."""
    change = None if entry is None else entry.change(figure)
    interval = None if entry is None or change is None else entry.intervals.get(figure)
    words = point_interval(interval, DECIMALS) if interval else ""
    paper_words = points(printed.change(figure) if printed else None, DECIMALS)
    return _group(points(change, DECIMALS), words, paper_words, figure, with_paper)


def _group(change: str, interval: str, printed: str, figure: str, with_paper: bool) -> list[Cell]:
    middle = [] if figure == "f1_std" else [Cell(interval)]
    return [Cell(change), *middle, *([Cell(printed, is_paper=True)] if with_paper else [])]


def _averages(own: Sequence[Entry], num_tasks: int, with_paper: bool) -> list[Row]:
    compared = {figure: sum(entry.change(figure) is not None for entry in own) for figure in FIGURES}
    most = max(compared.values())
    size = count(num_tasks, "task") if most == num_tasks else f"{most} of {count(num_tasks, 'task')}"
    means, counts = [], []
    for figure in FIGURES:
        printed = _printed(own, figure)
        # A task without labels has agreement and no F1.
        fewer = f" over {count(compared[figure], 'task')}" if 0 < compared[figure] < most else ""
        means += _group(
            points(mean_change(own, figure), DECIMALS) + fewer,
            "",
            points(mean_change(printed, figure), DECIMALS),
            figure,
            with_paper,
        )
        counts += _group(_words(balance(own, figure)), "", _words(balance(printed, figure)), figure, with_paper)
    return [
        Row((Cell(""), Cell(f"average, {size}"), *means)),
        Row((Cell(""), Cell("better/worse"), *counts)),
    ]


def _printed(own: Sequence[Entry], figure: str) -> list[Entry]:
    """The paper's entries for the tasks that have a change here; none where it lacks one of them."""
    places = [(entry.method, entry.task) for entry in own if entry.change(figure) is not None]
    return [PAPER[place] for place in places] if all(place in PAPER for place in places) else []


def _words(counted: Balance | None) -> str:
    return counted.words() if counted else MISSING


def _record(method: str, own: Sequence[Entry], figure: str) -> dict[str, Any]:
    printed = _printed(own, figure)
    counted, printed_count = balance(own, figure), balance(printed, figure)
    return {
        "method": method,
        "figure": figure,
        "tasks": sum(entry.change(figure) is not None for entry in own),
        "mean_change": mean_change(own, figure),
        "better": counted and counted.better,
        "worse": counted and counted.worse,
        "paper_mean_change": mean_change(printed, figure),
        "paper_better": printed_count and printed_count.better,
        "paper_worse": printed_count and printed_count.worse,
    }
