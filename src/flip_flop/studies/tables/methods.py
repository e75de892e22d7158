"""Table 1: every method on every task, in the paper's layout; and what each has changed against the base."""

import itertools
import math
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import pandas as pd

from flip_flop.method import BASE
from flip_flop.metrics import METRICS
from flip_flop.studies.frame import average_seeds, direction, in_setting, methods_of, task_title, tasks_of
from flip_flop.studies.paper import PAPER_METRICS, in_table1, table1
from flip_flop.studies.tables import layout, notes
from flip_flop.studies.tables.table import Column, Table, TableCell, TableRow
from flip_flop.text import count, points

_RECORDS = ["method", "task", "metric", "mean", "std_over_seeds", "seeds", "change", "change_low", "change_high"]
_RECORDS += ["paper", "paper_change", "split", "instances", "templates"]


def methods_table(frame: pd.DataFrame) -> Table:
    """Methods in rows, tasks in columns, the paper's number below each cell."""
    found, cells, methods, tasks = _own(frame)
    signed = cells["mean"] * cells["metric"].map(direction)
    cells["mark"] = signed.groupby([cells["task"], cells["metric"]]).transform(layout.mark_extremes)
    has_vote = bool(found.loc[(found["method"] == BASE.name) & (found["metric"] == "vote_f1"), "mean"].notna().any())
    rows: list[list[TableCell]] = []
    for (method, metric), line in cells.groupby(["method", "metric"], sort=False):
        if metric in PAPER_METRICS or (has_vote and method == BASE.name):
            texts = [
                layout.number(mean, std=std) for mean, std in zip(line["mean"], line["std_over_seeds"], strict=True)
            ]
            marks = line["mark"] if metric in PAPER_METRICS else [""] * len(tasks)
            row = [layout.method_cell(method), TableCell(METRICS[metric].title), *map(TableCell, texts, marks)]
            rows.append([*row, TableCell(_average(line["mean"]))])
        if metric in PAPER_METRICS and in_table1([method], tasks):
            printed = ["paper", *map(layout.number, line["paper"]), _average(line["paper"])]
            rows.append([layout.method_cell(method), *(TableCell(text, is_paper=True) for text in printed)])
    caption = notes.join(
        notes.about(frame, found),
        notes.deviation(found),
        "Percent. Best per task and metric: bold; worst: italics, or red. An average stands where no task is missing.",
        has_vote and "Vote F1: the base's majority over its templates, which takes no training.",
        in_table1(methods, tasks) and notes.paper("Below each number", found),
        notes.missing(frame, "own", [TableRow(tuple(row[:-1])) for row in rows]),
    )
    columns = [Column("", is_text=True)] * 2 + [Column(task_title(task), is_name=True) for task in tasks]
    seeds = found["seeds"].map(lambda seeds: " ".join(str(seed) for seed in seeds if not pd.isna(seed)))
    return Table(
        "table1_methods",
        "Methods on their own task (the paper's Table 1)",
        [*columns, Column("average")],
        layout.group_rows(rows),
        caption,
        _with_paper(found.assign(seeds=seeds))[_RECORDS],
    )


def changes_table(frame: pd.DataFrame) -> Table:
    """Tasks in rows, by method; below them the average and the P/N counts, beside the paper's over the same tasks."""
    found, cells, methods, tasks = _own(frame)
    methods = [method for method in methods if method != BASE.name]
    has_paper = in_table1(methods, tasks)
    parts, averages = {**layout.CHANGE, **(layout.PAPER_CHANGE if has_paper else {})}, average_changes(cells)
    rows: list[list[TableCell]] = []
    for method in methods:
        for task, line in cells[cells["method"] == method].groupby("task", sort=False):
            rows.append([layout.method_cell(method), layout.task_cell(task), *layout.metric_cells(line, parts)])
        own = averages[averages["method"] == method]
        rows += [[layout.method_cell(method), *line] for line in _average_lines(own, len(tasks), parts)]
    of_tasks = [TableRow(tuple(row)) for row in rows if row[1].is_name]
    caption = notes.join(
        notes.about(frame, found[found["method"] != BASE.name]),
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        notes.INTERVAL,
        has_paper and [*notes.paper(notes.BESIDE, found), "Its averages: over the same tasks."],
        notes.missing(frame, "own", of_tasks),
    )
    columns = layout.metric_columns(["", ""], parts)
    return Table("table1_changes", "Changes against the base", columns, layout.group_rows(rows), caption, averages)


