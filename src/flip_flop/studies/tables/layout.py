"""What tables are laid out with: numbers as printed, the columns under each metric, rows in groups, marks, notes."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from flip_flop.method import BASE
from flip_flop.metrics import METRICS
from flip_flop.studies.frame import KEPT, Setting, in_setting, method_title, task_title
from flip_flop.studies.paper import PAPER_METRICS, dataset_names
from flip_flop.studies.tables.table import Column, Row, TableCell
from flip_flop.tasks.catalog import catalog_entry
from flip_flop.text import DEMO_NOTE, MISSING, count, percent, point_interval, points

DECIMALS = METRICS["mean_f1"].decimals
MAX_NAMED = 12
INTERVAL_NOTE = "95% CI: paired bootstrap over instances; it says nothing about another training seed."
# The columns under each of the paper's metrics, by heading; the text of each is made of a row of averaged seeds.
Parts = dict[str, Callable[[Any], str]]


def number(value: Any, write: Callable[[float, int], str] = percent, std: float = math.nan) -> str:
    """A number as printed, with its spread over seeds; a dash where there is none.

    Example:
        >>> number(0.5843, std=0.0021), number(float("nan"))
        ('58.43 ± 0.21', '–')
    """
    if pd.isna(value):
        return MISSING
    return write(value, DECIMALS) + ("" if pd.isna(std) else f" ± {percent(std, DECIMALS)}")


def win_loss(better: Any, worse: Any) -> str:
    """P/N, as the paper prints it."""
    return MISSING if pd.isna(better) else f"{better}/{worse}"


def _interval(cell: Any) -> str:
    return "" if math.isnan(cell.change_low) else point_interval((cell.change_low, cell.change_high), DECIMALS)


CHANGE: Parts = {"Δ": lambda cell: "" if cell.method == BASE.name else number(cell.change, points), "95% CI": _interval}


def method_cell(method: str) -> TableCell:
    """A method's name: our titles are words of ours."""
    return TableCell(method_title(method), is_name=method_title(method) == method)


def task_cell(task: str) -> TableCell:
    """A task's name."""
    return TableCell(task_title(task), is_name=True)


def metric_columns(heads: Sequence[str], parts: Parts) -> list[Column]:
    """Columns of text, and these parts under each metric."""
    return [Column(head, is_text=True) for head in heads] + [
        Column(heading, group=METRICS[metric].title) for metric, heading in _parts(parts)
    ]


def metric_cells(cells: pd.DataFrame, parts: Parts) -> list[TableCell]:
    """The cells below them, from one row of each metric; the ``mark`` of a row is its change's."""
    found = {cell.metric: cell for cell in cells.itertuples()}
    return [
        TableCell(
            parts[heading](found[metric]),
            mark=getattr(found[metric], "mark", "") if heading == "Δ" else "",
            is_paper=heading.startswith("paper"),
        )
        for metric, heading in _parts(parts)
    ]


def _parts(parts: Parts) -> list[tuple[str, str]]:
    every = [(metric, heading) for metric in PAPER_METRICS for heading in parts]
    return [(metric, heading) for metric, heading in every if heading != "95% CI" or METRICS[metric].has_interval]


def fill(cells: pd.DataFrame, names: Sequence[str], wanted: Iterable[tuple[str, ...]]) -> pd.DataFrame:
    """A row for each wanted combination of these columns and each metric, in order; NaN where nothing was audited."""
    on = [*names, "metric"]
    grid = pd.DataFrame([(*each, metric) for each in wanted for metric in KEPT], columns=on)
    return grid.merge(cells.drop_duplicates(on, keep="last"), how="left", on=on)


def mark_extremes(values: pd.Series) -> pd.Series:
    """The best and the worst, the highest and the lowest, as printed in percent: what looks equal is marked alike.

    Example:
        >>> mark_extremes(pd.Series([0.5, None, 0.7, 0.70001])).tolist()
        ['worst', '', 'best', 'best']
    """
    printed = values.map(lambda value: round(100 * float(value), DECIMALS))
    marks = {printed.max(): "best", printed.min(): "worst"} if printed.nunique() > 1 else {}
    return printed.map(lambda value: marks.get(value, "")).astype(object)


