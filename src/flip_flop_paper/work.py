"""The work of a unit: leased, trained, audited, each cell marked as done; in one process or in several.

Of several processes that ``accelerate launch`` or ``torchrun`` has started the main one alone has the lease, finishes
cells and audits. The others train with it, and learn from it what to do over the process group and not from the file
system, which may show another node's file late.
"""

import contextlib
import gc
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
import torch.distributed as dist

from flip_flop.console import echo, now
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.scoring import LoadedModel
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import Task
from flip_flop.training import F2CConfig, load_training_data, make_config, train
from flip_flop_paper.folder import StudyFolder
from flip_flop_paper.keys import cell_key, choose, open_model, open_task
from flip_flop_paper.leases import HEARTBEAT_SECONDS, STALE_SECONDS
from flip_flop_paper.plan import Cell, Plan, Unit
from flip_flop_paper.tracker import Tracker

# Exit statuses: what is to be done is done; cells failed; the rest is for another process (the system's "try again
# later"); a signal stopped it, a training with a checkpoint.
DONE, FAILED, BUSY, STOPPED = 0, 1, 75, 128 + signal.SIGTERM
# Set in the environment of a process that a supervisor has started.
SUPERVISED = "FLIP_FLOP_SUPERVISED"
# How long to wait before asking again for a unit that another process is at work on.
RETRY_SECONDS = 1.0
# What rank 0 broadcasts when a training begins; else it is an exit status.
TRAIN = "train"
# The supervisor has asked this worker to stop; a training's last step does not hear the signal.
_stop_asked = threading.Event()


def num_processes() -> int:
    """How many processes a launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the process that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def run_unit(plan: Plan, folder: StudyFolder, unit: Unit) -> int:
    """Run what is not done of a unit, and return the exit status; waits where another process is at work on it.

    One of several processes waits only until it is known whether the other one is alive.
    """
    runner = _UnitRunner(plan, folder, unit)
    if num_processes() > 1:
        return runner.run_launched()
    with terminable():
        return runner.run_when_free(math.inf)


def run_open_units(plan: Plan, folder: StudyFolder) -> int:
    """Run open units that nobody is at work on, one after the other, until all are settled by whichever process.

    This is a worker, which stops when its standard input ends: that is when its supervisor asks for it, or is dead.
    It leaves the others to a new process, by :data:`BUSY`, after a failure, as a GPU's context may be broken, and after
    a training on a GPU or with a tracker such as wandb, whose settings and runs stay with a process.
    """
    tracker = Tracker(plan, folder, quiet=True)
    with terminable():
        threading.Thread(target=_stop_with_supervisor, daemon=True).start()
        while not _stop_asked.is_set():
            tracker.look()
            if not tracker.open:
                return DONE
            unit = next((unit for unit in tracker.open if not folder.leases.is_held(unit.name)), None)
            if unit is None:
                time.sleep(RETRY_SECONDS)
                continue
            runner = _UnitRunner(plan, folder, unit)
            with _output_to(folder.log(unit)):
                status = runner.run()
            if status == STOPPED:
                break
            if status == FAILED or (status == DONE and runner.leaves_traces):
                return BUSY
    return STOPPED


def waiting_for(folder: StudyFolder, unit: Unit) -> str:
    """What is waited for, and whom to ask."""
    return f"waiting for {unit.name}, held by {folder.leases.holder(unit.name) or 'another process'}"


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends this process in order, as Ctrl-C does: leases are given back, workers are stopped."""

    def stop(number: int, frame: object) -> None:
        if SUPERVISED not in os.environ:
            echo("stopped", err=True)
        raise SystemExit(STOPPED)

    numbers = (signal.SIGTERM, signal.SIGINT) if SUPERVISED in os.environ else (signal.SIGTERM,)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def split_batch_across_ranks(config: F2CConfig, processes: int) -> None:
    """Divide a step's instances among the processes: a training is the same in one process and in several.

    Raises:
        InputError: ``E-DISTRIBUTED``: they cannot be divided.
    """
    step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    each, rest = divmod(step, processes)
    if rest:
        message = f"A step of {step} instances cannot be divided evenly among {processes} processes."
        raise InputError("E-DISTRIBUTED", message, f"Launch a number of processes that divides {step}.")
    config.per_device_train_batch_size = math.gcd(config.per_device_train_batch_size, each)
    config.gradient_accumulation_steps = each // config.per_device_train_batch_size


