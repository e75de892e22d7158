"""The lines below every table: what model, how many seeds, instances and templates, and what is missing."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from flip_flop.method import BASE
from flip_flop.studies.frame import KEPT, Setting, in_setting, method_title, task_title
from flip_flop.studies.paper import dataset_names
from flip_flop.studies.tables.layout import count_missing
from flip_flop.studies.tables.table import TableRow
from flip_flop.tasks.catalog import catalog_entry
from flip_flop.text import count

DEMO = (
    "The model is the embedded one, a toy: its numbers show that the program works. "
    "They say nothing about the paper's claim."
)
INTERVAL = "95% CI: paired bootstrap over instances; it says nothing about another training seed."
BESIDE = "In the columns named paper"
MAX_NAMED = 12


def join(*parts: Any) -> list[str]:
    """The lines of a caption: each part one, or a list of them, or nothing where its condition does not hold."""
    return [line for part in parts if part for line in ([part] if isinstance(part, str) else part)]


def about(frame: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """Model, seeds, sizes, collapse; and that a toy is a toy.

    Args:
        frame: The whole study's.
        cells: Those of the table.
    """
    done, cells = frame[frame["is_done"]].sort_values("position", kind="stable"), _once(cells)
    seeds = sorted({seed for each in cells["seeds"] for seed in each if not pd.isna(seed)})
    seed_words = f"; {count(len(seeds), 'training seed')} ({', '.join(map(str, seeds))})" if seeds else ""
    lines = [f"Model: {', '.join(done['model'].unique())}{seed_words}."]
    sizes = {each.task: f"{each.instances:,} x {each.templates}" for each in cells.itertuples()}
    if sizes:
        words = ", ".join(f"{task_title(task)} {size}" for task, size in sizes.items())
        lines.append(f"Instances x templates, split {' and '.join(sorted(cells['split'].unique()))}: {words}.")
    trained = cells[cells["method"] != BASE.name]
    fewer = [f"{_words(each)} ({len(each.seeds)})" for each in trained.itertuples() if len(each.seeds) < len(seeds)]
    if fewer:
        lines.append(f"Over fewer seeds than the others: {_listed(fewer)}.")
    collapsed = [_words(each) for each in cells[cells["collapsed"].astype(bool)].itertuples()]
    if collapsed:
        lines.append(f"Collapsed, one label nearly everywhere: {_listed(collapsed)}.")
    return [*lines, DEMO] if done["is_demo"].any() else lines


def paper(where: str, cells: pd.DataFrame) -> list[str]:
    """Whose the second number is, and which tasks were audited on other instances than the paper's.

    Args:
        where: Where it stands, such as ``"Below each number"``.
        cells: What it is compared with.
    """
    lines = [f"{where}, in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its test splits."]
    other = {}
    for each in _once(cells).itertuples():
        printed = catalog_entry(each.task).paper["test"] if each.task in dataset_names() else None
        if printed is not None and (each.instances, each.split) != (printed, "test"):
            found = f"{each.instances:,} of {each.split}"
            other[each.task] = f"{task_title(each.task)} {found} (the paper: {printed:,} of test)"
    return [*lines, f"Not the paper's instances: {', '.join(other.values())}."] if other else lines


def deviation(cells: pd.DataFrame) -> list[str]:
    """What ± means, where some method has several seeds."""
    several = any(len(each) > 1 for each in cells["seeds"])
    return ["±: sample standard deviation over training seeds."] if several else []


def missing(frame: pd.DataFrame, setting: Setting, rows: Iterable[TableRow], method: str | None = None) -> list[str]:
    """How many cells are a dash, which tasks have no labels, and which audits are not done yet."""
    lines, asked = [], in_setting(frame, setting, method)
    if cells := count_missing(rows):
        lines.append(f"{count(cells, 'cell')} without a number (a dash).")
    unlabelled = asked.loc[asked["is_done"] & (asked["metric"] == "mean_f1") & asked["value"].isna(), "task"].unique()
    if len(unlabelled):
        lines.append(f"Without labels, hence without F1: {', '.join(map(task_title, unlabelled))}.")
    bases = in_setting(frame, "own", BASE.name).iloc[: None if setting == "transfer" else 0]
    left = pd.concat([_once(part[~part["is_done"]]).sort_values("position") for part in (asked, bases)])
    if len(left):
        names = [_words(each) + ("" if pd.isna(each.seed) else f", seed {each.seed}") for each in left.itertuples()]
        lines.append(f"{count(len(left), 'audit')} of this table not done yet: {_listed(names)}.")
    return lines


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the rows of each audit or cell, one for each metric, the first."""
    return rows[rows["metric"] == KEPT[0]]


def _words(each: Any) -> str:
    """An audit or a cell in words."""
    trained = f" trained on {task_title(each.source)}" if each.setting == "transfer" and each.source else ""
    kept = f" ({each.k} templates)" if each.setting == "unseen" and each.k else ""
    return f"{method_title(each.method)}{trained} on {task_title(each.task)}{kept}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    rest = len(names) - MAX_NAMED
    return "; ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
