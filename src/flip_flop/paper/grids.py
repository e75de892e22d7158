"""The tables of a grid: Table 1, Table 2, study 3, and the spread of the base's F1 over templates."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from flip_flop.console import MISSING, count, points
from flip_flop.method import BASE
from flip_flop.metrics import METRICS
from flip_flop.paper import layout, paper
from flip_flop.paper.frame import (
    CELL,
    Setting,
    direction,
    file_name,
    in_setting,
    methods_of,
    pairs_of,
    sample_std,
    task_order,
    task_title,
    tasks_of,
    template_f1,
)
from flip_flop.paper.layout import Selection, number, select, source_head, task_head, win_loss
from flip_flop.paper.paper import PAPER_METRICS, table1, table2
from flip_flop.paper.table import Column, Row, Table, TableCell

ALL = "all"
WIDE_RANGE = 0.15  # the paper counts the datasets with a larger interquartile range
QUANTILES = {"min": 0, "Q1": 0.25, "median": 0.5, "Q3": 0.75, "max": 1}
HELD_OUT_NOTE = "Held out: under the templates that a task holds out from training, where it holds out any."
_CHANGES = ["mean", "std_over_seeds", "change", "change_low", "change_high"]
_PAIRED = ["better", "worse", "paper_better", "paper_worse"]


def methods_table(frame: pd.DataFrame) -> Table:
    """Table 1: methods in rows, tasks in columns, with the paper's number below each cell, then held-out templates."""
    settings: tuple[Setting, ...] = ("own", "held_out")
    shown = select(frame, settings)
    cells = pd.concat([_on_own_task(frame, setting)[1] for setting in settings if len(in_setting(frame, setting))])
    is_vote = (cells["metric"] == "vote_f1") & (cells["method"] == BASE.name)
    has_vote = bool(cells.loc[is_vote, "mean"].notna().any())
    lines = cells[cells["metric"].isin(PAPER_METRICS) | (is_vote & has_vote)]
    signed = lines["mean"].where(lines["metric"] != "vote_f1") * lines["metric"].map(direction)
    compared = [lines[name] for name in ("setting", "task", "metric")]
    lines = lines.assign(mark=signed.groupby(compared).transform(layout.mark_extremes))
    rows: list[Row] = []
    for (_, _, metric), line in lines.groupby(["setting", "method", "metric"], sort=False):
        head, found = shown.method_head(line.iloc[0]), {each.task: each for each in line.itertuples()}
        own = [_cell(found[task]) if task in found else TableCell() for task in tasks_of(shown.asked)]
        rows.append([head, TableCell(METRICS[metric].title), *own, TableCell(_average(line["mean"]))])
        if line["paper"].notna().any():
            theirs = (number(found[task].paper) if task in found else "" for task in tasks_of(shown.asked))
            printed = ["paper", *theirs, _average(line["paper"])]
            rows.append([head, *(TableCell(text, "paper") for text in printed)])
    notes = shown.notes(
        [row[:-1] for row in rows],
        "Percent. Best per task and metric: bold; worst: italics, or red. An average stands where no task is missing.",
        has_vote and "Vote F1: the base's majority over its templates, which takes no training.",
        (cells["setting"] == "held_out").any() and HELD_OUT_NOTE,
        cells["paper"].notna().any() and shown.paper_notes("Below each number"),
    )
    tasks = [Column(task_title(task), "name") for task in tasks_of(shown.asked)]
    columns = [*[Column(is_text=True)] * 2, *tasks, Column("average")]
    seeds = shown.cells["seeds"].map(lambda seeds: " ".join(str(seed) for seed in seeds if not pd.isna(seed)))
    mean, std, *changes = _CHANGES
    names = ["method", "task", "setting", "metric", mean, std, "seeds", *changes, "paper", "paper_change"]
    records = _with_paper(shown.cells.assign(seeds=seeds))[[*names, "split", "instances", "templates"]]
    title = "Methods on their own task (the paper's Table 1)"
    return Table("table1_methods", title, columns, layout.group_rows(rows), notes, records)


