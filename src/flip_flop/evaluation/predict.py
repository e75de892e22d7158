"""Predictions: the label distribution under each template, the majority vote, and their files."""

import csv
import io
import json
import numbers
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from flip_flop.arrays import Offsets
from flip_flop.console import count, spreadsheet_cell, visible
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import resolve, score_calibrated
from flip_flop.evaluation.handover import answering
from flip_flop.evaluation.run_directory import check_target
from flip_flop.files import finite, utf8, write_bytes
from flip_flop.metrics import AveragedAxis, CalibrationChoice, calibrated, label_probs, mean_over, vote_share
from flip_flop.prompts import Fields, RenderedInstance
from flip_flop.reading import AnswerFormat
from flip_flop.scoring import DEFAULT_SCORING, ScoringOptions, words
from flip_flop.scoring.models import ModelGiven
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.too_long import TooLong
from flip_flop.tasks import Data, RenderedSplit, Source, as_source, log_findings

VOTE = ("id", "vote", "confidence")
Prediction = dict[str, Any]  # a row of :func:`predict`
Pair = tuple[Prediction, Fields | None]  # a prediction, and the fields of its row if given


def predict(
    model: ModelGiven | Scorer,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    quiet: bool = False,
    calibrate: CalibrationChoice = "none",
    label_prior: Sequence[float] | None = None,
    abstain_below: float = 0.0,
    average: AveragedAxis | None = None,
) -> list[Prediction]:
    """Predict a label for each instance under each template, and their majority vote: ``predict(model, data)``.

    Model and data are those of :func:`~flip_flop.audit`. Gold labels are not required:
    ``predict("demo", task.with_rows("new.csv"))``. ``calibrate`` corrects the label bias of each template before the
    vote, as in an audit. ``abstain_below`` is the smallest confidence of a vote; the others are None. With ``average``,
    the mean probabilities over the orders of its options replace those of a template
    (:func:`~flip_flop.metrics.axes.mean_over`).

    Returns:
        A row for each instance, with ``id``, ``vote``, ``confidence``, ``consensus`` and ``templates``. ``vote`` is the
        label that most templates predict (:func:`~flip_flop.metrics.majority_vote`), ``confidence`` the share of the
        templates that predict it, and ``consensus`` whether that is a strict majority. Under a single template,
        ``confidence`` is the probability of the label among the labels. ``templates`` maps names to
        ``{"label", "probs": [L]}``. Generated answers have no ``probs``. ``label``, ``probs`` and ``vote`` are None if
        no label matches, or has a probability. Open answers have a ``text``, their ``label`` is its key, and ``vote``
        is the shortest text with the most frequent key. If rows that are too long are skipped, each row also has a
        ``note``. In a skipped row ``vote``, ``confidence`` and ``consensus`` are None, and ``templates`` is empty.
    """
    if not isinstance(abstain_below, numbers.Real) or not 0 <= abstain_below <= 1:
        raise InputError("E-CONFIG", f"abstain_below is {abstain_below!r}.", "Use a share from 0 to 1, such as 0.8.")
    scorer, split = resolve(model, data, need_labels=False)
    groups = answering(split.task, average)
    split = log_findings(split)
    scored = score_calibrated(scorer, split, scoring, calibrate, label_prior, label="predict", quiet=quiet)
    scored = adjusted(scored, groups, scored.calibration and scored.calibration["offsets"])
    return prediction_rows(scored, split, scoring, [*groups], abstain_below=abstain_below)


def adjusted(scored: Scored, groups: Mapping[str, Sequence[int]], offsets: Offsets | None) -> Scored:
    """Return scores with offsets, if any, and averaged over the groups of templates that answer together."""
    values = scored.scores.values
    if offsets is not None:
        values = calibrated(values, offsets)
    if len(groups) < values.shape[1]:
        values = mean_over(values, groups.values())
    return replace(scored, scores=replace(scored.scores, values=values, token_counts=None))


