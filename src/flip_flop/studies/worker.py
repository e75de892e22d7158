"""A process that runs one cell after the other: it takes keys from standard input and answers on standard output."""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flip_flop.errors import InputError, nearest
from flip_flop.provenance import now
from flip_flop.studies import launched
from flip_flop.studies.cells import BUSY, DONE, FAILED, CellRunner, Outcome
from flip_flop.studies.folder import StudyFolder, load_plan
from flip_flop.studies.plan import Cell, Openers, Untrained

# How long to wait before asking again for a cell that another process is at work on.
WAIT_SECONDS = 2.0
# What the first of several processes says to the others when a training begins; else it is the cell's state.
TRAIN = "train"


def root_of(plan: Path) -> Path:
    """The folder of all studies that a plan lies in: ``ROOT/<study>/plans/<digest>.json``."""
    return plan.resolve().parents[2]


def serve(path: Path, openers: Openers) -> None:
    """Run the cells whose keys come in, a line each, until standard input ends.

    Each answer is a line of JSON: ``key``, ``state``, ``reason``, ``seconds``. Whatever a cell prints goes to its log.
    When standard input ends during a cell, the driver is dead: this process asks itself to stop, and a training
    writes a checkpoint first.
    """
    folder, plan = StudyFolder(root_of(path)), load_plan(path)
    runner = CellRunner(plan, folder, openers)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # answers only, whatever a library prints
    keys: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_read_keys, args=(keys, busy), daemon=True).start()
    while (key := keys.get()) is not None:
        cell = plan.cell(key)
        # The record of a run holds the command that runs it again.
        sys.argv = ["flip-flop", "study", "run-cell", str(path), cell.name]
        busy.set()
        outcome = _try(runner, cell)
        busy.clear()
        print(json.dumps({"key": key, **vars(outcome)}), file=answers, flush=True)


def run_one(path: Path, name: str, openers: Openers, *, untrained: Untrained = "train") -> int:
    """Run one cell, or wait until the process that is at work on it is through.

    Where a launcher has started several processes, they train together, and none waits for another's cell.

    Args:
        path: The plan.
        name: The cell's name.
        openers: How names become tasks and models.
        untrained: What an audit does whose training is not done.

    Returns:
        0: done; 1: failed, or in several processes another's, the reason being printed; 143: stopped by a signal, a
        training with a checkpoint.

    Raises:
        InputError: ``E-STUDY-CELL``: the plan has no such cell. ``E-DISTRIBUTED``: several processes were started for
            an audit whose training is not done.
    """
    folder, plan = StudyFolder(root_of(path)), load_plan(path)
    cell = next((cell for cell in plan.cells if cell.name == name), None)
    if cell is None:
        hint = nearest(name, (each.name for each in plan.cells))
        raise InputError("E-STUDY-CELL", f"{path} has no cell {name!r}.", hint)
    runner, told = CellRunner(plan, folder, openers, untrained=untrained), False
    if launched.num_processes() > 1:
        return _run_launched(runner, cell)
    while (outcome := _try(runner, cell)).state == BUSY:
        obstacle = runner.obstacle(cell)
        if obstacle is not None and not told:
            print(waiting_for(folder, obstacle), file=sys.stderr)
            told = True
        time.sleep(WAIT_SECONDS)
    return _say(folder, cell, outcome)


def _run_launched(runner: CellRunner, cell: Cell) -> int:
    """In one of several processes: the first one runs the cell, the others train with it and do nothing else."""
    if cell.kind == "audit":  # one process's work; no process group is begun
        return _say(runner.folder, cell, _audit(runner, cell)) if launched.is_first() else 0
    launched.begin_group(cell.settings, on_cpu=runner.on_cpu)
    if not launched.is_first():
        word = launched.word_of_first()
        return _status(runner.take_part(cell) if word == TRAIN else word)
    told: list[str] = []

    def tell(word: str) -> None:
        if not told:
            told.append(launched.word_of_first(word))

    runner.before_training = lambda: tell(TRAIN)
    outcome = _try(runner, cell)
    status = _say(runner.folder, cell, outcome)  # first of all: where one process fails, a launcher ends the others
    tell(outcome.state)
    return status


def _audit(runner: CellRunner, cell: Cell) -> Outcome:
    training = runner.plan.training_of(cell)
    if training is not None and not runner.folder.is_done(training) and runner.obstacle(cell) is None:
        message = f"{cell.label} is an audit, one process's work, and its training is not done."
        hint = f"Launch the training, {training.name}, or start the audit without a launcher."
        raise InputError("E-DISTRIBUTED", message, hint)
    return _try(runner, cell)


def _say(folder: StudyFolder, cell: Cell, outcome: Outcome) -> int:
    words = f"{outcome.seconds:.0f} s" if outcome.state == DONE else outcome.reason or outcome.state
    print(f"{cell.kind} {cell.label}: {words} Log: {folder.log(cell)}", file=sys.stderr)
    return _status(outcome.state)


def _status(state: str) -> int:
    return {DONE: 0, FAILED: 1, BUSY: 1}.get(state, 128 + signal.SIGTERM)


def waiting_for(folder: StudyFolder, cell: Cell) -> str:
    """What is waited for, and whom to ask."""
    return f"waiting for {cell.kind} {cell.label}, held by {_holder(folder, cell)}"


def _holder(folder: StudyFolder, cell: Cell) -> str:
    return str(folder.claims.holder(cell.name) or "another process")


def _try(runner: CellRunner, cell: Cell) -> Outcome:
    """Run a cell with its log; a mere look at what is done, or another's, leaves no line there."""
    if runner.folder.is_done(cell):
        return Outcome(DONE)
    obstacle = runner.obstacle(cell)
    if obstacle is not None:
        holder = _holder(runner.folder, obstacle)
        return Outcome(BUSY, f"not run, as {holder} is at work on {obstacle.kind} {obstacle.label}.")
    with log_to(runner.folder.log(cell)):
        return runner.run(cell)


def _read_keys(keys: "queue.SimpleQueue[str | None]", busy: threading.Event) -> None:
    for line in sys.stdin:
        keys.put(line.strip())
    keys.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send all that this process prints, its libraries' C code included, to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    with path.open("a", encoding="utf-8") as file:
        file.write(f"---- {now()}, process {os.getpid()}\n")
        file.flush()
        _point_to([file.fileno(), file.fileno()])
        try:
            yield
        finally:
            _point_to(kept)
            for descriptor in kept:
                os.close(descriptor)


def _point_to(targets: Sequence[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, target in zip((1, 2), targets, strict=True):
        os.dup2(target, number)
