"""A table in LaTeX with booktabs, marked as in the paper: best bold and green, worst red."""

import itertools
import re
from collections.abc import Sequence

from flip_flop.studies.tables.table import Column, Table, TableCell, TableRow
from flip_flop.text import visible

PREAMBLE = r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[dvipsnames]{xcolor}."
_ESCAPES = {character: rf"\{character}" for character in "{}&%$#_"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ this and the next would be read as its arguments
    "*": "{*}",
    "]": "{]}",
    "−": "$-$",
    "±": r"$\pm$",
    "–": "--",
    "Δ": r"$\Delta$",
}
_SYMBOLS = {
    "mean F1": r"$\overline{F_1}$",
    "sigma_F1": r"$\sigma_{F_1}$",
    "P_o": r"$P_o$",
    "F2C": r"F$^2$C",
    "F1": r"$F_1$",
}
_WORDS = re.compile("|".join(map(re.escape, _SYMBOLS)))


def render_latex(table: Table) -> str:
    r"""The table as a float, to be read with ``\input``; it shrinks to the width of the page where it has to."""
    kind = "table*" if table.is_wide else "table"
    width = r"\linewidth" if table.is_wide else r"\columnwidth"
    layout = "".join("l" if column.is_text else "r" for column in table.columns)
    notes = " ".join(_words(note) for note in table.notes)
    lines = [
        PREAMBLE,
        rf"\begin{{{kind}}}[t]",
        r"  \centering",
        r"  \footnotesize",
        r"  \setlength{\tabcolsep}{3.7pt}",
        r"  \sbox0{%",
        rf"  \begin{{tabular}}{{{layout}}}",
        r"    \toprule",
        *_headings(table.columns),
        r"    \midrule",
        *itertools.chain.from_iterable(_row(row) for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}}%",
        rf"  \ifdim\wd0>{width}\resizebox{{{width}}}{{!}}{{\usebox0}}\else\usebox0\fi",
        rf"  \caption{{{_words(table.title)}. {notes}}}",
        rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', table.name)}}}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    r"""A name, letter by letter.

    Example:
        >>> print(escape("50% of a_b & [c]"))
        50\% of a\_b \& {[}c{]}
    """
    return "".join(_ESCAPES.get(character, character) for character in visible(text, one_line=True))


def _words(text: str) -> str:
    """Words of ours: titles of metrics become mathematics."""
    parts = _WORDS.split(text)
    symbols = [_SYMBOLS[found] for found in _WORDS.findall(text)]
    return "".join(escape(part) + symbol for part, symbol in itertools.zip_longest(parts, symbols, fillvalue=""))


def _headings(columns: Sequence[Column]) -> list[str]:
    lines = []
    if any(column.group for column in columns):
        groups = [(name, len(list(members))) for name, members in itertools.groupby(columns, lambda c: c.group)]
        cells, rules, start = [], [], 1
        for name, size in groups:
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{_words(name)}}}" if name else " & ".join([""] * size))
            if name:
                rules.append(rf"\cmidrule(lr){{{start}-{start + size - 1}}}")
            start += size
        lines = [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"]
    heads = [escape(column.heading) if column.is_name else _words(column.heading) for column in columns]
    return [*lines, f"    {' & '.join(heads)} \\\\"]


def _row(row: TableRow) -> list[str]:
    line = f"    {' & '.join(map(_cell, row.cells))} \\\\"
    return [r"    \midrule", line] if row.rule else [line]


def _cell(cell: TableCell) -> str:
    text = escape(cell.text) if cell.is_name else _words(cell.text)
    if cell.is_paper and text:
        return rf"{{\scriptsize\textcolor{{gray}}{{{text}}}}}"
    if cell.mark == "best":
        return rf"\textbf{{\textcolor{{ForestGreen}}{{{text}}}}}"
    return rf"\textcolor{{BrickRed}}{{{text}}}" if cell.mark == "worst" else text
