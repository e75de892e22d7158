"""The results of a study as one long frame, with a row for each audit and metric. Tables and plots read only this.

Columns:

- ``method``, ``method_title``, ``method_colour``, ``task``, ``seed``.
- ``source``: the task trained on. Empty for the base.
- ``k``: the number of templates trained on. 0 for the base.
- ``training``: the directory of the training run. None for the base.
- ``template_names``: the audited templates.
- ``held_out``: whether the training run used none of them.
- ``setting``: ``own``: audited on the task trained on. ``held_out``: on templates that the task file holds out.
  ``transfer``: on a different task. ``unseen`` (study 3): on templates that some training run has not seen, or that
  ``template_subsets`` holds out.
- ``position``: the audit's index in the grid.
- ``is_done``: whether the audit is complete. An incomplete audit has rows without values.
- ``model``, ``is_demo``, ``split``, ``instances``, ``seconds``, ``collapsed``: from the record of the audit.
- ``metric``, ``value``: a fraction, or NaN. :data:`TEMPLATE_F1` has one row for each ``template``.
- ``base``: the base's value on the same instances and templates, or NaN.
- ``change_low``, ``change_high``: the 95% interval of the mean over seeds minus ``base``, paired over instances.
"""

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal

import pandas as pd

from flip_flop.errors import InputError
from flip_flop.evaluation.result import Audit
from flip_flop.evaluation.run_directory import load_run
from flip_flop.files import Json
from flip_flop.method import BASE, METHODS, Method, find_method
from flip_flop.metrics import METRICS
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.plan import Cell, Plan
from flip_flop.paper.published import PAPER_METRICS, dataset_names
from flip_flop.report.compare import mean_difference, what_differs

Setting = Literal["own", "held_out", "transfer", "unseen"]
KEPT = (*PAPER_METRICS, "vote_f1")
TEMPLATE_F1 = "template_f1"
# Columns that the seeds of one method share.
CELL = ["setting", "method", "source", "task", "k", "held_out", "template_names"]
_METHOD = ["method", "method_title", "method_colour"]
_OTHERS_COLOUR = "#cc79a7"
# Default colours of variants: those of Okabe and Ito that the paper's methods do not have, then Tol's.
VARIANT_COLOURS = (
    *("#0072b2", "#d55e00", "#332288", "#999933", "#882255", "#f0e442", "#44aa99", "#661100", "#aa4499", "#000000"),
)
_INTERVAL = ["change_low", "change_high"]


