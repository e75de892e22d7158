"""Training runs: from a task and a model to an adapter in a folder. They can be killed and resumed at any time."""

import contextlib
import copy
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from huggingface_hub import HfApi
from torch import Tensor
from tqdm import tqdm
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import HubStrategy

from flip_flop.console import is_first_process, stop_signals, today, track, visible
from flip_flop.errors import InputError, log
from flip_flop.files import Json, StrPath, finite, new_folder, read_object, write_json, write_text
from flip_flop.hub import absolute_place
from flip_flop.method import find_method
from flip_flop.metrics import MIN_INSTANCES, Scores, batch_offsets, uniform_prior
from flip_flop.record import ADAPTER_CONFIG, CLASSIFIER_FILE, RUN_FILE, Classifier, RunRecord, this_process
from flip_flop.scoring.adapters import describe_adapter
from flip_flop.scoring.causal_lm import one_at_a_time, unwrap
from flip_flop.scoring.distributed import all_gather, any_rank, rank, sharding_of, wait_for_all, world_size
from flip_flop.scoring.models import ModelGiven
from flip_flop.scoring.too_long import TOO_LONG_FILE, listed_beside, write_too_long
from flip_flop.tasks import Task
from flip_flop.training.adapter import load_trained, restored, sharded_state
from flip_flop.training.card import CARD, base_name, model_card
from flip_flop.training.checkpoints import check_plan, checkpoint_to_resume, lock, named_write_errors, resume_settings
from flip_flop.training.config import F2CConfig, setting_errors
from flip_flop.training.data import TrainingData, as_training_data
from flip_flop.training.folder import PLAN, find_damage
from flip_flop.training.selection import StopOnCollapse, reason_against_answers, reason_to_withhold
from flip_flop.training.trainer import F2CTrainer
from flip_flop.training.votes import VOTES, VoteTable, initial_vote_stats, warn_of_templates

SURVEY = "survey.json"
SECONDS_OF_A_LAUNCHER = 2.0


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


