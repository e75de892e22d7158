"""From a task to the rows to train on and those to choose checkpoints by. No torch: their mistakes are told at once."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flip_flop.errors import InputError
from flip_flop.metrics import check_prior
from flip_flop.prompts import RenderedInstance
from flip_flop.record import TaskRecord
from flip_flop.tasks import Task, deduplicate, draw_stratified, holdout, log_label_counts
from flip_flop.tasks.task import gold_digest, instances_digest
from flip_flop.training.settings import TrainingSettings

log = logging.getLogger("flip_flop")


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled pool, the split that checkpoints are chosen on, and inputs without content for the votes."""

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: TaskRecord
    content_free: Sequence[RenderedInstance] = ()


def load_training_data(
    task: Task, config: TrainingSettings, *, limit: int | None = None, eval_limit: int | None = None
) -> TrainingData:
    """Read, render and deduplicate a task's data, under the templates that are not held out.

    Validation are the instances of the task's ``validation`` split; without one, a tenth of ``train`` is held out,
    stratified by labels only where labels choose the checkpoint. Of each split a uniform sample of ``limit`` is taken.
    ``eval_limit`` then keeps so many validation instances, in the shares of the labels where these choose the
    checkpoint: evaluation during training is cheaper, and no longer the paper's.

    Raises:
        InputError: ``E-DATA-TOO-FEW``, or an error of the task's data.
    """
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1", "macro_f1")
    task = task.with_templates(task.training_templates.names)
    rendered = log_label_counts(task.render("train", limit=limit, seed=seed))
    if config.label_prior is not None:
        check_prior(config.label_prior, len(rendered.instances[0].choices[0]))
    content_free = rendered.content_free() if config.vote_calibration == "contextual" else ()
    if "validation" in task.data:
        validation = list(log_label_counts(task.render("validation", limit=limit, seed=seed)).instances)
        train, dropped = deduplicate(rendered.instances, against=validation)
    else:
        train, dropped = deduplicate(rendered.instances)
        train, validation = holdout(train, seed=seed, stratify=by_labels)
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    sampled = {}
    if eval_limit is not None and eval_limit < len(validation):
        labels = {instance.id: instance.label if by_labels else None for instance in validation}
        kept = draw_stratified(labels, eval_limit, seed)
        validation = [instance for instance in validation if instance.id in kept]
        sampled = {"eval_limit": eval_limit}
    if dropped:
        log.info("%d training instances were dropped: they render like another one", dropped)
    if not train:
        raise InputError("E-DATA-TOO-FEW", "No training instance is left.", "Add rows that differ from the others.")
    record = TaskRecord.from_json(replace(rendered, instances=train).record)
    more = {"validation": instances_digest(validation), "validation_gold": gold_digest(validation)}
    extra: dict[str, Any] = {"num_validation": len(validation), "num_dropped": dropped, **sampled}
    return TrainingData(train, validation, replace(record, digests={**record.digests, **more}, **extra), content_free)
