"""A table as it is printed, before it is Markdown or LaTeX; and the lines for a spreadsheet behind it."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flip_flop.text import MISSING, markdown_cell, spreadsheet_cell, visible

Mark = Literal["best", "worst"]


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: As printed.
        mark: Whether it is the best or the worst of those that it is compared with.
        is_name: Whether it comes from a file of the user's: printed letter by letter. Else P_o and the like are ours.
        is_paper: Whether it is the paper's number.
    """

    text: str
    mark: Mark | None = None
    is_name: bool = False
    is_paper: bool = False


@dataclass(frozen=True)
class Column:
    """A column's heading; neighbours with the same group stand under it together."""

    heading: str
    group: str = ""
    is_text: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class Row:
    """A row; ``rule`` draws a line above it."""

    cells: tuple[Cell, ...]
    rule: bool = False


@dataclass(frozen=True)
class Table:
    """A table, what stands below it, and its lines for a spreadsheet.

    Attributes:
        name: The files' name.
        title: One line above it.
        columns: Headings.
        rows: Each as long as ``columns``.
        notes: Lines below it.
        records: The same in long form for CSV: fractions in full, ``None`` where there is no answer.
        is_wide: Whether it spans both columns of a page.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    records: tuple[Mapping[str, Any], ...]
    is_wide: bool = True


def render_markdown(table: Table) -> str:
    """The table in Markdown: best bold, worst in italics."""
    heads = [_heading(column) for column in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    lines = [heads, rules, *([_markdown(cell) for cell in row.cells] for row in table.rows)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {markdown_cell(visible(note, one_line=True))}" for note in table.notes)
    return f"### {markdown_cell(table.title)}\n\n{grid}\n\n{notes}\n"


def render_csv(table: Table) -> str:
    """The lines behind the table, with fractions from 0 to 1 in full."""
    text = io.StringIO()
    headings = list(table.records[0]) if table.records else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    for record in table.records:
        writer.writerow([_plain(record[heading]) for heading in headings])
    return text.getvalue()


def mark_extremes(values: Sequence[float | None], *, less_is_better: bool, decimals: int) -> list[Mark | None]:
    """Which of some fractions are best and worst, as printed in percent: what looks equal is marked alike.

    Example:
        >>> mark_extremes([0.5, None, 0.7, 0.70001], less_is_better=False, decimals=2)
        ['worst', None, 'best', 'best']
    """
    printed = [None if value is None else round(100 * value, decimals) for value in values]
    known = [value for value in printed if value is not None]
    if len(set(known)) < 2:
        return [None] * len(values)
    best, worst = (min(known), max(known)) if less_is_better else (max(known), min(known))
    return ["best" if value == best else "worst" if value == worst else None for value in printed]


def count_missing(table_rows: Sequence[Row]) -> int:
    """How many cells are a dash where the study should have a number; the paper's have none to give."""
    return sum(cell.text == MISSING and not cell.is_paper for row in table_rows for cell in row.cells)


def _heading(column: Column) -> str:
    text = f"{column.group} {column.heading}".strip()
    return markdown_cell(visible(text, one_line=True)) if column.is_name else text


def _markdown(cell: Cell) -> str:
    text = markdown_cell(visible(cell.text, one_line=True)) if cell.is_name else cell.text
    if cell.is_paper and text:
        return f"({text})" if text != MISSING else text
    return {"best": f"**{text}**", "worst": f"*{text}*", None: text}[cell.mark]


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    return spreadsheet_cell(visible(value, one_line=True)) if isinstance(value, str) else value