@one_at_a_time()
def train(
    model: ModelGiven,
    data: TrainingData | Task | StrPath,
    config: F2CConfig,
    out: StrPath,
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
            The training leaves a model object as it was.
        data: The result of :func:`load_training_data`; all instances of a task, its name or its file.
        config: The settings. Checkpoints go to ``out/checkpoints``; ``output_dir`` is ignored.
        out: An empty or new folder; with ``resume``, the folder of a run with the same settings.
        resume: Continue from the newest complete checkpoint, also to repair a finished run with a missing or changed
            file. Changed weights or rows are one warning, and recorded.
        quiet: Show no progress.
        keep_worse: Save the adapter even if it has collapsed or is worse than the base model.

    Raises:
        InputError: See ``docs/reference/errors.md``.
    """
    out = Path(out)
    with lock(out), named_write_errors(out), contextlib.ExitStack() as until_end:
        data = as_training_data(data, config)
        loaded = load_trained(model, None, config)
        if loaded.adapter is not None:
            raise InputError(
                "E-ADAPTER",
                "the model to train has an adapter.",
                "Give the base model, as PEFT's unload() returns it, or train the adapter further with F2CTrainer.",
            )
        until_end.enter_context(restored(loaded.model))
        config = copy.copy(config)
        config.output_dir = str((out / "checkpoints").resolve())
        config.model_init_kwargs = None  # the model is loaded
        config.disable_tqdm = quiet
        config.hub_strategy = HubStrategy.END  # only the selected adapter and its card are sent
        plan: Json = {
            "settings": resume_settings(config) | {"num_processes": world_size()},
            "model": {"dtype": loaded.record.dtype, "shard": sharding_of(loaded.model)},
            "digests": {
                **{"weights": loaded.record.digest, "task": data.record.digest, "rows": data.digest},
                "method": find_method(config.method).code,
            },
        }
        wait_for_all()  # until rank 0 holds the lock
        plan["allowed_changes"] = check_plan(out, plan, resume=resume)
        config.prompt_date = all_gather(plan["settings"]["prompt_date"] or today())[0]
        plan["settings"]["prompt_date"] = config.prompt_date
        has_begun = (out / PLAN).exists()
        damage = all_gather(find_damage(out))[0]  # all have read the folder, before rank 0 writes
        if (out / RUN_FILE).exists():
            if damage is None:
                log.info("%s is complete already", out)
                return TrainingRun(out, out / "adapter")
            log.info("%s: the run ends again, from its last checkpoint", out / damage)
        started = time.monotonic()
        if rank() == 0:
            log_processes()
            if resume and not has_begun:
                log.info("%s has no run to resume: it begins at step 0", out)
        warn_of_templates(data.train, config)
        callbacks: list[TrainerCallback] = [LogFile(out / "log.jsonl")] if rank() == 0 else []
        with listed_beside(out):
            trainer = F2CTrainer(loaded, config, callbacks=callbacks, task=data)
        if rank() == 0 and not quiet:
            trainer.add_callback(ShowProgress(find_method(config.method).name, trainer))
        scores = trainer.model_scores
        _check_steps(trainer)
        folder = Path(config.output_dir)
        checkpoint = None
        if has_begun:
            checkpoint = checkpoint_to_resume(folder, needs_best=trainer.args.load_best_model_at_end)
        if trainer.is_frozen and checkpoint and not plan["allowed_changes"]:
            ids = [instance.id for instance in trainer.voters]
            prompts = trainer.train_instances.digest
            stored = VoteTable.read(out / VOTES, ids, prompts) if rank() == 0 else None
            scores.first_votes = all_gather(stored)[0] or scores.first_votes
        survey = initial_vote_stats(
            scores.first_votes, config, data.record.design(trainer.template_names), trainer.voters
        )
        # All mistakes of the user have been found.
        if rank() == 0:
            _write_start(out, plan, survey, trainer)
        stop = StopOnSignal(trainer.stop_on_collapse)
        trainer.add_callback(stop)
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            stop.restore()
        if stop.received is not None and not trainer.is_over:
            log.info("stopped by a signal at step %d. Continue with --resume.", trainer.state.global_step)
            return TrainingRun(out, None, stop.received)
        return _finish(trainer, survey, plan["allowed_changes"], started, out, keep_worse=keep_worse)


def _finish(
    trainer: F2CTrainer,
    survey: Json,
    allowed_changes: list[str],
    started: float,
    out: Path,
    *,
    keep_worse: bool,
) -> TrainingRun:
    """Save the selected adapter and the record, unless the adapter has collapsed or is worse than the base model."""
    reason = reason_to_withhold(
        trainer.state,
        trainer.stop_on_collapse,
        trainer.criterion,
        None if trainer.eval_instances is None else trainer.eval_instances.gold,
        len(trainer.train_instances[0].answers[0]),
    )
    change = trainer.change_on_validation()
    if trainer.open_validation and change is not None:
        reason = reason_against_answers(change) or reason
    if reason is not None and rank() == 0:
        if keep_worse:
            hint = ""
        else:
            hint = " The adapter is not saved. --resume --keep-worse saves it without training again."
        log.warning("%s%s", reason, hint)
    if reason is not None and not keep_worse:
        return TrainingRun(out, None, withheld=True)
    table = None if trainer.args.vote_calibration == "none" else _calibration_scores(trainer)
    state = sharded_state(trainer.adapted)
    if rank() == 0:
        process = this_process(started)
        record = replace(trainer.describe(change, survey), allowed_changes=tuple(allowed_changes), **process)
        _save(trainer, record, table, state, out)
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


def _check_steps(trainer: F2CTrainer) -> None:
    """Build optimizer and batches once, before anything is written.

    Raises:
        InputError: ``E-CONFIG`` for an invalid optimizer or data loader, or too few instances for a step.
    """
    trainer.remove_callback(PrinterCallback if trainer.args.disable_tqdm else ProgressCallback)
    with setting_errors(
        "optimizer, schedule or data loader",
        "Correct the settings that begin with optim, lr_scheduler or dataloader.",
    ):
        trainer.create_optimizer_and_scheduler(num_training_steps=max(trainer.args.max_steps, 1))
        num_batches = len(trainer.get_train_dataloader())
    trainer.optimizer = trainer.lr_scheduler = None
    if not num_batches:
        raise InputError(
            "E-CONFIG",
            f"dataloader_drop_last leaves no step of {len(trainer.train_instances)} training instances.",
            "Make per_device_train_batch_size smaller, or leave it out.",
        )


def _write_start(out: Path, plan: Json, survey: Json, trainer: F2CTrainer) -> None:
    """Write the files of a run that is about to train."""
    write_json(out / PLAN, plan)
    write_json(out / SURVEY, survey)
    (out / TOO_LONG_FILE).unlink(missing_ok=True)  # of a run that has restarted
    if trainer.too_long:
        write_too_long(out / TOO_LONG_FILE, trainer.too_long, trainer.template_names)
    if trainer.is_frozen:
        trainer.model_scores.first_votes.write(out / VOTES, trainer.train_instances.digest)


def _calibration_scores(trainer: F2CTrainer) -> Scores | None:
    """Return the scores for the stored offsets: of the validation split, already computed, or of training rows."""
    scores = trainer.model_scores
    if trainer.args.eval_strategy != "no" and len(scores.validation) >= MIN_INSTANCES:
        return scores.score_validation()
    if len(trainer.sample) < MIN_INSTANCES:
        return None
    return scores.score(trainer.sample, "offsets of predict --with")


def _save(
    trainer: F2CTrainer, record: RunRecord, table: Scores | None, state: dict[str, Tensor] | None, out: Path
) -> None:
    """Write the adapter with its card, then ``run.json``; send the adapter to the hub if asked for."""
    loaded = trainer.loaded
    with new_folder(out / "adapter") as folder:
        trainer.adapted.save_pretrained(str(folder), state_dict=state)
        _name_base(folder, unwrap(loaded.model).config.name_or_path or "")
        loaded.tokenizer.save_pretrained(folder)
        write_text(folder / CARD, model_card(record))
        _write_classifier(folder, record, table, trainer)
    adapter = describe_adapter(
        out / "adapter", path="adapter", method=trainer.method.name, uses_labels=trainer.args.uses_labels or None
    )
    replace(record, adapter=adapter).write(out)
    if trainer.args.push_to_hub:
        _push(trainer, out / "adapter", base_name(loaded.record))


def _write_classifier(adapter: Path, record: RunRecord, table: Scores | None, trainer: F2CTrainer) -> None:
    """Write the vote of the training templates, with offsets from a table of scores; not without their texts."""
    names = [template.name for template in record.task.templates]
    decided: Json = {"adapter": describe_adapter(adapter, path=".")}
    decided["model"] = replace(record.model, name=absolute_place(record.model.name))
    if table is not None:
        places = trainer.model_scores.places
        prior = list(trainer.args.label_prior or uniform_prior(table.num_labels))
        decided["calibration"] = {
            "method": "batch" if places is None else "position",
            "label_prior": prior,
            "num_instances": len(table),
        }
        decided["offsets"] = dict(zip(names, batch_offsets(table.values, prior, places).tolist(), strict=True))
    words = f"This is the vote of the training templates, {', '.join(names)}. Audit the adapter to choose one."
    classifier = Classifier.of_run(record, names, decision=words, **decided)
    if classifier is not None:
        classifier.write(adapter)


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
            if (classifier := read_object(sent / CLASSIFIER_FILE)) is not None:
                classifier["model"]["name"] = base
                write_json(sent / CLASSIFIER_FILE, classifier)
            HfApi(token=trainer.args.hub_token).upload_folder(
                repo_id=name, folder_path=sent, commit_message="flip-flop train", revision=trainer.args.hub_revision
            )
    except Exception as error:  # its transports raise many kinds
        log.warning(
            "W-PUSH: %s could not be sent to %s: %s. Send it with `hf upload`.",
            adapter,
            name,
            " ".join(str(error).split())[:200],
        )


# ---- callbacks ----


@dataclass(eq=False)
class LogFile(TrainerCallback):
    """Writes ``log.jsonl``, one line per log event (docs/reference/log_keys.md)."""

    path: Path

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Remove the lines that a killed run wrote after its last checkpoint."""
        self.path.write_text("".join(map(_json_line, state.log_history)), encoding="utf-8")

    def on_log(self, args, state: TrainerState, control, **kwargs) -> None:
        """Append the newest entry."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_json_line(state.log_history[-1]))


def _json_line(entry: Json) -> str:
    return json.dumps({key: finite(value) for key, value in entry.items()}) + "\n"


@dataclass(eq=False)
class ShowProgress(TrainerCallback):
    """Shows a bar on a terminal, otherwise a line each minute; and a line per evaluation."""

    label: str
    trainer: F2CTrainer
    _shown: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Open the bar for the remaining steps."""
        self._advance = self._shown.enter_context(track(self.label, state.max_steps - state.global_step, "steps"))

    def on_step_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Move the bar, with the loss of the step; without a bar, print a line each minute."""
        self._advance(1, f"loss {self.trainer.step_loss:.3f}")

    def on_evaluate(self, args, state: TrainerState, control, metrics: Any = None, **kwargs) -> None:
        """Print the validation metrics."""
        words = [f"{self.label}: step {state.global_step}/{state.max_steps}"]
        shown = {"eval_observed_agreement": "P_o", "eval_mean_f1": "mean F1", "eval_own_label_mass_min": "mass min"}
        words += [f"{name} {100 * metrics[key]:.1f}" for key, name in shown.items() if key in metrics]
        with contextlib.suppress(OSError):  # a closed terminal
            tqdm.write(visible("  ".join(words)), file=sys.stderr)

    def on_train_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Close the bar."""
        self._shown.close()


@dataclass(eq=False)
class StopOnSignal(TrainerCallback):
    """Finishes the step on SIGINT, SIGTERM or SIGHUP, writes a checkpoint and stops. A second SIGINT ends at once.

    Python runs a handler between two operations of torch, or after a backward pass.
    """

    guard: StopOnCollapse
    received: int | None = None
    _first: float = 0.0  # when the first signal arrived
    _previous: dict[int, Any] = field(default_factory=dict)
    _saves_at_epoch_end: bool = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Install the handlers, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *stop_signals()):
                self._previous[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A launcher repeats the signal that it gets.
        is_repeated = world_size() > 1 and time.monotonic() - self._first < SECONDS_OF_A_LAUNCHER
        if self.received is not None and number == signal.SIGINT and not is_repeated:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped\n" * is_first_process())
            os._exit(128 + number)
        is_first = self.received is None
        self.received = number
        if is_first:
            self._first = time.monotonic()
            if is_first_process():
                with contextlib.suppress(OSError):  # Ctrl-C may end the reader of stderr
                    tqdm.write("finishing the step; press Ctrl-C again to stop now", file=sys.stderr)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Request a checkpoint and the end; at the end of an epoch, after its evaluation."""
        # A launcher signals its processes one by one, but they must stop at the same step.
        stopped = any_rank(self.received is not None, args.device)
        if stopped and state.global_step < state.max_steps:
            self.received = self.received or signal.SIGTERM
            control.should_training_stop = True
            self._saves_at_epoch_end = _at_epoch_end(state) and "epoch" in (args.eval_strategy, args.save_strategy)
            control.should_save = not self._saves_at_epoch_end
            self.guard.is_extra_line = control.should_save and not control.should_log
            control.should_log = control.should_log or control.should_save

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Do not evaluate an interrupted epoch, because its state cannot become the best checkpoint."""
        if state.global_step == state.max_steps:
            return
        if self.received is not None and not _at_epoch_end(state):
            control.should_evaluate = control.should_save = False
        elif self._saves_at_epoch_end:
            control.should_save = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop after an evaluation, without another step."""
        if any_rank(self.received is not None, args.device) and 0 < state.global_step < state.max_steps:
            control.should_training_stop = control.should_save = True

    def restore(self) -> None:
        """Restore the previous handlers. Not a callback, because ``on_train_end`` is not called after a failure."""
        while self._previous:
            signal.signal(*self._previous.popitem())


def _at_epoch_end(state: TrainerState) -> bool:
    return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9
