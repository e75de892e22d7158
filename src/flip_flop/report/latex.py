"""LaTeX: names and words in it, and a report's main table."""

import re
from collections.abc import Sequence
from typing import Any

from flip_flop.console import MISSING, visible
from flip_flop.report.compare import Group
from flip_flop.report.verdict import metric_table

_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "{}&%$#_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": r"\textasciigrave{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}"}
    | {"[": "{[}", "*": "{*}", "]": "{]}"}  # after \\ the first two would be read as its arguments
    | {"−": "$-$", "±": r"$\pm$", "–": "--", "Δ": r"$\Delta$"}
)
_SYMBOLS = {
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
_TOKENS = re.compile("|".join([*map(re.escape, sorted(_SYMBOLS, key=len, reverse=True)), "."]), re.DOTALL)


def escape(text: str) -> str:
    r"""A name in LaTeX, letter by letter.

    Example:
        >>> print(escape("50% of a_b & [c]"))
        50\% of a\_b \& {[}c{]}
    """
    return visible(text, one_line=True).translate(_ESCAPES)


def words(text: str) -> str:
    """Words of ours: titles of metrics become mathematics."""
    return "".join(_SYMBOLS.get(token) or escape(token) for token in _TOKENS.findall(text))


def render_latex(groups: Sequence[Group]) -> str:
    r"""Each group's table, to be read with ``\\input``: values, and below them differences and intervals."""
    tables = [_table(group, f"tab:consistency-{number}") for number, group in enumerate(groups, start=1)]
    return "\n".join([r"% Needs \usepackage{booktabs}.", *tables])


def _table(group: Group, label: str) -> str:
    table = metric_table(group)
    heads = " & ".join(["Run", *(words(column["label"]) for column in table["columns"])])
    lines = []
    for row in table["rows"]:
        cells = row["cells"]
        values = [rf"\textbf{{{words(cell['value'])}}}" if cell["best"] else words(cell["value"]) for cell in cells]
        name = escape(row["name"]) + (" (collapsed)" if row["collapsed"] else "")
        lines.append(f"    {' & '.join([name, *values])} \\\\")
        parts = [part for part in ("difference", "interval") if any(cell[part] for cell in cells)]
        lines += [f"    {' & '.join(['', *(_small(cell[part]) for cell in cells)])} \\\\" for part in parts]
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"  \centering",
            r"  \small",
            r"  \setlength{\tabcolsep}{3.5pt}",
            rf"  \begin{{tabular}}{{l{'r' * len(table['columns'])}}}",
            r"    \toprule",
            rf"    {heads} \\",
            r"    \midrule",
            *lines,
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{escape(group.heading)}. {words(table['caption'])}}}",
            rf"  \label{{{label}}}",
            r"\end{table*}",
            "",
        ]
    )


def _small(text: Any) -> str:
    return "" if text in (None, MISSING) else rf"{{\scriptsize {words(text)}}}"
