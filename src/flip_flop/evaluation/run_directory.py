"""The result of an audit, in memory and in a run directory. A directory is complete, and is checked when loaded."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from jaxtyping import Float, Int

from flip_flop.errors import InputError
from flip_flop.evaluation.instances import StoredInstances, write_instances
from flip_flop.evaluation.views import AuditViews
from flip_flop.files import check_output, new_folder, read_arrays, read_json, write_arrays, write_json
from flip_flop.manifest import write_manifest
from flip_flop.metrics import METRICS, ScoredRows, calibrated, resolve_average
from flip_flop.prompts import RenderedInstance
from flip_flop.record import READABLE_JSON, RUN_FILE, RunRecord, broken, reading, validated
from flip_flop.scoring.too_long import TOO_LONG_FILE, TooLong, write_too_long

PREFERRED = "preferred_tokens_per_template"
Number = pydantic.FiniteFloat
METRICS_FILE, SCORES_FILE = "metrics.json", "scores.npz"
ARRAYS = ("scores", "token_counts", "gold", "instance_ids", "template_names")
PREDICTION_SUFFIXES = (".jsonl", ".csv")
MAX_NAMES = 2**18  # characters of the names of a run, its labels and templates, which a report repeats


@dataclass(frozen=True, eq=False, repr=False)
class Audit(AuditViews):
    """The result of an audit, in memory or from a run directory.

    Attributes:
        record: ``run.json``.
        metrics: ``metrics.json``. Fractions from 0 to 1, ``None`` for a metric without a value.
        data: The scores and gold labels.
        template_names: In the order of the scores.
        path: The run directory.
    """

    record: RunRecord
    metrics: dict[str, Any]
    data: ScoredRows
    template_names: tuple[str, ...]
    path: Path = Path()

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.record.name or self.path.name

    @property
    def scores(self) -> Float[np.ndarray, "instances templates labels"]:
        """Mean log-probability of each answer's tokens, in nats."""
        return self.data.scores

    @property
    def token_counts(self) -> Int[np.ndarray, "instances templates labels"]:
        """The number of tokens of each answer."""
        assert self.data.token_counts is not None
        return self.data.token_counts

    @property
    def gold(self) -> Int[np.ndarray, " instances"]:
        """Label indices, -1 without a gold label."""
        return self.data.gold

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The ids of the instances."""
        return self.data.ids

    @property
    def instances(self) -> Iterable[RenderedInstance]:
        """The instances as the model read them. In a run directory, each iteration loads them from disk."""
        return self.data.instances

    @property
    def too_long(self) -> tuple[TooLong, ...]:
        """The prompts that were too long for the model. ``load_run`` does not load them."""
        return self.data.too_long

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
        """The training method of the adapter such as ``f2c``, or ``None`` for a base model."""
        method = (self.record.training or {}).get("method")
        return str(method) if method else self.record.adapter.method if self.record.adapter else None

    @property
    def uses_labels(self) -> bool:
        """Whether the loss of the adapter's training read gold labels."""
        return bool(self.record.adapter and self.record.adapter.uses_labels)

    def value(self, metric: str) -> float | None:
        """Return a number of ``metrics.json``, or ``None`` for a metric without a value."""
        value: float | None = self.metrics.get(metric)
        return value

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Return the 95% interval of a metric, or ``None``."""
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
        data = replace(self.data, scores=calibrated(self.scores, offsets))
        return replace(self, record=record, metrics=found, data=data)

    def write(self, out: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
        """Write the run directory, whole or not at all. By default it replaces an audit that is there.

        Raises:
            InputError: ``E-OUT-USED`` if the folder has other files, or may not be replaced.
        """
        out = Path(out)
        check_out(out, overwrite=overwrite)
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
            write_manifest(folder)  # again, of all files
        return out


def load_run(path: str | os.PathLike[str]) -> Audit:
    """Read and check the run directory of an audit.

    Raises:
        InputError: ``E-RUN-MISSING`` without the folder or one of its files, ``E-RUN-BROKEN`` if a file is invalid or
            contradicts another.
    """
    path = Path(path)
    record = RunRecord.read(path, "audit")
    if not record.scoring:
        raise broken(path / RUN_FILE, "has no 'scoring'")
    with reading(path / METRICS_FILE, READABLE_JSON):
        metrics = read_json(path / METRICS_FILE)
    data, names = _read_scores(path / SCORES_FILE)
    num_labels = data.num_labels
    if len(record.task.label_names or record.task.labels) != num_labels:
        raise broken(path / RUN_FILE, f"has other labels than {SCORES_FILE}, which has {num_labels}")
    task_names = (*record.task.label_names, *map(str, record.task.labels), *names)
    if sum(map(len, (record.name or "", record.model.name, *task_names))) > MAX_NAMES:
        raise broken(path / RUN_FILE, f"has names of more than {MAX_NAMES:,} characters")
    with reading(path / RUN_FILE, "of an F1 that these labels have"):
        resolve_average(record.task.f1, num_labels)
    _check_metrics(metrics, names, num_labels, path / METRICS_FILE)
    if (found := metrics.get("calibrated")) is not None:
        _check_metrics(found, names, num_labels, path / METRICS_FILE, CalibratedMetrics)
    instances = StoredInstances(path, data.ids, (len(names), num_labels))
    data = replace(data, average=record.task.f1, instances=instances)
    return Audit(record, metrics, data, names, path)


def check_out(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder before the audit.

    Raises:
        InputError: ``E-OUT-USED`` if it is not empty and may not be replaced, ``E-OUT-PATH`` if it cannot be written.
    """
    check_output(out, is_folder=True)
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()):
        is_audit = False  # only a folder with a valid run.json of an audit may be replaced
        with contextlib.suppress(InputError):
            is_audit = bool(RunRecord.read(out, "audit", check_files=False))
        if not (overwrite and is_audit):
            hint = "Give another --out, or add --overwrite." if is_audit else "Give another --out."
            raise InputError("E-OUT-USED", f"{out} is not empty.", hint)


