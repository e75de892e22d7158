"""Training runs: from a task and a model to an adapter in a folder. They can be killed and resumed at any time."""

import copy
import json
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import HubStrategy

from flip_flop.console import today
from flip_flop.errors import InputError
from flip_flop.files import new_folder, write_json, write_text
from flip_flop.method import find_method
from flip_flop.metrics import ScoredRows, Scores
from flip_flop.metrics.calibration import MIN_INSTANCES
from flip_flop.prompts import Template
from flip_flop.record import (
    ADAPTER_CONFIG,
    RUN_FILE,
    RunRecord,
    TaskRecord,
    this_process,
)
from flip_flop.scoring.adapters import describe_adapter, store_calibration
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.distributed import all_gather, rank, wait_for_all, world_size
from flip_flop.scoring.models import LoadedModel, ModelGiven
from flip_flop.scoring.too_long import TOO_LONG_FILE, TooLong, listed_beside, write_too_long
from flip_flop.tasks import Task, as_task
from flip_flop.training.adapter import load_trained
from flip_flop.training.callbacks import LogFile, ShowProgress, StopOnSignal
from flip_flop.training.card import CARD, base_name, change_on_validation, model_card, training_record
from flip_flop.training.checkpoints import (
    FORMAT,
    PLAN,
    check_plan,
    checkpoint_to_resume,
    lock,
    named_write_errors,
    resume_settings,
)
from flip_flop.training.config import F2CConfig, optimizer_errors
from flip_flop.training.data import TrainingData, load_training_data, warn_of_answer_words, warn_of_two_templates
from flip_flop.training.selection import reason_to_withhold
from flip_flop.training.trainer import F2CTrainer
from flip_flop.training.votes import VOTES, initial_vote_stats

log = logging.getLogger("flip_flop")
SURVEY = "survey.json"


@dataclass(frozen=True)
class TrainingRun:
    """The result of :func:`train`.

    Attributes:
        out: The run's folder.
        adapter: The adapter in PEFT's format, or ``None``.
        stopped_by: The signal that stopped the training before its end.
        withheld: Whether the adapter was not saved because it has collapsed or is worse than the base model.
    """

    out: Path
    adapter: Path | None
    stopped_by: int | None = None
    withheld: bool = False


