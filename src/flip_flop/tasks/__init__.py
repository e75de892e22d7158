"""Tasks: the rows of a data source, their gold labels and their templates, as rendered instances."""

from flip_flop.tasks.loading import load_task, require_templates_for_training
from flip_flop.tasks.sources import FileSource, HubSource, Rows, RowsSource, Source
from flip_flop.tasks.splits import deduplicate, draw_stratified, holdout
from flip_flop.tasks.task import RenderedSplit, Task

__all__ = [
    "FileSource",
    "HubSource",
    "RenderedSplit",
    "Rows",
    "RowsSource",
    "Source",
    "Task",
    "deduplicate",
    "draw_stratified",
    "holdout",
    "load_task",
    "require_templates_for_training",
]
