"""Callbacks of a training run: the log file, the progress display, early stopping, and signals."""

import json
import math
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from flip_flop.console import EachMinute, visible
from flip_flop.scoring.distributed import any_rank, world_size


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
        """Move the bar; without a bar, print a line each minute."""
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
        """Print the validation metrics."""
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
    """Ends training when the unsupervised validation loss has stopped falling, as the authors' release does.

    Training ends at the ``patience``-th evaluation in a row without a new minimum of the loss. Evaluations up to step
    ``start`` are not counted. Only logged values decide, so a resumed run stops at the same step.
    """

    def __init__(self, patience: int, start: int):
        self.patience = patience
        self.start = start

    def on_evaluate(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """End the training if it is due."""
        if self.is_due(state):
            control.should_training_stop = True

    def is_due(self, state: TrainerState) -> bool:
        """Whether the evaluations so far end the training."""
        best, without = math.inf, 0
        losses = {entry["step"]: entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry}
        for step, loss in losses.items():
            lower = loss < best
            best = loss if lower else best
            without = 0 if lower else without + (step > self.start)
        return 0 < self.patience <= without


class StopOnSignal(TrainerCallback):
    """On SIGINT and SIGTERM, finishes the step, writes a checkpoint and stops. A second signal kills the process."""

    def __init__(self):
        self.received: int | None = None
        self._previous: dict[int, Any] = {}
        self._saves_at_epoch_end = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Install the handlers, which only the main thread can."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:
                return

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # A cluster signals all processes. Then a launcher signals its own again and kills those that remain.
        signal.signal(number, signal.SIG_DFL if world_size() == 1 else signal.SIG_IGN)

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

    def restore(self) -> None:
        """Restore the previous handlers. Not a callback, because ``on_train_end`` is not called after a failure."""
        while self._previous:
            signal.signal(*self._previous.popitem())


def _at_epoch_end(state: TrainerState) -> bool:
    return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9