def make_frame(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """Return the frame of a study's audits, sorted by method, task trained on, task audited, templates, K and seed.

    Methods: the base, then ours, then others by name. With variants, the order of the study's ``methods``.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for an audit that cannot be read.
    """
    # Numbers are compared only within the same task and templates.
    unseen = {(cell.task_name, cell.templates) for cell in plan.audits if cell.training and cell.held_out}

    def setting_of(cell: Cell) -> Setting:
        if plan.study.audit_held_out and cell.held_out and cell.task not in plan.study.template_subsets:
            return "held_out"
        setting: Setting = "own" if cell.source in (None, cell.task_name) else "transfer"
        has_subsets = cell.task in plan.study.template_subsets
        if has_subsets or (cell.task_name, cell.templates) in unseen:
            return "unseen"
        return setting

    methods = _methods_audited(plan)
    trainings = {cell.key: cell for cell in plan.trainings}
    cells: dict[Any, list[Json]] = {}
    runs = {}
    bases = {}
    for position, cell in enumerate(plan.audits):
        method = methods[cell.method]
        audit: Json = {
            "setting": setting_of(cell),
            "method": cell.method,
            "method_title": method.title,
            "method_colour": method.colour,
            "source": cell.source or "",
            "task": cell.task_name,
            "k": 0,
            "held_out": False,
            "template_names": cell.templates,
            "seed": cell.seed,
            "training": None,
            "position": position,
            "is_done": folder.is_done(cell),
        }
        training = trainings.get(cell.training or "")
        if training:
            audit |= {"k": len(training.templates), "held_out": cell.held_out, "training": folder.run(training)}
        cells.setdefault(tuple(audit[name] for name in CELL), []).append(audit)
        if audit["is_done"]:
            runs[position] = load_run(folder.run(cell))
            if training is None:
                bases[cell.task_name, cell.templates] = runs[position]
    rows = []
    for members in sorted(cells.values(), key=lambda members: _order(members[0], [*methods])):
        first = members[0]
        done = [runs[audit["position"]] for audit in members if audit["is_done"]]
        base = bases.get((first["task"], first["template_names"])) if first["training"] else None
        compared = {metric: _compare(metric, base, done) for metric in KEPT}
        for audit in sorted(members, key=lambda audit: audit["seed"] or 0):
            rows += [audit | row for row in _values(runs.get(audit["position"]), compared)]
    return pd.DataFrame(rows).astype(
        {"seed": "Int64", **dict.fromkeys(["value", "base", "seconds", *_INTERVAL], float)}
    )


def _values(audit: Audit | None, compared: Mapping[str, Any]) -> list[Json]:
    """Return the columns that differ between the rows of one audit."""
    if audit is None:
        record = {"model": "", "is_demo": False, "split": "", "instances": 0, "collapsed": False, "template": ""}
        return [record | {"metric": m} | dict.fromkeys(["value", "base", "seconds", *_INTERVAL]) for m in KEPT]
    record = {
        "model": audit.record.model.name,
        "is_demo": audit.record.model.is_demo,
        "split": audit.record.task.split,
        "instances": len(audit.scores),
        "seconds": audit.record.seconds,
        "collapsed": audit.is_collapsed,
    }
    f1 = audit.metrics["f1_per_template"] if audit.has_gold else {}
    return [
        *(record | {"metric": m, "template": "", "value": audit.metrics[m]} | compared[m] for m in KEPT),
        *(record | {"metric": TEMPLATE_F1, "template": t, "value": f1[t]} for t in audit.template_names if f1),
    ]


def _compare(metric: str, base: Audit | None, runs: Sequence[Audit]) -> dict[str, float | None]:
    """Return the base's value and the interval of the change, if all runs have the same instances."""
    if base is None or not runs or any(what_differs(base, run) for run in runs):
        return dict.fromkeys(["base", *_INTERVAL])
    difference = mean_difference(metric, base, runs)
    low, high = (difference and difference.interval) or (None, None)
    return {"base": base.metrics[metric], "change_low": low, "change_high": high}


def _methods_audited(plan: Plan) -> dict[str, Method]:
    """Return the methods by name, in the order of tables. Methods that cannot be imported share a colour."""
    known: dict[str, Method] = {BASE.name: BASE, **METHODS}
    variants = plan.study.variants
    taken = {variant.colour.lower() for variant in variants.values()}
    taken |= {_own_method(name).colour.lower() for name in plan.study.methods if name not in variants}
    free = itertools.cycle([colour for colour in VARIANT_COLOURS if colour not in taken] or VARIANT_COLOURS)
    for name, variant in variants.items():
        known[name] = Method(name, variant.title or name, variant.colour or next(free))
    order = plan.study.methods if plan.study.variants else known
    names = sorted({cell.method for cell in plan.audits}, key=lambda name: _rank(name, order))
    return {name: known.get(name) or _own_method(name) for name in names}


def _own_method(name: str) -> Method:
    """Return a method given as ``module:name``, or only its name if it cannot be imported any more."""
    try:
        return find_method(name)
    except InputError:
        return Method(name, name, _OTHERS_COLOUR)


def _order(first: Mapping[str, Any], methods: Sequence[str]) -> Any:
    source = task_order(first["source"]) if first["source"] else (-1, "")
    templates = (first["setting"] == "held_out", len(first["template_names"]))
    return methods.index(first["method"]), source, task_order(first["task"]), *templates, first["k"]


def average_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Average over seeds: a row for each metric of each cell with a complete audit.

    Columns: :data:`CELL` and metric. The tuples seeds and values, mean, and std_over_seeds, which is NaN for one seed.
    base, the change of the mean, change_low, change_high, and the improvement, which is positive if better. split,
    instances, the number of templates, and collapsed.
    """
    done = frame[frame["is_done"] & (frame["metric"] != TEMPLATE_F1)]
    cells = done.groupby([*CELL, "metric"], sort=False).agg(
        mean=("value", fmean),
        std_over_seeds=("value", lambda values: sample_std(values.tolist())),
        seeds=("seed", tuple),
        values=("value", tuple),
        collapsed=("collapsed", "any"),
        **{name: (name, "first") for name in ("base", *_INTERVAL, "split", "instances")},
    )
    cells = cells.reset_index()
    cells["templates"] = [len(names) for names in cells["template_names"]]
    cells["change"] = (cells["mean"] - cells["base"]).round(12)  # without rounding errors, which would have a sign
    cells["improvement"] = cells["change"] * cells["metric"].map(direction).astype(int)
    return cells


def template_f1(frame: pd.DataFrame) -> pd.DataFrame:
    """Return F1 on the own task under each template, as the mean over seeds.

    Columns: method, method_title, method_colour, task, template, f1.
    """
    rows = frame[(frame["setting"] == "own") & (frame["metric"] == TEMPLATE_F1)]
    return rows.groupby([*_METHOD, "task", "template"], sort=False).agg(f1=("value", fmean)).reset_index()


def sample_std(values: Sequence[float]) -> float:
    """Return the sample standard deviation, or NaN for a single or a missing value."""
    if len(values) > 1 and not any(map(math.isnan, values)):
        return stdev(values)
    return math.nan


def direction(metric: str) -> int:
    """Return 1 if higher is better, else -1."""
    return 1 if METRICS[metric].higher_is_better else -1


def in_setting(frame: pd.DataFrame, setting: Setting | Sequence[Setting], method: str | None = None) -> pd.DataFrame:
    """Select the rows of settings, and of a method if given."""
    rows = frame[frame["setting"].isin([setting] if isinstance(setting, str) else setting)]
    if method is None:
        return rows
    return rows[rows["method"] == method]


def methods_of(frame: pd.DataFrame) -> list[str]:
    """Return the methods, in the order of tables."""
    return list(frame["method"].unique())


def by_method(frame: pd.DataFrame, column: str) -> dict[str, str]:
    """Return the values of a column that depends on the method, such as ``method_title``, by method."""
    return dict(zip(frame["method"], frame[column], strict=True))


def tasks_of(frame: pd.DataFrame) -> list[str]:
    """Return the audited tasks, in the order of tables."""
    return sorted(frame["task"].unique(), key=task_order)


def pairs_of(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs of training task and audited task, in the order of tables."""
    return sorted({*zip(frame["source"], frame["task"], strict=True)}, key=lambda pair: [*map(task_order, pair)])


def task_title(task: str) -> str:
    """Return the name of a task in tables. The paper's datasets have their published names."""
    return dataset_names().get(task, task)


def task_order(task: str) -> tuple[int, tuple[str | int, ...]]:
    """Sort key: the paper's tasks in its order, then others by name, with numbers by size.

    Example:
        >>> sorted(["rows_1000", "rows_250", "rte"], key=task_order)
        ['rte', 'rows_250', 'rows_1000']
    """
    return _rank(task, dataset_names())


def _rank(name: str, known: Collection[str]) -> tuple[int, tuple[str | int, ...]]:
    by_size = tuple(int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name))
    return (list(known).index(name) if name in known else len(known), by_size)


def file_name(name: str, method: str) -> str:
    """Return a file name on transfer. Files of methods other than F2C end with the method."""
    if method == "f2c":
        return name
    return f"{name}_{re.sub('[^A-Za-z0-9._-]+', '_', method)}"
