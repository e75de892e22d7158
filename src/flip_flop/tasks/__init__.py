"""Tasks: the rows of a data source, their gold labels and their templates, as rendered instances."""

from flip_flop.tasks.loading import (
    VALUE_LIMITS,
    Data,
    RenderedRows,
    as_split,
    as_task,
    choose_templates,
    labelled_file,
    load_task,
    log_findings,
    log_label_counts,
    prior_from,
    read_task_file,
    render_rows,
    require_templates_for_training,
    split_names,
    template_name,
)
from flip_flop.tasks.readers import (
    DELIMITERS,
    MISSING,
    SEPARATED,
    cell_text,
    label_text,
    label_words,
    lost_header,
    only_item,
)
from flip_flop.tasks.sources import (
    MAX_VALIDATION,
    PARTS,
    FileSource,
    HubSource,
    Rows,
    RowsSource,
    Source,
    as_source,
    deduplicate,
    draw_stratified,
    holdout,
    holdout_size,
    load_file,
    parts_of,
    strata_of,
)
from flip_flop.tasks.task import (
    DIVIDER,
    Label,
    RenderedSplit,
    Task,
    TaskRequest,
    are_grades,
    instances_digest,
    right_answers,
)

__all__ = ["Task", "TaskRequest", "load_task"]
