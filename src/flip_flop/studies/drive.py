"""A study from its first cell to its last, whoever runs them: progress, what failed, how far it is."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flip_flop.progress import track
from flip_flop.studies.cells import DONE, Outcome
from flip_flop.studies.folder import STATES, StudyFolder
from flip_flop.studies.plan import Cell, Plan

log = logging.getLogger("flip_flop")

Settled = Callable[[Cell, Outcome], None]


@dataclass
class Summary:
    """What became of a study's cells.

    Attributes:
        done: Cells that are done, whenever and by whichever process.
        failed: Cells that failed, and why.
        not_run: Audits whose training failed.
    """

    done: list[Cell] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)
    not_run: list[Cell] = field(default_factory=list)

    def complaints(self, folder: StudyFolder) -> Iterator[str]:
        """One line for each cell that failed, with its log, and one for those that were not run."""
        for cell, reason in self.failed.items():
            yield f"failed: {cell.label}: {reason} Log: {folder.log(cell)}"
        if self.not_run:
            yield f"not run, as their training failed: {', '.join(cell.label for cell in self.not_run)}"
        if self.failed or self.not_run:
            yield f"{len(self.done)} cells are done. Run the same command again to try the others once more."


def drive(plan: Plan, folder: StudyFolder, run: Callable[[Settled], Summary], *, quiet: bool) -> Summary:
    """Run a plan with progress.

    Args:
        plan: The plan.
        folder: The folder of all studies.
        run: Runs the cells that are not done; calls what it is given with each that is settled.
        quiet: Show nothing.
    """
    left = [cell for cell in plan.cells if not folder.is_done(cell)]
    name, total = plan.study.name, len(plan.cells)
    if not quiet:
        log.info(
            "%s: %d trainings, %d audits; %d of these %d cells are done already",
            name,
            len(plan.trainings),
            len(plan.audits),
            total - len(left),
            total,
        )
    settled = total - len(left)
    with track(name, len(left), "cells", quiet=quiet) as advance:

        def settle(cell: Cell, outcome: Outcome) -> None:
            nonlocal settled
            settled += 1
            advance(1)
            if not quiet and not sys.stderr.isatty():
                words = f"{outcome.seconds:.0f} s" if outcome.state == DONE else f"{outcome.state}: {outcome.reason}"
                log.info("[%d/%d] %s %s: %s", settled, total, cell.kind, cell.label, words)

        return run(settle)


def status_lines(plan: Plan, folder: StudyFolder) -> Iterator[str]:
    """A table of states by kind and task, then the failed and the running cells by name."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    states = {cell: folder.state(cell) for cell in plan.cells}
    for cell, state in states.items():
        counts.setdefault((cell.kind, cell.task_name), Counter())[state] += 1
    rows: list[tuple[str, ...]] = [("", "task", *STATES)]
    rows += [(kind, task, *(str(found[state]) for state in STATES)) for (kind, task), found in sorted(counts.items())]
    total = Counter(states.values())
    rows.append(("all", "", *(str(total[state]) for state in STATES)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        words = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(words).rstrip()
    for cell, state in states.items():
        if state == "failed":
            yield f"failed: {cell.label}: {folder.failure(cell)} Log: {folder.log(cell)}"
        elif state == "running":
            yield f"running: {cell.label}. Log: {folder.log(cell)}"
