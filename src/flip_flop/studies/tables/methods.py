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
from flip_flop.studies.tables import layout
from flip_flop.studies.tables.layout import number, win_loss
from flip_flop.studies.tables.table import Column, Row, Table, TableCell
from flip_flop.text import count, points

_RECORDS = ["method", "task", "metric", "mean", "std_over_seeds", "seeds", "change", "change_low", "change_high"]
_RECORDS += ["paper", "paper_change", "split", "instances", "templates"]


def methods_table(frame: pd.DataFrame) -> Table:
    """Methods in rows, tasks in columns, the paper's number below each cell."""
    found, cells, methods, tasks = _own(frame)
    signed = cells["mean"] * cells["metric"].map(direction)
    cells["mark"] = signed.groupby([cells["task"], cells["metric"]]).transform(layout.mark_extremes)
    has_vote = bool(found.loc[(found["method"] == BASE.name) & (found["metric"] == "vote_f1"), "mean"].notna().any())
    rows: list[Row] = []
    for (method, metric), line in cells.groupby(["method", "metric"], sort=False):
        is_paper, head = metric in PAPER_METRICS, layout.method_cell(method)
        if is_paper or (has_vote and method == BASE.name):
            own = [
                TableCell(number(each.mean, std=each.std_over_seeds), each.mark if is_paper else "")
                for each in line.itertuples()
            ]
            rows.append([head, TableCell(METRICS[metric].title), *own, TableCell(_average(line["mean"]))])
        if is_paper and in_table1([method], tasks):
            printed = ["paper", *map(number, line["paper"]), _average(line["paper"])]
            rows.append([head, *(TableCell(text, is_paper=True) for text in printed)])
    notes = layout.join(
        layout.about(frame, found),
        layout.deviation(found),
        "Percent. Best per task and metric: bold; worst: italics, or red. An average stands where no task is missing.",
        has_vote and "Vote F1: the base's majority over its templates, which takes no training.",
        in_table1(methods, tasks) and layout.paper_notes("Below each number", found),
        layout.missing(frame, "own", [row[:-1] for row in rows]),
    )
    columns = [Column("", is_text=True)] * 2 + [Column(task_title(task), is_name=True) for task in tasks]
    columns += [Column("average")]
    seeds = found["seeds"].map(lambda seeds: " ".join(str(seed) for seed in seeds if not pd.isna(seed)))
    records, title = _with_paper(found.assign(seeds=seeds))[_RECORDS], "Methods on their own task (the paper's Table 1)"
    return Table("table1_methods", title, columns, layout.group_rows(rows), notes, records)


def changes_table(frame: pd.DataFrame) -> Table:
    """Tasks in rows, by method; below them the average and the P/N counts, beside the paper's over the same tasks."""
    found, cells, methods, tasks = _own(frame)
    methods = [method for method in methods if method != BASE.name]
    has_paper = in_table1(methods, tasks)
    printed: layout.Parts = {"paper": lambda each: number(each.paper_change, points)}
    parts, averages = layout.CHANGE | (printed if has_paper else {}), average_changes(cells)
    of_tasks = {
        method: [
            [layout.task_cell(task), *layout.metric_cells(line, parts)]
            for task, line in own.groupby("task", sort=False)
        ]
        for method, own in cells.groupby("method", sort=False)
    }
    rows = [
        [layout.method_cell(method), *row]
        for method in methods
        for row in [*of_tasks[method], *_average_rows(averages[averages["method"] == method], len(tasks), parts)]
    ]
    notes = layout.join(
        layout.about(frame, found[found["method"] != BASE.name]),
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        layout.INTERVAL_NOTE,
        has_paper and [*layout.paper_notes("In the columns named paper", found), "Its averages: over the same tasks."],
        layout.missing(frame, "own", [row for method in methods for row in of_tasks[method]]),
    )
    columns = layout.metric_columns(["", ""], parts)
    return Table("table1_changes", "Changes against the base", columns, layout.group_rows(rows), notes, averages)


def average_changes(cells: pd.DataFrame) -> pd.DataFrame:
    """By method and metric: over how many tasks, the mean change, the P/N counts; and the paper's of the same tasks."""
    rows = []
    trained = cells[cells["metric"].isin(PAPER_METRICS) & (cells["method"] != BASE.name)]
    for (method, metric), own in trained.groupby(["method", "metric"], sort=False):
        compared = own[own["change"].notna()]
        printed = compared if compared["paper_change"].notna().all() else compared[:0]
        paper = average_change(printed["paper_change"], metric)
        row = {"method": method, "metric": metric, "tasks": len(compared)} | average_change(compared["change"], metric)
        rows.append(row | {f"paper_{name}": value for name, value in paper.items()})
    return pd.DataFrame(rows).astype(dict.fromkeys(["better", "worse", "paper_better", "paper_worse"], "Int64"))


def average_change(changes: pd.Series, metric: str) -> dict[str, Any]:
    """The mean of some changes of a metric, and how many are for the better and for the worse: no change is neither."""
    if changes.empty:
        return {"mean_change": math.nan, "better": None, "worse": None}
    gains = changes * direction(metric)
    return {"mean_change": fmean(changes), "better": int((gains > 0).sum()), "worse": int((gains < 0).sum())}


def _average_rows(averages: pd.DataFrame, num_tasks: int, shown: Iterable[str]) -> list[Row]:
    most = int(averages["tasks"].max())
    size = count(num_tasks, "task") if most == num_tasks else f"{most} of {count(num_tasks, 'task')}"

    def mean(each: Any) -> str:
        # A task without labels has agreement and no F1.
        fewer = f" over {count(each.tasks, 'task')}" if 0 < each.tasks < most else ""
        return number(each.mean_change, points) + fewer

    means: layout.Parts = {"Δ": mean, "paper": lambda each: number(each.paper_mean_change, points)}
    counts: layout.Parts = {
        "Δ": lambda each: win_loss(each.better, each.worse),
        "paper": lambda each: win_loss(each.paper_better, each.paper_worse),
    }
    return [
        [TableCell(title), *layout.metric_cells(averages, {part: parts.get(part, lambda each: "") for part in shown})]
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


def _average(values: pd.Series) -> str:
    """The mean over tasks, where none is missing."""
    return number(math.nan if values.isna().any() else fmean(values))
