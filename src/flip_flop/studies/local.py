"""The local executor: one long-lived worker process per GPU, or one on the CPU.

A worker takes many cells, as starting one costs seconds; where one dies, its cell has failed and a new worker goes on.
"""

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from flip_flop.studies.cells import BUSY, DONE, FAILED, STOPPED, Outcome
from flip_flop.studies.drive import Settled, Summary
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.plan import Cell, Plan
from flip_flop.studies.worker import waiting_for

log = logging.getLogger("flip_flop")

# How long to wait before asking again for a cell that another process is at work on.
RETRY_SECONDS = 2.0
# For all workers together: each may have to end a step and write a checkpoint.
STOP_SECONDS = 180.0


def worker_environments(device: str, count: int | None = None) -> list[dict[str, str]]:
    """The environment of each worker: its GPU, or none.

    Args:
        device: ``cpu``, ``auto`` or ``cuda``.
        count: Another number of workers; on GPUs they take turns.
    """
    gpus = [] if device == "cpu" else _visible_gpus()
    devices = gpus or [""]
    return [{"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} for index in range(count or len(devices))]


def _visible_gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()][:count]
    return [str(index) for index in range(count)]


class Worker:
    """A worker process and the cell that it is at work on."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        self.cell: Cell | None = None
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as errors:
            # A session of its own: Ctrl-C reaches the driver, which asks its workers to stop.
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                text=True,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.keys: IO[str] = self.process.stdin
        self.answers: IO[str] = self.process.stdout

    def give(self, cell: Cell) -> None:
        """Send a cell's key. A worker that is dead already shows in its answers."""
        self.cell = cell
        with contextlib.suppress(BrokenPipeError):
            self.keys.write(f"{cell.key}\n")
            self.keys.flush()

    def stop(self) -> None:
        """End the input: an idle worker ends, a busy one stops as soon as it can."""
        with contextlib.suppress(BrokenPipeError):
            self.keys.close()

    def wait(self, seconds: float) -> int:
        """Wait for its end, and see to it where it does not come."""
        try:
            code = self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.answers.close()
        return code


class LocalDriver:
    """Runs a plan's cells in worker processes of this machine.

    Args:
        plan: The plan.
        folder: The folder of all studies.
        command: The command of a worker.
        environments: One worker each.
        settled: Told of each cell that is settled, and what became of it.
        quiet: Do not say what is waited for.
    """

    def __init__(
        self,
        plan: Plan,
        folder: StudyFolder,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        settled: Settled,
        *,
        quiet: bool = False,
    ):
        self.plan, self.folder, self.command, self.settled = plan, folder, command, settled
        self.environments, self.quiet = environments, quiet
        self.workers: list[Worker | None] = [None] * len(environments)
        self.waiting: dict[Cell, float] = {}
        self.failed_before: dict[Cell, int] = {}
        self.told: set[Cell] = set()
        self.summary = Summary()
        self.selector = selectors.DefaultSelector()

    def run(self) -> Summary:
        """Run every cell that is not done, in an order that serves trainings before their audits."""
        for cell in self.plan.cells:
            if self.folder.is_done(cell):
                self.summary.done.append(cell)
            else:
                self.waiting[cell] = 0.0
                self.failed_before[cell] = self.folder.failed_at(cell)
        with _terminable():
            try:
                while self.waiting or any(worker and worker.cell for worker in self.workers):
                    self._assign()
                    self._listen()
            finally:
                self._stop()
        return self.summary

    def _stop(self) -> None:
        workers = [worker for worker in self.workers if worker is not None]
        for worker in workers:
            worker.stop()
        over = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.wait(over - time.monotonic())
        self.selector.close()

    def _assign(self) -> None:
        for index in range(len(self.workers)):
            worker = self.workers[index]
            if worker is not None and worker.cell is not None:
                continue
            cell = self._next()
            if cell is None:
                return
            if worker is None:
                log = self.folder.root / "logs" / f"worker-{index}.log"
                worker = self.workers[index] = Worker(self.command, self.environments[index], log)
                self.selector.register(worker.answers, selectors.EVENT_READ, index)
            del self.waiting[cell]
            worker.give(cell)

    def _next(self) -> Cell | None:
        """The first cell that can be run now."""
        for cell, not_before in list(self.waiting.items()):
            training = self.plan.training_of(cell)
            if training is not None:
                if training in self.summary.failed:
                    del self.waiting[cell]
                    self.summary.not_run.append(cell)
                    self.settled(cell, Outcome(FAILED, f"not run: {training.label} failed"))
                    continue
                if training not in self.summary.done:
                    continue
            if time.monotonic() < not_before:
                continue
            if self.folder.failed_at(cell) in (0, self.failed_before[cell]) or self.folder.lacked_training(cell):
                return cell
            del self.waiting[cell]  # another driver has tried it meanwhile
            self._note(cell, Outcome(FAILED, self.folder.failure(cell)))
        return None

    def _listen(self) -> None:
        events = self.selector.select(timeout=RETRY_SECONDS / 2) if self.selector.get_map() else []
        if not self.selector.get_map():
            time.sleep(RETRY_SECONDS / 4 if self.waiting else 0)
        for key, _ in events:
            worker = self.workers[key.data]
            assert worker is not None
            line = worker.answers.readline()
            if line:
                self._settle(worker, json.loads(line))
            else:
                self._bury(key.data, worker)

    def _settle(self, worker: Worker, answer: Mapping[str, object]) -> None:
        cell, worker.cell = worker.cell, None
        assert cell is not None
        assert cell.key == answer["key"]
        seconds = answer["seconds"]
        assert isinstance(seconds, float | int)
        reason = answer["reason"]
        self._note(cell, Outcome(str(answer["state"]), None if reason is None else str(reason), seconds))

    def _note(self, cell: Cell, outcome: Outcome) -> None:
        if outcome.state == BUSY:
            if cell not in self.told and not self.quiet:
                log.info(waiting_for(self.folder, cell))
            self.told.add(cell)
            self.waiting[cell] = time.monotonic() + RETRY_SECONDS
            return
        if outcome.state == STOPPED:
            raise KeyboardInterrupt
        if outcome.state == DONE:
            self.summary.done.append(cell)
        else:
            self.summary.failed[cell] = str(outcome.reason)
        self.settled(cell, outcome)

    def _bury(self, index: int, worker: Worker) -> None:
        """A worker is dead. Its cell has failed; the next cell gets a new worker."""
        self.selector.unregister(worker.answers)
        self.workers[index] = None
        worker.stop()
        cell, code = worker.cell, worker.wait(STOP_SECONDS)
        if cell is None:
            return
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        reason = f"the worker died of {how}; its own log: {worker.log}."
        self.folder.fail(cell, reason)
        self._note(cell, Outcome(FAILED, reason))


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM stops the driver as Ctrl-C does: its workers write their checkpoints."""

    def stop(number: int, frame: object) -> None:
        print("stopped", file=sys.stderr)
        raise SystemExit(128 + number)

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
