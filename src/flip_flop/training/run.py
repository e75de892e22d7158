"""A training run: from a task and a model to an adapter in a folder, killable at any moment."""

import copy
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import HubStrategy

from flip_flop.errors import InputError
from flip_flop.files import new_folder, write_json, write_text
from flip_flop.method import find_method
from flip_flop.metrics.calibration import MIN_INSTANCES
from flip_flop.prompts import Template
from flip_flop.record import (
    ADAPTER_CONFIG,
    MODEL_PARTS,
    RUN_FILE,
    TRAINING_PARTS,
    RunRecord,
    TaskRecord,
    check_parts,
    digests_of,
    this_process,
)
from flip_flop.scoring.adapters import describe_adapter
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.distributed import rank, wait_for_all, world_size
from flip_flop.scoring.loading import LoadedModel
from flip_flop.scoring.scorer import ModelGiven
from flip_flop.scoring.stored_calibration import store_calibration
from flip_flop.scoring.too_long import TOO_LONG_FILE, TooLong, listed_beside, write_too_long
from flip_flop.tasks import Task, as_task
from flip_flop.training.adapter import load_trained
from flip_flop.training.callbacks import LogFile, ShowProgress, StopOnSignal
from flip_flop.training.checkpoint_choice import base_value
from flip_flop.training.checkpoints import latest_valid, named_write_errors
from flip_flop.training.checks import initial_vote_stats, log_processes, warn_of_answer_words, warn_of_two_templates
from flip_flop.training.config import F2CConfig, optimizer_errors
from flip_flop.training.data import TrainingData, load_training_data
from flip_flop.training.model_card import CARD, base_name, model_card
from flip_flop.training.output import PLAN, lock
from flip_flop.training.plan import check_plan, resume_settings
from flip_flop.training.record import change_on_validation, training_record
from flip_flop.training.trainer import F2CTrainer
from flip_flop.training.votes import VOTES

log = logging.getLogger("flip_flop")
SURVEY = "survey.json"
# The parts that the base's votes depend on: after a change of one, they are taken anew.
VOTES_FOLLOW = {*MODEL_PARTS, "templates", "task", "rows"}


