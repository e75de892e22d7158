"""Tables and their one renderer: terminal, Markdown, CSV and LaTeX. The tables of audits, also for the page."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from flip_flop.console import (
    MISSING,
    align_columns,
    markdown_cell,
    percent,
    percent_interval,
    point_interval,
    points,
    spreadsheet_cell,
    visible,
)
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS

if TYPE_CHECKING:
    from flip_flop.report.compare import AuditComparison

_CSV_COLUMNS = (
    "run", "templates", "instances", "observed_agreement", "mean_f1", "f1_std", "f1_min", "f1_max",
    "macro_f1", "accuracy", "vote_f1", "vote_accuracy", "no_consensus_share", "collapsed", "constant_templates",
    "calibration",
)  # fmt: skip
_TEXT_COLUMNS = {
    "run": "run",
    "observed_agreement": "P_o",
    "agreement_interval": "95% of P_o",
    "mean_f1": "mean F1",
    "f1_std": "sigma_F1",
    "f1_range": "min..max F1",
    "accuracy": "accuracy",
    "vote_f1": "vote F1",
    "collapsed": "collapsed",
}
_OPEN_COLUMNS = {
    **{name: _TEXT_COLUMNS[name] for name in ("run", "observed_agreement", "agreement_interval", "accuracy")},
    "token_f1": "token F1",
    "vote_accuracy": "vote accuracy",
    "unmapped_share": "unreadable",
    "distinct_answers": "distinct",
    "answer_length": "length",
    "collapsed": "collapsed",
}
_LEGEND = (
    "In percent. P_o: how likely two templates give the same label, with its 95% interval over instances.",
    "sigma_F1: standard deviation of F1 over templates. min..max F1: F1 of the worst and of the best template.",
    "vote F1: F1 of the templates' majority vote. collapsed: one label dominates, or every template is constant.",
)
_OPEN_LEGEND = (
    "In percent. P_o: how likely two templates give the same answer, with its 95% interval over instances.",
    "accuracy: answers equal to a reference after normalization. vote accuracy: of the most frequent answer.",
    "unreadable answers agree with nothing. distinct: different answers to an instance. length: in characters.",
)
HEADLINE = ("observed_agreement", "mean_f1", "f1_std")
HEADLINE_OPEN = ("observed_agreement", "accuracy", "unmapped_share")
HEADLINE_WITHOUT_GOLD = ("observed_agreement", "no_consensus_share")
_COLUMNS = (*HEADLINE, "f1_range", "macro_f1", "accuracy", "vote_f1", "vote_accuracy")
_COLUMNS_WITHOUT_GOLD = (*HEADLINE_WITHOUT_GOLD, "label_shares")
_OTHER_LABELS = {  # columns of several metrics: label and tooltip
    "f1_range": ("F1 min..max", "F1 of the worst template and of the best template."),
    "label_shares": ("Label shares", "Share of each label among the answers."),
}
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
            return markdown_cell(visible(self.text, one_line=True))
        return self.text if self.text in ("", MISSING) else _MARKDOWN_STYLES.get(self.style, "%s") % self.text

    def latex(self) -> str:
        """Render LaTeX."""
        text = escape(self.text) if self.style == "name" else words(self.text)
        return _LATEX_STYLES.get(self.style, "%s") % text if text else ""


@dataclass(frozen=True)
class Column(TableCell):
    """The heading of a column. Neighbours with the same group share a heading above."""

    group: str = ""
    is_text: bool = False


Row = Sequence[TableCell]
Blocks = Mapping[str, Sequence[Audit]]  # runs by the heading of their table


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

    def text(self) -> str:
        """Render aligned text for a terminal."""
        lines = [self._headings(), *([cell.text for cell in row] for row in self.rows if row)]
        grid = align_columns(lines, num_left=sum(column.is_text for column in self.columns), rule=True)
        return "\n".join([self.title, grid, *(f"- {visible(note, one_line=True)}" for note in self.notes)])

    def markdown(self) -> str:
        """Render Markdown: the best number is bold, the worst in italics."""
        headings = [TableCell(text, column.style) for text, column in zip(self._headings(), self.columns, strict=True)]
        rules = ["---" if column.is_text else "---:" for column in self.columns]
        rows = [[cell.markdown() for cell in row] for row in [headings, *self.rows] if row]
        rows.insert(1, rules)
        grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        notes = "\n".join(f"- {markdown_cell(visible(note, one_line=True))}" for note in self.notes)
        return "\n\n".join([f"### {markdown_cell(self.title)}", grid, *([notes] if notes else [])])

    def csv(self) -> str:
        """Render the numbers as CSV, with unrounded fractions from 0 to 1."""
        return self.records.map(spreadsheet_cell).to_csv(index=False, lineterminator="\n")

    def latex(self) -> str:
        r"""Render a LaTeX float for ``\input``. A wide table shrinks to the page.

        As in the paper, the best number is bold and green, and the worst is red.
        """
        kind, width = ("table*", r"\linewidth") if self.is_wide else ("table", r"\columnwidth")
        layout = "".join("l" if column.is_text else "r" for column in self.columns)
        lines = [
            r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[dvipsnames]{xcolor}.",
            rf"\begin{{{kind}}}[t]",
            r"  \centering",
            r"  \footnotesize",
            r"  \setlength{\tabcolsep}{3.7pt}",
            r"  \sbox0{%",
            rf"  \begin{{tabular}}{{{layout}}}",
            r"    \toprule",
            *self._latex_groups(),
            _latex_row(self.columns),
            r"    \midrule",
            *(_latex_row(row) if row else r"    \midrule" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}}%",
            rf"  \ifdim\wd0>{width}\resizebox{{{width}}}{{!}}{{\usebox0}}\else\usebox0\fi",
            rf"  \caption{{{words(self.title)}. {' '.join(map(words, self.notes))}}}",
            rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', self.name)}}}",
            rf"\end{{{kind}}}",
        ]
        return "\n".join(lines) + "\n"

    def _headings(self) -> list[str]:
        return [f"{column.group} {column.text}".strip() for column in self.columns]

    def _latex_groups(self) -> list[str]:
        """Return the line of groups above the headings, and the rules below it."""
        cells: list[str] = []
        rules: list[str] = []
        end = 0
        for name, members in itertools.groupby(self.columns, lambda column: column.group):
            size = len(list(members))
            cells += [rf"\multicolumn{{{size}}}{{c}}{{{words(name)}}}"] if name else [""] * size
            rules += [rf"\cmidrule(lr){{{end + 1}-{end + size}}}"] if name else []
            end += size
        return [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"] if rules else []


def _latex_row(row: Row) -> str:
    return f"    {' & '.join(cell.latex() for cell in row)} \\\\"


def constant_count(run: Audit) -> str:
    """The number of constant templates, as ``3 of 4``."""
    return f"{len(run.constant_templates)} of {len(run.template_names)}"


_TEXTS: dict[str, Callable[[Audit], str]] = {
    "run": lambda run: run.name,
    "agreement_interval": lambda run: percent_interval(run.interval("observed_agreement")),
    "f1_range": lambda run: MISSING if run.f1_range is None else "..".join(map(percent, run.f1_range)),
    "label_shares": lambda run: " / ".join(map(percent, run.metrics["label_shares"])),
    "collapsed": lambda run: "yes" if run.is_collapsed else "no",
    "constant_templates": constant_count,
}


def cell_text(run: Audit, name: str) -> str:
    """A metric of a run as tables print it: a percentage, a range or a word. A dash is a missing value."""
    return _TEXTS[name](run) if name in _TEXTS else percent(run.value(name), **METRICS[name].form)


def render_text(blocks: Blocks) -> str:
    """Aligned plain text in percent, with a table for each set of templates."""
    return "\n\n".join(_audit_table(heading, runs).text() for heading, runs in blocks.items())


def render_markdown(blocks: Blocks) -> str:
    """A Markdown table in percent for each set of templates, followed by its :func:`table_caveats`."""
    tables = (replace(_audit_table(heading, runs), notes=table_caveats(runs)) for heading, runs in blocks.items())
    return "\n\n".join(table.markdown() for table in tables)


def _audit_table(heading: str, runs: Sequence[Audit]) -> Table:
    titles = dict(_OPEN_COLUMNS if any(run.data.answered for run in runs) else _TEXT_COLUMNS)
    titles |= {name: METRICS[name].label for name in _added_metrics(runs)}
    if any(run.constant_templates for run in runs):
        titles["constant_templates"] = "constant"
    columns = [Column(title, is_text=name == "run") for name, title in titles.items()]
    rows = [[TableCell(_with_interval(run, name), "name" if name == "run" else "") for name in titles] for run in runs]
    return Table("", heading, columns, rows)


def _with_interval(run: Audit, name: str) -> str:
    """A metric as in :func:`cell_text`; an added one with its interval, which has no column."""
    interval = run.interval(name) if name in METRICS and name not in METRICS.built_in else None
    text = cell_text(run, name)
    return text if interval is None else f"{text} ({percent_interval(interval, **METRICS[name].form)})"


def render_csv(blocks: Blocks) -> str:
    """CSV with all digits of the fractions from 0 to 1, and empty cells for missing values."""
    columns = [*_CSV_COLUMNS, *(name for name in METRICS if name not in _CSV_COLUMNS)]
    rows = [_csv_row(run) for run in itertools.chain(*blocks.values())]
    return pd.DataFrame(rows, columns=columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _csv_row(run: Audit) -> dict[str, Any]:
    low, high = run.f1_range or (None, None)
    return {name: run.value(name) for name in METRICS} | {
        "run": spreadsheet_cell(visible(run.name, one_line=True)),
        "templates": len(run.template_names),
        "instances": len(run.scores),
        "f1_min": low,
        "f1_max": high,
        "collapsed": run.is_collapsed,
        "constant_templates": len(run.constant_templates),
        "calibration": spreadsheet_cell(assumption(run)),
    }


def legend(runs: Collection[Audit]) -> str:
    """The columns of :func:`render_text` explained, and the reasons for missing values."""
    lines = list(_OPEN_LEGEND if any(run.data.answered for run in runs) else _LEGEND)
    if not all(run.has_gold for run in runs):
        lines.append(f"{MISSING} of F1 and accuracy: they need gold labels, and the data have none.")
    if any(len(run.template_names) < 2 for run in runs):
        lines.append(f"{MISSING} of P_o and sigma_F1: they need two templates, and there is one.")
    return "\n".join(lines)


def assumption(run: Audit) -> str | None:
    """The method of a calibrated run and the label frequencies that it assumes; None for a raw run."""
    metrics = run.metrics
    if "label_prior" not in metrics:
        return None
    shares = (
        f"{name}: {100 * share:.3g} %" for name, share in zip(run.label_names, metrics["label_prior"], strict=True)
    )
    words = f"the given label frequencies {', '.join(shares)}"
    if len(set(metrics["label_prior"])) == 1:
        words = "equal label frequencies"
    return visible(f"{metrics['method']} calibration assumes {words}", one_line=True)


def table_caveats(runs: Sequence[Audit]) -> list[str]:
    """Sentences on calibration and constant templates."""
    assumptions = dict.fromkeys(filter(None, map(assumption, runs)))
    notes = [f"calibrated: label bias corrected from the same scores; {words}." for words in assumptions]
    for run in runs:
        name = visible(run.name, one_line=True)
        if constant := run.constant_templates:
            listed = visible(", ".join(f"{name} ({label})" for name, label in constant.items()), one_line=True)
            notes.append(f"{name}: constant templates (one label for every instance): {listed}.")
    return notes


def metric_table(group: "AuditComparison", columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The table that HTML and LaTeX print: values in percent, and their differences from the baseline.

    Returns:
        ``columns``, each with ``name``, ``label`` and ``meaning``; ``rows`` of cells, each with ``value``,
        ``difference``, ``interval`` and ``best``.
    """
    if columns is None:
        columns = _main_columns(group)
    labels = _OTHER_LABELS | {name: (metric.label, metric.meaning) for name, metric in METRICS.items()}
    best = {name: _best(name, group.runs) if group.is_comparison else [] for name in columns}
    rows = []
    for run in group.runs:
        cells = [
            {"value": cell_text(run, name), "best": run in best[name], **_parts(group, run, name)} for name in columns
        ]
        rows.append({"run": run, "cells": cells})
    return {
        "columns": [{"name": name, "label": labels[name][0], "meaning": labels[name][1]} for name in columns],
        "rows": rows,
    }