def prediction_rows(
    scored: Scored, split: RenderedSplit, scoring: ScoringOptions, names: Sequence[str], *, abstain_below: float
) -> list[Prediction]:
    """Return the rows of :func:`predict` for the scores of a split under templates of these names."""
    scores = scored.scores
    labels = [*split.task.label_values(scores.num_labels), None]  # index -1: the answer does not match a label
    has_probs = not scores.answered and scoring.by != "generation"
    probs = label_probs(scores.values).round(6).tolist() if has_probs else None
    shares = vote_share(scores).tolist()
    is_single = len(names) == 1
    answered = {}
    for row, (identifier, vote) in enumerate(zip(scores.ids, scores.votes, strict=True)):
        templates = {}
        for column, (name, label) in enumerate(zip(names, scores.predictions[row].tolist(), strict=True)):
            templates[name] = {"label": labels[label], "probs": probs[row][column] if probs and label >= 0 else None}
        confidence = max(probs[row][0]) if probs and is_single else shares[row]
        answered[identifier] = {
            "id": identifier,
            "vote": labels[vote] if confidence >= abstain_below else None,
            "confidence": confidence,
            "consensus": 2 * shares[row] > 1,
            "templates": templates,
        }
        if scored.passes is not None:
            answered[identifier]["passes"] = int(scored.passes[row])
    if (form := split.task.answer) is not None:
        for instance in scored.instances:
            _add_texts(answered[instance.id], instance, form)
    if scoring.too_long == "refuse":
        return [*answered.values()]
    return with_notes(answered.values(), split, scored.too_long)


def with_notes(
    predictions: Iterable[Prediction], split: RenderedSplit, too_long: Iterable[TooLong]
) -> list[Prediction]:
    """Return a row with a note for each instance of a split, an empty one if its prompts are too long."""
    answered = {row["id"]: row for row in predictions}
    names = split.task.templates.names
    notes = dict[str, str]()
    for prompt in too_long:
        notes.setdefault(prompt.id, f"too long: {words(prompt, names)}, the model's context is {prompt.limit}")
    empty: Prediction = {"vote": None, "confidence": None, "consensus": None, "templates": {}}
    rows = []
    for instance in split.instances:
        row = answered.get(instance.id, empty)
        rows.append({"id": instance.id, **row, "note": notes.get(instance.id, row.get("note", ""))})
    return rows


def _add_texts(row: Prediction, instance: RenderedInstance, form: AnswerFormat) -> None:
    """Add the texts of open answers, and name answers by their keys and the vote by a text."""
    keys = [*instance.choices[0], None]
    answers = row["templates"].values()
    for answer, written, prompt in zip(answers, instance.written, instance.prompts, strict=True):
        answer |= {"label": keys[-1 if answer["label"] is None else answer["label"]]}
        answer["text"] = form.answer(written, prompt)
    if row["vote"] is not None:
        voted = keys[row["vote"]]
        texts = [answer["text"] for answer in answers if answer["label"] == voted]
        row["vote"] = min(texts, key=len)


_MAX_SHEET_CELL = 32_767  # characters
_MAX_SHEET_NUMBER = 10**15


def write_predictions(
    predictions: Sequence[Prediction],
    labels: Sequence[Any] | None,
    out: str | os.PathLike[str],
    rows: Source | pd.DataFrame | str | os.PathLike[str] | Iterable[Fields] | None = None,
) -> None:
    """Write predictions as JSONL, or as CSV or xlsx with a column per template and label.

    The columns of the predicted ``rows`` are added: in JSONL as the object ``input``, in a table after the vote and its
    confidence. If a name is taken, the column is ``input: NAME``. ``rows`` are given as to
    :meth:`~flip_flop.Task.with_rows`.

    Raises:
        InputError: ``E-OUT-PATH`` for an unknown suffix; ``E-DATA-ROWS`` if ``rows`` and predictions differ in number,
            or the probabilities of a prediction are not of these labels, or its templates not those of the first.
    """
    out = Path(out)
    check_target(out)
    given = None if rows is None else as_source(rows).load()
    if given is not None and len(given) != len(predictions):
        raise InputError(
            "E-DATA-ROWS",
            f"There are {len(predictions)} predictions and {len(given)} rows.",
            "Give all predicted rows in their order, or no rows.",
        )
    first: Prediction = next((row["templates"] for row in predictions if row["templates"]), {})
    answers = [answer for row in predictions for answer in row["templates"].values()]
    values = [name for name in ("label", "text") if answers and name in answers[0]]
    if any(answer["probs"] for answer in answers):
        values = [f"p({label})" for label in labels or ()]
    notes = [name for name in ("note",) if predictions and name in predictions[0]]
    inputs = () if given is None else given.columns()
    fields = [None] * len(predictions) if given is None else [row.fields for row in given.rows]
    pairs = zip(predictions, fields, strict=True)
    write_rows(pairs, out, templates=[*first], values=values, inputs=inputs, notes=notes)


