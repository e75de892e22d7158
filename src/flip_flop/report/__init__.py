"""Reports: audit run directories in, one self-contained HTML file or a table out."""

from flip_flop.report.differences import Difference, mean_difference
from flip_flop.report.groups import Group, group_runs, require_comparable, what_differs
from flip_flop.report.page import write_report
from flip_flop.report.runs import Run, load_run
from flip_flop.report.tables import (
    Row,
    comparison_rows,
    markdown_cell,
    render_csv,
    render_markdown,
    render_text,
    spreadsheet_cell,
)
from flip_flop.report.verdict import honest_notes

__all__ = [
    "Difference",
    "Group",
    "Row",
    "Run",
    "comparison_rows",
    "group_runs",
    "honest_notes",
    "load_run",
    "markdown_cell",
    "mean_difference",
    "render_csv",
    "render_markdown",
    "render_text",
    "require_comparable",
    "spreadsheet_cell",
    "what_differs",
    "write_report",
]
