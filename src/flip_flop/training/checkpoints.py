"""Checkpoints. A folder without a valid manifest, which is written last, is not used."""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import TRAINING_ARGS_NAME

from flip_flop.files import WRITE_ERRORS, write_failure
from flip_flop.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MANIFEST, find_corruption, write_manifest
from flip_flop.scoring.distributed import rank, wait_for_all

log = logging.getLogger("flip_flop")
BEST = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)  # the files that are loaded from the best checkpoint


def checkpoint_step(checkpoint: Path) -> int:
    """The optimizer step of a checkpoint."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """List checkpoint folders, newest first, complete or not."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch("checkpoint-[0-9]+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: -checkpoint_step(path))


def latest_valid(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest complete checkpoint, and the damage of each newer one."""
    corrupt: dict[Path, str] = {}
    for checkpoint in list_checkpoints(folder):
        reason = find_corruption(checkpoint)
        if reason is None:
            return checkpoint, corrupt
        corrupt[checkpoint] = reason
    return None, corrupt


def rotate(folder: Path, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints down to ``keep``, but never the newest complete one or the best."""
    if not keep or keep < 1:
        return
    protected = {Path(best).name} if best else set()
    found = list_checkpoints(folder)
    complete = [path for path in found if (path / MANIFEST).is_file()]
    for unfinished in found[found.index(complete[0]) :] if complete else []:
        if unfinished not in complete:
            shutil.rmtree(unfinished)
    protected.update(path.name for path in complete[:1])
    for checkpoint in reversed(complete):
        if len(complete) <= max(keep, len(protected)):
            return
        if checkpoint.name not in protected:
            (checkpoint / MANIFEST).unlink()  # first: a folder that is deleted in part is not used
            shutil.rmtree(checkpoint)
            complete.remove(checkpoint)


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
        if not by_library and getattr(error, "errno", None) not in WRITE_ERRORS:
            raise
        raise write_failure(error, folder, "Free some space, then continue with --resume.") from error


class Checkpoints(TrainerCallback):
    """Completes each checkpoint with its manifest, deletes old ones, and finds the best one on resume."""

    def __init__(self, keep: int | None):
        self.keep = keep

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """On resume, find the best checkpoint by its step, because the folder may have been moved."""
        if not (state.best_global_step and args.load_best_model_at_end):
            return
        folder, found = Path(args.output_dir or ""), state.best_global_step
        lost = find_corruption(folder / f"checkpoint-{found}", BEST)
        if lost is not None:
            key = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
            values = {entry["step"]: entry[key] for entry in state.log_history if key in entry}
            whole = [
                checkpoint_step(path)
                for path in reversed(list_checkpoints(folder))
                if checkpoint_step(path) in values and find_corruption(path, BEST) is None
            ]
            best = (max if args.greater_is_better else min)(whole, key=values.__getitem__, default=None)
            state.best_global_step, state.best_metric = best, None if best is None else values[best]
            then = "one to come" if best is None else f"checkpoint-{best}"
            log.warning("the best checkpoint, checkpoint-%d, cannot be used (%s): it is now %s", found, lost, then)
        step = state.best_global_step
        state.best_model_checkpoint = None if step is None else str(folder / f"checkpoint-{step}")

    def on_step_end(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Always evaluate the last step, so that its checkpoint can become the best one."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control: TrainerControl, **kwargs) -> None:
        """Log before each checkpoint, which stores no statistics since the last log line, and at the end."""
        control.should_log = control.should_log or control.should_save or control.should_training_stop

    def on_save(self, args, state: TrainerState, control, **kwargs) -> None:
        """Write the manifest after all processes have written their files."""
        wait_for_all()
        if rank() == 0:
            folder = Path(args.output_dir)
            checkpoint = folder / f"checkpoint-{state.global_step}"
            (checkpoint / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # an unused pickle
            write_manifest(checkpoint)
            rotate(folder, self.keep, state.best_model_checkpoint)
        wait_for_all()
