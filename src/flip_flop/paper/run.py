"""Run units. A unit skips completed cells, so that an interrupted study continues when its command is run again.

Of several processes that ``accelerate launch`` or ``torchrun`` has started, the main one runs the unit. The others
train with it, and receive their instructions through the process group. A shared file system may show files late.
"""

import contextlib
import gc
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import fields

import torch

from flip_flop.console import echo, is_first_process, now
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.files import lock_output, remove
from flip_flop.paper.digests import cell_key, choose, open_model, open_task
from flip_flop.paper.folder import CELL, StudyFolder
from flip_flop.paper.units import Cell, Plan, Unit
from flip_flop.record import RUN_FILE
from flip_flop.scoring import LoadedModel
from flip_flop.scoring.distributed import all_gather
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import Task
from flip_flop.training import F2CConfig, load_training_data, make_config, train

# Exit codes: done; a cell failed; another process is running the unit (EX_TEMPFAIL); stopped by a signal.
DONE, FAILED, BUSY, STOPPED = 0, 1, 75, 128 + signal.SIGTERM
# The main process tells the others to train, or its exit code.
TRAIN = -1
# Set in the environment of the processes of `study run`. A text on standard input asks them to stop; its end without a
# text means that `study run` was killed.
SUPERVISED = "FLIP_FLOP_SUPERVISED"
_stop_asked = threading.Event()  # the last step of a training run does not react to a signal


