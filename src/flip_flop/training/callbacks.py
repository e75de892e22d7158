"""What happens beside the steps: the log file, the progress shown, checkpoints completed, a stop on a signal."""

import json
import logging
import math
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import get_last_checkpoint

from flip_flop.console import EachMinute, visible
from flip_flop.scoring.distributed import any_rank, rank, wait_for_all, world_size
from flip_flop.training.checkpoints import checkpoint_step, find_corruption, list_checkpoints, rotate, write_manifest
from flip_flop.training.saved_state import random_state, read_state, restore_random_state, write_state

log = logging.getLogger("flip_flop")


class LogFile(TrainerCallback):
    """``log.jsonl``: one line per log event (docs/log_keys.md). A resumed run starts with its checkpoint's lines."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Remove the lines that a killed run wrote after its last checkpoint."""
        self.path.write_text("".join(map(_json_line, state.log_history)), encoding="utf-8")

    def on_log(self, args, state: TrainerState, control, **kwargs) -> None:
        """Append the newest entry."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_json_line(state.log_history[-1]))


def _json_line(entry: dict[str, Any]) -> str:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in entry.items()
    }
    return json.dumps(finite) + "\n"  # JSON has no NaN


class Checkpoints(TrainerCallback):
    """Completes each checkpoint with its manifest, deletes old ones, and on resume finds the best one again.

    With ``with_state`` it writes into each what the library would pickle: optimizer, schedule and random state. A
    training goes on with those of ``resumed``, as in ``Trainer.train(resume_from_checkpoint=)``.
    """

    def __init__(self, keep: int | None, *, with_state: bool = True):
        self.keep = keep
        self.with_state = with_state
        self.resumed: str | bool | None = None
        self._random_state: dict[str, Any] | None = None

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Take up what the checkpoint holds."""
        checkpoint = get_last_checkpoint(args.output_dir) if self.resumed is True else self.resumed
        if checkpoint:
            self._load_state(Path(checkpoint), optimizer=kwargs["optimizer"], scheduler=kwargs["lr_scheduler"])
        self._find_best(args, state)

    def _load_state(self, checkpoint: Path, **parts: Any) -> None:
        """Load what :meth:`on_save` wrote; what an earlier version pickled the library has loaded, as tensors alone."""
        for name, part in parts.items():
            found = read_state(checkpoint, name)
            if found is not None:
                part.load_state_dict(found)
            elif rank() == 0:
                pickled = (checkpoint / f"{name}.pt").exists()
                how = "read from a pickle, as earlier versions wrote it" if pickled else "not there, and begins anew"
                log.info("%s: its %s is %s", checkpoint.name, name, how)
        self._random_state = read_state(checkpoint, _random_name())

    def on_epoch_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Restore the random state before an epoch's batches are drawn, as they were when it was written."""
        if _at_epoch_end(state):
            self.on_step_begin(args, state, control)

    def on_step_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Restore the random state, within an epoch after its batches are drawn again."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None

    def _find_best(self, args: TrainingArguments, state: TrainerState) -> None:
        """Find the best checkpoint by its step: the folder may have been moved since its path was noted."""
        if not (state.best_global_step and args.load_best_model_at_end):
            return
        folder, found = Path(args.output_dir or ""), state.best_global_step
        lost = find_corruption(folder / f"checkpoint-{found}")
        if lost is not None:
            logged = [entry for entry in state.log_history if "eval_selection" in entry]
            values = {entry["step"]: entry["eval_selection"] for entry in logged}
            whole = [
                checkpoint_step(path)
                for path in reversed(list_checkpoints(folder))
                if checkpoint_step(path) in values and find_corruption(path) is None
            ]
            best = max(whole, key=values.__getitem__, default=None)
            state.best_global_step, state.best_metric = best, None if best is None else values[best]
            then = "one to come" if best is None else f"checkpoint-{best}"
            log.warning("the best checkpoint, checkpoint-%d, cannot be used (%s): it is now %s", found, lost, then)
        step = state.best_global_step
        state.best_model_checkpoint = None if step is None else str(folder / f"checkpoint-{step}")

    def on_step_end(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Evaluate the last step too, whatever ``eval_steps`` is: its checkpoint is written, and is a candidate."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control: TrainerControl, **kwargs) -> None:
        """A log line with each checkpoint, which has nothing of the steps since the last line, and at the end."""
        control.should_log = control.should_log or control.should_save or control.should_training_stop

    def on_save(self, args, state: TrainerState, control, **kwargs) -> None:
        """Write what a resumed run goes on with, and the manifest when every process has written its random state."""
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        if rank() == 0:
            (checkpoint / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that nothing reads
        if self.with_state:
            write_state(checkpoint, _random_name(), random_state())
            if rank() == 0:
                write_state(checkpoint, "optimizer", kwargs["optimizer"].state_dict())
                write_state(checkpoint, "scheduler", kwargs["lr_scheduler"].state_dict())
        wait_for_all()
        if rank() == 0:
            write_manifest(checkpoint)
            rotate(folder, self.keep, state.best_model_checkpoint)
        wait_for_all()


def _random_name() -> str:
    return f"random_state_{rank()}"


class ShowProgress(TrainerCallback):
    """A bar on a terminal, in a log a line each minute; and everywhere a line per evaluation."""

    def __init__(self, label: str, quiet: bool = False):
        self.label = label
        self.quiet = quiet
        self._bar = tqdm(disable=True)
        self._start, self._loss = 0, ""
        self._clock = EachMinute()

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Open the bar at the resumed step."""
        hidden = self.quiet or not sys.stderr.isatty()
        start, total = state.global_step, state.max_steps
        self._start, self._clock = start, EachMinute()
        self._bar = tqdm(
            desc=self.label, initial=start, total=total, unit=" steps", leave=False, dynamic_ncols=True, disable=hidden
        )

    def on_step_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Move the bar; without one, print a line where a minute has passed."""
        self._bar.update(state.global_step - self._bar.n)
        if self._bar.disable and not self.quiet and self._clock.is_due():
            left = self._clock.left(state.global_step - self._start, state.max_steps - self._start)
            self._print(f"{self.label}: step {state.global_step}/{state.max_steps}{self._loss}  {left}")

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any] | None = None, **kwargs) -> None:
        """Show the loss in the bar, or in the next line."""
        if logs and "loss" in logs:
            self._loss = f"  loss {logs['loss']:.3f}"
            self._bar.set_postfix_str(self._loss.strip())

    def on_evaluate(self, args, state: TrainerState, control, metrics: dict[str, Any] | None = None, **kwargs) -> None:
        """Print the validation split's metrics in one line."""
        if self.quiet or not metrics:
            return
        words = [f"{self.label}: step {state.global_step}/{state.max_steps}"]
        for key, name in (("observed_agreement", "P_o"), ("mean_f1", "mean F1"), ("own_label_mass_min", "mass min")):
            value = metrics.get(f"eval_{key}")
            if value is not None:
                words.append(f"{name} {100 * value:.1f}")
        self._print("  ".join(words))

    def _print(self, line: str) -> None:
        tqdm.write(visible(line), file=sys.stderr)

    def on_train_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Close the bar."""
        self._bar.close()


class StopEarly(TrainerCallback):
    """Ends training when the unsupervised loss on validation has stopped falling, as the authors' release does.

    Evaluations count that come after ``start`` steps: at the ``patience``-th one of them in a row without a loss below
    all before it, those up to ``start`` included, training ends. What was logged decides: a resumed run decides alike.
    """

    def __init__(self, patience: int, start: int):
        self.patience = patience
        self.start = start

    def on_evaluate(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """End the training where it is time."""
        if self.is_due(state):
            control.should_training_stop = True

    def is_due(self, state: TrainerState) -> bool:
        """Whether the evaluations so far end the training."""
        best, without = math.inf, 0
        for entry in state.log_history:
            if "eval_loss" in entry:
                lower = entry["eval_loss"] < best
                best = entry["eval_loss"] if lower else best
                without = 0 if lower else without + (entry["step"] > self.start)
        return 0 < self.patience <= without


class StopOnSignal(TrainerCallback):
    """SIGINT and SIGTERM: finish the step, write a checkpoint, stop. A second one stops a single process at once."""

    def __init__(self):
        self.received: int | None = None
        self._previous: dict[int, Any] = {}
        self._saves_at_epoch_end = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Handle the signals from now on; only a process's main thread can."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:
                return

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # A cluster signals all processes, and a launcher then signals its own again and kills those that remain.
        signal.signal(number, signal.SIG_DFL if world_size() == 1 else signal.SIG_IGN)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Ask for a checkpoint and the end; where the epoch ends here too, after the epoch's evaluation."""
        # A launcher signals its processes one by one; they have to stop at the same step.
        stopped = any_rank(self.received is not None, args.device)
        if stopped and state.global_step < state.max_steps:  # the last step's end is the run's own
            self.received = self.received or signal.SIGTERM
            control.should_training_stop = True
            self._saves_at_epoch_end = _at_epoch_end(state) and "epoch" in (args.eval_strategy, args.save_strategy)
            control.should_save = not self._saves_at_epoch_end
            control.should_log = control.should_log or control.should_save

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Do not evaluate an interrupted epoch: its state is no candidate for the best checkpoint."""
        if state.global_step == state.max_steps:
            return
        if self.received is not None and not _at_epoch_end(state):
            control.should_evaluate = control.should_save = False
        elif self._saves_at_epoch_end:
            control.should_save = True

    def restore(self) -> None:
        """Restore the previous handlers. Not a callback: when a training fails, ``on_train_end`` is not called."""
        while self._previous:
            signal.signal(*self._previous.popitem())


def _at_epoch_end(state: TrainerState) -> bool:
    return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9
