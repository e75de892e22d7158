"""Predictions: the label distribution under each template, the majority vote, and their files."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.console import spreadsheet_cell
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import resolve, score_calibrated
from flip_flop.evaluation.few_labels import score_few, weigh_templates
from flip_flop.evaluation.run_directory import check_target
from flip_flop.files import write_text
from flip_flop.metrics import calibrated, label_probs, majority_vote, predicted, vote_counts
from flip_flop.metrics.calibration import CalibrationChoice
from flip_flop.scoring import ModelGiven, Scorer
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.too_long import words
from flip_flop.tasks import Data, RenderedSplit, Rows
from flip_flop.tasks.readers import label_text


def predict(
    model: ModelGiven | Scorer,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    quiet: bool = False,
    calibrate: CalibrationChoice = "none",
    label_prior: Sequence[float] | None = None,
    abstain_below: float = 0.0,
    few_labels: RenderedSplit | None = None,
) -> list[dict[str, Any]]:
    """Predict a label for each instance under each template, and their majority vote: ``predict(model, data)``.

    Model and data are those of :func:`~flip_flop.audit`. Gold labels are not required:
    ``predict("demo", task.with_rows("new.csv"))``. ``calibrate`` corrects the label bias of each template before the
    vote, as in an audit. ``abstain_below`` is the smallest confidence of a vote; the others are None. Labelled rows
    ``few_labels``, from :func:`~flip_flop.tasks.labelled_file`, weigh the templates in the vote; ``confidence`` and
    ``consensus`` then count weights.

    Returns:
        A row for each instance, with ``id``, ``vote``, ``confidence``, ``consensus`` and ``templates``. ``vote`` is the
        label that most templates predict, ``confidence`` the share of the templates that predict it, and ``consensus``
        whether that is a strict majority. ``templates`` maps names to ``{"label", "probs": [L]}``. Generated answers
        have no ``probs``, and their ``label`` and ``vote`` are None if no label matches. If rows that are too long are
        skipped, each row also has a ``note``. In a skipped row ``vote``, ``confidence`` and ``consensus`` are None, and
        ``templates`` is empty.
    """
    if not 0 <= abstain_below <= 1:
        raise InputError(
            "E-CONFIG-VALUE", f"abstain_below is {abstain_below}.", "Use a share from 0 to 1, such as 0.8."
        )
    scorer, split = resolve(model, data, need_labels=False)
    few = None if few_labels is None else score_few(scorer, few_labels, scoring, quiet=quiet)
    found = score_calibrated(scorer, split, scoring, calibrate, label_prior, label="predict", quiet=quiet)
    offsets = None if found.calibration is None else found.calibration["offsets"]
    scores = found.scores if offsets is None else calibrated(found.scores, offsets)
    labels, names = split.task.label_values(scores.shape[-1]), split.task.templates.names
    probs = None if scoring.by == "generation" else label_probs(scores).round(6).tolist()
    predictions = predicted(scores)
    weights = np.ones(len(names)) if few is None else weigh_templates(few, offsets)
    counts, total = vote_counts(predictions, len(labels), weights), weights.sum()
    shares = (counts.max(axis=1) / total).tolist()
    labels_of = [*labels, None]  # index -1: the answer does not match a label
    answered = {
        identifier: {
            "id": identifier,
            "vote": labels_of[vote] if shares[row] >= abstain_below else None,
            "confidence": shares[row],
            "consensus": bool(2 * counts[row].max() > total),
            "templates": {
                name: {"label": labels_of[predictions[row, column]], "probs": probs and probs[row][column]}
                for column, name in enumerate(names)
            },
        }
        for row, (identifier, vote) in enumerate(zip(found.ids, majority_vote(scores, weights), strict=True))
    }
    if scoring.too_long == "refuse":
        return [*answered.values()]
    notes: dict[str, str] = {}
    for each in found.too_long:
        notes.setdefault(each.id, f"too long: {words(each, names)}, the model's context is {each.limit}")
    empty: dict[str, Any] = {"vote": None, "confidence": None, "consensus": None, "templates": {}}
    return [
        {"id": instance.id, **answered.get(instance.id, empty), "note": notes.get(instance.id, "")}
        for instance in split.instances
    ]


OWN = ("id", "vote", "confidence", "consensus")


def write_predictions(
    predictions: Sequence[Mapping[str, Any]],
    labels: Sequence[Any],
    out: str | os.PathLike[str],
    rows: Rows | None = None,
) -> None:
    """Write predictions as JSONL, or as CSV with a column per template and label.

    The columns of the predicted ``rows`` are added: in JSONL as the object ``input``, in CSV after the other columns.
    If a name is taken, the CSV column is ``input: NAME``.

    Raises:
        InputError: ``E-OUT-KIND`` for an unknown suffix, ``E-ROW`` if ``rows`` and predictions differ in number.
    """
    out = Path(out)
    check_target(out)
    if rows is not None and len(rows) != len(predictions):
        message = f"There are {len(predictions)} predictions and {len(rows)} rows."
        raise InputError("E-ROW", message, "Give all predicted rows in their order, or no rows.")
    inputs = (
        None if rows is None else [{name: _finite(value) for name, value in row.fields.items()} for row in rows.rows]
    )
    kept = [{}] * len(predictions) if inputs is None else [{"input": fields} for fields in inputs]
    own = list(_table(predictions, labels)) if out.suffix == ".csv" else []
    table = own if rows is None or not own else map(list.__add__, own, _input_cells(rows, own[0]))
    _write(out, ({**row, **more} for row, more in zip(predictions, kept, strict=True)), table)


def _write(out: Path, lines: Iterable[Mapping[str, Any]], table: Iterable[Sequence[Any]]) -> None:
    buffer = io.StringIO()
    if out.suffix == ".jsonl":
        buffer.writelines(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    else:
        # The writer does not quote a text with a carriage return, which ends a row, so all texts are quoted.
        csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(table)
    write_text(out, buffer.getvalue())


def most_disputed(predictions: Sequence[Mapping[str, Any]], number: int) -> list[int]:
    """Return the positions of the ``number`` predictions with the smallest share of the vote.

    Equal shares are ordered by the margin between the two labels with the largest mean probability over templates, and
    then by position. Generated answers have no margin. Rows that were too long for the model are excluded.
    """

    def margin(prediction: Mapping[str, Any]) -> float:
        probs = zip(*(each["probs"] or (0.0, 0.0) for each in prediction["templates"].values()), strict=True)
        second, first = sorted(math.fsum(label) for label in probs)[-2:]
        return round(first - second, 6)  # the digits of probs

    found = [(row["confidence"], margin(row), at) for at, row in enumerate(predictions) if row["templates"]]
    return [at for *_, at in sorted(found)[:number]]


def write_label_next(
    predictions: Sequence[Mapping[str, Any]],
    rows: Rows,
    label_field: str,
    number: int,
    out: Path,
    labels: Sequence[object] = (),
) -> int:
    """Write the most disputed of the unlabelled rows, with an empty label, as CSV or JSONL for ``--few-labels``.

    The predictions are not in the file, because they would influence the labels. Returns the number of rows.
    """
    blank = [at for at, row in enumerate(rows.rows) if not label_text(row.fields.get(label_field), labels)]
    chosen = [rows.rows[blank[at]] for at in most_disputed([predictions[at] for at in blank], number)]
    fields = [{label_field: None} | row.fields | {label_field: None} for row in chosen]
    empty = replace(rows, rows=tuple(row._replace(fields=each) for row, each in zip(chosen, fields, strict=True)))
    _write(out, ({name: _finite(value) for name, value in each.items()} for each in fields), _input_cells(empty, ()))
    return len(chosen)


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
    """Return None for NaN, the missing value in a table of floats."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else json.dumps(value, ensure_ascii=False, default=str)
