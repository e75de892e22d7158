"""What happens beside the steps: the log file, the progress shown, a stop on a signal, a stop without a consensus."""

import json
import math
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from flip_flop.errors import InputError
from flip_flop.training.distributed import any_of, world


class LogFile(TrainerCallback):
    """``log.jsonl``: one line per log event. A resumed run writes again what its checkpoint remembers."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Drop the lines that a killed run wrote after its last checkpoint."""
        lines = [_json_line(entry) for entry in state.log_history]
        self.path.write_text("".join(lines), encoding="utf-8")

    def on_log(self, args, state: TrainerState, control, **kwargs) -> None:
        """Append the newest entry."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_json_line(state.log_history[-1]))


def _json_line(entry: dict[str, Any]) -> str:
    """One line of JSON, which has no word for NaN."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in entry.items()
    }
    return json.dumps(finite) + "\n"


class ShowProgress(TrainerCallback):
    """A bar on a terminal, a line per evaluation everywhere."""

    def __init__(self, label: str, quiet: bool = False):
        self.label = label
        self.quiet = quiet
        self._bar: tqdm | None = None

    def on_train_begin(self, args, state: TrainerState, control, **kwargs) -> None:
        """Open the bar where it was left."""
        if not self.quiet and sys.stderr.isatty():
            total = state.max_steps
            self._bar = tqdm(
                total=total,
                initial=state.global_step,
                desc=self.label,
                unit=" steps",
                leave=False,
                dynamic_ncols=True,
            )

    def on_step_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """One optimizer step is done."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any] | None = None, **kwargs) -> None:
        """The loss goes to the bar."""
        if self._bar is not None and logs and "loss" in logs:
            self._bar.set_postfix_str(f"loss {logs['loss']:.3f}")

    def on_evaluate(self, args, state: TrainerState, control, metrics: dict[str, Any] | None = None, **kwargs) -> None:
        """One line: where the validation split stands."""
        if self.quiet or not metrics:
            return
        words = [f"{self.label}: step {state.global_step}/{state.max_steps}"]
        for key, name in (
            ("observed_agreement", "P_o"),
            ("mean_f1", "mean F1"),
            ("own_label_mass_min", "mass min"),
        ):
            value = metrics.get(f"eval_{key}")
            if value is not None:
                words.append(f"{name} {100 * value:.1f}")
        tqdm.write("  ".join(words), file=sys.stderr)

    def on_train_end(self, args, state: TrainerState, control, **kwargs) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()


class StopOnSignal(TrainerCallback):
    """SIGINT and SIGTERM: finish the step, write a checkpoint, stop. A second one stops a lone process at once.

    Attributes:
        received: The signal's number, once there was one.
    """

    def __init__(self):
        self.received: int | None = None
        self._previous: dict[int, Any] = {}
        self._saves_at_epochs_end = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Take the signals over; only a process's main thread can."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:
                return

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # A cluster stops all processes at once, and a launcher then stops its own once more: it kills those that stay.
        signal.signal(number, signal.SIG_DFL if world() == 1 else signal.SIG_IGN)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Ask for a checkpoint and the end. Where the epoch ends here too, what is done then belongs into it."""
        # A launcher stops its processes one by one; they have to stop at the same step.
        stopped = any_of(self.received is not None, args.device)
        if stopped and state.global_step < state.max_steps:  # the last step's end is the run's own
            self.received = self.received or signal.SIGTERM
            control.should_training_stop = True
            self._saves_at_epochs_end = _at_epochs_end(state) and "epoch" in (args.eval_strategy, args.save_strategy)
            control.should_save = not self._saves_at_epochs_end

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """An epoch that was broken off is not evaluated: its state is no candidate for the best checkpoint."""
        if state.global_step == state.max_steps:
            return
        if self.received is not None and not _at_epochs_end(state):
            control.should_evaluate = control.should_save = False
        elif self._saves_at_epochs_end:
            control.should_save = True

    def give_back(self) -> None:
        """Leave the signals to whoever had them. No callback: of a training that fails none is called at the end."""
        while self._previous:
            signal.signal(*self._previous.popitem())


def _at_epochs_end(state: TrainerState) -> bool:
    return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9


def no_consensus(num_instances: int) -> InputError:
    """``E-NO-CONSENSUS``: there is nothing to train on."""
    return InputError(
        "E-NO-CONSENSUS",
        f"No instance of {num_instances} has a label that more than half of the templates predict.",
        "Audit the model first: look for templates with reversed or shuffled answer choices, or use a stronger model.",
    )