def num_processes() -> int:
    """Return the number of processes that a launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def run_unit(plan: Plan, folder: StudyFolder, unit: Unit) -> int:
    """Run the cells of a unit that are not done, and return the exit code.

    Raises:
        SystemExit: A signal stopped an audit.
    """
    runner = _UnitRunner(plan, folder, unit)
    with _terminable():
        if num_processes() == 1:
            return runner.run()
        return runner.run_launched()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Exit in order on SIGTERM, as on Ctrl-C, or when the supervisor asks for it or has died."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(STOPPED)

    def watch() -> None:
        if not sys.stdin.read():  # the supervisor was killed: release the unit at once, for the next command
            os.kill(os.getpid(), signal.SIGKILL)
        _stop_asked.set()
        # Not SIGINT: the cluster may have sent SIGTERM to the whole job, and SIGINT would end a training run at once.
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    if SUPERVISED in os.environ:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def split_batch_across_ranks(config: F2CConfig, processes: int) -> None:
    """Divide the instances of a step among the processes, so that their number does not change a training run.

    Raises:
        InputError: ``E-DISTRIBUTED`` if they cannot be divided.
    """
    step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    each, rest = divmod(step, processes)
    if rest:
        message = f"A step of {step} instances cannot be divided evenly among {processes} processes."
        raise InputError("E-DISTRIBUTED", message, f"Launch a number of processes that divides {step}.")
    config.per_device_train_batch_size = math.gcd(config.per_device_train_batch_size, each)
    config.gradient_accumulation_steps = each // config.per_device_train_batch_size


class _UnitRunner:
    def __init__(self, plan: Plan, folder: StudyFolder, unit: Unit):
        self.plan, self.folder, self.unit = plan, folder, unit
        self._on_cpu = plan.setup.device == "cpu" or not torch.cuda.is_available()
        self._opened: tuple[str, Task] | None = None
        self._told = False

    def run(self) -> int:
        if all(map(self.folder.is_done, self.unit.cells)):
            return DONE
        echo(f"---- {now()}, process {os.getpid()}")
        failures: list[str] = []
        for cell in self.unit.cells:
            if _stop_asked.is_set():
                return STOPPED
            if self.folder.is_done(cell):
                continue
            code, reason = self._run_cell(cell)
            if code in (BUSY, STOPPED):
                return code
            if code == FAILED:
                failures.append(f"{cell.kind} {cell.label}: {reason}")
                if cell.kind == "train":
                    break
        self.folder.write_failures(self.unit, failures)
        return FAILED if failures else DONE

    def run_launched(self) -> int:
        training = self.unit.training
        if training is None:  # one process audits the base, without a process group
            return self.run() if is_first_process() else DONE
        # This begins the process group. Later, digests resolve settings for the CPU, which would begin a CPU's group.
        own = {name: value for name, value in training.settings.items() if name.startswith("ddp")}
        make_config(own | {"use_cpu": self._on_cpu})
        if not is_first_process():
            word = all_gather(DONE)[0]
            return word if word != TRAIN else DONE if self._train(training) else STOPPED
        code = self.run()
        self._tell(code)
        return code

    def _tell(self, word: int) -> None:
        """Tell the other processes once to train or to exit."""
        if num_processes() > 1 and not self._told:
            self._told = True
            all_gather(word)

    def _run_cell(self, cell: Cell) -> tuple[int, str]:
        """Run a cell, and return its exit code and the reason of a failure. Other cells run after any error."""
        started = time.monotonic()
        try:
            if cell.kind == "audit":
                self._tell(DONE)  # the others can exit
                self._audit(cell)
            elif not self._train(cell):
                return STOPPED, ""
            self.folder.finish(cell, self.unit.training if cell.kind == "audit" else None)
        except InputError as error:
            echo(error, err=True)
            return BUSY if error.code == "E-OUT-BUSY" else FAILED, str(error)
        except Exception as error:
            echo(traceback.format_exc(), err=True)
            return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        echo(f"{cell.kind} {cell.label}: {time.monotonic() - started:.0f} s", err=True)
        return DONE, ""

    def _open(self, cell: Cell) -> Task:
        if self._opened is None or self._opened[0] != cell.task:
            self._opened = (cell.task, open_task(cell.task, self.plan.setup, self.plan.study.protocol))
        task = choose(self._opened[1], cell.templates)
        if cell_key(self.plan, cell, task) != cell.key:
            message = f"the data, templates or settings of {cell.task} have changed since the plan of {cell.label}."
            raise InputError("E-STUDY-CHANGED", message)
        return task

    def _load(self, training: Cell | None) -> LoadedModel:
        """Load the base model, or with the adapter of a training run."""
        adapter = None if training is None else self.folder.run(training) / "adapter"
        loaded = open_model(self.plan.setup, adapter)
        if loaded.record.is_demo:
            torch.set_num_threads(1)  # so small a model is slower with two threads
        return loaded

    def _train(self, cell: Cell) -> bool:
        task, out, study = self._open(cell), self.folder.run(cell), self.plan.study
        config = make_config(dict(cell.settings) | {"use_cpu": self._on_cpu}, cell.label)
        split_batch_across_ranks(config, num_processes())
        if is_first_process():
            if damage := self.folder.damage(cell):
                echo(f"{out / damage}: {cell.label} continues from its last checkpoint", err=True)
                (out / RUN_FILE).unlink()
                (out / CELL).unlink()
            self._tell(TRAIN)
        try:
            data = load_training_data(task, config, limit=study.limit, eval_limit=study.eval_limit)
            run = train(self._load(None), data, config, out, resume=True, keep_worse=True)
        except InputError as error:
            if error.code != "E-RESUME-CHANGED":
                raise
            hint = f"Restore them, or remove {out}, and run the study again."
            raise InputError(error.code, error.message, hint) from error
        return run.stopped_by is None

    def _audit(self, cell: Cell) -> None:
        with lock_output(self.folder.run(cell)):  # refused before the work, not after it
            split = self._open(cell).render(self.plan.study.split, limit=self.plan.study.limit)
            known = {item.name for item in fields(ScoringOptions)}
            scoring = ScoringOptions(**{name: value for name, value in cell.settings.items() if name in known})
            loaded = self._load(self.unit.training)
            found = audit(loaded, split, scoring=scoring, name=cell.method)
            remove(self.folder.run(cell))  # a damaged audit
            found.write(self.folder.run(cell))
