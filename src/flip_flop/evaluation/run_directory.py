"""Run directories of audits, which are checked when they are loaded."""

import gzip
import io
import json
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from flip_flop.errors import InputError, require_package
from flip_flop.evaluation.result import INSTANCES_FILE, METRICS_FILE, SCORES_FILE, Audit
from flip_flop.files import check_output, read_arrays, read_json, read_limited
from flip_flop.lazy import from_wing
from flip_flop.metrics import BETWEEN_RUNS, METRICS, Design, Scores, resolve_average
from flip_flop.prompts import OpenAnswers, RenderedInstance
from flip_flop.record import READABLE_JSON, RUN_FILE, RunRecord, broken, reading, validated
from flip_flop.scoring.too_long import TOO_LONG_FILE

PREFERRED = "preferred_tokens_per_template"
Number = pydantic.FiniteFloat
ARRAYS = ("scores", "token_counts", "gold", "instance_ids", "template_names")
ANSWERED = {"key": "i", "exact": "b", "token_f1": "f", "length": "i"}  # of open answers, with kinds of numbers
PREDICTION_SUFFIXES = (".jsonl", ".csv", ".xlsx")
MAX_LINE = 2**26  # bytes of an instance, and of the list of skipped rows
MAX_NAMES = 2**18  # characters of the names of a run, its labels and templates, which a report repeats


def load_run(path: str | os.PathLike[str]) -> Audit:
    """Read and check the run directory of an audit, or read results of another tool (docs/how-to/other-tools.md).

    Raises:
        InputError: ``E-RUN-MISSING`` without the folder or one of its files, ``E-RUN-BROKEN`` if a file is invalid or
            contradicts another; or the errors of results.
    """
    path = Path(path)
    if not (path / RUN_FILE).exists():
        run: Audit | None = from_wing("load_results")(path)
        if run is not None:
            return run
    record = RunRecord.read(path, "audit")
    if not record.scoring:
        raise broken(path / RUN_FILE, "has no 'scoring'")
    with reading(path / METRICS_FILE, READABLE_JSON):
        metrics = read_json(path / METRICS_FILE)
    data, names = _read_scores(path / SCORES_FILE)
    num_labels = data.num_labels
    if len(record.task.label_names or record.task.labels) != num_labels:
        raise broken(path / RUN_FILE, f"has other labels than {SCORES_FILE}, which has {num_labels}")
    all_names = (record.name or "", record.model.name, *record.task.label_names, *map(str, record.task.labels), *names)
    if sum(map(len, all_names)) > MAX_NAMES:
        raise broken(path / RUN_FILE, f"has names of more than {MAX_NAMES:,} characters")
    with reading(path / RUN_FILE, "of an F1 that these labels have"):
        resolve_average(record.task.f1, num_labels)
    _check_metrics(metrics, names, num_labels, path / METRICS_FILE)
    if (after := metrics.get("calibrated")) is not None:
        _check_metrics(after, names, num_labels, path / METRICS_FILE, CalibratedMetrics)
    # Reports work without prompts. The current folder may change before they are read.
    instances: Iterable[RenderedInstance] = ()
    if (path / INSTANCES_FILE).exists():
        instances = StoredInstances(path.resolve(), data.ids, (len(names), num_labels))
    data = replace(data, design=Design(**record.task.design(names)))
    listed = path / TOO_LONG_FILE
    too_long = b""
    if listed.is_file():
        with reading(listed, f"a file of at most {MAX_LINE // 2**20} MB"):
            too_long = read_limited(listed, MAX_LINE)
    run = Audit(record, metrics, data, names, path if path.name else path.resolve(), too_long, instances)
    added = METRICS.added.values()
    for view in run.views if added else ():  # computed again, because their code may be new
        intervals = {m.name: m.interval(view.data, seed=record.seed or 0) for m in added if m.has_interval}
        view.metrics.update({metric.name: metric.value(view.data) for metric in added})
        view.metrics["intervals"] = {**(view.metrics.get("intervals") or {}), **intervals}
    return run


@dataclass(frozen=True)
class StoredInstances:
    """The instances of a folder. Each iteration loads them from disk.

    Attributes:
        ids: The ids of the scores, whose order the file has.
        shape: The numbers of templates and labels.
    """

    folder: Path
    ids: tuple[str, ...]
    shape: tuple[int, int]

    def __iter__(self) -> Iterator[RenderedInstance]:
        return (instance for _, instance in self.chosen(range(len(self.ids))))

    def chosen(self, wanted: Container[int]) -> Iterator[tuple[int, RenderedInstance]]:
        """Yield the instances at these places of the scores, with their places, in order.

        Raises:
            InputError: ``E-RUN-BROKEN``; ``E-RUN-MISSING`` if the file has vanished.
        """
        path = self.folder / INSTANCES_FILE
        with reading(path, "readable JSON Lines of the instances in scores.npz"), gzip.open(path) as raw:
            file = io.BufferedReader(raw, 2**20)  # faster at reading lines
            for index, line in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                if index == len(self.ids) or not line.endswith(b"\n"):
                    raise ValueError("more lines than instances, or a line without an end")
                if index in wanted:
                    yield index, self._read(line, self.ids[index])

    def _read(self, line: bytes, name: str) -> RenderedInstance:
        row = json.loads(line)
        prompts = tuple(map(str, row["prompts"]))
        choices = tuple(tuple(map(str, group)) for group in row["choices"])
        written = tuple(map(str, row.get("written", ())))
        if (row["id"], len(prompts), len(choices), {len(group) for group in choices}) != (
            name, self.shape[0], self.shape[0], {self.shape[1]},
        ) or len(written) not in (0, self.shape[0]):  # fmt: skip
            raise ValueError(name)
        answers = OpenAnswers(texts=written) if written else None
        return RenderedInstance(name, prompts, choices, label=None, open=answers)