def average_changes(cells: pd.DataFrame) -> pd.DataFrame:
    """By method and metric: over how many tasks, the mean change, the P/N counts; and the paper's of the same tasks."""
    rows = []
    trained = cells[cells["metric"].isin(PAPER_METRICS) & (cells["method"] != BASE.name)]
    for (method, metric), own in trained.groupby(["method", "metric"], sort=False):
        compared = own[own["change"].notna()]
        printed = compared if compared["paper_change"].notna().all() else compared[:0]
        paper = average_change(printed["paper_change"], metric).items()
        row = {"method": method, "metric": metric, "tasks": len(compared)}
        row |= average_change(compared["change"], metric)
        rows.append(row | {f"paper_{name}": value for name, value in paper})
    counts = ["better", "worse", "paper_better", "paper_worse"]
    return pd.DataFrame(rows).astype(dict.fromkeys(counts, "Int64"))


def average_change(changes: pd.Series, metric: str) -> dict[str, Any]:
    """The mean of some changes of a metric, and how many are for the better and for the worse: no change is neither."""
    if changes.empty:
        return {"mean_change": math.nan, "better": None, "worse": None}
    gains = changes * direction(metric)
    return {"mean_change": fmean(changes), "better": int((gains > 0).sum()), "worse": int((gains < 0).sum())}


def _average_lines(averages: pd.DataFrame, num_tasks: int, shown: layout.Parts) -> list[list[TableCell]]:
    most = int(averages["tasks"].max())
    size = count(num_tasks, "task") if most == num_tasks else f"{most} of {count(num_tasks, 'task')}"

    def mean(each: Any) -> TableCell:
        # A task without labels has agreement and no F1.
        fewer = f" over {count(each.tasks, 'task')}" if 0 < each.tasks < most else ""
        return TableCell(layout.number(each.mean_change, points, each.metric) + fewer)

    blank: layout.Parts = {layout.INTERVAL: lambda each: TableCell()}
    means: layout.Parts = {
        "Δ": mean,
        "paper": lambda each: TableCell(layout.number(each.paper_mean_change, points, each.metric), is_paper=True),
    }
    counts: layout.Parts = {
        "Δ": lambda each: TableCell(layout.win_loss(each.better, each.worse)),
        "paper": lambda each: TableCell(layout.win_loss(each.paper_better, each.paper_worse), is_paper=True),
    }
    return [
        [TableCell(title), *layout.metric_cells(averages, {heading: {**blank, **parts}[heading] for heading in shown})]
        for title, parts in ((f"average, {size}", means), ("better/worse", counts))
    ]


def _own(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[str], list[str]]:
    """What was audited on the task trained on; the same with a row for whatever is missing; its methods and tasks."""
    own = in_setting(frame, "own")
    found, methods, tasks = average_seeds(own), methods_of(own), tasks_of(own)
    return found, _with_paper(layout.fill(found, ["method", "task"], itertools.product(methods, tasks))), methods, tasks


def _with_paper(cells: pd.DataFrame) -> pd.DataFrame:
    on = ["method", "task", "metric"]
    return cells.merge(table1()[[*on, "paper", "paper_change"]], how="left", on=on)


def _average(values: Iterable[float]) -> str:
    """The mean over tasks, where none is missing."""
    return layout.number(math.nan if any(map(math.isnan, values)) else fmean(values))
