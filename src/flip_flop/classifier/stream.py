"""Predictions for a file of any size: rows are read, scored, counted and written in chunks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from flip_flop.classifier.load import CHUNK, LoadedClassifier
from flip_flop.console import count, is_first_process, track
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import Columns, write_rows
from flip_flop.files import inputs_of_command
from flip_flop.scoring import ScoringOptions
from flip_flop.tasks import Rows, Task
from flip_flop.tasks.readers import NumberedRow, stream_rows

Pairs = Iterable[tuple[Mapping[str, Any], NumberedRow]]


def predict_file(classify: LoadedClassifier, source: Path, out: Path, *, quiet: bool = False) -> str:
    """Write predictions for the rows of a file, and return how many rows have each vote, and why others have none.

    CSV, TSV and JSONL are read in chunks, and CSV and JSONL are written row by row; other files at once. All rows are
    rendered before the model is loaded, so that the errors of rows come first. The output has its name when it is
    complete.

    Raises:
        InputError: The errors of rows, of ``classify``, and of the output.
    """
    inputs_of_command().add(source.resolve())
    fields, total = dict[str, None](), 0
    for rows in _chunks(source):
        classify.render(rows, total + 1)
        fields |= dict.fromkeys(rows.columns())
        total += len(rows)
    if not total:
        raise InputError("E-DATA-ROWS", f"{source} has no rows.", "Add rows.")
    classify.scorer  # noqa: B018 - loads the model before the progress begins
    labels = classify.task.label_values(len(classify.classifier.task.labels))
    with track("predict", total, "rows", quiet=quiet) as advance:
        pairs = classify.answer(_chunks(source, advance))
        return write_counted(pairs, classify.task, classify.scoring, labels, [*fields], out)


def _chunks(source: Path, advance: Callable[[int], object] = int) -> Iterator[Rows]:
    """Yield the rows of a file in chunks, and report the size of each when the next one is wanted."""
    rows = stream_rows(source)
    unit = "row" if source.suffix in (".json", ".parquet", ".xlsx") else "line"
    while chunk := tuple(islice(rows, CHUNK)):
        yield Rows(str(source), unit, chunk, {})
        advance(len(chunk))


def write_counted(
    pairs: Pairs, task: Task, scoring: ScoringOptions, labels: Sequence[Any], inputs: Sequence[str], out: Path
) -> str:
    """Write the predictions of rows, and return their numbers. Only the first process of a launcher writes.

    Args:
        pairs: Predictions and rows.
        task: The task with the templates.
        scoring: The options of scoring.
        labels: The labels.
        inputs: The fields of the rows.
        out: The file.
    """
    values = [f"p({label})" for label in labels]
    if task.answer is not None:
        values = ["label", "text"]
    elif scoring.by == "generation":
        values = ["label"]
    notes = ["note"] if scoring.too_long == "skip" else []
    tally = Tally()
    counted = tally.count(pairs)
    if is_first_process():
        write_rows(counted, Columns(task.templates.names, values, notes, inputs), out)
    else:
        for _ in counted:
            pass
    return tally.text(labels, task)


class Tally:
    """How many rows have each vote, and how many have none, and why."""

    def __init__(self) -> None:
        self.votes = Counter[Any]()
        self.num_split = self.num_abstained = self.num_too_long = self.num_unread = 0

    def count(self, pairs: Pairs) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Yield predictions and the fields of their rows, counted."""
        for prediction, row in pairs:
            has_vote = prediction["vote"] is not None
            self.votes[prediction["vote"]] += 1
            self.num_split += prediction["consensus"] is False
            if prediction["confidence"] is None:
                self.num_too_long += 1
            elif not has_vote and prediction["confidence"] > 0:
                self.num_abstained += 1
            elif not has_vote:
                self.num_unread += 1
            yield prediction, row.fields

    def text(self, labels: Iterable[Any], task: Task) -> str:
        """Return the numbers that are not 0."""
        notes = {
            "without a strict majority of the templates": self.num_split,
            "abstained": self.num_abstained,
            "too long": self.num_too_long,
            f"without {'a readable answer' if task.answer else 'an answer that is a label'}": self.num_unread,
        }
        shares = ", ".join(f"{label}: {self.votes[label]}" for label in labels)
        if task.answer:
            shares = count(len(self.votes.keys() - {None}), "different vote")
        parts = [shares, *(f"{number} {what}" for what, number in notes.items() if number)]
        return f"{self.votes.total()} rows ({'; '.join(parts)})"