def _stop_with_supervisor() -> None:
    sys.stdin.read()
    _stop_asked.set()
    # Not SIGTERM: a whole job may have been sent that, and a second one ends a training without a checkpoint.
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """What this process and its libraries print goes to the end of a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with log.open("ab") as file:
        for descriptor in saved:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def _broadcast_from_rank0(word: str | None = None) -> str:
    words = [word]
    dist.broadcast_object_list(words, src=0)
    assert words[0] is not None, "rank 0 gives a string"
    return words[0]


class _UnitRunner:
    def __init__(self, plan: Plan, folder: StudyFolder, unit: Unit):
        self.plan, self.folder, self.unit = plan, folder, unit
        self._on_cpu = plan.setup.device == "cpu" or not torch.cuda.is_available()
        self._opened: tuple[str, Task] | None = None
        self._told = False

    @property
    def leaves_traces(self) -> bool:
        """Whether its training leaves settings of a GPU (TF32, determinism) or a tracker's run in the process."""
        training = self.unit.training
        return training is not None and (not self._on_cpu or "report_to" in training.settings)

    def run(self) -> int:
        if all(map(self.folder.is_done, self.unit.cells)):
            return DONE
        with self.folder.leases.acquire(self.unit.name) as acquired:
            if not acquired:
                return BUSY
            for cell in self.unit.cells:  # or whoever watches would count them as failed now
                self.folder.forget_failure(cell)
            echo(f"---- {now()}, process {os.getpid()}")
            status = DONE
            for cell in self.unit.cells:
                if _stop_asked.is_set():
                    return STOPPED
                found = DONE if self.folder.is_done(cell) else self._run_cell(cell)
                if found == STOPPED or (found == FAILED and cell.kind == "train"):
                    return found
                status = max(status, found)
            return status

    def run_when_free(self, seconds: float) -> int:
        """Run the unit; where another process is at work on it, wait for so long."""
        status, over = self.run(), time.monotonic() + seconds
        if status == BUSY and seconds:
            echo(waiting_for(self.folder, self.unit), err=True)
        while status == BUSY and time.monotonic() < over:
            time.sleep(RETRY_SECONDS)
            status = self.run()
        return status

    def run_launched(self) -> int:
        """In one of several processes: the main one runs the unit, the others train with it and do nothing else."""
        training = self.unit.training
        if training is None:  # one process's work: no process group begins
            return self.run() if is_main_process() else DONE
        # The process group begins here: settings are resolved for a CPU when a cell's key is checked, and that would
        # begin a CPU's group.
        own = {name: value for name, value in training.settings.items() if name.startswith("ddp")}
        make_config(own | {"use_cpu": self._on_cpu})
        if not is_main_process():
            word = _broadcast_from_rank0()
            return (DONE if self._train(training) else STOPPED) if word == TRAIN else int(word)
        holder = self.folder.leases.holder(self.unit.name)
        with terminable():  # a job that was killed and queued again finds a lease of its own
            status = self.run_when_free(0 if holder and holder.is_alive() else STALE_SECONDS + HEARTBEAT_SECONDS)
        if status == BUSY:
            echo(f"not run: {waiting_for(self.folder, self.unit)}", err=True)
        self._tell(str(status))
        return status

    def _tell(self, word: str) -> None:
        """Tell the other processes once whether to train with this one."""
        if num_processes() > 1 and not self._told:
            self._told = True
            _broadcast_from_rank0(word)

    def _run_cell(self, cell: Cell) -> int:
        """Run a cell; whatever it dies of, others go on."""
        started = time.monotonic()
        try:
            if cell.kind == "audit":
                self._tell(str(DONE))  # the others have nothing to train
                self._audit(cell)
            elif not self._train(cell):
                return STOPPED
            self.folder.finish(cell, self.unit.training if cell.kind == "audit" else None)
        except Exception as error:
            is_users = isinstance(error, InputError)
            reason = str(error) if is_users else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            echo(reason if is_users else traceback.format_exc(), err=True)
            self.folder.fail(cell, reason)
            return FAILED
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        echo(f"{cell.kind} {cell.label}: {time.monotonic() - started:.0f} s", err=True)
        return DONE

    def _open(self, cell: Cell) -> Task:
        if self._opened is None or self._opened[0] != cell.task:
            self._opened = (cell.task, open_task(cell.task, self.plan.setup, self.plan.study.protocol))
        task = choose(self._opened[1], cell.templates)
        if cell_key(self.plan, cell, task) != cell.key:
            message = f"the data, templates or settings of {cell.task} are no longer those of {cell.label}."
            raise InputError("E-STUDY-CHANGED", message, "Run the study again: what is unchanged is not run again.")
        return task

    def _load(self, training: Cell | None) -> LoadedModel:
        """The base, or what a training has left."""
        adapter = None if training is None else self.folder.run(training) / "adapter"
        loaded = open_model(self.plan.setup, adapter)
        if loaded.record.is_demo:
            torch.set_num_threads(1)  # the products of so small a model are not worth a second thread's waiting
        return loaded

    def _train(self, cell: Cell) -> bool:
        task, out = self._open(cell), self.folder.run(cell)
        config = make_config(dict(cell.settings) | {"use_cpu": self._on_cpu}, cell.label)
        split_batch_across_ranks(config, num_processes())
        if is_main_process():
            if out.is_dir() and not any((out / name).exists() for name in ("plan.json", "run.json")):
                shutil.rmtree(out)  # killed before there was anything to go on with
            self._tell(TRAIN)
        try:
            study = self.plan.study
            data = load_training_data(task, config, limit=study.limit, eval_limit=study.eval_limit)
            run = train(self._load(None), data, config, out, resume=True, keep_worse=True)
        except InputError as error:
            if error.code != "E-RESUME-CHANGED":
                raise
            hint = f"Run it as it was begun, or remove {out} and run the study again."
            raise InputError(error.code, error.message, hint) from error
        return run.stopped_by is None

    def _audit(self, cell: Cell) -> None:
        split = self._open(cell).render(self.plan.study.split, limit=self.plan.study.limit)
        known = {item.name for item in fields(ScoringOptions)}  # a plan of the past may hold settings since removed
        scoring = ScoringOptions(**{name: value for name, value in cell.settings.items() if name in known})
        loaded = self._load(self.unit.training)
        audit(loaded, split, scoring=scoring, name=cell.method).write(self.folder.run(cell))