def _main_columns(group: "AuditComparison") -> list[str]:
    columns: Sequence[str] = _COLUMNS if group.base.has_gold else _COLUMNS_WITHOUT_GOLD
    if group.is_open:
        columns = [name for name in _OPEN_COLUMNS if name in METRICS and group.base.value(name) is not None]
    return [*columns, *_added_metrics(group.runs)]


def _added_metrics(runs: Iterable[Audit]) -> list[str]:
    """The metrics with a value that are not of this package. Every table has them."""
    return [
        name for name in METRICS if name not in METRICS.built_in and any(run.value(name) is not None for run in runs)
    ]


def other_metrics(group: "AuditComparison") -> list[str]:
    """The metrics with a value that the main table omits."""
    main = _main_columns(group)
    return [name for name in METRICS if name not in main and any(run.value(name) is not None for run in group.runs)]


def _parts(group: "AuditComparison", run: Audit, name: str) -> dict[str, str | None]:
    """The small print of a cell: an interval, and for a later run the difference from the baseline."""
    if name not in METRICS:
        return {"difference": None, "interval": None}
    form = METRICS[name].form
    if run is group.base:
        interval = run.interval(name)
        return {"difference": None, "interval": percent_interval(interval, **form) if interval else None}
    change = group.difference(name, run)
    return {
        "difference": points(change.value, **form) if change else None,
        "interval": point_interval(change.interval, **form) if change and change.interval else None,
    }


