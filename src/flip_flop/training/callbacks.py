"""Callbacks of a training run: the log file, the progress display, and signals."""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from flip_flop.console import is_first_process, track, visible
from flip_flop.scoring.distributed import any_rank, world_size

SECONDS_OF_A_LAUNCHER = 2.0


class LogFile(TrainerCallback):
    """Writes ``log.jsonl``, one line per log event (docs/reference/log_keys.md)."""

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


class ShowProgress(TrainerCallback):
    """Shows a bar on a terminal, otherwise a line each minute; and a line per evaluation."""

    def __init__(self, label: str, quiet: bool = False):
        self.label, self.quiet, self._loss, self._shown = label, quiet, "", contextlib.ExitStack()

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Open the bar for the steps that are left."""
        left = state.max_steps - state.global_step
        self._advance = self._shown.enter_context(track(self.label, left, "steps", quiet=self.quiet))

    def on_step_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Move the bar; without a bar, print a line each minute."""
        self._advance(1, self._loss)

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any] | None = None, **kwargs) -> None:
        """Show the loss at the next step."""
        if logs and "loss" in logs:
            self._loss = f"loss {logs['loss']:.3f}"

    def on_evaluate(self, args, state: TrainerState, control, metrics: dict[str, Any] | None = None, **kwargs) -> None:
        """Print the validation metrics."""
        if self.quiet or not metrics:
            return
        words = [f"{self.label}: step {state.global_step}/{state.max_steps}"]
        for key, name in (("observed_agreement", "P_o"), ("mean_f1", "mean F1"), ("own_label_mass_min", "mass min")):
            value = metrics.get(f"eval_{key}")
            if value is not None:
                words.append(f"{name} {100 * value:.1f}")
        tqdm.write(visible("  ".join(words)), file=sys.stderr)

    def on_train_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Close the bar."""
        self._shown.close()


class StopOnSignal(TrainerCallback):
    """Finishes the step on SIGINT or SIGTERM, writes a checkpoint and stops. A second SIGINT ends the process at once.

    Python runs a handler only after a backward pass, which may take long. So a thread reads the signals from a pipe.
    """

    def __init__(self):
        self.received: int | None = None
        self._previous: dict[int, Any] = {}
        self._saves_at_epoch_end = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Install the handlers, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
            arrivals, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            self._previous_pipe = signal.set_wakeup_fd(self._pipe)
            threading.Thread(target=self._answer, args=[arrivals], daemon=True).start()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def _answer(self, arrivals: int) -> None:
        first = 0.0
        while number := int.from_bytes(os.read(arrivals, 1)):
            # A launcher repeats the signal that it gets.
            is_repeated = world_size() > 1 and time.monotonic() - first < SECONDS_OF_A_LAUNCHER
            if first and number == signal.SIGINT and not is_repeated:
                os._exit(128 + number)
            if not first and number in self._previous:
                first = time.monotonic()
                if is_first_process():
                    tqdm.write("finishing the step; press Ctrl-C again to stop now", file=sys.stderr)
        os.close(arrivals)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Request a checkpoint and the end; at the end of an epoch, after its evaluation."""
        # A launcher signals its processes one by one, but they must stop at the same step.
        stopped = any_rank(self.received is not None, args.device)
        if stopped and state.global_step < state.max_steps:
            self.received = self.received or signal.SIGTERM
            control.should_training_stop = True
            self._saves_at_epoch_end = _at_epoch_end(state) and "epoch" in (args.eval_strategy, args.save_strategy)
            control.should_save = not self._saves_at_epoch_end
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
        if self._previous:
            signal.set_wakeup_fd(self._previous_pipe)
            os.close(self._pipe)  # ends the thread
        while self._previous:
            signal.signal(*self._previous.popitem())


def _at_epoch_end(state: TrainerState) -> bool:
    return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9
