"""Predictions as a file, beside the columns of their input."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flip_flop.console import spreadsheet_cell
from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.tasks import Rows

SUFFIXES = (".jsonl", ".csv")
OWN = ("id", "vote", "vote_share", "consensus")


def write_predictions(
    predictions: Sequence[Mapping[str, Any]],
    labels: Sequence[Any],
    out: str | os.PathLike[str],
    rows: Rows | None = None,
) -> None:
    """Write predictions as JSONL, or as CSV with a column per template and label.

    ``rows``, those that were answered, are kept: in JSONL as the object ``input``, in CSV as columns after the
    prediction's own; one that has the name of another column is called ``input: NAME``.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix; ``E-ROW`` where ``rows`` are not those that were answered.
    """
    out = Path(out)
    check_target(out)
    if rows is not None and len(rows) != len(predictions):
        message = f"There are {len(predictions)} predictions and {len(rows)} rows."
        raise InputError("E-ROW", message, "Give the rows that were answered, all and in their order, or none.")
    inputs = (
        None if rows is None else [{name: _finite(value) for name, value in row.fields.items()} for row in rows.rows]
    )
    buffer = io.StringIO()
    if out.suffix == ".jsonl":
        kept = [{}] * len(predictions) if inputs is None else [{"input": fields} for fields in inputs]
        buffer.writelines(
            json.dumps({**row, **more}, ensure_ascii=False, default=str) + "\n"
            for row, more in zip(predictions, kept, strict=True)
        )
    else:
        # All texts in quotes: the writer would leave out those around a carriage return, which ends a row.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        own = list(_table(predictions, labels))
        writer.writerows(own if rows is None else map(list.__add__, own, _input_cells(rows, own[0])))
    write_text(out, buffer.getvalue())


def check_target(out: Path, source: Path | None = None) -> None:
    """Refuse, before anything is computed, what cannot be written or would overwrite the rows that are read.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix; ``E-OUT-PATH`` for a folder, or for ``source`` itself.
    """
    if out.is_dir():
        raise InputError("E-OUT-PATH", f"{out} is a folder.", "Give --out a file's name.")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError("E-OUT-PATH", f"{out} is the input itself.", "Give --out another name.")
    if out.suffix not in SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is neither JSONL nor CSV.", "End --out with .jsonl or .csv.")


def _table(predictions: Sequence[Mapping[str, Any]], labels: Sequence[Any]) -> Iterator[list[Any]]:
    first: Mapping[str, Any] = next((row["templates"] for row in predictions if row["templates"]), {})
    generated = any(each["probs"] is None for each in first.values())
    columns = [f"{name}: p({label})" for name in first for label in labels]
    if generated:
        columns = [f"{name}: label" for name in first]
    notes = [name for name in ("note",) if predictions and name in predictions[0]]
    yield [*OWN, *map(spreadsheet_cell, columns), *notes]
    for row in predictions:
        answers = row["templates"].values()
        cells = [
            cell for each in answers for cell in ([spreadsheet_cell(each["label"])] if generated else each["probs"])
        ]
        own = [spreadsheet_cell(row[name]) for name in OWN]
        yield [*own, *(cells or [None] * len(columns)), *(row[name] for name in notes)]


def _input_cells(rows: Rows, taken: Sequence[str]) -> Iterator[list[Any]]:
    columns = rows.columns()
    yield [spreadsheet_cell(f"input: {name}" if name in taken else name) for name in columns]
    for row in rows.rows:
        values = (row.fields.get(name) for name in columns)
        yield [spreadsheet_cell(_cell(value)) for value in values]


def _finite(value: Any) -> Any:
    """JSON has no NaN, which is how a table of floats says that a value is missing."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else json.dumps(value, ensure_ascii=False, default=str)
