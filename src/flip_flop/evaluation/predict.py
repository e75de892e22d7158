"""Predictions: the label distribution under each template, and the vote of all."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import resolve, score_calibrated
from flip_flop.files import write_text
from flip_flop.metrics import calibrated, label_probs, majority_vote, vote_counts
from flip_flop.options import DEFAULT_SCORING, Calibration, ScoringOptions
from flip_flop.scoring import ModelGiven
from flip_flop.tasks import Data
from flip_flop.text import spreadsheet_cell
from flip_flop.too_long import words

SUFFIXES = (".jsonl", ".csv")


def predict(
    model: ModelGiven,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    quiet: bool = False,
    calibrate: Calibration | None = None,
    label_prior: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Answer every instance under every template: ``predict(model, data)``, with both as in :func:`~flip_flop.audit`.

    Gold labels are not used: ``predict("demo", task.with_rows("tickets.csv"))`` needs none. A row per instance is
    returned: ``id``; ``vote`` (the label most templates predict); ``vote_share`` (of the templates); ``consensus``
    (whether it is a strict majority); ``templates``: name to ``{"label", "probs": [L]}``. ``calibrate`` takes each
    template's preference for a label out first, as in an audit.

    Where rows that are too long are skipped, each row has a ``note`` too. In theirs it says why ``vote``,
    ``vote_share`` and ``consensus`` are None and ``templates`` is empty.
    """
    loaded, split = resolve(model, data, need_labels=False)
    scored = score_calibrated(loaded, split, scoring, calibrate, label_prior, label="predict", quiet=quiet)
    scores = scored.table.scores if scored.offsets is None else calibrated(scored.table.scores, scored.offsets)
    labels, names = split.task.label_values(scores.shape[-1]), split.task.templates.names
    probs = label_probs(scores)
    predictions = scores.argmax(axis=-1)
    counts = vote_counts(predictions, len(labels))
    answered = {
        instance.id: {
            "id": instance.id,
            "vote": labels[vote],
            "vote_share": float(counts[row, vote] / counts[row].sum()),
            "consensus": bool(2 * counts[row, vote] > counts[row].sum()),
            "templates": {
                name: {"label": labels[predictions[row, column]], "probs": probs[row, column].round(6).tolist()}
                for column, name in enumerate(names)
            },
        }
        for row, (instance, vote) in enumerate(zip(scored.data.instances, majority_vote(scores), strict=True))
    }
    if scoring.too_long == "refuse":
        return [*answered.values()]
    notes: dict[str, str] = {}
    for each in scored.too_long:
        notes.setdefault(each.id, f"too long: {words(each, names)}, the model's context is {each.limit}")
    empty: dict[str, Any] = {"vote": None, "vote_share": None, "consensus": None, "templates": {}}
    return [
        {"id": instance.id, **answered.get(instance.id, empty), "note": notes.get(instance.id, "")}
        for instance in split.instances
    ]


def write_predictions(
    predictions: Sequence[dict[str, Any]], labels: Sequence[Any], out: str | os.PathLike[str]
) -> None:
    """Write predictions as JSONL, or as CSV with a column per template and label.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix.
    """
    out = Path(out)
    check_target(out)
    buffer = io.StringIO()
    if out.suffix == ".jsonl":
        buffer.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)
    else:
        # All texts in quotes: the writer would leave out those around a carriage return, which ends a row.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows(_table(predictions, labels))
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


def _table(predictions: Sequence[dict[str, Any]], labels: Sequence[Any]) -> Iterator[list[Any]]:
    names = next((list(row["templates"]) for row in predictions if row["templates"]), [])
    columns = [f"{name}: p({label})" for name in names for label in labels]
    notes = [name for name in ("note",) if predictions and name in predictions[0]]
    yield ["id", "vote", "vote_share", "consensus", *map(spreadsheet_cell, columns), *notes]
    for row in predictions:
        cells = [probability for each in row["templates"].values() for probability in each["probs"]]
        own = [spreadsheet_cell(row[name]) for name in ("id", "vote", "vote_share", "consensus")]
        yield [*own, *(cells or [None] * len(columns)), *(row[name] for name in notes)]
