"""Reading audit run directories."""

import json
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.errors import InputError

FIGURES = (
    "observed_agreement",
    "mean_f1",
    "f1_std",
    "macro_f1",
    "accuracy",
    "vote_f1",
    "vote_accuracy",
    "no_consensus_share",
)

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Example:
    """The texts of one instance as the model saw them."""

    prompts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Run:
    """One audit as it stands on disk. ``gold`` is -1 where an instance has no label."""

    path: Path
    name: str
    record: dict[str, Any]
    metrics: dict[str, Any]
    scores: Float[np.ndarray, "instances templates labels"]
    gold: Int[np.ndarray, " instances"]
    instance_ids: tuple[str, ...]
    template_names: tuple[str, ...]
    examples: dict[str, Example]

    @property
    def predictions(self) -> Int[np.ndarray, "instances templates"]:
        """The label with the highest score; ties go to the lowest index."""
        return self.scores.argmax(axis=-1)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' names, in the order of the scores."""
        return tuple(str(label) for label in self.record["task"]["labels"])

    @property
    def has_gold(self) -> bool:
        """Whether F1 could be computed."""
        return self.metrics["mean_f1"] is not None

    @property
    def method(self) -> str | None:
        """What the adapter was trained with (``f2c``, ``cce``, ``swarm``), or ``None`` for a base model."""
        for part in (self.record.get("training"), self.record.get("adapter")):
            if isinstance(part, dict) and part.get("method"):
                return str(part["method"])
        return None


def load_run(path: Path | str) -> Run:
    """Read and check an audit's run directory.

    Raises:
        InputError: ``E-RUN-MISSING`` where the folder or one of its files is not there, ``E-RUN-BROKEN``
            where a file cannot be read or contradicts another.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError("E-RUN-MISSING", f"{path} is not a folder.", "Name the folder that `flip-flop audit` wrote.")
    record = _read_json(path / "run.json")
    if record.get("kind") != "audit":
        raise InputError(
            "E-RUN-MISSING",
            f"{path} holds a run of kind {record.get('kind')!r}, not an audit.",
            "Audit the model first: `flip-flop audit --model M --adapter A --task T --out DIR`.",
        )
    _check_record(record, path / "run.json")
    metrics = _read_json(path / "metrics.json")
    scores, gold, instance_ids, template_names = _read_scores(path / "scores.npz")
    run = Run(
        path=path,
        name=str(record.get("name") or path.name),
        record=record,
        metrics=metrics,
        scores=scores,
        gold=gold,
        instance_ids=instance_ids,
        template_names=template_names,
        examples=_read_examples(path / "examples.jsonl", scores.shape[1:]),
    )
    _check_metrics(run, path / "metrics.json")
    return run


def _broken(path: Path, why: str) -> InputError:
    return InputError("E-RUN-BROKEN", f"{path} {why}.", "Run the audit again into a new folder.")


def _missing(path: Path) -> InputError:
    return InputError(
        "E-RUN-MISSING",
        f"{path.parent} has no {path.name}.",
        "Name a folder that `flip-flop audit` wrote; a run directory is complete or it is not there.",
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise _missing(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, f"is not readable JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise _broken(path, "does not hold a JSON object")
    return value


def _check_record(record: dict[str, Any], path: Path) -> None:
    for part in ("task", "model", "scoring"):
        if not isinstance(record.get(part), dict):
            raise _broken(path, f"has no section {part!r}")
    for key in ("name", "labels", "digest", "split", "templates"):
        if key not in record["task"]:
            raise _broken(path, f"has no {key!r} in its section 'task'")
    if record["task"].get("f1", "auto") not in ("auto", "binary", "macro"):
        raise _broken(path, "names an F1 that is neither binary nor macro")
    templates = record["task"]["templates"]
    if not isinstance(templates, list) or not all(isinstance(each, dict) and "name" in each for each in templates):
        raise _broken(path, "has a template without a name")


def _read_scores(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    if not path.is_file():
        raise _missing(path)
    try:
        # A pickled array would run code. The file is opened here: numpy leaves a broken one open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            scores, gold = file["scores"], file["gold"]
            ids = tuple(str(name) for name in file["instance_ids"].tolist())
            names = tuple(str(name) for name in file["template_names"].tolist())
    except _UNREADABLE as error:
        raise _broken(path, f"is not a readable array file ({type(error).__name__})") from error
    if scores.dtype.kind != "f" or scores.ndim != 3 or 0 in scores.shape or gold.dtype.kind not in "iu":
        raise _broken(path, "does not hold scores of shape instances x templates x labels")
    if gold.shape != scores.shape[:1] or (len(ids), len(names)) != scores.shape[:2]:
        raise _broken(path, "holds arrays of lengths that do not fit together")
    if gold.max() >= scores.shape[2] or not scores.max() < np.inf:
        raise _broken(path, "holds a score that is not a number, or a gold label that is none of the labels")
    return scores.astype(np.float32), gold.astype(np.int64), ids, names


def _read_examples(path: Path, shape: tuple[int, ...]) -> dict[str, Example]:
    """The texts, by instance. A report without them is still a report, so an absent file is no error."""
    if not path.is_file():
        return {}
    examples = {}
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                prompts = tuple(str(prompt) for prompt in row["prompts"])
                choices = tuple(tuple(str(choice) for choice in group) for group in row["choices"])
                if (len(prompts), {len(group) for group in choices}) != (shape[0], {shape[1]}):
                    raise ValueError(row["id"])
                examples[str(row["id"])] = Example(prompts, choices)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(path, f"has a line that is not readable: line {len(examples) + 1}") from error
    return examples


def _check_metrics(run: Run, path: Path) -> None:
    """Check all that the report prints or draws: a foreign file is named here and is no crash there."""
    metrics, num_labels = run.metrics, run.scores.shape[2]
    if len(run.label_names) != num_labels:
        raise _broken(path, f"belongs to a task of {len(run.label_names)} labels, scores.npz has {num_labels}")
    for key in FIGURES:
        if key not in metrics or not (metrics[key] is None or _is_number(metrics[key])):
            raise _broken(path, f"has no number under {key!r}")
    shares = metrics.get("label_shares_per_template")
    if not isinstance(shares, dict) or set(shares) != set(run.template_names):
        raise _broken(path, "names other templates than scores.npz")
    if not all(_are_numbers(values, num_labels) for values in [*shares.values(), metrics.get("label_shares")]):
        raise _broken(path, "has no share for some label")
    if run.has_gold:
        per_template = metrics.get("f1_per_template")
        if not isinstance(per_template, dict) or set(per_template) != set(run.template_names):
            raise _broken(path, "has no F1 for some template")
        if not _are_numbers(list(per_template.values()), len(run.template_names)):
            raise _broken(path, "has an F1 that is not a number")
    intervals = metrics.get("intervals") or {}
    if not isinstance(intervals, dict) or not all(ends is None or _are_numbers(ends, 2) for ends in intervals.values()):
        raise _broken(path, "has an interval without two ends")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(values: object, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(map(_is_number, values))