def group_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows whose first cell stands once for all that have it, below a rule."""
    grouped: list[Row] = []
    last: TableCell | None = None
    for first, *rest in rows:
        grouped += [[]] if grouped and first != last else []
        grouped.append([first if first != last else TableCell(), *rest])
        last = first
    return grouped


def join(*parts: Any) -> list[str]:
    """Notes: each part one, or a list of them, or nothing where its condition does not hold."""
    return [line for part in parts if part for line in ([part] if isinstance(part, str) else part)]


def about(frame: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """Notes on a table's cells: model, seeds, sizes, collapse; and that a toy is a toy."""
    done, cells = frame[frame["is_done"]].sort_values("position", kind="stable"), _once(cells)
    seeds = sorted({seed for each in cells["seeds"] for seed in each if not pd.isna(seed)})
    seed_words = f"; {count(len(seeds), 'training seed')} ({', '.join(map(str, seeds))})" if seeds else ""
    sizes = {each.task: f"{each.instances:,} x {each.templates}" for each in cells.itertuples()}
    size_words = ", ".join(f"{task_title(task)} {size}" for task, size in sizes.items())
    trained = cells[cells["method"] != BASE.name]
    fewer = [f"{_words(each)} ({len(each.seeds)})" for each in trained.itertuples() if len(each.seeds) < len(seeds)]
    collapsed = [_words(each) for each in cells[cells["collapsed"].astype(bool)].itertuples()]
    return join(
        f"Model: {', '.join(done['model'].unique())}{seed_words}.",
        sizes and f"Instances x templates, split {' and '.join(sorted(cells['split'].unique()))}: {size_words}.",
        fewer and f"Over fewer seeds than the others: {_listed(fewer)}.",
        collapsed and f"Collapsed, one label nearly everywhere: {_listed(collapsed)}.",
        done["is_demo"].any() and DEMO_NOTE,
    )


def paper_notes(where: str, cells: pd.DataFrame) -> list[str]:
    """Whose the second number is, and which of these cells' tasks were audited on other instances than the paper's."""
    other = {}
    for each in _once(cells).itertuples():
        printed = catalog_entry(each.task).paper["test"] if each.task in dataset_names() else None
        if printed is not None and (each.instances, each.split) != (printed, "test"):
            found = f"{each.instances:,} of {each.split}"
            other[each.task] = f"{task_title(each.task)} {found} (the paper: {printed:,} of test)"
    return join(
        f"{where}, in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its test splits.",
        other and f"Not the paper's instances: {', '.join(other.values())}.",
    )


def deviation(cells: pd.DataFrame) -> str:
    """What ± means, where some method has several seeds."""
    several = any(len(each) > 1 for each in cells["seeds"])
    return "±: sample standard deviation over training seeds." if several else ""


def missing(frame: pd.DataFrame, setting: Setting, rows: Iterable[Row], method: str | None = None) -> list[str]:
    """How many cells of the study's own are a dash, which tasks have no labels, and which audits are not done yet."""
    asked = in_setting(frame, setting, method)
    dashes = sum(cell.text == MISSING and not cell.is_paper for row in rows for cell in row)
    unlabelled = asked.loc[asked["is_done"] & (asked["metric"] == "mean_f1") & asked["value"].isna(), "task"].unique()
    bases = in_setting(frame, "own", BASE.name).iloc[: None if setting == "transfer" else 0]
    left = pd.concat([_once(part[~part["is_done"]]).sort_values("position") for part in (asked, bases)])
    names = [_words(each) + ("" if pd.isna(each.seed) else f", seed {each.seed}") for each in left.itertuples()]
    return join(
        dashes and f"{count(dashes, 'cell')} without a number (a dash).",
        len(unlabelled) and f"Without labels, hence without F1: {', '.join(map(task_title, unlabelled))}.",
        names and f"{count(len(names), 'audit')} of this table not done yet: {_listed(names)}.",
    )


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the rows of each audit or cell, one for each metric, the first."""
    return rows[rows["metric"] == KEPT[0]]


def _words(each: Any) -> str:
    """An audit or a cell in words."""
    trained = f" trained on {task_title(each.source)}" if each.setting == "transfer" and each.source else ""
    kept = f" ({each.k} templates)" if each.setting == "unseen" and each.k else ""
    return f"{method_title(each.method)}{trained} on {task_title(each.task)}{kept}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more
