"""What is at hand beside what the paper's table prints, and why the two differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from flip_flop.tasks.catalog.build import CatalogData

CELLS = ("train", "validation", "test", "templates", "labels")


@dataclass(frozen=True)
class Comparison:
    """One line of the table.

    Attributes:
        name: The dataset's name.
        found: The numbers at hand, by column.
        paper: Those of the paper.
        reasons: Why they differ, in sentences; also what is worth knowing where they do not.
        unexplained: The columns that differ for no known reason.
    """

    name: str
    found: Mapping[str, int]
    paper: Mapping[str, int]
    reasons: tuple[str, ...]
    unexplained: tuple[str, ...]


def compare(data: CatalogData) -> Comparison:
    """Compare a dataset with the paper's table.

    A number that differs is explained where the rows at hand are not those of the official split, where rows are
    left out because they render like a test row, or where the data file knows that the table prints other sizes than
    its owners.
    """
    entry, paper = data.entry, data.entry.paper
    found = {split: len(data.task.rows(split)) for split in ("train", "validation", "test")}
    found |= {"templates": len(data.task.templates), "labels": len(entry.labels)}
    reasons: list[str] = []
    explained: set[str] = set()
    for official, rows, cells in (
        (entry.train_from, data.train, ("train", "validation")),
        (entry.test_from, data.test, ("test",)),
    ):
        if len(rows) != official.rows:
            reasons.append(f"{official.split} is here with {len(rows):,} of its {official.rows:,} rows")
            explained.update(cells)
    left_out = len(data.screening.doubles.of_test)
    if left_out:
        reasons.append(
            f"{left_out} of {entry.train_from.split} left out: rendered, they are in {entry.test_from.split}"
        )
        explained.update(("train", "validation"))
    unanswerable = len(data.screening.doubles.unanswerable_train) + len(data.screening.doubles.unanswerable_test)
    if unanswerable:
        reasons.append(f"{unanswerable} rows left out: two of their answers are equal")
        explained.update(("train", "validation", "test"))
    differing = [cell for cell in CELLS if found[cell] != paper[cell]]
    if entry.table_note and differing:
        reasons.append(entry.table_note)
        explained.update(("train", "validation", "test"))
    return Comparison(
        entry.name, found, paper, tuple(reasons), tuple(cell for cell in differing if cell not in explained)
    )
