"""An audit in memory and on disk: its run directory is complete or not there, and is checked when it is read."""

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int64

from flip_flop.errors import InputError
from flip_flop.evaluation.instances import StoredInstances, write_instances
from flip_flop.evaluation.views import AuditViews
from flip_flop.files import new_folder, read_arrays, read_json, write_arrays, write_json
from flip_flop.metrics import METRICS, EvalData, calibrated, resolve_average
from flip_flop.prompts import RenderedInstance
from flip_flop.record import READABLE_JSON, RUN_FILE, RunRecord, broken, reading
from flip_flop.scoring.too_long import TOO_LONG_FILE, TooLong, write_too_long

METRICS_FILE, SCORES_FILE = "metrics.json", "scores.npz"
ARRAYS = ("scores", "token_counts", "gold", "instance_ids", "template_names")
PREDICTION_SUFFIXES = (".jsonl", ".csv")
MAX_NAMES = 2**18  # characters of the names of a run, its labels and templates, which a report repeats


@dataclass(frozen=True, eq=False, repr=False)
class Audit(AuditViews):
    """What an audit found.

    Attributes:
        record: What was measured: ``run.json``.
        metrics: ``metrics.json``; fractions from 0 to 1, ``None`` where there is no answer.
        scores: Mean log-probability of each answer's tokens, in nats.
        token_counts: The number of tokens of each answer.
        gold: Label indices, -1 where there is none.
        instance_ids, template_names: In the order of the scores.
        instances: The instances with their prompts as the model read them, in a chat template where it has one; of a
            folder they are read when they are asked for.
        too_long: What was skipped as too long for the model; not read back from disk.
        path: The folder that it was read from.
    """

    record: RunRecord
    metrics: dict[str, Any]
    scores: Float32[np.ndarray, "instances templates labels"]
    token_counts: Int64[np.ndarray, "instances templates labels"]
    gold: Int64[np.ndarray, " instances"]
    instance_ids: tuple[str, ...]
    template_names: tuple[str, ...]
    instances: Iterable[RenderedInstance]
    too_long: tuple[TooLong, ...] = ()
    path: Path = Path()

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.record.name or self.path.name

    @cached_property
    def data(self) -> EvalData:
        """What the metrics are computed from."""
        return EvalData(self.scores, self.gold, self.record.task.f1, self.value("resolution"))

    @property
    def predictions(self) -> Int[np.ndarray, "instances templates"]:
        """The label with the highest score; ties go to the lowest index."""
        return self.data.predictions

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' names, in the order of the scores."""
        return self.record.task.label_names or tuple(map(str, self.record.task.labels))

    def label_name(self, label: int) -> str:
        """A label's name, also that of -1, an answer that is none of them."""
        return self.label_names[label] if label >= 0 else "no label"

    @property
    def has_gold(self) -> bool:
        """Whether F1 could be computed."""
        return self.value("mean_f1") is not None

    @property
    def is_collapsed(self) -> bool:
        """Whether one label dominates the predictions, or every template is constant."""
        return bool(self.metrics.get("collapsed"))

    @property
    def constant_templates(self) -> dict[str, str] | None:
        """The label of each template that predicts it for every instance; ``None`` for a run of an earlier version."""
        labels = dict(zip(self.template_names, map(self.label_name, self.predictions[0].tolist()), strict=True))
        found = self.metrics.get("constant_templates")
        return None if found is None else {name: labels[name] for name in found}

    @property
    def method(self) -> str | None:
        """What the adapter was trained with (``f2c``, ``cce``, ``swarm``), or ``None`` for a base model."""
        method = (self.record.training or {}).get("method")
        return str(method) if method else self.record.adapter.method if self.record.adapter else None

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

    @cached_property
    def calibrated(self) -> "Audit | None":
        """The same instances with calibrated scores; None if the audit has no calibration."""
        found = self.metrics.get("calibrated")
        if found is None:
            return None
        offsets = np.array([found["offsets"][name] for name in self.template_names])
        record = replace(self.record, name=f"{self.name} (calibrated)")
        return replace(self, record=record, metrics=found, scores=calibrated(self.scores, offsets))

    def write(self, out: str | os.PathLike[str]) -> Path:
        """Write the run directory, whole or not at all; one that is there is replaced."""
        out = Path(out)
        arrays = {
            "scores": self.scores,
            "token_counts": self.token_counts,
            "gold": self.gold,
            "instance_ids": np.array(self.instance_ids),
            "template_names": np.array(self.template_names),
        }
        with new_folder(out) as folder:
            self.record.write(folder)
            write_json(folder / METRICS_FILE, self.metrics)
            write_arrays(folder / SCORES_FILE, **arrays)
            write_instances(folder, self.instances)
            if self.too_long:
                write_too_long(folder / TOO_LONG_FILE, self.too_long, self.template_names)
        return out


