"""A table and its renderer: terminal, Markdown, CSV and LaTeX."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from flip_flop.console import MISSING, align_columns, fit_columns, markdown_cell, on_one_line, spreadsheet_cell

_LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "{}&%$#_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": r"\textasciigrave{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}"}
    | {"[": "{[}", "*": "{*}", "]": "{]}"}  # after \\ LaTeX reads the first two as its arguments
    | {"−": "$-$", "±": r"$\pm$", "–": "--", "Δ": r"$\Delta$"}
)
_LATEX_SYMBOLS = {
    "mean F1": r"$\overline{F_1}$",
    "sigma_F1": r"$\sigma_{F_1}$",
    "P_o": r"$P_o$",
    "F2C": r"F$^2$C",
    "F1": r"$F_1$",
    "σ of F1": r"$\sigma_{F_1}$",
    "Pₒ": r"$P_o$",
    "σ": r"$\sigma$",
    "κ": r"$\kappa$",
    "→": r"$\to$",
}
# A symbol is a word: not a part of another word or of a path. An arrow may touch words.
_LATEX_TOKENS = re.compile(
    rf"(?<![\w/])(?:{'|'.join(map(re.escape, sorted(_LATEX_SYMBOLS, key=len, reverse=True)))})(?![\w/-])|→|.", re.DOTALL
)

Style = Literal["", "name", "paper", "best", "worst", "small"]
_LATEX_STYLES = {
    "best": r"\textbf{\textcolor{ForestGreen}{%s}}",
    "worst": r"\textcolor{BrickRed}{%s}",
    "paper": r"{\scriptsize\textcolor{gray}{%s}}",
    "small": r"{\scriptsize %s}",
}
_MARKDOWN_STYLES = {"best": "**%s**", "worst": "*%s*", "paper": "(%s)"}


@dataclass(frozen=True)
class TableCell:
    """One cell. The style ``name`` marks untrusted text of a file, and ``paper`` a published number."""

    text: str = ""
    style: Style = ""

    def markdown(self) -> str:
        """Render Markdown. A missing number has no style."""
        if self.style == "name":
            return markdown_cell(on_one_line(self.text))
        if self.text in ("", MISSING):
            return self.text
        return _MARKDOWN_STYLES.get(self.style, "%s") % self.text

    def latex(self) -> str:
        """Render LaTeX."""
        text = escape(self.text) if self.style == "name" else words(self.text)
        if text:
            return _LATEX_STYLES.get(self.style, "%s") % text
        return ""


@dataclass(frozen=True)
class Column(TableCell):
    """The heading of a column. Neighbours with the same group share a heading above."""

    group: str = ""
    is_text: bool = False


Row = Sequence[TableCell]


@dataclass(frozen=True, eq=False)
class Table:
    """A table with its notes, and its numbers in long form for CSV, as unrounded fractions.

    ``name`` is the name of its files. Columns of text come first. An empty row is a rule. ``is_wide`` spans both
    columns of a page.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    records: pd.DataFrame = field(default_factory=pd.DataFrame)
    is_wide: bool = True

    def text(self, width: int | None = None) -> str:
        """Render aligned text. With the ``width`` of a terminal, headings have two lines and no line is longer."""
        headings = self._headings()
        rows = []
        for row in filter(None, self.rows):
            texts = [cell.text for cell in row]
            rows.append(texts)
        num_left = sum(column.is_text for column in self.columns)
        if width is None:
            grid = align_columns([headings, *rows], num_left=num_left, rule=1)
        else:
            above, _, below = zip(*(heading.rpartition(" ") for heading in headings), strict=True)
            grid = fit_columns([above, below, *rows], num_left=num_left, rule=2, width=width)
        return "\n".join([self.title, grid, *(f"- {on_one_line(note)}" for note in self.notes)])

    def markdown(self) -> str:
        """Render Markdown: the best number is bold, the worst in italics."""
        headings = [TableCell(text, column.style) for text, column in zip(self._headings(), self.columns, strict=True)]
        rules = [TableCell("---" if column.is_text else "---:") for column in self.columns]
        lines = [f"### {markdown_cell(self.title)}", ""]
        for row in filter(None, [headings, rules, *self.rows]):
            cells = " | ".join(cell.markdown() for cell in row)
            lines.append(f"| {cells} |")
        notes = [f"- {markdown_cell(on_one_line(note))}" for note in self.notes]
        return "\n".join([*lines, *([""] if notes else []), *notes])

    def csv(self) -> str:
        """Render the numbers as CSV, with unrounded fractions from 0 to 1."""
        return self.records.map(spreadsheet_cell).to_csv(index=False, lineterminator="\n")

    def latex(self) -> str:
        r"""Render a LaTeX float for ``\input``. A wide table shrinks to the page.

        As in the paper, the best number is bold and green, and the worst is red.
        """
        kind, width = ("table*", r"\linewidth") if self.is_wide else ("table", r"\columnwidth")
        layout = "".join("l" if column.is_text else "r" for column in self.columns)
        head = [
            r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[dvipsnames]{xcolor}.",
            rf"\begin{{{kind}}}[t]",
            r"  \centering",
            r"  \footnotesize",
            r"  \setlength{\tabcolsep}{3.7pt}",
            r"  \sbox0{%",
            rf"  \begin{{tabular}}{{{layout}}}",
            r"    \toprule",
        ]
        rows = [_latex_row(row) if row else r"    \midrule" for row in [self.columns, [], *self.rows]]
        foot = [
            r"    \bottomrule",
            r"  \end{tabular}}%",
            rf"  \ifdim\wd0>{width}\resizebox{{{width}}}{{!}}{{\usebox0}}\else\usebox0\fi",
            rf"  \caption{{{words(self.title)}. {' '.join(map(words, self.notes))}}}",
            rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', self.name)}}}",
            rf"\end{{{kind}}}",
        ]
        return "\n".join([*head, *self._latex_groups(), *rows, *foot]) + "\n"

    def _headings(self) -> list[str]:
        return [f"{column.group} {column.text}".strip() for column in self.columns]

    def _latex_groups(self) -> list[str]:
        """Return the line of groups above the headings, and the rules below it."""
        cells: list[str] = []
        rules: list[str] = []
        end = 0
        for name, members in itertools.groupby(self.columns, lambda column: column.group):
            size = len(list(members))
            if name:
                cells.append(rf"\multicolumn{{{size}}}{{c}}{{{words(name)}}}")
                rules.append(rf"\cmidrule(lr){{{end + 1}-{end + size}}}")
            else:
                cells += [""] * size
            end += size
        if rules:
            return [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"]
        return []


def _latex_row(row: Row) -> str:
    return f"    {' & '.join(cell.latex() for cell in row)} \\\\"


def escape(text: str) -> str:
    r"""Escape a name for LaTeX.

    Example:
        >>> print(escape("50% of a_b & [c]"))
        50\% of a\_b \& {[}c{]}
    """
    return on_one_line(text).translate(_LATEX_ESCAPES)


def words(text: str) -> str:
    """Escape words of this package for LaTeX, and write names of metrics as mathematics."""
    return "".join(_LATEX_SYMBOLS.get(token) or escape(token) for token in _LATEX_TOKENS.findall(text))