def write_rows(pairs: Iterable[Pair], out: Path, **columns: Sequence[str]) -> None:
    """Write predictions and the fields of their rows, one by one as JSONL or CSV, or all at once as xlsx.

    Args:
        pairs: The predictions and the fields.
        out: The file.
        columns: The columns of :func:`prediction_table`.
    """
    if out.suffix == ".jsonl":
        write_bytes(out, (utf8(_json_line(*pair)) for pair in pairs))
        return
    table = prediction_table(pairs, **columns)
    if out.suffix == ".csv":
        write_bytes(out, (utf8(_csv_line(row)) for row in table))
        return
    sheet = io.BytesIO()
    pd.DataFrame(table).map(_sheet_cell).to_excel(sheet, engine="openpyxl", header=False, index=False)
    write_bytes(out, sheet.getvalue())


def prediction_table(
    pairs: Iterable[Pair],
    templates: Sequence[str],
    values: Sequence[str],
    inputs: Sequence[str],
    notes: Sequence[str],
) -> Iterator[list[Any]]:
    """Yield the header and the rows of a table.

    Args:
        pairs: The predictions and the fields of their rows.
        templates: The names of the templates.
        values: The columns of each template: ``p(LABEL)``, or of generated answers ``label``, and ``text``.
        inputs: The columns of the fields.
        notes: ``passes`` and ``note``, or nothing.

    Raises:
        InputError: ``E-DATA-ROWS`` for other templates or another number of probabilities.
    """
    columns = [f"{name}: {value}" for name in templates for value in values]
    others = ["consensus", *map(spreadsheet_cell, columns), *notes]
    yield [*VOTE, *map(spreadsheet_cell, _free_names(inputs, (*VOTE, *others))), *others]
    for prediction, fields in pairs:
        answers = prediction["templates"]
        cells = list[Any]()
        for answer in answers.values():
            cells += answer["probs"] or [answer.get(name) for name in values]
        if answers and (len(cells) != len(columns) or [*answers] != [*templates]):
            raise InputError(
                "E-DATA-ROWS",
                f"Prediction {prediction['id']!r} has {len(cells)} values under {', '.join(answers)}, for "
                f"{count(len(columns), 'column')} of {', '.join(templates)}.",
                "Give all labels of the task in their order, and predictions under the same templates.",
            )
        row = [prediction[name] for name in VOTE]
        row += [_cell((fields or {}).get(name)) for name in inputs]
        row += [prediction["consensus"], *(cells or [None] * len(columns))]
        row += [prediction.get(name) for name in notes]
        yield [spreadsheet_cell(cell) for cell in row]


def _free_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return the names of columns; ``input: NAME`` if one is taken."""
    free: list[str] = []
    for name in names:
        new = name
        while new in taken or (new != name and new in (*names, *free)):
            new = f"input: {new}"
        free.append(new)
    return free


def _json_line(prediction: Prediction, fields: Fields | None) -> str:
    """Return a prediction as JSON, with its row as ``input``."""
    line = dict(prediction)
    if fields is not None:
        line["input"] = {name: finite(value) for name, value in fields.items()}
    return json.dumps(line, ensure_ascii=False, default=str) + "\n"


def _csv_line(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    # The writer does not quote a text with a carriage return, which ends a row, so all texts are quoted.
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerow(cells)
    return text.getvalue()


def _sheet_cell(value: Any) -> Any:
    """Return a value that a spreadsheet can hold: control characters as escapes, and a long text cut with a mark.

    A long whole number, such as an id, is a text: spreadsheets keep 15 digits.
    """
    if isinstance(value, int) and abs(value) >= _MAX_SHEET_NUMBER:
        return str(value)
    if not isinstance(value, str):
        return value
    text = re.sub(r"[\0-\x08\x0b\x0c\x0e-\x1f]", lambda control: visible(control[0]), value)
    if len(text) <= _MAX_SHEET_CELL:
        return text
    return f"{text[: _MAX_SHEET_CELL - 1]}…"


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return finite(value)
    is_nested = isinstance(value, Mapping | list | tuple)
    if is_nested:
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