def train(
    model: ModelGiven,
    data: TrainingData | Task | str | os.PathLike[str],
    config: F2CConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    quiet: bool = False,
    keep_worse: bool = False,
) -> TrainingRun:
    """Train an adapter and write a complete run to ``out``.

    ``run.json`` is written last. A folder without it can only be resumed. Gold labels, if there are any, are used for
    the log, the selection of the checkpoint, and the loss of a method with ``uses_labels``. If the selected checkpoint
    has collapsed or is worse than the base model, ``train`` writes no adapter and no ``run.json``. ``resume`` with
    ``keep_worse`` then writes them without further training.

    Args:
        model: The base model, without an adapter: a name, a folder, or any model that :func:`~flip_flop.audit` takes.
        data: The result of :func:`load_training_data`; all instances of a task, its name or its file.
        config: The settings. Checkpoints go to ``out/checkpoints``; ``output_dir`` is ignored.
        out: An empty or new folder; with ``resume``, the folder of a run with the same settings.
        resume: Continue from the newest complete checkpoint. Changed weights or rows are one warning, and recorded.
        quiet: Show no progress.
        keep_worse: Save the adapter even if it has collapsed or is worse than the base model.

    Raises:
        InputError: See ``docs/reference/errors.md``.
    """
    out = Path(out)
    with lock(out), named_write_errors(out):
        if not isinstance(data, TrainingData):
            data = load_training_data(as_task(data), config)
        loaded = load_trained(model, None, config)
        config = copy.copy(config)
        config.output_dir = str((out / "checkpoints").resolve())
        config.model_init_kwargs = None  # the model is loaded
        config.disable_tqdm = quiet
        config.hub_strategy = HubStrategy.END  # only the selected adapter and its card are sent
        plan: dict[str, Any] = {
            "format": FORMAT,
            "settings": resume_settings(config) | {"num_processes": world_size()},
            "model": {"dtype": loaded.record.dtype},
            "digests": {"weights": loaded.record.digest, "task": data.record.digest, "rows": data.digest},
        }
        wait_for_all()  # until rank 0 holds the lock
        plan["allowed_changes"] = check_plan(out, plan, resume=resume)
        config.prompt_date = all_gather(plan["settings"]["prompt_date"] or today())[0]
        plan["settings"]["prompt_date"] = config.prompt_date
        has_begun = (out / PLAN).exists()
        wait_for_all()  # until all have read the folder, before rank 0 writes
        if (out / RUN_FILE).exists():
            log.info("%s is complete already", out)
            return TrainingRun(out, out / "adapter")
        started = time.monotonic()
        trainer, task, too_long = _make_trainer(loaded, data, config, out, quiet=quiet)
        checkpoint = checkpoint_to_resume(Path(config.output_dir)) if has_begun else None
        if trainer.votes and checkpoint and not plan["allowed_changes"]:
            trainer.votes.restore(out / VOTES)
        survey = initial_vote_stats(trainer.first_votes, config)
        # All mistakes of the user have been found.
        _write_start(out, plan, survey, too_long, trainer)
        stopped_by = _train(trainer, checkpoint)
        if stopped_by is not None:
            log.info("stopped by a signal at step %d. Continue with --resume.", trainer.state.global_step)
            return TrainingRun(out, None, stopped_by)
        dataset = trainer.eval_instances
        reason = reason_to_withhold(
            trainer.state,
            trainer.stop_on_collapse,
            trainer.criterion,
            None if dataset is None else dataset.gold,
            len(data.train[0].choices[0]),
        )
        if reason is not None and not keep_worse:
            log.warning("%s The adapter is not saved. --resume --keep-worse saves it without training again.", reason)
            return TrainingRun(out, None, withheld=True)
        if reason is not None and rank() == 0:
            log.warning("%s", reason)
        change = change_on_validation(trainer)
        table = None if config.vote_calibration == "none" else _calibration_scores(trainer)
        if rank() == 0:
            trainer.record = RunRecord(
                kind="train",
                name=trainer.method.name,
                task=task,
                model=loaded.record,
                scoring={
                    "delimiter": trainer.encoder.delimiter_of(data.train[0].chat),
                    "chat_template": trainer.encoder.uses_chat_template,
                    "prompts_digest": trainer.train_instances.digest,
                    "validation_prompts_digest": trainer.eval_instances and trainer.eval_instances.digest,
                    "backend": trainer.backend,
                },
                training=training_record(trainer, change, survey),
                seed=config.seed,
                **this_process(started),
                allowed_changes=tuple(plan["allowed_changes"]),
            )
            _save(trainer, trainer.record, table, out)
        wait_for_all()
        return TrainingRun(out, out / "adapter")


def log_processes() -> None:
    """Log the number of processes, and warn if a launcher started one of several requested processes."""
    by_accelerate = "ACCELERATE_USE_CPU" in os.environ  # set by its launcher of one process
    if by_accelerate or "WORLD_SIZE" in os.environ:
        log.info("processes that train together: %d", world_size())
    if by_accelerate and "MASTER_PORT" in os.environ and world_size() == 1:  # set if several were requested
        log.warning(
            "W-ONE-PROCESS: accelerate started one of several requested processes, because of --cpu or missing GPUs. "
            "Start them with torchrun --nproc-per-node N."
        )


def _make_trainer(
    loaded: LoadedModel, data: TrainingData, config: F2CConfig, out: Path, *, quiet: bool
) -> tuple[F2CTrainer, TaskRecord, list[TooLong]]:
    """Build the trainer; return it with the record of its rows, and the rows that are too long."""
    if rank() == 0:
        log_processes()
    warn_of_answer_words(data.train, config)
    warn_of_two_templates(data.train, config)
    shown = [LogFile(out / "log.jsonl"), ShowProgress(find_method(config.method).name, quiet)] if rank() == 0 else []
    names = [template.name for template in data.record.templates]
    with listed_beside(out, names):
        trainer = F2CTrainer(
            loaded,
            config,
            train_dataset=data.train,
            eval_dataset=data.validation,
            callbacks=shown,
            content_free=data.content_free,
        )
    trainer.template_names, trainer.f1 = names, data.record.f1
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    with optimizer_errors():  # before anything is written
        trainer.create_optimizer_and_scheduler(num_training_steps=max(trainer.args.max_steps, 1))
    trainer.optimizer = trainer.lr_scheduler = None
    if not len(trainer.get_train_dataloader()):
        raise InputError(
            "E-CONFIG",
            f"dataloader_drop_last leaves no step of {len(trainer.train_instances)} training instances.",
            "Make per_device_train_batch_size smaller, or leave it out.",
        )
    return trainer, *_without_too_long(data.record, trainer)