def check_target(out: Path, source: Path | None = None) -> None:
    """Refuse an output file of predictions before they are computed.

    Raises:
        InputError: ``E-OUT-KIND`` for an unknown suffix, ``E-OUT-PATH`` for the input ``source`` or if it cannot be
            written.
    """
    check_output(out)
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError("E-OUT-PATH", f"{out} is the input itself.", "Give --out another name.")
    if out.suffix not in PREDICTION_SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is not JSONL or CSV.", "End --out with .jsonl or .csv.")


def _read_scores(path: Path) -> tuple[ScoredRows, tuple[str, ...]]:
    """Read scores, gold labels, ids and template names."""
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
    counts = token_counts.astype(np.int64)
    found = ScoredRows(scores.astype(np.float32), gold.astype(np.int64), token_counts=counts, ids=tuple(ids.tolist()))
    return found, tuple(names.tolist())


class StoredMetrics(pydantic.BaseModel):
    """The values of ``metrics.json`` in reports. The numbers of :data:`METRICS` are checked separately."""

    label_shares: list[Number]
    label_shares_per_template: dict[str, list[Number]]
    constant_templates: list[str] = []
    f1_per_template: dict[str, Number] | None = None
    own_label_mass_per_template: dict[str, Number] | None = None
    preferred_tokens_per_template: dict[str, list[str]] = {}
    prompt_tokens_per_template: dict[str, Number] | None = None
    unparsed_per_template: dict[str, list[tuple[str, int]]] = {}
    intervals: dict[str, tuple[Number, Number] | None] | None = None


class CalibratedMetrics(StoredMetrics):
    """The metrics after calibration."""

    method: str
    label_prior: list[Number]
    offsets: dict[str, list[Number]]
    votes_changed: Number
    vote_share_drift: Number


def _check_metrics(
    metrics: Any, names: Sequence[str], num_labels: int, path: Path, kind: type[StoredMetrics] = StoredMetrics
) -> None:
    """Check the types of stored metrics, their templates and their numbers of labels (``E-RUN-BROKEN``)."""
    found = validated(kind, metrics, path)
    validated(dict[str, Number | None], {name: metrics.get(name) for name in METRICS}, path)
    per_template = [value for name, value in found if name.endswith("_per_template") and name != PREFERRED and value]
    if isinstance(found, CalibratedMetrics):
        per_template.append(found.offsets)
    per_label = [found.label_shares, *found.label_shares_per_template.values()]
    if isinstance(found, CalibratedMetrics):
        per_label += [found.label_prior, *found.offsets.values()]
    if any(set(value) != set(names) for value in per_template) or not (
        set(names).issuperset(found.constant_templates) and set(names).issuperset(found.preferred_tokens_per_template)
    ):
        raise broken(path, f"names other templates than {SCORES_FILE}")
    if any(len(value) != num_labels for value in per_label):
        raise broken(path, f"has other labels than {SCORES_FILE}, which has {num_labels}")
    if metrics.get("mean_f1") is not None and found.f1_per_template is None:
        raise broken(path, "has no F1 for some template")
