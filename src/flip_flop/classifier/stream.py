"""Predictions for a file of any size: rows are read, scored, counted and written in chunks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from flip_flop.classifier.load import CHUNK, LoadedClassifier
from flip_flop.console import count, is_first_process, track
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import Pair, Prediction, write_rows
from flip_flop.files import inputs_of_command
from flip_flop.scoring import ScoringOptions
from flip_flop.tasks import Rows, Task
from flip_flop.tasks.readers import NumberedRow, stream_rows


def predict_file(classify: LoadedClassifier, source: Path, out: Path, *, quiet: bool = False) -> str:
    """Write predictions for the rows of a file, and return how many rows have each vote, and why others have none.

    CSV, TSV and JSONL are read in chunks, and CSV and JSONL are written row by row; other files at once. All rows are
    rendered before the model is loaded, so that the errors of rows come first. The output has its name when it is
    complete.

    Raises:
        InputError: The errors of rows, of ``classify``, and of the output.
    """
    inputs_of_command().add(source.resolve())
    fields = dict[str, None]()
    total = 0
    for rows in _chunks(source):
        classify.render(rows, total + 1)
        fields |= dict.fromkeys(rows.columns())
        total += len(rows)
    if not total:
        raise InputError("E-DATA-ROWS", f"{source} has no rows.", "Add rows.")
    classify.scorer  # noqa: B018 - loads the model before the progress begins
    with track("predict", total, "rows", quiet=quiet) as advance:
        pairs = _answered(classify, source, advance)
        num_labels = len(classify.classifier.task.labels)
        answering = classify.task.with_templates(classify.groups)
        passes = len(classify.task.templates) if classify.classifier.stop_lead else None
        return write_counted(pairs, answering, classify.scoring, num_labels, [*fields], out, passes)


def _chunks(source: Path) -> Iterator[Rows]:
    """Yield the rows of a file in chunks."""
    rows = stream_rows(source)
    unit = "row" if source.suffix in (".json", ".parquet", ".xlsx") else "line"
    while chunk := tuple(islice(rows, CHUNK)):
        yield Rows(str(source), unit, chunk, {})


def _answered(
    classify: LoadedClassifier, source: Path, advance: Callable[[int], object]
) -> Iterator[tuple[Prediction, NumberedRow]]:
    """Yield each prediction with its row, and report the progress."""
    start = 1
    for rows in _chunks(source):
        yield from zip(classify.predict(classify.render(rows, start)), rows.rows, strict=True)
        advance(len(rows))
        start += len(rows)


def write_counted(
    pairs: Iterable[tuple[Prediction, NumberedRow]],
    task: Task,
    scoring: ScoringOptions,
    num_labels: int,
    inputs: Sequence[str],
    out: Path,
    passes: int | None = None,
) -> str:
    """Write predictions, and return how many rows have each vote, and how many have none, and why.

    Only the first process of a launcher writes.

    Args:
        pairs: Predictions and their rows.
        task: The task, with the templates of the predictions.
        scoring: The options of scoring.
        num_labels: The number of labels.
        inputs: The fields of the rows.
        out: The file.
        passes: The largest number of passes of a row, if they stop early.
    """
    labels = task.label_values(num_labels)
    values = [f"p({label})" for label in labels]
    unread = "without an answer that is a label"
    if scoring.by == "generation":
        values = ["label"]
    if task.answer is not None:
        values = ["label", "text"]
        unread = "without a readable answer"
    votes = Counter[Any]()
    taken = []
    reasons = dict.fromkeys(("without a strict majority of the templates", "abstained", "too long", unread), 0)

    def counted() -> Iterator[Pair]:
        for prediction, row in pairs:
            confidence = prediction["confidence"]
            votes[prediction["vote"]] += 1
            reasons["without a strict majority of the templates"] += prediction["consensus"] is False
            if confidence is None:
                reasons["too long"] += 1
            elif prediction["vote"] is None:
                reasons["abstained" if confidence else unread] += 1
            if "passes" in prediction:
                taken.append(prediction["passes"])
            yield prediction, row.fields

    if is_first_process():
        notes = ["passes"] if passes else []
        if scoring.too_long == "skip":
            notes.append("note")
        write_rows(counted(), out, templates=task.templates.names, values=values, inputs=inputs, notes=notes)
    else:
        for _ in counted():
            pass
    shares = [f"{label}: {votes[label]}" for label in labels]
    if task.answer is not None:
        shares = [count(len(votes.keys() - {None}), "different vote")]
    parts = [", ".join(shares), *(f"{number} {what}" for what, number in reasons.items() if number)]
    if taken:
        parts.append(f"mean passes {fmean(taken):.1f} of {passes}")
    return f"{votes.total()} rows ({'; '.join(parts)})"
