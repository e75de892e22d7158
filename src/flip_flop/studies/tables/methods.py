"""Table 1: every method on every task, in the paper's layout."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from flip_flop.studies.paper import FIGURES
from flip_flop.studies.summary import (
    BASE,
    LESS_IS_BETTER,
    Entry,
    Spread,
    Summary,
    method_title,
    paper_entries,
    task_title,
)
from flip_flop.studies.tables import notes
from flip_flop.studies.tables.table import Cell, Column, Mark, Row, Table, count_missing, mark_extremes
from flip_flop.text import MISSING, percent

TITLES = {"mean_f1": "mean F1", "f1_std": "sigma_F1", "observed_agreement": "P_o", "vote_f1": "vote F1"}
DECIMALS = 2
Entries = Mapping[tuple[str, str], Entry]


def by_place(entries: Sequence[Entry]) -> Entries:
    """Entries by method and task."""
    return {(entry.method, entry.task): entry for entry in entries}


PAPER = by_place(paper_entries())


def spread_words(spread: Spread | None) -> str:
    """A mean in percent with its spread over seeds.

    Example:
        >>> spread_words(Spread(0.5843, 0.0021)), spread_words(None)
        ('58.43 ± 0.21', '–')
    """
    if spread is None:
        return MISSING
    return percent(spread.mean, DECIMALS) + ("" if spread.std is None else f" ± {100 * spread.std:.{DECIMALS}f}")


def methods_table(summary: Summary) -> Table:
    """Methods in rows, tasks in columns, the paper's number below each cell."""
    entries, tasks, methods = by_place(summary.about("own")), summary.tasks("own"), summary.methods("own")
    rows: list[Row] = []
    for method in methods:
        figures = [*FIGURES, "vote_f1"] if method == BASE and _has_vote(entries) else FIGURES
        for number, figure in enumerate(figures):
            head = Cell(method_title(method) if number == 0 else "", is_name=method_title(method) == method)
            cells = [head, Cell(TITLES[figure]), *_cells(entries, method, figure, tasks, methods)]
            rows.append(Row(tuple(cells), rule=bool(rows) and number == 0))
            if figure in FIGURES and in_paper([method], tasks):
                texts = [_words(_value(PAPER, method, task, figure)) for task in tasks]
                texts += [_average(PAPER, method, figure, tasks)]
                rows.append(Row((Cell(""), *(Cell(text, is_paper=True) for text in ("paper", *texts)))))
    lines = [
        *notes.about(summary, list(entries.values())),
        *notes.deviation(list(entries.values())),
        "Percent. Best per task and figure: bold; worst: italics, or red. An average stands where no task is missing.",
        *(["Vote F1: the base's majority over its templates, which takes no training."] if _has_vote(entries) else []),
        *(notes.paper("Below each number", list(entries.values())) if in_paper(methods, tasks) else []),
        *notes.missing(summary, "own", count_missing([Row(row.cells[:-1]) for row in rows])),
    ]
    return Table(
        "table1_methods",
        "Methods on their own task (the paper's Table 1)",
        (Column("", is_text=True), Column("", is_text=True), *_task_columns(tasks), Column("average")),
        tuple(rows),
        tuple(lines),
        tuple(_records(entries)),
    )


def in_paper(methods: Sequence[str], tasks: Sequence[str]) -> bool:
    """Whether the paper's Table 1 has some of these."""
    return any((method, task) in PAPER for method in methods for task in tasks)


def _cells(entries: Entries, method: str, figure: str, tasks: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    cells = []
    for task in tasks:
        values = [_value(entries, each, task, figure) for each in methods]
        marks = mark_extremes(values, less_is_better=figure in LESS_IS_BETTER, decimals=DECIMALS)
        mark: Mark | None = marks[methods.index(method)] if figure in FIGURES else None
        entry = entries.get((method, task))
        cells.append(Cell(spread_words(entry.spread(figure) if entry else None), mark))
    return [*cells, Cell(_average(entries, method, figure, tasks))]


def _value(entries: Entries, method: str, task: str, figure: str) -> float | None:
    entry = entries.get((method, task))
    spread = entry.spread(figure) if entry else None
    return spread.mean if spread else None


def _words(value: float | None) -> str:
    return percent(value, DECIMALS)


def _average(entries: Entries, method: str, figure: str, tasks: Sequence[str]) -> str:
    values = [_value(entries, method, task, figure) for task in tasks]
    known = [value for value in values if value is not None]
    return _words(fmean(known)) if known and len(known) == len(values) else MISSING


def _has_vote(entries: Entries) -> bool:
    return any(method == BASE and "vote_f1" in entry.values for (method, _), entry in entries.items())


def _task_columns(tasks: Sequence[str]) -> list[Column]:
    return [Column(task_title(task), is_name=True) for task in tasks]


def _records(entries: Entries) -> list[dict[str, Any]]:
    records = []
    for (method, task), entry in entries.items():
        for figure in (*FIGURES, "vote_f1"):
            spread, interval = entry.spread(figure), entry.intervals.get(figure)
            printed = PAPER.get((method, task))
            records.append(
                {
                    "method": method,
                    "task": task,
                    "figure": figure,
                    "mean": spread and spread.mean,
                    "std_over_seeds": spread and spread.std,
                    "seeds": " ".join(str(seed) for seed in entry.seeds if seed is not None),
                    "change": entry.change(figure),
                    "change_low": interval and interval[0],
                    "change_high": interval and interval[1],
                    "paper": _value(PAPER, method, task, figure),
                    "paper_change": printed and printed.change(figure),
                    "split": entry.split,
                    "instances": entry.num_instances,
                    "templates": entry.audited,
                }
            )
    return records