def _best(name: str, runs: Sequence[Audit]) -> list[Audit]:
    """The runs with the best printed value.

    A collapsed run is excluded, and from metrics without gold labels a run with a constant template: its agreement
    says little.
    """
    if name not in METRICS or METRICS[name].higher_is_better is None:
        return []
    sound = [run for run in runs if not run.is_collapsed and (METRICS[name].needs_gold or not run.constant_templates)]
    values = {cell_text(run, name): value for run in sound if (value := run.value(name)) is not None}
    best = (max if METRICS[name].higher_is_better else min)(values, key=values.__getitem__, default="")
    return [run for run in sound if cell_text(run, name) == best]


def escape(text: str) -> str:
    r"""Escape a name for LaTeX.

    Example:
        >>> print(escape("50% of a_b & [c]"))
        50\% of a\_b \& {[}c{]}
    """
    return visible(text, one_line=True).translate(_LATEX_ESCAPES)


def words(text: str) -> str:
    """Escape words of this package for LaTeX, and write names of metrics as mathematics."""
    return "".join(_LATEX_SYMBOLS.get(token) or escape(token) for token in _LATEX_TOKENS.findall(text))


def render_latex(groups: Sequence["AuditComparison"]) -> str:
    r"""A float for each group, for ``\\input``: values, and below them differences and intervals."""
    floats = []
    for number, group in enumerate(groups, start=1):
        table = metric_table(group)
        rows: list[Row] = []
        for row in table["rows"]:
            name = TableCell(row["run"].name + (" (collapsed)" if row["run"].is_collapsed else ""), "name")
            rows.append([name, *(TableCell(cell["value"], "best" if cell["best"] else "") for cell in row["cells"])])
            for part in ("difference", "interval"):
                texts = [cell[part] or "" for cell in row["cells"]]
                rows += [[TableCell(), *(TableCell(text, "small") for text in texts)]] if any(texts) else []
        columns = [Column("Run", is_text=True), *(Column(column["label"]) for column in table["columns"])]
        floats.append(Table(f"consistency-{number}", group.heading, columns, rows, [table_caption(group)]).latex())
    return "\n".join(floats)


def table_caption(group: "AuditComparison") -> str:
    """The units, the reference of the differences and the definition of F1."""
    caption = "In percent."
    if group.is_comparison:
        caption += f" Differences from {group.base.name} are in percentage points, with 95% intervals."
        caption += " Bold marks the best value. It skips collapsed runs and, for agreement, constant templates."
    if group.is_open:
        caption += " Distinct answers are numbers of answers, answer length is in characters."
    elif group.base.has_gold:
        f1 = f"for label {group.base.label_name(1)!r}" if group.base.data.is_binary else "averaged over all labels"
        caption += f" F1 is {f1}; σ is its population standard deviation over templates."
    return caption
