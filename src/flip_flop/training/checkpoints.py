"""The folder of a training run: lock, plan and checkpoints. A run resumes from its last complete checkpoint."""

import contextlib
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from flip_flop import files
from flip_flop.errors import InputError, log
from flip_flop.files import Json
from flip_flop.method import find_method
from flip_flop.record import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MANIFEST, find_corruption, write_manifest
from flip_flop.scoring.distributed import rank, wait_for_all
from flip_flop.training.config import F2CConfig
from flip_flop.training.folder import (
    LOCK,
    PLAN,
    complete_checkpoints,
    holds_run,
    leftovers,
    list_checkpoints,
)
from flip_flop.training.settings import EXECUTION_ONLY

BEST = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)  # the files that are loaded from the best checkpoint
# The inputs of a run that have a digest in its plan.
INPUTS = {
    **{"weights": "model's weights", "task": "task or its templates", "rows": "training or validation rows"},
    "method": "code of the method",
}
# Inherited settings that a run's record includes.
RECORDED = (
    *("seed", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "bf16", "eval_strategy", "eval_steps", "save_strategy", "save_steps"),
)
# Other settings that may change on resume: destinations, display, and the bundle's name.
MAY_CHANGE_ON_RESUME = (
    *EXECUTION_ONLY,
    *("protocol", "ddp_timeout", "output_dir", "run_name", "project", "report_to", "disable_tqdm", "save_total_limit"),
    *("use_cpu", "debug"),
)
MAY_CHANGE_PREFIXES = (
    *("log", "hub_", "push_to", "trackio", "dataloader_num", "dataloader_p", "include_", "resume"),
    *("gradient_checkpointing", "activation_checkpointing"),
)


# ---- the folder ----


@contextlib.contextmanager
def lock(out: Path) -> Iterator[None]:
    """Lock the folder as long as this process lives. Rank 0 holds the lock for all processes.

    If nothing has been written, the folder is left as it was.

    Raises:
        InputError: ``E-OUT-BUSY`` if another process holds it, ``E-OUT-PATH`` if it cannot be written.
    """
    if rank() > 0:
        yield
        return
    files.check_output(out, is_folder=True)
    with files.make_folder((out / "checkpoints").resolve()), files.lock(out / LOCK, out):
        for leftover in leftovers(out):
            files.remove(leftover)
        try:
            yield
        finally:
            if not (out / PLAN).exists():
                (out / LOCK).unlink(missing_ok=True)