def changes_table(frame: pd.DataFrame, setting: Setting = "own") -> Table:
    """Changes by method and task, then the average and the P/N counts, with the paper's over the same tasks."""
    shown, cells = _on_own_task(frame, setting)
    cells = cells[cells["method"] != BASE.name]
    has_paper, num_tasks = cells["paper"].notna().any(), cells["task"].nunique()
    averages = average_over_tasks(cells)
    most = averages.groupby("method")["tasks"].max()

    def size(each: Any) -> TableCell:
        tasks = count(num_tasks, "task")
        return TableCell(f"average, {tasks if most[each.method] == num_tasks else f'{most[each.method]} of {tasks}'}")

    def mean(each: Any) -> str:  # a task without labels has agreement but no F1
        fewer = f" over {count(each.tasks, 'task')}" if 0 < each.tasks < most[each.method] else ""
        return number(each.mean_change, points) + fewer

    def pivot(lines: pd.DataFrame, head: Any, own: Any, printed: Any) -> Any:
        by = [name for name in ("method", "task") if name in lines]
        parts = layout.CHANGE | {"Δ": own} | ({"paper": printed} if has_paper else {})
        return layout.pivot(lines.assign(setting=setting), by, [("", shown.method_head), ("", head)], parts)

    columns, rows = pivot(cells, task_head, layout.CHANGE["Δ"], lambda each: number(each.paper_change, points))
    notes = replace(shown, cells=shown.cells[shown.cells["method"] != BASE.name]).notes(
        rows,
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        layout.INTERVAL_NOTE,
        setting == "held_out" and HELD_OUT_NOTE,
        has_paper and shown.paper_notes("In the columns named paper", "Its averages: over the same tasks."),
    )
    methods = [row[0] for row in rows]
    rows += pivot(averages, size, mean, lambda each: number(each.paper_mean_change, points))[1]
    counts = (
        lambda each: win_loss(each.better, each.worse),
        lambda each: win_loss(each.paper_better, each.paper_worse),
    )
    rows += pivot(averages, lambda each: TableCell("better/worse"), *counts)[1]
    rows.sort(key=lambda row: methods.index(row[0]))
    name, title = "table1_changes", "Changes against the base"
    if setting == "held_out":
        name, title = f"{name}_held_out", f"{title} under held-out templates"
    return Table(name, title, columns, layout.group_rows(rows), notes, averages)


def transfer_table(frame: pd.DataFrame, method: str) -> Table:
    """Table 2: one row for all pairs and one for each source, in the paper's layout and with its numbers."""
    shown, has_paper = _transfer(frame, method)
    averages, sources = average_transfers(shown.cells), dict.fromkeys(source for source, _ in pairs_of(shown.asked))
    lines = layout.fill(averages, ["source"], [(source,) for source in [ALL, *sources]])
    lines = lines.merge(table2() if has_paper else table2()[:0], how="left", on=["source", "metric"])
    of_sources = lines["improvement"].where(lines["source"] != ALL)
    lines["mark"] = of_sources.groupby(lines["metric"]).transform(layout.mark_extremes).replace("worst", "")
    every = TableCell(f"All ({count(int(averages['pairs'].max()) if len(averages) else 0, 'pair')})")
    parts: layout.Parts = {
        "Δ": lambda each: number(each.improvement, points, each.std_over_seeds),
        "P/N": lambda each: win_loss(each.better, each.worse),
    }
    if has_paper:  # three decimals, as in the paper
        parts |= {
            "paper Δ": lambda each: MISSING if pd.isna(each.paper_improvement) else points(each.paper_improvement, 3),
            "paper P/N": lambda each: win_loss(each.paper_better, each.paper_worse),
        }
    head = ("trained on", lambda each: every if each.source == ALL else source_head(each))
    columns, rows = layout.pivot(lines, ["source"], [head], parts)
    notes = shown.notes(
        rows,
        "Mean change on the targets in points, as an improvement: for sigma_F1, how much lower it is. "
        "P/N: targets better and worse than the base; an unchanged one is neither. Best source: bold.",
        has_paper
        and shown.paper_notes(
            "In the columns named paper", "Its rows: means over 10 targets each, and over all of its 80 pairs."
        ),
    )
    title = f"Transfer to other tasks under {shown.titles[method]}" + " (the paper's Table 2)" * (method == "f2c")
    records = lines[lines["improvement"].notna()].drop(columns="mark")
    return Table(file_name("table2_transfer", method), title, columns, [rows[0], [], *rows[1:]], notes, records)


