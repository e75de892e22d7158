"""Tasks: the rows of a data source, their gold labels and their templates, as rendered instances."""

from flip_flop.tasks.loading import (
    Data,
    RenderedRows,
    as_split,
    as_task,
    labelled_file,
    load_task,
    log_findings,
    log_label_counts,
    prior_from,
    render_rows,
    require_templates_for_training,
    template_name,
)
from flip_flop.tasks.plugins import TaskRequest
from flip_flop.tasks.sources import FileSource, HubSource, Rows, RowsSource, Source, as_source
from flip_flop.tasks.splits import deduplicate, draw_stratified, holdout
from flip_flop.tasks.task import RenderedSplit, Task

__all__ = [
    "Data",
    "FileSource",
    "HubSource",
    "RenderedRows",
    "RenderedSplit",
    "Rows",
    "RowsSource",
    "Source",
    "Task",
    "TaskRequest",
    "as_source",
    "as_split",
    "as_task",
    "deduplicate",
    "draw_stratified",
    "holdout",
    "labelled_file",
    "load_task",
    "log_findings",
    "log_label_counts",
    "prior_from",
    "render_rows",
    "require_templates_for_training",
    "template_name",
]
