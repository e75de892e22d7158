"""A printed table and its renderers: text, Markdown, CSV, and LaTeX with booktabs."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from flip_flop.console import MISSING, align_columns, markdown_cell, spreadsheet_cell, visible
from flip_flop.report.tables import escape, words

Style = Literal["", "name", "paper", "best", "worst"]
PREAMBLE = r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[dvipsnames]{xcolor}."
_LATEX_STYLES = {
    "best": r"\textbf{\textcolor{ForestGreen}{%s}}",
    "worst": r"\textcolor{BrickRed}{%s}",
    "paper": r"{\scriptsize\textcolor{gray}{%s}}",
}


@dataclass(frozen=True)
class TableCell:
    """One cell. The style ``name`` marks untrusted text of a file, and ``paper`` a published number."""

    text: str = ""
    style: Style = ""


@dataclass(frozen=True)
class Column(TableCell):
    """The heading of a column. Neighbours with the same group share a heading above."""

    group: str = ""
    is_text: bool = False


Row = Sequence[TableCell]


@dataclass(frozen=True, eq=False)
class Table:
    """A table with its notes, and its numbers in long form for CSV, as unrounded fractions.

    ``name`` is the name of its files. An empty row is a rule. ``is_wide`` spans both columns of a page.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str]
    records: pd.DataFrame
    is_wide: bool = True


def render_csv(table: Table) -> str:
    """Render the numbers as CSV, with unrounded fractions from 0 to 1."""
    return table.records.map(spreadsheet_cell).to_csv(index=False, lineterminator="\n")


def render_markdown(table: Table) -> str:
    """Render Markdown: the best number is bold, the worst in italics."""
    headings = [TableCell(f"{each.group} {each.text}".strip(), each.style) for each in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    lines = [map(_markdown, headings), rules, *(map(_markdown, row) for row in table.rows if row)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {_name(note)}" for note in table.notes)
    return f"### {markdown_cell(table.title)}\n\n{grid}\n\n{notes}\n"


def render_text(table: Table) -> str:
    """Render aligned text for a terminal."""
    headings = [f"{each.group} {each.text}".strip() for each in table.columns]
    lines = [headings, *([cell.text for cell in row] for row in table.rows if row)]
    num_left = next((at for at, column in enumerate(table.columns) if not column.is_text), len(headings))
    grid = align_columns(lines, num_left=num_left, rule=True)
    return "\n".join([table.title, grid, *(f"- {visible(note, one_line=True)}" for note in table.notes)])


def _name(text: str) -> str:
    return markdown_cell(visible(text, one_line=True))


def _markdown(cell: TableCell) -> str:
    if cell.style == "name":
        return _name(cell.text)
    around = {"best": "**%s**", "worst": "*%s*", "paper": "(%s)"}.get(cell.style, "%s")
    return cell.text if cell.text in ("", MISSING) else around % cell.text


def render_latex(table: Table) -> str:
    r"""Render a LaTeX float for ``\input``. A wide table shrinks to the page.

    As in the paper, the best number is bold and green, and the worst is red.
    """
    kind, width = ("table*", r"\linewidth") if table.is_wide else ("table", r"\columnwidth")
    layout = "".join("l" if column.is_text else "r" for column in table.columns)
    lines = [
        PREAMBLE,
        rf"\begin{{{kind}}}[t]",
        r"  \centering",
        r"  \footnotesize",
        r"  \setlength{\tabcolsep}{3.7pt}",
        r"  \sbox0{%",
        rf"  \begin{{tabular}}{{{layout}}}",
        r"    \toprule",
        *_groups(table.columns),
        _latex_row(table.columns),
        r"    \midrule",
        *(_latex_row(row) if row else r"    \midrule" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}}%",
        rf"  \ifdim\wd0>{width}\resizebox{{{width}}}{{!}}{{\usebox0}}\else\usebox0\fi",
        rf"  \caption{{{words(table.title)}. {' '.join(map(words, table.notes))}}}",
        rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', table.name)}}}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _groups(columns: Sequence[Column]) -> list[str]:
    """Return the line of groups above the headings, and the rules below it."""
    cells, rules, end = [], [], 0
    for name, members in itertools.groupby(columns, lambda column: column.group):
        size = len(list(members))
        cells += [rf"\multicolumn{{{size}}}{{c}}{{{words(name)}}}"] if name else [""] * size
        rules += [rf"\cmidrule(lr){{{end + 1}-{end + size}}}"] if name else []
        end += size
    return [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"] if rules else []


def _latex_row(row: Row) -> str:
    return f"    {' & '.join(map(_latex, row))} \\\\"


def _latex(cell: TableCell) -> str:
    text = escape(cell.text) if cell.style == "name" else words(cell.text)
    return _LATEX_STYLES.get(cell.style, "%s") % text if text else ""