def pairs_table(frame: pd.DataFrame, method: str) -> Table:
    """Transfer by pair: changes and their intervals."""
    shown, has_paper = _transfer(frame, method)
    cells = layout.fill(shown.cells, ["source", "task"], pairs_of(shown.asked)).assign(method=method)
    heads = [("trained on", source_head), ("evaluated on", task_head)]
    columns, rows = layout.pivot(cells, ["source", "task"], heads, layout.CHANGE)
    notes = shown.notes(
        rows,
        "Points against the base; lower sigma_F1 is better.",
        layout.INTERVAL_NOTE,
        has_paper and "The paper gives its pairs only as heat maps.",
    )
    records = cells[cells["metric"].isin(PAPER_METRICS)].rename(columns={"task": "target"})
    records = records[["method", "source", "target", "metric", *_CHANGES]]
    title = f"Transfer by pair under {shown.titles[method]}"
    return Table(file_name("table2_pairs", method), title, columns, layout.group_rows(rows), notes, records)


def unseen_table(frame: pd.DataFrame) -> Table:
    """Study 3 by task and K: the metrics on held-out templates, and their changes."""
    shown = select(frame, "unseen")
    cells = shown.cells.sort_values("task", key=lambda tasks: tasks.map(task_order), kind="stable")
    seen = np.where(cells["held_out"] | (cells["method"] == BASE.name), "", " (seen)")

    def trained(each: Any) -> TableCell:
        words = f"{shown.titles[each.method]}, {each.k} templates{each.seen}"
        return TableCell("base" if each.method == BASE.name else words)

    parts = {"%": lambda cell: number(cell.mean, std=cell.std_over_seeds), **layout.CHANGE}
    columns, rows = layout.pivot(cells.assign(seen=seen), CELL, [("task", task_head), ("trained on", trained)], parts)
    notes = replace(shown, cells=cells).notes(
        rows,
        "All rows of a task are audited on the same templates, the ones held out from training on the first K.",
        seen.any() and "Rows marked (seen): trained on these templates too.",
        "Changes are in points against the base; lower sigma_F1 is better. " + layout.INTERVAL_NOTE,
        "The paper gives this study as a plot, without numbers.",
    )
    names = ["task", "method", "templates_trained_on", "held_out", "templates", "metric", *_CHANGES]
    records = cells[cells["metric"].isin(PAPER_METRICS)].rename(columns={"k": "templates_trained_on"})[names]
    title = "Unseen templates after training on the first K (the paper's study 3)"
    return Table("study3_unseen_templates", title, columns, layout.group_rows(rows), notes, records)


def spread_table(frame: pd.DataFrame) -> Table:
    """F1 over templates of the base: quartiles by task, and their mean range beside the paper's."""
    own, bases = select(frame, "own"), select(frame, "own", BASE.name)
    shown, tasks, stated = replace(bases, asked=own.asked), tasks_of(own.asked), paper.text()
    f1, has_paper = template_f1(bases.asked), any(task in paper.dataset_names() for task in tasks)
    found = quartiles(f1).reindex(tasks)
    ranges = found["Q3-Q1"].dropna()
    below = [
        ("mean", number(fmean(ranges)), f"{stated['base mean interquartile range']:.2f}"),
        (
            "above 15 points",
            f"{(ranges > WIDE_RANGE).sum()} of {len(ranges)}",
            f"{stated['base tasks with interquartile range above 15']:.0f} of 11",
        ),
    ]

    def row(head: TableCell, own: Sequence[str], theirs: str = "") -> Row:
        return [head, *map(TableCell, own), *[TableCell(theirs, "paper")] * has_paper]

    rows = [row(TableCell(task_title(each[0]), "name"), [*map(number, each[1:])]) for each in found.itertuples()]
    rows += [row(TableCell(head), [*[""] * len(QUANTILES), own], theirs) for head, own, theirs in below]
    whose = shown.paper_notes("Beside the mean range", "Its mean range: over its eleven datasets.")
    notes = shown.notes(rows, "F1 over templates, percent; quartiles by linear interpolation.", has_paper and whose)
    columns = [Column("task", is_text=True), *map(Column, [*found.columns, *["paper"] * has_paper])]
    title, records = "F1 of the base over templates (the paper's appendix)", f1[["task", "template", "f1"]]
    rows = [*rows[: len(tasks)], [], *rows[len(tasks) :]]
    return Table("base_spread", title, columns, rows, notes, records, is_wide=False)


