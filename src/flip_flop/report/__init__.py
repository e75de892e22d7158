"""Reports: audit run directories in, one self-contained HTML file or a table out."""

from flip_flop.report.groups import Group, group_runs, require_comparable
from flip_flop.report.page import write_report
from flip_flop.report.runs import Run, load_run
from flip_flop.report.tables import Row, comparison_rows, render_csv, render_markdown, render_text
from flip_flop.report.verdict import honest_notes

__all__ = [
    "Group",
    "Row",
    "Run",
    "comparison_rows",
    "group_runs",
    "honest_notes",
    "load_run",
    "render_csv",
    "render_markdown",
    "render_text",
    "require_comparable",
    "write_report",
]
