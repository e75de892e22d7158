"""How far a study is, by what is on disk: progress of a run, what failed, and the table of `study status`."""

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from flip_flop.progress import track
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.plan import Cell, Plan, Unit
from flip_flop.text import align_columns

log = logging.getLogger("flip_flop")

STATES = ("done", "running", "failed", "waiting")


class Tracker:
    """Watches the cells of a plan until each is done, failed, or not run as its training failed.

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
        self.total, self.settled = len(plan.cells), len(self.done)
        self._told: set[str] = set()
        self._advance: Callable[[int], object] = lambda done: None

    def forget_failures(self) -> None:
        """What failed in earlier runs is tried again."""
        for unit, cells in self.open.items():
            if not self.folder.leases.is_held(unit.name):
                for cell in cells:
                    self.folder.forget_failure(cell)

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show a bar on a terminal, or a line for each cell."""
        name, counts = self.plan.study.name, (len(self.plan.trainings), len(self.plan.audits), self.settled, self.total)
        self.say("%s: %d trainings, %d audits; %d of these %d cells are done already", name, *counts)
        with track(name, self.total - self.settled, "cells", quiet=self.quiet) as self._advance:
            yield

    def look(self, units: Iterable[Unit]) -> None:
        """Settle the cells of these units that are done or have failed by now, or whose training has failed."""
        for unit in units:
            for cell in list(self.open.get(unit, [])):
                reason = self.folder.failure(cell)
                if self.folder.is_done(cell):
                    self.done.append(cell)
                    self._settle(unit, cell, f"{self.folder.seconds(cell):.0f} s")
                elif reason is not None:
                    self.failed[cell] = reason
                    self._settle(unit, cell, f"failed: {reason}")
                elif unit.training in self.failed:
                    self.not_run.append(cell)
                    self._settle(unit, cell)

    def give_up(self, unit: Unit, reason: str) -> None:
        """Mark the first cell that is not settled as failed; the others of the unit were not run."""
        self.folder.fail(self.open[unit][0], reason)
        self.look([unit])
        for cell in list(self.open.get(unit, [])):
            self.not_run.append(cell)
            self._settle(unit, cell)

    def say(self, words: str, *values: object) -> None:
        """A line for the user, said once."""
        if not self.quiet and words % values not in self._told:
            self._told.add(words % values)
            log.info(words, *values)

    def _settle(self, unit: Unit, cell: Cell, words: str = "not run") -> None:
        self.open[unit].remove(cell)
        if not self.open[unit]:
            del self.open[unit]
        self.settled += 1
        self._advance(1)
        if not self.quiet and not sys.stderr.isatty():
            log.info("[%d/%d] %s %s: %s", self.settled, self.total, cell.kind, cell.label, words)

    def error_lines(self) -> Iterator[str]:
        """One line for each cell that failed, with its log, and one for those that were not run."""
        logs = {cell: self.folder.log(unit) for unit in self.plan.units for cell in unit.cells}
        for cell, reason in self.failed.items():
            yield f"failed: {cell.kind} {cell.label}: {reason} Log: {logs[cell]}"
        if self.not_run:
            yield f"not run: {', '.join(f'{cell.kind} {cell.label}' for cell in self.not_run)}"
        if self.failed:
            yield f"{len(self.done)} cells are done. Run the same command again to try the others once more."


def status_lines(plan: Plan, folder: StudyFolder) -> Iterator[str]:
    """A table of states by kind and task, then the failed and the running cells by name."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    details = []
    for unit in plan.units:
        is_running = folder.leases.is_held(unit.name)  # then the first cell that is neither done nor failed is
        for cell in unit.cells:
            reason = folder.failure(cell)
            if folder.is_done(cell):
                state = "done"
            elif reason is not None:
                state = "failed"
            else:
                state, is_running = "running" if is_running else "waiting", False
            counts.setdefault((cell.kind, cell.task_name), Counter())[state] += 1
            if state in ("running", "failed"):
                why = f": {reason}" if state == "failed" else "."
                details.append(f"{state}: {cell.kind} {cell.label}{why} Log: {folder.log(unit)}")
    rows: list[tuple[str, ...]] = [("", "task", *STATES)]
    rows += [(kind, task, *(str(found[state]) for state in STATES)) for (kind, task), found in sorted(counts.items())]
    total = sum(counts.values(), Counter())
    rows.append(("all", "", *(str(total[state]) for state in STATES)))
    yield from align_columns(rows, num_left=2).splitlines()
    yield from sorted(details)
