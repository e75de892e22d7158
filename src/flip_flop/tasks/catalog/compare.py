"""The available rows beside what the paper's table prints, and why the two differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from flip_flop.tasks.catalog.build import CatalogData

COLUMNS = ("train", "validation", "test", "templates", "labels")


@dataclass(frozen=True)
class Comparison:
    """One line of the table: the available numbers and the paper's, by column.

    ``reasons`` say why they differ; ``unexplained`` are the columns that differ for no known reason.
    """

    name: str
    found: Mapping[str, int]
    paper: Mapping[str, int]
    reasons: tuple[str, ...]
    unexplained: tuple[str, ...]


def compare(data: CatalogData) -> Comparison:
    """Compare a dataset with the paper's table.

    A difference is explained where the available rows are not those of the official split, where rows are left out
    because they render like a test row, or where the data file knows that the table and the owners differ.
    """
    entry, duplicates = data.entry, data.duplicates
    splits = ("train", "validation", "test")
    found = {split: len(data.task.rows(split)) for split in splits}
    found |= {"templates": len(data.task.templates), "labels": len(entry.labels)}
    differing = [column for column in COLUMNS if found[column] != entry.paper[column]]
    explained: dict[str, tuple[str, ...]] = {}
    for official, rows, columns in (
        (entry.train_from, data.train, ("train", "validation")),
        (entry.test_from, data.test, ("test",)),
    ):
        if len(rows) != official.rows:
            explained[f"{official.split} has {len(rows):,} of its {official.rows:,} rows here"] = columns
    if left_out := len(duplicates.in_test):
        reason = f"{left_out} of {entry.train_from.split} left out: rendered, they are in {entry.test_from.split}"
        explained[reason] = ("train", "validation")
    if unanswerable := len(duplicates.unanswerable_train) + len(duplicates.unanswerable_test):
        explained[f"{unanswerable} rows left out: two of their answers are equal"] = splits
    if entry.table_note and differing:
        explained[entry.table_note] = splits
    known = {column for columns in explained.values() for column in columns}
    unexplained = tuple(column for column in differing if column not in known)
    return Comparison(entry.name, found, entry.paper, tuple(explained), unexplained)