@contextlib.contextmanager
def named_write_errors(folder: Path) -> Iterator[None]:
    """Report a failed write, as on a full disk, with the folder. Some libraries raise no ``OSError``.

    Raises:
        InputError: ``E-OS``.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error)
        by_library = "while serializing" in reason or "inline_container.cc" in reason  # safetensors, torch
        if not by_library and getattr(error, "errno", None) not in files.WRITE_ERRORS:
            raise
        raise files.write_failure(error, folder, "Free some space, then continue with --resume.") from error


# ---- the plan ----


def recorded_settings(config: F2CConfig) -> Json:
    """Return the settings for the run's record: the methods' own and the main inherited ones."""
    inherited = {item.name for item in fields(TrainingArguments)}
    ours = [item.name for item in fields(config) if item.name not in inherited]
    settings = {name: _as_json(getattr(config, name)) for name in (*ours, *RECORDED)}
    return settings | {"method": find_method(config.method).name}


def resume_settings(config: F2CConfig) -> Json:
    """Return the settings that a resumed run must share, as JSON values."""
    return {
        item.name: _as_json(getattr(config, item.name))
        for item in fields(config)
        if item.name not in MAY_CHANGE_ON_RESUME and not item.name.startswith(MAY_CHANGE_PREFIXES)
    }


def _as_json(value: Any) -> Any:
    """Convert to JSON: enumerations by value, infinities and unknown types as text."""
    value = getattr(value, "value", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.loads(json.dumps(value, default=str))


def check_plan(out: Path, plan: Json, *, resume: bool) -> list[str]:
    """Compare a run with the plan of the run in the folder, if there is one.

    Returns the changed :data:`INPUTS` of this and earlier resumes, after a warning (``W-RESUME-CHANGED``). A plan
    without a date gets that of the other.

    Raises:
        InputError: ``E-OUT-USED`` if the folder has other files, or a run without ``resume``;
            ``E-RESUME-CHANGED`` for other settings; ``E-RUN-BROKEN`` for an unreadable plan.
    """
    path = out / PLAN
    if not holds_run(out, resume=resume):
        return []
    before = files.read_object(path)
    if before is None or not all(isinstance(before.get(section), dict) for section in ("settings", "model", "digests")):
        raise InputError("E-RUN-BROKEN", f"{path} cannot be read.", "Restore it, or choose another --out.")
    # A run keeps the date of its start.
    plan["settings"]["prompt_date"] = plan["settings"]["prompt_date"] or before["settings"].get("prompt_date")
    defaults = {item.name: _as_json(item.default) for item in fields(F2CConfig)}  # of settings that are newer
    changed = []
    for section in ("settings", "model"):
        for name, value in sorted(plan[section].items()):
            old = before[section].get(name, defaults.get(name))
            if old != value:
                changed.append(f"{section}.{name} ({old!r}, now {value!r})")
    if changed:
        raise InputError(
            "E-RESUME-CHANGED",
            f"cannot resume {out}, because these have changed: {', '.join(changed[:3])}.",
            "Resume with the same settings and number of processes. Or choose another --out; in a study, remove it.",
        )
    digests = before["digests"]
    inputs = [name for name in INPUTS if digests.get(name, plan["digests"][name]) != plan["digests"][name]]
    if inputs and rank() == 0:
        log.warning(
            "W-RESUME-CHANGED: %s is resumed, but these have changed since its start: %s.",
            out,
            ", ".join(INPUTS[name] for name in inputs),
        )
    return [name for name in INPUTS if name in inputs or name in before.get("allowed_changes", ())]


# ---- checkpoints ----


def checkpoint_to_resume(folder: Path, *, needs_best: bool) -> Path | None:
    """Return the newest complete checkpoint. Rank 0 deletes those that were not finished.

    Raises:
        InputError: ``E-RUN-BROKEN`` if it is damaged, or if the best checkpoint until then is, and ``needs_best``. The
            hint names the newest checkpoint that can be used.
    """
    checkpoints = list_checkpoints(folder)
    complete = complete_checkpoints(folder)
    wait_for_all()  # until all have read the folder, before rank 0 deletes
    if rank() == 0:
        for unfinished in (path for path in checkpoints if path not in complete):
            shutil.rmtree(unfinished)
    damages = ((path, _damage(path, needs_best=needs_best)) for path in complete)
    unusable = list(itertools.takewhile(lambda found: found[1], damages))
    if unusable:
        names = " and ".join(path.name for path, _ in unusable)
        rest = [f"resume from {path.name}" for path in complete[len(unusable) :]] or ["begin again"]
        raise InputError("E-RUN-BROKEN", f"{unusable[0][1]}.", f"Restore it, or remove {names} to {rest[0]}.")
    if rank() == 0:
        log.info("resuming from %s", complete[0].name if complete else "the beginning: no checkpoint is complete")
    return complete[0] if complete else None


MAX_STATE = 2**30  # bytes of a state, which has all lines of the log


def best_of(checkpoint: Path) -> Path:
    """Return the best checkpoint at the step of this one, which is itself if there was none."""
    state = files.read_object(checkpoint / TRAINER_STATE_NAME, MAX_STATE) or {}
    step = state.get("best_global_step")
    if step:
        return checkpoint.parent / f"checkpoint-{step}"
    return checkpoint


def _damage(checkpoint: Path, *, needs_best: bool) -> str | None:
    """Return why a run cannot resume from a checkpoint: its own damage, or that of its best one's adapter."""
    for path, only in ((checkpoint, ()), (best_of(checkpoint), BEST))[: 1 + needs_best]:
        if damage := find_corruption(path, only):
            return f"{path} cannot be used: {damage}"
    return None


def rotate(folder: Path, keep: int | None) -> None:
    """Delete the oldest complete checkpoints down to ``keep``, but neither the newest nor the best of one that is kept.

    So a run can resume from each of them, even if all newer ones are damaged.
    """
    if keep is None or keep < 1:
        return
    complete = complete_checkpoints(folder)
    kept = set[Path]()
    for checkpoint in complete:
        if checkpoint in kept or len(kept) < keep:
            kept |= {checkpoint, best_of(checkpoint)} & {*complete}
    for checkpoint in complete:
        if checkpoint not in kept:
            (checkpoint / MANIFEST).unlink()  # first: a folder that is deleted in part is not used
            shutil.rmtree(checkpoint)


@dataclass(eq=False)
class Checkpoints(TrainerCallback):
    """Completes each checkpoint with its manifest, deletes old ones, and finds the best one on resume."""

    keep: int | None

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """On resume, find the best checkpoint by its step, because the folder may have been moved.

        Raises:
            InputError: ``E-RUN-BROKEN`` if its adapter is missing or damaged.
        """
        if state.best_global_step and args.load_best_model_at_end:
            best = Path(args.output_dir or "") / f"checkpoint-{state.best_global_step}"
            if damage := find_corruption(best, BEST):
                raise InputError(
                    "E-RUN-BROKEN", f"{best} cannot be used: {damage}.", "Restore this best checkpoint, or train again."
                )
            state.best_model_checkpoint = str(best)

    def on_step_end(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Always evaluate the last step, so that its checkpoint can become the best one."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True
        control.should_log = control.should_log or control.should_evaluate  # a signal may save after it
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control: TrainerControl, **kwargs) -> None:
        """Log before each checkpoint, which stores no statistics since the last log line, and at the end."""
        control.should_log = control.should_log or control.should_save or control.should_training_stop

    def on_save(self, args, state: TrainerState, control, **kwargs) -> None:
        """Write the manifest after all processes have written their files."""
        wait_for_all()
        if rank() == 0:
            folder = Path(args.output_dir)
            write_manifest(folder / f"checkpoint-{state.global_step}")
            rotate(folder, self.keep)
        wait_for_all()