@dataclass(frozen=True)
class TrainingRun:
    """What :func:`train` leaves in ``out``: the adapter in PEFT's format, or why there is none.

    ``stopped_by`` is the signal that stopped the training before its end; ``withheld`` says that the adapter has
    collapsed or is worse than its base model.
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
    allow_changed: Collection[str] = (),
) -> TrainingRun:
    """Train an adapter and leave a complete run in ``out``.

    ``run.json`` is written last: a folder without it can be resumed and nothing else. Gold labels, where there are
    any, are read for the log and the selection of the checkpoint. If the selected checkpoint has collapsed or is worse
    than the base model, neither adapter nor ``run.json`` is written; ``resume`` with ``keep_worse`` writes them without
    training again.

    Args:
        model: The base model, without an adapter: a name, a folder, or as :func:`~flip_flop.audit` takes one.
        data: From :func:`load_training_data`; a task, its name or its file is loaded with all its instances.
        config: The settings; checkpoints go to ``out/checkpoints``, whatever its ``output_dir``.
        out: A folder that is empty or not there; with ``resume``, the folder of a run with the same settings.
        resume: Continue from the newest complete checkpoint.
        quiet: Show no progress.
        keep_worse: Write the adapter even if it has collapsed or is worse than the base model.
        allow_changed: Parts (:data:`flip_flop.record.TRAINING_PARTS`) that may differ in a run that is resumed.

    Raises:
        InputError: See ``docs/errors.md``.
    """
    check_parts(allow_changed, TRAINING_PARTS)
    out = Path(out)
    with lock(out), named_write_errors(out):
        if not isinstance(data, TrainingData):
            data = load_training_data(as_task(data), config)
        loaded = load_trained(model, None, config)
        config = copy.copy(config)
        config.output_dir = str((out / "checkpoints").resolve())
        config.model_init_kwargs = None  # the model is loaded
        config.disable_tqdm = quiet
        config.hub_strategy = HubStrategy.END  # what is sent is the adapter that is chosen, and its card
        plan: dict[str, Any] = {
            "settings": resume_settings(config) | {"num_processes": world_size()},
            "model": {"dtype": loaded.record.dtype},
            "digests": digests_of(data.record, loaded.record),
        }
        wait_for_all()  # until rank 0 holds the lock
        plan["allowed_changes"] = check_plan(out, plan, resume=resume, allowed=allow_changed)
        begun = (out / PLAN).exists()
        wait_for_all()  # until all have seen what is there, before rank 0 writes
        if (out / RUN_FILE).exists():
            log.info("%s is complete: nothing to resume", out)
            return TrainingRun(out, out / "adapter")
        return _run(loaded, data, config, out, plan, begun=begun, quiet=quiet, keep_worse=keep_worse)


def _run(
    loaded: LoadedModel,
    data: TrainingData,
    config: F2CConfig,
    out: Path,
    plan: dict[str, Any],
    *,
    begun: bool,
    quiet: bool,
    keep_worse: bool,
) -> TrainingRun:
    started = time.monotonic()
    if rank() == 0:
        log_processes()
    warn_of_answer_words(data.train, config)
    warn_of_two_templates(data.train, config)
    stop, method = StopOnSignal(), find_method(config.method)
    writing = [LogFile(out / "log.jsonl"), ShowProgress(method.name, quiet)] if rank() == 0 else []
    names = [template.name for template in data.record.templates]
    with listed_beside(out, names):
        trainer = F2CTrainer(
            loaded,
            config,
            train_dataset=data.train,
            eval_dataset=data.validation,
            callbacks=[*writing, stop],
            content_free=data.content_free,
        )
    trainer.template_names = names
    record, too_long = _without_too_long(data.record, trainer)
    trainer.f1 = data.record.f1
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    with optimizer_errors():  # before writing to the folder
        trainer.create_optimizer_and_scheduler(num_training_steps=max(trainer.args.max_steps, 1))
    trainer.optimizer = trainer.lr_scheduler = None
    if not len(trainer.get_train_dataloader()):
        message = f"dataloader_drop_last leaves no step of {len(trainer.train_instances)} training instances."
        raise InputError("E-CONFIG-VALUE", message, "Make per_device_train_batch_size smaller, or leave it out.")
    checkpoint = _checkpoint_to_resume(Path(config.output_dir or "")) if begun else None
    kept = checkpoint is not None and not VOTES_FOLLOW.intersection(plan["allowed_changes"])
    votes = trainer.votes.take(out / VOTES if kept else None, anew=not kept) if trainer.votes else None
    survey = initial_vote_stats(trainer.base.first, config)
    trainer.args.eval_on_start = trainer.args.eval_on_start and checkpoint is None
    if rank() == 0:  # from here on the folder holds a run: all mistakes of the user's have been found
        write_json(out / PLAN, plan)
        write_json(out / SURVEY, survey)
        if too_long:
            write_too_long(out / TOO_LONG_FILE, too_long, names)
        else:
            (out / TOO_LONG_FILE).unlink(missing_ok=True)  # of a run that was begun anew
        if votes is not None:
            votes.write(out / VOTES)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        stop.restore()
    if stop.received is not None and not trainer.is_over:
        log.info("stopped by a signal at step %d; --resume goes on from there", trainer.state.global_step)
        return TrainingRun(out, None, stop.received)
    reason = _reason_to_withhold(trainer)
    if reason is not None and not keep_worse:
        log.warning("%s The adapter is not saved. --resume --keep-worse saves it without training again.", reason)
        return TrainingRun(out, None, withheld=True)
    change = change_on_validation(trainer)
    is_calibrated = config.vote_calibration != "none" and len(trainer.base.sample) >= MIN_INSTANCES
    table = trainer.score(trainer.base.sample, "calibration") if is_calibrated else None
    if rank() == 0:
        if reason is not None:
            log.warning("%s", reason)
        trainer.record = RunRecord(
            kind="train",
            name=method.name,
            task=record,
            model=loaded.record,
            scoring={
                "delimiter": trainer.encoder.delimiter_of(data.train[0].chat),
                "chat_template": trainer.encoder.uses_chat_template,
                "backend": trainer.backend,
            },
            training=training_record(trainer, change, survey),
            seed=config.seed,
            **this_process(started),
            allowed_changes=tuple(plan["allowed_changes"]),
        )
        with new_folder(out / "adapter") as folder:
            trainer.adapted.save_pretrained(str(folder))
            _name_base(folder, unwrap(loaded.model).config.name_or_path or "")
            loaded.tokenizer.save_pretrained(folder)
            write_text(folder / CARD, model_card(trainer.record))
            if table is not None:
                templates = [Template(each.name, each.jinja, each.answer_choices) for each in record.templates]
                table = replace(table, settings=trainer.record.scoring)
                store_calibration(folder, table, templates, config.label_prior)
        adapter = describe_adapter(out / "adapter", path="adapter", method=method.name)
        replace(trainer.record, adapter=adapter).write(out)
        if config.push_to_hub:
            _push(trainer, out / "adapter", base_name(loaded.record))
    wait_for_all()
    return TrainingRun(out, out / "adapter")


def _without_too_long(record: TaskRecord, trainer: F2CTrainer) -> tuple[TaskRecord, list[TooLong]]:
    """The record with what is left to train and to validate on, and what was skipped as too long."""
    datasets = [trainer.train_instances, *filter(None, [trainer.eval_instances])]
    too_long = [each for dataset in datasets for each in dataset.too_long]
    counts: dict[str, Any] = {
        "num_validation": sum(map(len, datasets[1:])),
        "num_too_long": sum(dataset.num_rows - len(dataset) for dataset in datasets),
    }
    return replace(record, num_instances=len(datasets[0]), **counts), too_long


def _reason_to_withhold(trainer: F2CTrainer) -> str | None:
    """Return the reason against saving the selected checkpoint; ``None`` if it may be saved."""
    state, guard, criterion = trainer.state, trainer.stop_on_collapse, trainer.criterion
    step, base = state.best_global_step or state.global_step, base_value(state.log_history)
    if guard.has_collapsed(state, at=step):
        return f"W-COLLAPSE: the predictions of the selected checkpoint, of step {step}, have collapsed. {guard.hint}"
    if base is None or trainer.eval_instances is None:
        return None
    chosen = [e["eval_selection"] for e in state.log_history if "eval_selection" in e and e["step"] <= step][-1]
    rivals = {"the base model's": base}
    if criterion.by == criterion.measure:
        num_labels = len(trainer.eval_instances[0].answers[0])
        rivals["that of constant predictions"] = criterion.constant_value(trainer.eval_instances.gold, num_labels)
    rival, stopped = max(rivals, key=rivals.__getitem__), guard.is_due(state)
    if chosen > rivals[rival] or (chosen == rivals[rival] and not stopped):
        return None
    values = f"{100 * chosen:.1f}, {rival} {100 * rivals[rival]:.1f}"
    found = f"the selected checkpoint's {criterion.by} on validation is {values}."
    return f"W-COLLAPSE: {found} {guard.hint}" if stopped else f"W-WORSE: {found}"


def _checkpoint_to_resume(folder: Path) -> Path | None:
    checkpoint, corrupt = latest_valid(folder)
    wait_for_all()  # until all have seen what is there, before rank 0 deletes
    if rank() == 0:
        for broken, reason in corrupt.items():
            log.warning("skipping %s: %s", broken.name, reason)
            shutil.rmtree(broken)
        if checkpoint is None:
            log.info("no complete checkpoint yet: starting from the beginning")
        else:
            log.info("resuming from %s", checkpoint.name)
    return checkpoint


def _name_base(adapter: Path, base: str) -> None:
    """Write the base model's name into an adapter's configuration."""
    config = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8"))
    write_json(adapter / ADAPTER_CONFIG, config | {"base_model_name_or_path": base})


def _push(trainer: F2CTrainer, adapter: Path, base: str) -> None:
    """Send the adapter's folder, model card included, to the hub; the run is complete without that."""
    name = str(trainer.hub_model_id)
    try:
        with tempfile.TemporaryDirectory() as folder:
            sent = shutil.copytree(adapter, Path(folder) / "adapter")
            _name_base(sent, base)  # without the path of this machine
            HfApi(token=trainer.args.hub_token).upload_folder(
                repo_id=name, folder_path=sent, commit_message="flip-flop train", revision=trainer.args.hub_revision
            )
    except Exception as error:  # whatever its transports raise
        reason = " ".join(str(error).split())[:200]
        log.warning("W-PUSH: %s could not be sent to %s: %s. Send it with `hf upload`.", adapter, name, reason)
