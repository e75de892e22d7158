"""Predictions: the label distribution under each template, and the vote of all."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import rendered, score_calibrated
from flip_flop.evaluation.run_directory import check_writable
from flip_flop.files import write_text
from flip_flop.metrics import calibrated, label_probs, majority_vote, vote_counts
from flip_flop.options import DEFAULT_SCORING, Calibration, ScoringOptions
from flip_flop.scoring import LoadedModel
from flip_flop.tasks import RenderedSplit, Task
from flip_flop.text import spreadsheet_cell

SUFFIXES = (".jsonl", ".csv")


def predict(
    loaded: LoadedModel,
    data: RenderedSplit | Task,
    scoring: ScoringOptions = DEFAULT_SCORING,
    *,
    quiet: bool = False,
    calibrate: Calibration | None = None,
    label_prior: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Answer every instance under every template. Gold labels are not read.

    A task stands for its test split. A row per instance is returned: ``id``; ``vote`` (the label most templates
    predict); ``vote_share`` (of the templates); ``consensus`` (whether it is a strict majority); ``templates``: name to
    ``{"label", "probs": [L]}``. ``calibrate`` takes each template's preference for a label out first, as in an audit.
    """
    data = rendered(data)
    table, offsets = score_calibrated(loaded, data, scoring, calibrate, label_prior, label="predict", quiet=quiet)
    scores = table.scores if offsets is None else calibrated(table.scores, offsets)
    labels = data.task.label_values(scores.shape[-1])
    probs = label_probs(scores)
    predictions = scores.argmax(axis=-1)
    counts = vote_counts(predictions, len(labels))
    return [
        {
            "id": instance.id,
            "vote": labels[vote],
            "vote_share": float(counts[row, vote] / counts[row].sum()),
            "consensus": bool(2 * counts[row, vote] > counts[row].sum()),
            "templates": {
                name: {"label": labels[predictions[row, column]], "probs": probs[row, column].round(6).tolist()}
                for column, name in enumerate(data.task.templates.names)
            },
        }
        for row, (instance, vote) in enumerate(zip(data.instances, majority_vote(scores), strict=True))
    ]


def write_predictions(predictions: Sequence[dict[str, Any]], labels: Sequence[Any], out: Path) -> None:
    """Write predictions as JSONL, or as CSV with a column per template and label.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix.
    """
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
        InputError: ``E-OUT-KIND`` for another suffix; ``E-OUT-PATH`` for a folder, for ``source`` itself, or
            where nothing can be written.
    """
    if out.is_dir():
        raise InputError("E-OUT-PATH", f"{out} is a folder.", "Give --out a file's name.")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError("E-OUT-PATH", f"{out} is the input itself.", "Give --out another name.")
    if out.suffix not in SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is neither JSONL nor CSV.", "End --out with .jsonl or .csv.")
    check_writable(out)


def _table(predictions: Sequence[dict[str, Any]], labels: Sequence[Any]) -> Iterator[list[Any]]:
    names = list(predictions[0]["templates"]) if predictions else []
    columns = (f"{name}: p({label})" for name in names for label in labels)
    yield ["id", "vote", "vote_share", "consensus", *map(spreadsheet_cell, columns)]
    for row in predictions:
        cells = [probability for name in names for probability in row["templates"][name]["probs"]]
        yield [spreadsheet_cell(row["id"]), spreadsheet_cell(row["vote"]), row["vote_share"], row["consensus"], *cells]