def _without_too_long(record: TaskRecord, trainer: F2CTrainer) -> tuple[TaskRecord, list[TooLong]]:
    """Return the record of the remaining rows, and the rows that are too long."""
    datasets = [trainer.train_instances, *filter(None, [trainer.eval_instances])]
    too_long = [prompt for dataset in datasets for prompt in dataset.too_long]
    counts: dict[str, Any] = {
        "num_validation": sum(map(len, datasets[1:])),
        "num_too_long": sum(dataset.num_rows - len(dataset) for dataset in datasets),
    }
    return replace(record, num_instances=len(datasets[0]), **counts), too_long


def _write_start(
    out: Path, plan: dict[str, Any], survey: dict[str, Any], too_long: list[TooLong], trainer: F2CTrainer
) -> None:
    """Write the files of a run that is about to train."""
    if rank() > 0:
        return
    write_json(out / PLAN, plan)
    write_json(out / SURVEY, survey)
    if too_long:
        write_too_long(out / TOO_LONG_FILE, too_long, list(trainer.template_names or ()))
    else:
        (out / TOO_LONG_FILE).unlink(missing_ok=True)  # of a run that has restarted
    if trainer.votes is not None:
        trainer.votes.table.write(out / VOTES)


def _train(trainer: F2CTrainer, checkpoint: Path | None) -> int | None:
    """Train to the end; return the signal that stopped the training before it."""
    stop = StopOnSignal()
    trainer.add_callback(stop)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        stop.restore()
    return None if trainer.is_over else stop.received


def _calibration_scores(trainer: F2CTrainer) -> Scores | None:
    """Return the scores for the stored offsets: of the validation split, already computed, or of training rows."""
    dataset = trainer.eval_instances
    if dataset is not None and trainer.args.eval_strategy != "no" and len(dataset) >= MIN_INSTANCES:
        return trainer.validation_scores()
    return trainer.score(trainer.sample, "calibration") if len(trainer.sample) >= MIN_INSTANCES else None


def _save(trainer: F2CTrainer, record: RunRecord, table: Scores | None, out: Path) -> None:
    """Write the adapter with its card, then ``run.json``; send the adapter to the hub if asked for."""
    loaded = trainer.loaded
    with new_folder(out / "adapter") as folder:
        trainer.adapted.save_pretrained(str(folder))
        _name_base(folder, unwrap(loaded.model).config.name_or_path or "")
        loaded.tokenizer.save_pretrained(folder)
        write_text(folder / CARD, model_card(record))
        if table is not None:
            templates = [
                Template(template.name, template.jinja, template.answer_choices) for template in record.task.templates
            ]
            scored = replace(ScoredRows.of_scorer(table), settings=record.scoring)
            store_calibration(folder, scored, templates, trainer.args.label_prior)
    how = {"method": trainer.method.name, "uses_labels": trainer.args.uses_labels or None}
    adapter = describe_adapter(out / "adapter", path="adapter", **how)
    replace(record, adapter=adapter).write(out)
    if trainer.args.push_to_hub:
        _push(trainer, out / "adapter", base_name(loaded.record))


def _name_base(adapter: Path, base: str) -> None:
    """Write the base model's name into an adapter's configuration."""
    config = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8"))
    write_json(adapter / ADAPTER_CONFIG, config | {"base_model_name_or_path": base})


def _push(trainer: F2CTrainer, adapter: Path, base: str) -> None:
    """Send the adapter's folder with the model card to the hub. A failure leaves the run complete."""
    name = str(trainer.hub_model_id)
    try:
        with tempfile.TemporaryDirectory() as folder:
            sent = shutil.copytree(adapter, Path(folder) / "adapter")
            _name_base(sent, base)  # not a path of this machine
            HfApi(token=trainer.args.hub_token).upload_folder(
                repo_id=name, folder_path=sent, commit_message="flip-flop train", revision=trainer.args.hub_revision
            )
    except Exception as error:  # its transports raise many kinds
        reason = " ".join(str(error).split())[:200]
        log.warning("W-PUSH: %s could not be sent to %s: %s. Send it with `hf upload`.", adapter, name, reason)
