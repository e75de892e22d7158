"""Predictions: the label distribution under each template, and the vote of all."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.metrics import label_probs, majority_vote, vote_counts
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.models import LoadedModel, score
from flip_flop.scoring.scorer import BATCH_TOKENS
from flip_flop.scoring.support import Backend
from flip_flop.scoring.tokens import ChatTemplate
from flip_flop.tasks import FileSource, Rows, Task
from flip_flop.text import spreadsheet_cell

SUFFIXES = (".jsonl", ".csv")


def predict(
    loaded: LoadedModel,
    task: Task,
    source: Path,
    *,
    chat_template: ChatTemplate = "auto",
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
    fast_linear: bool = False,
    seed: int = 0,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Answer every row of a file under every template.

    Args:
        loaded: From :func:`~flip_flop.scoring.load_model`.
        task: Its templates and labels; its own data are not read.
        source: CSV, TSV, JSONL or parquet with the fields that the templates use. Labels are neither needed nor read.
        chat_template: ``auto``, ``on`` or ``off``.
        backend: ``packed`` or ``padded``.
        batch_tokens: Tokens of one forward.
        fast_linear: oneDNN for frozen float32 weights on a CPU, where it is faster.
        seed: For templates that draw.
        quiet: Show no progress.

    Returns:
        A row per instance: ``id``; ``vote`` (the label most templates predict); ``vote_share`` (of the templates);
        ``consensus`` (whether it is a strict majority); ``templates``: name to ``{"label", "probs": [L]}``.
    """
    instances = render_file(task, source, seed=seed)
    table = score(
        loaded,
        instances,
        chat_template,
        backend=backend,
        batch_tokens=batch_tokens,
        fast_linear=fast_linear,
        label="predict",
        quiet=quiet,
    )
    labels = task.label_values(table.scores.shape[-1])
    probs = label_probs(table.scores)
    predictions = table.scores.argmax(axis=-1)
    counts = vote_counts(predictions, len(labels))
    return [
        {
            "id": instance.id,
            "vote": labels[vote],
            "vote_share": float(counts[row, vote] / counts[row].sum()),
            "consensus": bool(2 * counts[row, vote] > counts[row].sum()),
            "templates": {
                name: {"label": labels[predictions[row, place]], "probs": probs[row, place].round(6).tolist()}
                for place, name in enumerate(task.templates.names)
            },
        }
        for row, (instance, vote) in enumerate(zip(instances, majority_vote(table.scores), strict=True))
    ]


def render_file(task: Task, source: Path, *, seed: int = 0) -> list[RenderedInstance]:
    """A file's rows under every template, without gold labels."""
    rows = without_field(FileSource(source).load(), task.label_field)
    return task.render_rows(rows, "input", seed=seed, need_labels=False)


def without_field(rows: Rows, name: str | None) -> Rows:
    """The rows without the gold label's field: a prediction reads none, right or wrong."""
    kept = [row._replace(fields={key: value for key, value in row.fields.items() if key != name}) for row in rows.rows]
    return replace(rows, rows=tuple(kept))


def write_predictions(predictions: Sequence[dict[str, Any]], labels: Sequence[Any], out: Path) -> None:
    """Write predictions as JSONL, or as CSV with a column per template and label.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix.
    """
    if out.suffix == ".jsonl":
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions))
    elif out.suffix == ".csv":
        buffer = io.StringIO()
        # Texts in quotes: the writer would leave a carriage return, which ends a row for every reader, without.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows(_table(predictions, labels))
        write_text(out, buffer.getvalue())
    else:
        check_target(out)


def check_target(out: Path, source: Path | None = None) -> None:
    """Refuse, before anything is computed, what cannot be written or would overwrite the rows that are read.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix; ``E-OUT-PATH`` for a folder or for ``source`` itself.
    """
    if out.is_dir():
        raise InputError("E-OUT-PATH", f"{out} is a folder.", "Give --out a file's name.")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError("E-OUT-PATH", f"{out} is the input itself.", "Give --out another name.")
    if out.suffix not in SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is neither JSONL nor CSV.", "End --out with .jsonl or .csv.")


def _table(predictions: Sequence[dict[str, Any]], labels: Sequence[Any]) -> Iterator[list[Any]]:
    names = list(predictions[0]["templates"]) if predictions else []
    yield [
        "id",
        "vote",
        "vote_share",
        "consensus",
        *(spreadsheet_cell(f"{name}: p({label})") for name in names for label in labels),
    ]
    for row in predictions:
        cells = [probability for name in names for probability in row["templates"][name]["probs"]]
        yield [spreadsheet_cell(row["id"]), spreadsheet_cell(row["vote"]), row["vote_share"], row["consensus"], *cells]
