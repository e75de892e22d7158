"""A table as it is printed, before it is Markdown or LaTeX; and its numbers for CSV."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from flip_flop.text import MISSING, markdown_cell, spreadsheet_cell, visible

Mark = Literal["best", "worst", ""]


@dataclass(frozen=True)
class TableCell:
    """One cell: ``is_paper`` is the paper's number; ``is_name`` comes from a user's file, with no words of ours."""

    text: str = ""
    mark: Mark = ""
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
class TableRow:
    """A row; ``rule`` draws a line above it."""

    cells: tuple[TableCell, ...]
    rule: bool = False


@dataclass(frozen=True, eq=False)
class Table:
    """A table, the notes below it, and its numbers in long form for CSV: fractions in full, NaN for no answer.

    ``name`` is the files' name; ``is_wide`` spans both columns of a page.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]
    notes: Sequence[str]
    records: pd.DataFrame
    is_wide: bool = True


def render_markdown(table: Table) -> str:
    """The table in Markdown: best bold, worst in italics."""
    heads = [_heading(column) for column in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    lines = [heads, rules, *([_markdown(cell) for cell in row.cells] for row in table.rows)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {_name(note)}" for note in table.notes)
    return f"### {markdown_cell(table.title)}\n\n{grid}\n\n{notes}\n"


def render_csv(table: Table) -> str:
    """The numbers of the table, with fractions from 0 to 1 in full."""
    plain = table.records.map(lambda value: spreadsheet_cell(value) if isinstance(value, str) else value)
    return plain.to_csv(index=False, lineterminator="\n")


def _name(text: str) -> str:
    return markdown_cell(visible(text, one_line=True))


def _heading(column: Column) -> str:
    text = f"{column.group} {column.heading}".strip()
    return _name(text) if column.is_name else text


def _markdown(cell: TableCell) -> str:
    text = _name(cell.text) if cell.is_name else cell.text
    if cell.is_paper and text:
        return f"({text})" if text != MISSING else text
    return {"best": f"**{text}**", "worst": f"*{text}*", "": text}[cell.mark]