def check_target(out: Path) -> None:
    """Refuse an output file of predictions before they are computed.

    Raises:
        InputError: ``E-OUT-PATH`` for an unknown suffix, or if it cannot be written; ``E-DATA-FILE`` for a
            spreadsheet without its package.
    """
    check_output(out)
    if out.suffix not in PREDICTION_SUFFIXES:
        raise InputError(
            "E-OUT-PATH", f"{out.name} is not JSONL, CSV or xlsx.", "End --out with .jsonl, .csv or .xlsx."
        )
    if out.suffix == ".xlsx":
        require_package("openpyxl", "xlsx", "E-DATA-FILE", str(out))


def _read_scores(path: Path) -> tuple[Scores, tuple[str, ...]]:
    """Read scores, gold labels, ids and template names."""
    with reading(path, "a readable array file"):
        file = read_arrays(path)
        scores, token_counts, gold, ids, names = (file[key] for key in ARRAYS)
    kinds = "".join(file[key].dtype.kind for key in ARRAYS).replace("u", "i")
    shapes = [array.shape for array in (gold, ids, names, token_counts)]
    fitting = [scores.shape[:1], scores.shape[:1], scores.shape[1:2], scores.shape]
    if kinds != "fiiUU" or scores.ndim != 3 or 0 in scores.shape or shapes != fitting:
        raise broken(path, "does not hold scores of shape instances x templates x labels, and arrays that fit them")
    if gold.max() >= scores.shape[2] or not scores.max() < np.inf:
        raise broken(path, "holds a score that is not a number, or a gold label that is none of the labels")
    answered = {name: file[f"answer_{name}"] for name in ANSWERED if f"answer_{name}" in file}
    kinds_of = {(name, array.dtype.kind, array.shape) for name, array in answered.items()}
    if answered and kinds_of != {(name, kind, scores.shape[:2]) for name, kind in ANSWERED.items()}:
        raise broken(path, "holds open answers that do not fit its scores")
    data = Scores(
        scores.astype(np.float32),
        gold.astype(np.int64),
        token_counts=token_counts.astype(np.int64),
        ids=tuple(ids.tolist()),
        answered=answered,
    )
    return data, tuple(names.tolist())


class StoredMetrics(pydantic.BaseModel):
    """The values of ``metrics.json`` in reports. The numbers of :data:`METRICS` are checked separately."""

    label_shares: list[Number]
    label_shares_per_template: dict[str, list[Number]]
    constant_templates: list[str]
    f1_per_template: dict[str, Number] | None = None
    cohen_kappa_per_template: dict[str, Number | None] | None = None
    own_label_mass_per_template: dict[str, Number] | None = None
    preferred_tokens_per_template: dict[str, list[str]] = {}
    prompt_tokens_per_template: dict[str, Number] | None = None
    unmapped_share_per_template: dict[str, Number] | None = None
    unparsed_per_template: dict[str, list[tuple[str, int]]] = {}
    intervals: dict[str, tuple[Number, Number] | None] | None = None
    flip_pairs: dict[str, int] = {}


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
    stored = validated(kind, metrics, path)
    validated(dict[str, Number | None], {name: metrics.get(name) for name in (*METRICS, *BETWEEN_RUNS)}, path)
    per_template = [value for name, value in stored if name.endswith("_per_template") and name != PREFERRED and value]
    per_label = [stored.label_shares, *stored.label_shares_per_template.values()]
    if isinstance(stored, CalibratedMetrics):
        per_template.append(stored.offsets)
        per_label += [stored.label_prior, *stored.offsets.values()]
    if any(set(value) != set(names) for value in per_template) or not (
        set(names).issuperset(stored.constant_templates) and set(names).issuperset(stored.preferred_tokens_per_template)
    ):
        raise broken(path, f"names other templates than {SCORES_FILE}")
    if any(len(value) != num_labels for value in per_label):
        raise broken(path, f"has other labels than {SCORES_FILE}, which has {num_labels}")
    if metrics.get("mean_f1") is not None and stored.f1_per_template is None:
        raise broken(path, "has no F1 for some template")
