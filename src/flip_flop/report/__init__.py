"""Reports and tables from audit run directories."""

from flip_flop.evaluation.run_directory import load_run
from flip_flop.report.audit_tables import legend, render_csv, render_markdown, render_text, table_caveats
from flip_flop.report.compare import (
    comparison_blocks,
    data_differences,
    group_runs,
    mean_difference,
    require_comparable,
    what_differs,
)
from flip_flop.report.page import render_page, report_groups, write_figures, write_report
from flip_flop.report.sections import caveats, render_latex

__all__ = [
    "caveats",
    "comparison_blocks",
    "data_differences",
    "group_runs",
    "legend",
    "load_run",
    "mean_difference",
    "render_csv",
    "render_latex",
    "render_markdown",
    "render_page",
    "render_text",
    "report_groups",
    "require_comparable",
    "table_caveats",
    "what_differs",
    "write_figures",
    "write_report",
]