def load_run(path: str | os.PathLike[str]) -> Audit:
    """Read and check an audit's run directory.

    Raises:
        InputError: ``E-RUN-MISSING`` where the folder or one of its files is not there, ``E-RUN-BROKEN``
            where a file cannot be read or contradicts another.
    """
    path = Path(path)
    record = RunRecord.read(path, "audit")
    if not record.scoring:
        raise broken(path / RUN_FILE, "has no 'scoring'")
    with reading(path / METRICS_FILE, READABLE_JSON):
        metrics = read_json(path / METRICS_FILE)
    arrays = _read_arrays(path / SCORES_FILE)
    instances = StoredInstances(path, arrays["instance_ids"], arrays["scores"].shape[1:])
    run = Audit(record=record, metrics=metrics, instances=instances, path=path, **arrays)
    if sum(map(len, (run.name, *run.label_names, *run.template_names))) > MAX_NAMES:
        raise broken(path / RUN_FILE, f"has names of more than {MAX_NAMES:,} characters")
    _check_metrics(run, path / METRICS_FILE)
    if (found := metrics.get("calibrated")) is not None:
        _check_calibration(found, run, path / METRICS_FILE)
        assert run.calibrated is not None
        _check_metrics(run.calibrated, path / METRICS_FILE)
    return run