def quartiles(f1: pd.DataFrame) -> pd.DataFrame:
    """Compute minimum, quartiles (linear interpolation), maximum and interquartile range of F1 by task."""
    groups = f1.groupby("task", sort=False)["f1"]
    found = {task: np.quantile(values, list(QUANTILES.values())).round(12) for task, values in groups}
    frame = pd.DataFrame.from_dict(found, orient="index", columns=list(QUANTILES))
    return frame.assign(**{"Q3-Q1": frame["Q3"] - frame["Q1"]})


def average_changes(cells: pd.DataFrame, by: str, column: str = "change") -> pd.DataFrame:
    """Count and average the known changes by group and metric. A change of 0 counts as unchanged."""
    known = cells[cells[column].notna() & cells["metric"].isin(PAPER_METRICS)]
    gain = known[column] * known["metric"].map(direction).astype(int)
    groups = known.assign(better=gain > 0, worse=gain < 0).groupby([by, "metric"], sort=False)
    sums = {"better": ("better", "sum"), "worse": ("worse", "sum")}
    return groups.agg(number=(column, "size"), mean_change=(column, fmean), **sums).reset_index()


def average_over_tasks(cells: pd.DataFrame) -> pd.DataFrame:
    """Apply :func:`average_changes` by method. The paper's averages are added if they cover the same tasks."""
    known = layout.fill(average_changes(cells, "method"), ["method"], [(method,) for method in methods_of(cells)])
    known = known[known["metric"].isin(PAPER_METRICS)].rename(columns={"number": "tasks"})
    known["tasks"] = known["tasks"].fillna(0).astype(int)
    printed = average_changes(cells[cells["change"].notna()], "method", "paper_change")
    printed = printed.rename(columns={"number": "tasks"} | {name: f"paper_{name}" for name in printed.columns[3:]})
    return known.merge(printed, how="left", on=["method", "metric", "tasks"]).astype(dict.fromkeys(_PAIRED, "Int64"))


def average_transfers(cells: pd.DataFrame) -> pd.DataFrame:
    """Compute the mean improvement over targets, its spread over seeds and the P/N counts by source and metric.

    The source ``all`` has all pairs. If all pairs have the same seeds, the spread applies to the mean over pairs.
    """

    def spread(own: pd.DataFrame) -> float:
        by_seed = zip(*own["values"], strict=True) if own["seeds"].nunique() == 1 else ()
        return sample_std([*map(fmean, by_seed)])

    known = cells[cells["change"].notna() & cells["metric"].isin(PAPER_METRICS)]
    every = pd.concat([known.assign(source=ALL), known])
    found = average_changes(every, "source")
    found["pairs"] = found.groupby("source")["number"].transform("max")
    found["improvement"] = found["mean_change"] * found["metric"].map(direction).astype(int) + 0.0  # never minus zero
    found["std_over_seeds"] = [spread(own) for _, own in every.groupby(["source", "metric"], sort=False)]
    columns = ["source", "metric", "pairs", "improvement", "std_over_seeds", "better", "worse"]
    return found[columns].astype(dict.fromkeys(["pairs", "better", "worse"], "Int64"))


def _on_own_task(frame: pd.DataFrame, setting: Setting) -> tuple[Selection, pd.DataFrame]:
    """Select the audits on the task trained on. Missing cells have a row, and all have the paper's numbers."""
    shown = select(frame, setting)
    wanted = itertools.product(methods_of(shown.asked), tasks_of(shown.asked))
    return shown, _with_paper(layout.fill(shown.cells, ["method", "task"], wanted).assign(setting=setting))


def _cell(each: Any) -> TableCell:
    return TableCell(number(each.mean, std=each.std_over_seeds), each.mark)


def _with_paper(cells: pd.DataFrame) -> pd.DataFrame:
    keys = ["method", "task", "metric"]
    return cells.merge(table1()[[*keys, "paper", "paper_change"]], how="left", on=keys)


def _average(values: pd.Series) -> str:
    """Return the mean over tasks, or a dash if one is missing."""
    return number(math.nan if values.isna().any() else fmean(values))


def _transfer(frame: pd.DataFrame, method: str) -> tuple[Selection, bool]:
    """Select the pairs of a method. The flag says whether the paper's Table 2 contains its sources."""
    shown = select(frame, "transfer", method)
    return shown, method == "f2c" and bool(table2()["source"].isin(shown.asked["source"]).any())
