"""Predictions for a file of any size: rows are read, scored and written in chunks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from flip_flop.classifier.load import CHUNK, LoadedClassifier
from flip_flop.classifier.tally import Tally
from flip_flop.console import track
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import csv_text, jsonl_text, prediction_table, write_predictions
from flip_flop.files import inputs_of_command, utf8, write_bytes
from flip_flop.tasks import Rows
from flip_flop.tasks.readers import NumberedRow, stream_rows


def predict_file(
    classify: LoadedClassifier, source: Path, out: Path, *, quiet: bool = False, write: bool = True
) -> Tally:
    """Write predictions for the rows of a file, and count them.

    CSV, TSV and JSONL are read in chunks, and CSV and JSONL are written in chunks; other files at once. All rows are
    rendered before the model is loaded, so that the errors of rows come first. The output has its name when it is
    complete. Processes of a launcher that do not ``write`` take part in the scoring.

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
    tally = Tally(classify.task, classify.task.label_values(len(classify.classifier.task.labels)))
    pairs = _predictions(classify, source, total, tally, quiet=quiet)
    if not write:
        for _ in pairs:
            pass
    elif out.suffix == ".csv":
        write_bytes(out, _table_in_parts(classify, pairs, tally.labels, fields))
    elif out.suffix == ".jsonl":
        write_bytes(out, (utf8(jsonl_text(*pair)) for pair in pairs))
    else:
        all_predictions, all_rows = zip(*pairs, strict=True)
        given = [row.fields for rows in all_rows for row in rows.rows]
        write_predictions([*chain(*all_predictions)], tally.labels, out, given)
    return tally


def _chunks(source: Path) -> Iterator[Rows]:
    rows = stream_rows(source)
    while chunk := tuple(islice(rows, CHUNK)):
        yield Rows(str(source), "row" if source.suffix in (".json", ".parquet", ".xlsx") else "line", chunk, {})


def _predictions(
    classify: LoadedClassifier, source: Path, total: int, tally: Tally, *, quiet: bool
) -> Iterator[tuple[list[dict[str, Any]], Rows]]:
    """Yield the predictions of each chunk with its rows."""
    classify.scorer  # noqa: B018 - loads the model before the progress begins
    start = 1
    with track("predict", total, "rows", quiet=quiet) as advance:
        for rows in _chunks(source):
            predictions = classify.predict(classify.render(rows, start))
            tally.add(predictions, classify.abstain_below)
            yield predictions, rows
            start += len(rows)
            advance(len(rows))


def _table_in_parts(
    classify: LoadedClassifier,
    pairs: Iterable[tuple[list[dict[str, Any]], Rows]],
    labels: Sequence[Any],
    fields: Iterable[str],
) -> Iterator[bytes]:
    """Yield a table as CSV. An additional first row gives each part the same columns."""
    is_generated = classify.scoring.by == "generation" or classify.task.answer is not None
    answer: dict[str, Any] = {"label": None, "probs": None if is_generated else [0.0] * len(labels)}
    if classify.task.answer is not None:
        answer["text"] = None
    model: dict[str, Any] = {"id": "", "vote": None, "confidence": None, "consensus": None, "note": ""}
    model["templates"] = dict.fromkeys(classify.task.templates.names, answer)
    row = NumberedRow(0, dict.fromkeys(fields))
    begin = 0
    for predictions, rows in pairs:
        if "note" not in predictions[0]:
            model.pop("note", None)
        padded = replace(rows, rows=(row, *rows.rows))
        header, _, *lines = prediction_table([model, *predictions], labels, padded)
        yield utf8(csv_text([header, *lines][begin:]))
        begin = 1
