"""The comparison as a table: plain text for the terminal, Markdown, and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from flip_flop.report.groups import Group, group_runs
from flip_flop.report.runs import Run
from flip_flop.report.text import MISSING, count, percent, visible

_HEADINGS = ("run", "P_o", "mean F1", "sigma_F1", "min..max F1", "accuracy", "vote F1", "collapsed")
_CSV_HEADINGS = (
    "run",
    "templates",
    "instances",
    "observed_agreement",
    "mean_f1",
    "f1_std",
    "f1_min",
    "f1_max",
    "macro_f1",
    "accuracy",
    "vote_f1",
    "vote_accuracy",
    "no_consensus_share",
    "collapsed",
)


@dataclass(frozen=True)
class Row:
    """One run's figures, as fractions; ``None`` where there is no answer."""

    section: str
    name: str
    templates: int
    instances: int
    observed_agreement: float | None
    mean_f1: float | None
    f1_std: float | None
    f1_min: float | None
    f1_max: float | None
    macro_f1: float | None
    accuracy: float | None
    vote_f1: float | None
    vote_accuracy: float | None
    no_consensus_share: float | None
    collapsed: bool


def heading(group: Group) -> str:
    """What a group of runs was audited on, in one line of plain text."""
    instances, templates, _ = group.base.scores.shape
    task = group.base.record["task"]
    kind = "held-out template" if group.held_out else "template"
    parts = [str(task["name"]), str(task["split"]), count(templates, kind), count(instances, "instance")]
    return ", ".join(visible(part, one_line=True) for part in parts)


def comparison_rows(runs: Sequence[Run]) -> list[Row]:
    """One row per run, those over the same instances and templates together."""
    return [_row(heading(group), run) for group in group_runs(runs) for run in group.runs]


def _row(section: str, run: Run) -> Row:
    per_template = list((run.metrics["f1_per_template"] or {}).values())
    instances, templates, _ = run.scores.shape
    figures = ("observed_agreement", "mean_f1", "f1_std", "macro_f1", "accuracy", "vote_f1", "vote_accuracy")
    return Row(
        section=section,
        name=run.name,
        templates=templates,
        instances=instances,
        f1_min=min(per_template, default=None),
        f1_max=max(per_template, default=None),
        no_consensus_share=run.metrics["no_consensus_share"],
        collapsed=bool(run.metrics.get("collapsed")),
        **{figure: run.metrics[figure] for figure in figures},
    )


def render_text(rows: Sequence[Row]) -> str:
    """Aligned plain text, in percent; one block per set of templates."""
    blocks = []
    for section, members in _sections(rows).items():
        lines = [_HEADINGS, *(_cells(row) for row in members)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
        texts = ["  ".join([line[0].ljust(widths[0]), *_right(line[1:], widths[1:])]).rstrip() for line in lines]
        rule = "  ".join("-" * width for width in widths)
        blocks.append("\n".join([section, texts[0], rule, *texts[1:]]))
    return "\n\n".join(blocks)


def render_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table per set of templates, in percent."""
    blocks = []
    for section, members in _sections(rows).items():
        lines = [_HEADINGS, ("---", *("---:" for _ in _HEADINGS[1:])), *(_cells(row) for row in members)]
        lines = [lines[0], lines[1], *(tuple(markdown_cell(cell) for cell in line) for line in lines[2:])]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append(f"{markdown_cell(section)}\n\n{table}")
    return "\n\n".join(blocks)


def render_csv(rows: Sequence[Row]) -> str:
    """CSV with fractions from 0 to 1 in full, and empty cells where there is no answer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEADINGS)
    for row in rows:
        values = [spreadsheet_cell(row.name), *(getattr(row, heading) for heading in _CSV_HEADINGS[1:])]
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def _sections(rows: Sequence[Row]) -> dict[str, list[Row]]:
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(row.section, []).append(row)
    return sections


def _cells(row: Row) -> tuple[str, ...]:
    span = MISSING if row.f1_min is None else f"{percent(row.f1_min)}..{percent(row.f1_max)}"
    figures = (row.observed_agreement, row.mean_f1, row.f1_std)
    return (
        visible(row.name, one_line=True),
        *(percent(figure) for figure in figures),
        span,
        percent(row.accuracy),
        percent(row.vote_f1),
        "yes" if row.collapsed else "no",
    )


def _right(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def markdown_cell(cell: str) -> str:
    """A cell that cannot end its table or begin a tag: Markdown lets raw HTML through."""
    for character in "\\|`*_[]":
        cell = cell.replace(character, f"\\{character}")
    return cell.replace("&", "&amp;").replace("<", "&lt;")


def spreadsheet_cell(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula (CWE-1236)."""
    text = visible(cell, one_line=True)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
