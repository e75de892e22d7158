"""Reading audit run directories."""

import contextlib
import json
import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.errors import InputError
from flip_flop.metrics import METRICS, EvalData, resolve_average

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,  # RecursionError too: JSON that is nested too deep
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

    @cached_property
    def data(self) -> EvalData:
        """What the metrics are computed from."""
        return EvalData(self.scores, self.gold, self.record["task"].get("f1", "auto"))

    @property
    def predictions(self) -> Int[np.ndarray, "instances templates"]:
        """The label with the highest score; ties go to the lowest index."""
        return self.data.predictions

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' names, in the order of the scores."""
        return tuple(str(label) for label in self.record["task"]["labels"])

    @property
    def has_gold(self) -> bool:
        """Whether F1 could be computed."""
        return self.value("mean_f1") is not None

    @property
    def is_collapsed(self) -> bool:
        """Whether one label takes nearly everything."""
        return bool(self.metrics.get("collapsed"))

    @property
    def method(self) -> str | None:
        """What the adapter was trained with (``f2c``, ``cce``, ``swarm``), or ``None`` for a base model."""
        for part in (self.record.get("training"), self.record.get("adapter")):
            if isinstance(part, dict) and part.get("method"):
                return str(part["method"])
        return None

    def value(self, metric: str) -> float | None:
        """A number of ``metrics.json``; ``None`` where it has none, as a metric that is newer than the run."""
        value: float | None = self.metrics.get(metric)
        return value

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Its 95% interval, where there is one."""
        ends = (self.metrics.get("intervals") or {}).get(metric)
        return (float(ends[0]), float(ends[1])) if ends else None

    @property
    def f1_range(self) -> tuple[float, float] | None:
        """F1 of the worst template and of the best."""
        values = list((self.metrics.get("f1_per_template") or {}).values())
        return (min(values), max(values)) if values else None


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


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    if not path.is_file():
        raise InputError(
            "E-RUN-MISSING",
            f"{path.parent} has no {path.name}.",
            "Name a folder that `flip-flop audit` wrote; a run directory is complete or it is not there.",
        )
    try:
        yield
    except _UNREADABLE as error:
        raise _broken(path, f"is not {what} ({type(error).__name__})") from error


def _read_json(path: Path) -> dict[str, Any]:
    with _reading(path, "readable JSON"):
        value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise _broken(path, "does not hold a JSON object")
    return value


def _check_record(record: dict[str, Any], path: Path) -> None:
    for part in ("task", "model", "scoring"):
        if not isinstance(record.get(part), dict):
            raise _broken(path, f"has no section {part!r}")
    task = record["task"]
    for key in ("name", "labels", "digest", "split", "templates"):
        if key not in task:
            raise _broken(path, f"has no {key!r} in its section 'task'")
    templates = task["templates"]
    if not isinstance(templates, list) or not all(isinstance(each, dict) and "name" in each for each in templates):
        raise _broken(path, "has a template without a name")


def _read_scores(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    # A pickled array would run code. The file is opened here: numpy leaves a broken one open.
    with (
        _reading(path, "a readable array file"),
        path.open("rb") as handle,
        np.load(handle, allow_pickle=False) as file,
    ):
        scores, gold = file["scores"], file["gold"]
        ids = tuple(str(name) for name in file["instance_ids"].tolist())
        names = tuple(str(name) for name in file["template_names"].tolist())
    if scores.dtype.kind != "f" or scores.ndim != 3 or 0 in scores.shape or gold.dtype.kind not in "iu":
        raise _broken(path, "does not hold scores of shape instances x templates x labels")
    if gold.shape != scores.shape[:1] or (len(ids), len(names)) != scores.shape[:2]:
        raise _broken(path, "holds arrays of lengths that do not fit together")
    if gold.max() >= scores.shape[2] or not scores.max() < np.inf:
        raise _broken(path, "holds a score that is not a number, or a gold label that is none of the labels")
    return scores.astype(np.float32), gold.astype(np.int64), ids, names


def _read_examples(path: Path, shape: tuple[int, ...]) -> dict[str, Example]:
    """The texts, by instance. A report without them is still a report, so a missing file is no error."""
    examples: dict[str, Example] = {}
    if path.exists():
        with _reading(path, "readable JSON Lines"), path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                prompts = tuple(str(prompt) for prompt in row["prompts"])
                choices = tuple(tuple(str(choice) for choice in group) for group in row["choices"])
                if (len(prompts), {len(group) for group in choices}) != (shape[0], {shape[1]}):
                    raise ValueError(row["id"])
                examples[str(row["id"])] = Example(prompts, choices)
    return examples


def _check_metrics(run: Run, path: Path) -> None:
    """Check all that the report prints or draws: a foreign file is named here and is no crash there."""
    metrics, num_labels, names = run.metrics, run.scores.shape[2], set(run.template_names)
    if len(run.label_names) != num_labels:
        raise _broken(path, f"belongs to a task of {len(run.label_names)} labels, scores.npz has {num_labels}")
    with _reading(path.with_name("run.json"), "of an F1 that these labels have"):
        resolve_average(run.record["task"].get("f1", "auto"), num_labels)
    for key in METRICS:
        if not (metrics.get(key) is None or _is_number(metrics[key])):
            raise _broken(path, f"has no number under {key!r}")
    shares = metrics.get("label_shares_per_template")
    if not isinstance(shares, dict) or set(shares) != names:
        raise _broken(path, "names other templates than scores.npz")
    if not all(_are_numbers(values, num_labels) for values in [*shares.values(), metrics.get("label_shares")]):
        raise _broken(path, "has no share for some label")
    f1 = metrics.get("f1_per_template")
    if run.has_gold and not (isinstance(f1, dict) and set(f1) == names and _are_numbers([*f1.values()], len(names))):
        raise _broken(path, "has no F1 for some template")
    intervals = metrics.get("intervals") or {}
    if not isinstance(intervals, dict) or not all(ends is None or _are_numbers(ends, 2) for ends in intervals.values()):
        raise _broken(path, "has an interval without two ends")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(values: object, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(map(_is_number, values))
