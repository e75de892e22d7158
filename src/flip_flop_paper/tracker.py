"""How far a study is, by what is on disk: progress of a run, what failed, and the table of `study status`."""

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from flip_flop.console import align_columns, track
from flip_flop_paper.folder import StudyFolder
from flip_flop_paper.plan import Cell, Plan, Unit

log = logging.getLogger("flip_flop")

STATES = ("done", "running", "failed", "waiting")


class Tracker:
    """Watches the cells of a plan until each is done, failed, or not run as another one of its unit failed.

    ``done`` (by whichever process), ``failed`` with the reason, and ``not_run`` say what became of them; ``open`` holds
    the units that are not settled, with those of their cells that are not.
    """

    def __init__(self, plan: Plan, folder: StudyFolder, *, quiet: bool = False):
        self.plan, self.folder, self.quiet = plan, folder, quiet
        self.done: list[Cell] = []
        self.failed: dict[Cell, str] = {}
        self.not_run: list[Cell] = []
        self.open: dict[Unit, list[Cell]] = {}
        for unit in plan.units:
            left = [cell for cell in unit.cells if not folder.is_done(cell)]
            self.done += [cell for cell in unit.cells if cell not in left]
            if left:
                self.open[unit] = left
        self._told: set[str] = set()
        self._advance: Callable[[int], object] = lambda done: None

    @property
    def num_settled(self) -> int:
        """How many cells are not open any more."""
        return len(self.done) + len(self.failed) + len(self.not_run)

    def forget_failures(self) -> None:
        """What failed in earlier runs is tried again."""
        for unit, cells in self.open.items():
            if not self.folder.leases.is_held(unit.name):
                for cell in cells:
                    self.folder.forget_failure(cell)

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show a bar on a terminal, or a line for each cell."""
        name, total = self.plan.study.name, len(self.plan.cells)
        counts = (len(self.plan.trainings), len(self.plan.audits), self.num_settled, total)
        self.say("%s: %d trainings, %d audits; %d of these %d cells are done already", name, *counts)
        with track(name, total - self.num_settled, "cells", quiet=self.quiet) as self._advance:
            yield

    def look(self) -> None:
        """Settle the cells that are done or have failed by now, and those that nobody runs any more after a failure."""
        for unit, cells in list(self.open.items()):
            is_held = self.folder.leases.is_held(unit.name)  # asked first: what is done after that, the next look finds
            for cell in list(cells):
                reason = self.folder.failure(cell)
                if self.folder.is_done(cell):
                    self.done.append(cell)
                    self._settle(unit, cell, f"{self.folder.seconds(cell):.0f} s")
                elif reason is not None:
                    self.failed[cell] = reason
                    self._settle(unit, cell, f"failed: {reason}")
                elif not is_held and not self.failed.keys().isdisjoint(unit.cells):
                    self.not_run.append(cell)
                    self._settle(unit, cell, "not run")

    def give_up(self, unit: Unit, reason: str) -> None:
        """Mark the first cell that is not settled as failed, for all processes: the others of its unit are not run."""
        self.folder.fail(self.open[unit][0], reason)
        self.look()

    def say(self, words: str, *values: object) -> None:
        """A line for the user, said once."""
        if not self.quiet and words % values not in self._told:
            self._told.add(words % values)
            log.info(words, *values)

    def _settle(self, unit: Unit, cell: Cell, words: str) -> None:
        self.open[unit].remove(cell)
        if not self.open[unit]:
            del self.open[unit]
        self._advance(1)
        if not self.quiet and not sys.stderr.isatty():
            log.info("[%d/%d] %s %s: %s", self.num_settled, len(self.plan.cells), cell.kind, cell.label, words)

    def error_lines(self) -> Iterator[str]:
        """One line for each cell that failed, with its log, and one for those that were not run."""
        for cell, reason in self.failed.items():
            yield f"failed: {cell.kind} {cell.label}: {reason} Log: {self._log(cell)}"
        if self.not_run:
            yield f"not run: {', '.join(f'{cell.kind} {cell.label}' for cell in self.not_run)}"
        if self.failed:
            yield f"{len(self.done)} cells are done. Run the same command again to try the others once more."

    def status_lines(self) -> Iterator[str]:
        """A table of states by kind and task, then the failed and the running cells by name."""
        self.look()
        running = [cells[0] for unit, cells in self.open.items() if self.folder.leases.is_held(unit.name)]
        states = dict.fromkeys(self.plan.cells, "waiting")
        for state, cells in (("done", self.done), ("running", running), ("failed", self.failed)):
            states |= dict.fromkeys(cells, state)
        counts = Counter((cell.kind, cell.task_name, state) for cell, state in states.items())
        total = Counter(states.values())
        rows: list[tuple[str, ...]] = [("", "task", *STATES)]
        for kind, task in sorted({found[:2] for found in counts}):
            rows.append((kind, task, *(str(counts[kind, task, state]) for state in STATES)))
        rows.append(("all", "", *(str(total[state]) for state in STATES)))
        yield from align_columns(rows, num_left=2).splitlines()
        details = [f"running: {cell.kind} {cell.label}. Log: {self._log(cell)}" for cell in running]
        yield from sorted([*details, *(line for line in self.error_lines() if line.startswith("failed"))])

    def _log(self, cell: Cell) -> Path:
        return next(self.folder.log(unit) for unit in self.plan.units if cell in unit.cells)
