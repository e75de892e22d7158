"""Training data: the rows of a task for training and for the selection of a checkpoint."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flip_flop.errors import InputError, log, require_whole
from flip_flop.files import sha256_json
from flip_flop.metrics import check_prior
from flip_flop.prompts import RenderedInstance, unsupported
from flip_flop.record import TaskRecord
from flip_flop.tasks import (
    FileSource,
    HubSource,
    RenderedSplit,
    Task,
    as_task,
    deduplicate,
    draw_stratified,
    holdout,
    instances_digest,
    labelled_file,
    log_findings,
    log_label_counts,
    render_rows,
)
from flip_flop.training.config import F2CConfig


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled training rows, the validation split, and inputs without content for contextual calibration."""

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: TaskRecord
    task: Task
    content_free: Sequence[RenderedInstance] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the prompts, answers and gold labels of both splits."""
        rows = [*self.train, *self.validation]
        return sha256_json([instances_digest(rows), [row.label for row in rows], len(self.train)])


def load_training_data(
    task: Task,
    config: F2CConfig,
    *,
    limit: int | None = None,
    eval_limit: int | None = None,
    few_labels: str | os.PathLike[str] | None = None,
) -> TrainingData:
    """Read, render and deduplicate a task's data, under the templates that are not held out.

    The validation rows are the task's ``validation`` split. Without one, a tenth of ``train`` is held out, stratified
    by labels if labels select the checkpoint.

    Args:
        task: The task.
        config: The settings of the training.
        limit: Size of a uniform sample of each split.
        eval_limit: Number of validation instances to keep, in the label frequencies if labels select the checkpoint.
            Evaluation during training is then cheaper, and differs from the paper.
        few_labels: A file with labelled rows of ``train``. Training instances have these labels only. None of these
            rows is held out, and the rows that are have no label.

    Raises:
        InputError: ``E-DATA-ROWS``, also for a labelled row that is not in ``train``, or an error
            of the task's data; ``E-OPEN-ANSWER`` for contextual calibration.
    """
    if eval_limit is not None:
        eval_limit = require_whole("eval_limit", eval_limit, 1)
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1", "macro_f1")
    task = task.with_templates(task.training_templates.names)
    for split in ("train", "validation"):
        source = task.data.get(split)
        if isinstance(source, FileSource | HubSource) and source == task.data.get("test"):
            log.warning(
                "W-TRAINING: the splits %s and test have the same rows, so an audit of test does not show how the "
                "trained model answers new rows. Name another file, or leave out all but one of them.",
                split,
            )
    rendered = log_label_counts(log_findings(task.render("train", limit=limit, seed=seed)))
    if config.label_prior is not None:
        check_prior(config.label_prior, len(rendered.instances[0].choices[0]))
    if task.answer and config.vote_calibration == "contextual":
        raise unsupported("Contextual calibration")
    content_free = rendered.content_free() if config.vote_calibration == "contextual" else ()
    few = None if few_labels is None else labelled_file(task, few_labels)
    instances = rendered.instances if few is None else _with_few_labels(rendered.instances, few, limit)
    if "validation" in task.data:
        validation = list(log_label_counts(task.render("validation", limit=limit, seed=seed)).instances)
        train, dropped = deduplicate(instances, against=validation)
    else:
        every, dropped = deduplicate(instances)
        free = [row for row in every if few is None or row.label is None]
        _, validation = holdout(free, seed=seed, stratify=by_labels)
        held_out = {row.id for row in validation}
        train = [row for row in every if row.id not in held_out]
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    sampled = {}
    if eval_limit is not None and eval_limit < len(validation):
        labels = {instance.id: instance.label if by_labels else None for instance in validation}
        drawn = draw_stratified(labels, eval_limit, seed)
        validation = [instance for instance in validation if instance.id in drawn]
        sampled = {"eval_limit": eval_limit}
    if dropped:
        log.info("%d training instances were dropped: they render like another row", dropped)
    if not train:
        raise InputError(
            "E-DATA-ROWS",
            "The training split is empty after deduplication.",
            "Add rows that differ from the others.",
        )
    if few is not None:
        log.info(
            "%d training instances are labelled, by %d rows of %s. Other labels of the training split are not used.",
            sum(row.label is not None for row in train),
            len(few.instances),
            few.rows.source.rstrip(","),
        )
    counts = {"num_validation": len(validation), "num_dropped": dropped, **sampled}
    record = TaskRecord(**replace(rendered, instances=train).record | counts)
    return TrainingData(train, validation, record, task, content_free)


def as_training_data(
    task: TrainingData | Task | str | os.PathLike[str], config: F2CConfig, **rows: Any
) -> TrainingData:
    """Return a task's training data, with other ``rows`` for its ``train`` and ``validation`` if they are not None."""
    new_rows = {split: value for split, value in rows.items() if value is not None}
    if not isinstance(task, TrainingData):
        task = as_task(task)
        return load_training_data(replace(task, data={**task.data, **new_rows}), config)
    if new_rows:
        raise InputError(
            "E-CONFIG",
            "the task is training data, which has its rows.",
            "Leave out train_dataset and eval_dataset, or give the task itself.",
        )
    return task


def render_for(task: Task, rows: Any) -> Sequence[RenderedInstance]:
    """Render rows of the task's fields. Rows with their prompts stay as they are."""
    first = next(iter(rows), None) if isinstance(rows, Sequence) else None
    if isinstance(first, RenderedInstance) or (isinstance(first, Mapping) and {"prompts", "choices"} <= first.keys()):
        return render_rows(rows)
    return task.with_rows(rows).render("test", need_labels=False).instances


def _with_few_labels(
    train: Sequence[RenderedInstance], few: RenderedSplit, limit: int | None
) -> list[RenderedInstance]:
    """Label the training instances that render like a few labelled rows, and no others."""
    known = {instance.texts for instance in train}
    labelled: dict[Any, Any] = {}  # the row and the label of each instance
    for row, instance in zip(few.rows.rows, few.instances, strict=True):
        place = few.rows.location(row)
        if instance.texts not in known:
            hint = "Label rows of the split train; rows of the split test cannot be used."
            raise InputError(
                "E-DATA-ROWS",
                f"{place} is not a row of the training data.",
                hint if limit is None else f"Leave --limit out. {hint}",
            )
        first, label = labelled.setdefault(instance.texts, (row, instance.label))
        if label != instance.label:
            raise InputError(
                "E-DATA-ROWS",
                f"{place} repeats {few.rows.unit} {first.number} with another label.",
                "Remove one of the two.",
            )
    return [replace(instance, label=labelled.get(instance.texts, (None, None))[1]) for instance in train]