def check_out(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder before anything is computed.

    Raises:
        InputError: ``E-OUT-USED`` where it holds something and may not be replaced; ``E-OUT-PATH`` for a file.
    """
    if out.is_file():
        raise InputError("E-OUT-PATH", f"{out} is a file.", "Give a folder.")
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()):
        is_audit = False  # only an audit, and one that can be told from all else, may be replaced
        with contextlib.suppress(InputError):
            is_audit = bool(RunRecord.read(out, "audit"))
        if not (overwrite and is_audit):
            hint = "Give another --out, or add --overwrite." if is_audit else "Give another --out."
            raise InputError("E-OUT-USED", f"{out} is not empty.", hint)


def check_target(out: Path, source: Path | None = None) -> None:
    """Refuse, before anything is computed, what cannot be written or would overwrite the rows that are read.

    Raises:
        InputError: ``E-OUT-KIND`` for another suffix; ``E-OUT-PATH`` for a folder, or for ``source`` itself.
    """
    if out.is_dir():
        raise InputError("E-OUT-PATH", f"{out} is a folder.", "Give --out a file's name.")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError("E-OUT-PATH", f"{out} is the input itself.", "Give --out another name.")
    if out.suffix not in PREDICTION_SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is neither JSONL nor CSV.", "End --out with .jsonl or .csv.")


def _read_arrays(path: Path) -> dict[str, Any]:
    with reading(path, "a readable array file"):
        file = read_arrays(path)
        scores, token_counts, gold, ids, names = (file[key] for key in ARRAYS)
    kinds = "".join(file[key].dtype.kind for key in ARRAYS).replace("u", "i")
    if kinds != "fiiUU" or scores.ndim != 3 or 0 in scores.shape:
        raise broken(path, "does not hold scores of shape instances x templates x labels")
    shapes = [each.shape for each in (gold, ids, names, token_counts)]
    if shapes != [scores.shape[:1], scores.shape[:1], scores.shape[1:2], scores.shape]:
        raise broken(path, "holds arrays of lengths that do not fit together")
    if gold.max() >= scores.shape[2] or not scores.max() < np.inf:
        raise broken(path, "holds a score that is not a number, or a gold label that is none of the labels")
    return {
        "scores": scores.astype(np.float32),
        "token_counts": token_counts.astype(np.int64),
        "gold": gold.astype(np.int64),
        "instance_ids": tuple(ids.tolist()),
        "template_names": tuple(names.tolist()),
    }


def _check_metrics(run: Audit, path: Path) -> None:
    """Check all that the report prints or draws: a foreign file is named here and is no crash there."""
    metrics, num_labels, names = run.metrics, run.scores.shape[2], set(run.template_names)
    if not isinstance(metrics, dict):
        raise broken(path, "does not hold a JSON object")
    if len(run.label_names) != num_labels:
        raise broken(path, f"belongs to a task of {len(run.label_names)} labels, {SCORES_FILE} has {num_labels}")
    with reading(path.with_name(RUN_FILE), "of an F1 that these labels have"):
        resolve_average(run.record.task.f1, num_labels)
    for key in (*METRICS, "resolution"):
        if not (metrics.get(key) is None or _is_number(metrics[key])):
            raise broken(path, f"has no number under {key!r}")
    shares, constant = metrics.get("label_shares_per_template"), metrics.get("constant_templates", [])
    if (
        not isinstance(shares, dict)
        or set(shares) != names
        or not isinstance(constant, list)
        or any(name not in run.template_names for name in constant)
    ):
        raise broken(path, f"names other templates than {SCORES_FILE}")
    if not all(_are_numbers(values, num_labels) for values in [*shares.values(), metrics.get("label_shares")]):
        raise broken(path, "has no share for some label")
    if metrics.get("fragile_share") is not None and metrics.get("resolution") is None:
        raise broken(path, "has fragile answers, but no resolution")
    f1 = metrics.get("f1_per_template")
    if run.has_gold and not (isinstance(f1, dict) and set(f1) == names and _are_numbers([*f1.values()], len(names))):
        raise broken(path, "has no F1 for some template")
    mass, tokens = metrics.get("own_label_mass_per_template"), metrics.get("preferred_tokens_per_template", {})
    if mass is not None and not (
        isinstance(mass, dict)
        and (set(mass) == names and _are_numbers([*mass.values()], len(names)))
        and (isinstance(tokens, dict) and names.issuperset(tokens))
        and all(isinstance(each, list) and all(isinstance(token, str) for token in each) for each in tokens.values())
    ):
        raise broken(path, "has no probability of own labels for some template, or invalid tokens")
    intervals = metrics.get("intervals") or {}
    if not isinstance(intervals, dict) or not all(ends is None or _are_numbers(ends, 2) for ends in intervals.values()):
        raise broken(path, "has an interval without two ends")


def _check_calibration(found: object, run: Audit, path: Path) -> None:
    """Check what calibrated scores are made of, and what the report says of them."""
    num_labels, names = run.scores.shape[2], set(run.template_names)
    offsets = found.get("offsets") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("method"), str) or not isinstance(offsets, dict):
        raise broken(path, "has a calibration without method or offsets")
    if set(offsets) != names or not all(_are_numbers(values, num_labels) for values in offsets.values()):
        raise broken(path, "has no offset for some template and label")
    changes = [found.get(name) for name in ("votes_changed", "vote_share_drift")]
    if not _are_numbers(found.get("label_prior"), num_labels) or not _are_numbers(changes, len(changes)):
        raise broken(path, "has a calibration without its prior, or what it changed")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(values: object, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(map(_is_number, values))
