"""A training run: from a task and a model to an adapter in a folder, killable at any moment."""

import json
import logging
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from flip_flop.errors import InputError
from flip_flop.files import new_folder, sha256_file, write_json
from flip_flop.prompts import RenderedInstance
from flip_flop.provenance import command, hardware, now, versions
from flip_flop.scoring.models import LoadedModel
from flip_flop.tasks import Task, deduplicate, holdout
from flip_flop.training.callbacks import LogFile, ShowProgress, StopOnSignal
from flip_flop.training.checkpoints import newest_good
from flip_flop.training.config import F2CConfig
from flip_flop.training.distributed import rank, wait_for_all, world
from flip_flop.training.plan import PLAN, binding_settings, check_plan, lock, recorded_settings
from flip_flop.training.selection import COLLAPSED
from flip_flop.training.survey import survey_votes, warn_of_answer_words
from flip_flop.training.trainer import F2CTrainer

log = logging.getLogger("flip_flop")


@dataclass(frozen=True)
class TrainingRun:
    """What :func:`train` leaves behind.

    Attributes:
        out: The run's folder.
        adapter: The adapter in PEFT's format, ``out/adapter``; ``None`` where the run was stopped.
        stopped_by: The number of the signal that stopped it, with a checkpoint to resume from.
    """

    out: Path
    adapter: Path | None
    stopped_by: int | None = None


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled pool and the split that checkpoints are chosen on.

    Attributes:
        train: Instances to train on, under the templates that are not held out, each of them once.
        validation: Instances of the task's ``validation`` split, or a tenth held out of ``train``.
        record: For the run's record.
    """

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: dict[str, Any]


def load_training_data(task: Task, config: F2CConfig, *, limit: int | None = None) -> TrainingData:
    """Read, render, deduplicate and split a task's data.

    Args:
        task: With a ``train`` split, and a ``validation`` split or not.
        config: Its seed, and whether labels choose the checkpoint: only then do they stratify what is held out.
        limit: Take a uniform sample of this size, of each of the two.
    """
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1")
    task = task.with_templates(task.training_templates.names)
    rendered = task.render("train", limit=limit, seed=seed)
    if "validation" in task.data:
        validation = list(task.instances("validation", limit=limit, seed=seed))
        train, dropped = deduplicate(rendered.instances, against=validation)
    else:
        train, dropped = deduplicate(rendered.instances)
        train, validation = holdout(train, seed=seed, stratify=by_labels)
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    if dropped:
        log.info("%d training instances were dropped: they render like another one", dropped)
    if not train:
        raise InputError("E-DATA-TOO-FEW", "No training instance is left.", "Add rows that differ from the others.")
    record = replace(rendered, instances=train).record
    return TrainingData(train, validation, record | {"num_validation": len(validation), "num_dropped": dropped})


def train(
    loaded: LoadedModel,
    task: Task,
    config: F2CConfig,
    out: Path,
    *,
    resume: bool = False,
    limit: int | None = None,
    quiet: bool = False,
) -> TrainingRun:
    """Train an adapter and leave a complete run in ``out``.

    ``run.json`` is written last: a folder without it can be resumed and nothing else.

    Args:
        loaded: The base model, without an adapter.
        task: The task; its gold labels, where it has any, are read for the log and the choice of the checkpoint.
        config: The settings; ``output_dir`` is set to ``out/checkpoints``.
        out: A folder that is empty or not there; with ``resume``, the folder of a run with the same settings.
        resume: Go on from the newest whole checkpoint.
        limit: Take a uniform sample of this many instances, and of the validation split too; without one a tenth of the
            sample is held out.
        quiet: Show no progress.

    Raises:
        InputError: See ``docs/errors.md``.
    """
    with lock(out):
        data = load_training_data(task, config, limit=limit)
        config.output_dir = str((out / "checkpoints").resolve())
        plan = {
            "settings": binding_settings(config) | {"num_processes": world()},
            "task": {name: data.record[name] for name in ("digest", "instances_digest", "num_validation")},
            "model": {name: loaded.record[name] for name in ("digest", "dtype")},
        }
        wait_for_all()  # for the first process to hold the folder
        check_plan(out, plan, resume=resume)
        begun = (out / PLAN).exists()
        wait_for_all()  # for all to have seen what is there, before the first one writes
        if (out / "run.json").exists():
            log.info("%s is complete: nothing to resume", out)
            return TrainingRun(out, out / "adapter")
        return _run(loaded, data, config, out, plan, begun=begun, quiet=quiet)


def _run(
    loaded: LoadedModel,
    data: TrainingData,
    config: F2CConfig,
    out: Path,
    plan: dict[str, Any],
    *,
    begun: bool,
    quiet: bool,
) -> TrainingRun:
    started, created = time.monotonic(), now()
    warn_of_answer_words(data.train, config)
    stop = StopOnSignal()
    trainer = F2CTrainer(
        loaded.model,  # type: ignore[arg-type]
        config,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=loaded.tokenizer,
        callbacks=[LogFile(out / "log.jsonl"), ShowProgress(config.method, quiet), stop] if rank() == 0 else [stop],
    )
    trainer.template_names = [template["name"] for template in data.record["templates"]]
    trainer.f1 = data.record["f1"]
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    checkpoint = _checkpoint_to_resume(Path(config.output_dir or "")) if begun else None
    if checkpoint is None:
        survey = survey_votes(trainer.adapted, trainer.train_instances.instances, config)
        if rank() == 0:
            write_json(out / "survey.json", survey)
    else:
        config.eval_on_start = False
    if rank() == 0:  # from here on the folder holds a run: nothing that a user can mend is left to find
        write_json(out / PLAN, plan)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        stop.give_back()
    if stop.received is not None and trainer.state.global_step < trainer.state.max_steps:
        log.info("stopped by a signal at step %d; --resume goes on from there", trainer.state.global_step)
        return TrainingRun(out, None, stop.received)
    if rank() > 0:
        wait_for_all()
        return TrainingRun(out, out / "adapter")
    _warn_of_choice(trainer)
    with new_folder(out / "adapter") as folder:
        trainer.adapted.save_pretrained(str(folder))
        loaded.tokenizer.save_pretrained(folder)
    record = _record(loaded, data, config, trainer, out) | {
        "created": created,
        "seconds": round(time.monotonic() - started, 2),
    }
    write_json(out / "run.json", record)
    wait_for_all()
    return TrainingRun(out, out / "adapter")


def _warn_of_choice(trainer: F2CTrainer) -> None:
    """Say where the chosen checkpoint is no gain."""
    before, chosen = base_value(trainer), trainer.state.best_metric
    if chosen == COLLAPSED:
        log.warning(
            "W-COLLAPSE: at every checkpoint the label shares had moved by more than max_share_drift from the base's "
            "votes. The adapter answers one label too often; do not use it. Lower --learning-rate, or train for less."
        )
    elif before is not None and chosen is not None and chosen < before:
        log.warning(
            "W-WORSE: the best checkpoint's %s on validation is %.1f, the base's %.1f.",
            trainer.selection.by,
            100 * chosen,
            100 * before,
        )


def base_value(trainer: F2CTrainer) -> float | None:
    """What the base itself is worth by the criterion that checkpoints are chosen by, where it was scored."""
    first = next((entry for entry in trainer.state.log_history if "eval_selection" in entry), None)
    return first["eval_selection"] if first and first["step"] == 0 else None


def _checkpoint_to_resume(folder: Path) -> Path | None:
    if rank() > 0:
        wait_for_all()
        return newest_good(folder)[0]
    checkpoint, faults = newest_good(folder)
    for broken, reason in faults.items():
        log.warning("skipping %s: %s", broken.name, reason)
        shutil.rmtree(broken)
    wait_for_all()
    if checkpoint is None:
        log.info("no whole checkpoint yet: starting from the beginning")
    else:
        log.info("resuming from %s", checkpoint.name)
    return checkpoint


def _record(
    loaded: LoadedModel, data: TrainingData, config: F2CConfig, trainer: F2CTrainer, out: Path
) -> dict[str, Any]:
    best = trainer.state.best_model_checkpoint
    survey = json.loads((out / "survey.json").read_text(encoding="utf-8")) if (out / "survey.json").exists() else None
    return {
        "kind": "train",
        "name": config.method,
        "command": command(),
        "task": data.record,
        "model": loaded.record,
        "adapter": {
            "path": "adapter",
            "digest": sha256_file(out / "adapter" / "adapter_model.safetensors"),
            "method": config.method,
        },
        "scoring": {
            "delimiter": trainer.encoder.delimiter,
            "chat_template": trainer.encoder.uses_chat_template,
            "backend": trainer.backend,
        },
        "training": recorded_settings(config)
        | {
            "num_processes": world(),
            "steps": trainer.state.global_step,
            "selected_by": trainer.selection.by,
            "selected_checkpoint": None if best is None else Path(best).name,
            "selected_value": trainer.state.best_metric,
            "base_value": base_value(trainer),
            "survey": survey,
        },
        "seed": config.seed,
        "versions": versions(),
        "hardware": hardware(),
    }
