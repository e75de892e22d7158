"""One cell, run in this process: claimed, trained or audited, and marked as done."""

import gc
import logging
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from flip_flop.errors import InputError
from flip_flop.evaluation import audit
from flip_flop.options import ScoringOptions
from flip_flop.scoring import LoadedModel
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.keys import cell_key, choose
from flip_flop.studies.launched import share_step
from flip_flop.studies.plan import Cell, Openers, Plan, Untrained
from flip_flop.tasks import Task
from flip_flop.training import F2CConfig, load_training_data, make_config, train

log = logging.getLogger("flip_flop")

DONE, BUSY, FAILED, STOPPED = "done", "busy", "failed", "stopped"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        state: ``done``, ``busy`` (another process is at work on it), ``failed``, ``stopped`` (by a signal; a training
            has left a checkpoint).
        reason: Why it failed, in one line.
        seconds: How long it took.
    """

    state: str
    reason: str | None = None
    seconds: float = 0.0


class CellRunner:
    """Runs cells of one plan, one at a time.

    Args:
        plan: The plan.
        folder: The folder of all studies.
        openers: How names become tasks and models.
        quiet: Show no progress within a cell.
        untrained: What an audit does whose training is not done.

    Attributes:
        before_training: Called when a training is about to begin, for other processes to :meth:`take_part`.
    """

    def __init__(
        self,
        plan: Plan,
        folder: StudyFolder,
        openers: Openers,
        *,
        quiet: bool = True,
        untrained: Untrained = "train",
    ):
        self.plan, self.folder, self.openers, self.quiet, self.untrained = plan, folder, openers, quiet, untrained
        self.before_training: Callable[[], None] = lambda: None
        self._task: tuple[str, Task] | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether trainings run on the processor."""
        return self.plan.setup.device == "cpu" or not torch.cuda.is_available()

    def obstacle(self, cell: Cell) -> Cell | None:
        """What is waited for: the cell, or the training that it needs, where another process is at work on it."""
        training = None if self.untrained == "refuse" else self.plan.training_of(cell)
        needed = [cell] if training is None else [training, cell]
        held = self.folder.claims.is_held
        return next((each for each in needed if not self.folder.is_done(each) and held(each.name)), None)

    def run(self, cell: Cell) -> Outcome:
        """Run a cell unless it is done or another process is at work on it. Never raises but for a bug of ours.

        An audit whose training is not there runs the training first.
        """
        started = time.monotonic()
        try:
            state = self._run(cell)
        except KeyboardInterrupt:
            return Outcome(STOPPED)
        except Exception as error:  # whatever a cell dies of, the others go on
            reason = str(error) if isinstance(error, InputError) else _one_line(error)
            print(reason if isinstance(error, InputError) else traceback.format_exc(), file=sys.stderr)
            self.folder.fail(cell, reason)
            return Outcome(FAILED, reason, time.monotonic() - started)
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return Outcome(state, seconds=time.monotonic() - started)

    def take_part(self, cell: Cell) -> str:
        """Train with the process that runs this cell, and leave the rest to it. Errors are raised."""
        task = self._open(cell)
        return DONE if self._fit(cell, task, self._config(cell)) else STOPPED

    def _run(self, cell: Cell) -> str:
        if self.folder.is_done(cell):
            return DONE
        training = self.plan.training_of(cell)
        if training is not None:
            state = self._training(cell, training)
            if state != DONE:
                return state
        with self.folder.claims.hold(cell.name) as mine:
            if self.folder.is_done(cell):  # by another process, between the look and the claim
                return DONE
            if not mine:
                return BUSY
            self.folder.forget_failure(cell)
            run: Callable[[Cell, Task], bool] = self._train if cell.kind == "train" else self._audit
            if not run(cell, self._open(cell)):
                return STOPPED
            self.folder.finish(cell, training)
            return DONE

    def _training(self, cell: Cell, training: Cell) -> str:
        if self.folder.is_done(training):
            return DONE
        reason = self.folder.failure(training)
        if reason is None and self.untrained != "train":
            message = f"{cell.label} was not run, as its training is not done."
            raise InputError("E-STUDY-TRAINING", message, "Run the study again: a training goes on where it stopped.")
        if reason is None:
            outcome = self.run(training)
            if outcome.state != FAILED:
                return outcome.state
            reason = outcome.reason
        message = f"{cell.label} was not run, as its training failed: {str(reason).rstrip('.')}."
        raise InputError("E-STUDY-TRAINING", message, "Mend that, and run the study again.")

    def _open(self, cell: Cell) -> Task:
        if self._task is None or self._task[0] != cell.task:
            self._task = (cell.task, self.openers.task(cell.task, self.plan.setup))
        task = choose(self._task[1], cell.templates)
        if cell_key(cell, task, self.plan.setup, self.plan.model_identity) != cell.key:
            message = f"the data, templates or settings of {cell.task} are no longer those of {cell.label}."
            raise InputError("E-STUDY-CHANGED", message, "Run the study anew: what is unchanged is not run again.")
        return task

    def _load(self, adapter: Path | None) -> LoadedModel:
        loaded = self.openers.model(self.plan.setup, adapter)
        if loaded.record.get("is_demo"):
            torch.set_num_threads(1)  # the products of so small a model are not worth a second thread's waiting
        return loaded

    def _train(self, cell: Cell, task: Task) -> bool:
        out = self.folder.run(cell)
        if out.is_dir() and not any((out / name).exists() for name in ("plan.json", "run.json")):
            shutil.rmtree(out)  # killed before there was anything to go on with
        config = self._config(cell)
        self.before_training()
        return self._fit(cell, task, config)

    def _config(self, cell: Cell) -> F2CConfig:
        config = make_config(dict(cell.settings) | {"use_cpu": self.on_cpu}, cell.label)
        share_step(config)
        return config

    def _fit(self, cell: Cell, task: Task, config: F2CConfig) -> bool:
        out = self.folder.run(cell)
        try:
            data = load_training_data(task, config, limit=cell.limit)
            run = train(self._load(None), data, config, out, resume=True, quiet=self.quiet)
        except InputError as error:
            if error.code != "E-RESUME-CHANGED":
                raise
            hint = f"Run it as it was begun, or remove {out} and run the study again."
            raise InputError(error.code, error.message, hint) from error
        return run.stopped_by is None

    def _audit(self, cell: Cell, task: Task) -> bool:
        training = self.plan.training_of(cell)
        adapter = None if training is None else self.folder.run(training) / "adapter"
        scoring = ScoringOptions(**{key: cell.settings[key] for key in cell.settings if key != "fast_linear"})
        split = task.render(cell.split, limit=cell.limit)
        found = audit(self._load(adapter), split, scoring, name=cell.method, quiet=self.quiet)
        found.write(self.folder.run(cell))
        return True


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
