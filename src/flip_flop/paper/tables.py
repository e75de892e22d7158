"""The tables of a study: Table 1, Table 2, study 3 and the base's F1 over templates; and a page with its figures."""

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flip_flop.console import DEMO_NOTE, MISSING, count, markdown_cell, percent, point_interval, points
from flip_flop.errors import install_command, log
from flip_flop.files import utf8, write_bytes, write_text
from flip_flop.method import BASE, METHODS
from flip_flop.metrics import METRICS
from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.frame import (
    CELL,
    KEPT,
    Setting,
    average_seeds,
    by_method,
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
from flip_flop.paper.published import PAPER_METRICS, dataset_names, stated_numbers, table1, table2
from flip_flop.paper.study import Study
from flip_flop.report.table import Column, Row, Table, TableCell
from flip_flop.texts import render

if TYPE_CHECKING:
    from flip_flop.paper.figures import Plot


RENDERERS = {"md": Table.markdown, "csv": Table.csv, "tex": Table.latex}
FORMATS = ("pdf", "svg", "png")
KINDS = {"tables": RENDERERS, "figures": FORMATS}
# The names of tables and figures, and of those that each method has.
STEMS = (
    *("table1_methods", "table1_changes", "table1_changes_held_out", "study3_unseen_templates", "base_spread"),
    *("f1_over_templates", "f1_over_templates_base", "unseen_templates"),
)
BY_METHOD = ("table2_transfer", "table2_pairs", *(f"transfer_{metric}" for metric in PAPER_METRICS))
ALL = "all"
# Next to tasks, and no name of a task. To pandas 2, all texts that begin with \0 are equal.
AVERAGE = "\naverage"
COUNTS = "\ncounts"
WIDE_RANGE = 0.15  # the paper counts the datasets with a larger interquartile range
QUANTILES = {"min": 0.0, "Q1": 0.25, "median": 0.5, "Q3": 0.75, "max": 1.0}
STATED_RANGES = ("mean interquartile range", "tasks with interquartile range above 15")
HELD_OUT_NOTE = "Held out: under the templates that a task holds out from training, where it holds out any."
INTERVAL_NOTE = "95% CI: paired bootstrap over instances; it says nothing about another training seed."
PAPER_NOTE = "in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its full test splits."
_CHANGES = ["mean", "std_over_seeds", "change", "change_low", "change_high"]
_PAIRED = ["better", "worse", "paper_better", "paper_worse"]
DECIMALS = 2
# A function that writes a line of a frame, which is a metric of averaged seeds, into a cell.
Write = Callable[[Any], TableCell]
Parts = dict[str, Write]  # the columns under each of the paper's metrics, by heading


def number(value: Any, write: Callable[[float, int], str] = percent, std: Any = None) -> str:
    """Format a number with its spread over seeds. A missing number is a dash.

    Example:
        >>> number(0.5843, std=0.0021), number(float("nan"))
        ('58.43 ± 0.21', '–')
    """
    if pd.isna(value):
        return MISSING
    return write(value, DECIMALS) + ("" if pd.isna(std) else f" ± {percent(std, DECIMALS)}")


def win_loss(better: Any, worse: Any) -> str:
    """Format P/N as in the paper."""
    if pd.isna(better):
        return MISSING
    return f"{better}/{worse}"


def change_cell(line: Any) -> TableCell:
    """Return the cell of a change in points."""
    return TableCell("" if line.method == BASE.name else number(line.change, points))


def interval_cell(line: Any) -> TableCell:
    """Return the cell of the interval of a change."""
    has_interval = not pd.isna(line.change_low)
    return TableCell(point_interval((line.change_low, line.change_high), DECIMALS) if has_interval else "")


CHANGE: Parts = {"Δ": change_cell, "95% CI": interval_cell}


def held_out(line: Any) -> str:
    """Return the suffix of a name for audits of held-out templates."""
    if line.setting == "held_out":
        return " (held out)"
    return ""


def task_head(line: Any, column: str = "task") -> TableCell:
    """Return the cell of the audited task, or of the task trained on if ``column`` is ``"source"``."""
    return TableCell(task_title(getattr(line, column)), "name")


def method_head(frame: pd.DataFrame) -> Write:
    """Return the function for the first cell of a method's rows. Titles of other methods are untrusted text."""
    titles = by_method(frame, "method_title")

    def head(line: Any) -> TableCell:
        is_ours = line.method in (BASE.name, *METHODS)
        return TableCell(titles[line.method] + held_out(line), "" if is_ours else "name")

    return head


def make_rows(
    lines: pd.DataFrame, by: list[str], over: str, heads: Sequence[Write], cells: Sequence[tuple[str, Write]]
) -> list[Row]:
    """Make a row for each group of ``lines``: the ``heads`` of its first line, then the ``cells``.

    A cell is a value of the column ``over`` and a function of the line with this value. Without a line, it is blank.
    Equal first cells are printed once, below a rule.
    """
    rows: list[Row] = []
    last: TableCell | None = None
    for _, group in lines.groupby(by, sort=False):
        found = {getattr(line, over): line for line in group.itertuples()}
        first, *others = (head(next(iter(found.values()))) for head in heads)
        if rows and first != last and others:
            rows.append([])
        rows.append(
            [
                TableCell() if first == last else first,
                *others,
                *(write(found[value]) if value in found else TableCell() for value, write in cells),
            ]
        )
        last = first
    return rows


def metric_columns(parts: Parts) -> tuple[list[Column], list[tuple[str, Write]]]:
    """Return the columns and cells of ``parts`` under each of the paper's metrics."""
    columns = []
    cells = []
    for metric in PAPER_METRICS:
        for heading, write in parts.items():
            if heading != "95% CI" or METRICS[metric].has_interval:
                columns.append(Column(heading, group=METRICS[metric].title))
                cells.append((metric, write))
    return columns, cells


def fill(cells: pd.DataFrame, names: Sequence[str], wanted: Iterable[tuple[str, ...]]) -> pd.DataFrame:
    """Return a row for each wanted combination of these columns and each metric, with NaN for missing audits."""
    on = [*names, "metric"]
    grid = pd.DataFrame([(*values, metric) for values in wanted for metric in KEPT], columns=on)
    return grid.merge(cells.drop_duplicates(on, keep="last"), how="left", on=on)


def mark_extremes(values: pd.Series) -> pd.Series:
    """Mark the highest as best and the lowest as worst. Numbers that are printed alike have the same mark.

    Example:
        >>> mark_extremes(pd.Series([0.5, None, 0.7, 0.70001])).tolist()
        ['worst', '', 'best', 'best']
    """
    printed = values.map(lambda value: round(100 * float(value), DECIMALS))
    marks = {printed.max(): "best", printed.min(): "worst"} if printed.nunique() > 1 else {}
    return printed.map(lambda value: marks.get(value, "")).astype(object)


def audit_title(line: Any) -> str:
    """Return the method, training task or number of templates, and task of an audit, as notes name it."""
    of_training = f", {line.k} templates," if line.setting == "unseen" and line.k else ""
    source = f" from {task_title(line.source)}" if line.setting == "transfer" else ""
    return f"{line.method_title}{of_training}{source} on {task_title(line.task)}{held_out(line)}"


def make_notes(frame: pd.DataFrame, asked: pd.DataFrame, rows: Iterable[Row], *more: str | bool) -> list[str]:
    """Return the notes below a table of the ``asked`` audits. False values are left out."""
    audits = asked[asked["metric"] == KEPT[0]]
    complete = audits[audits["is_done"]]
    done = frame[frame["is_done"]].sort_values("position", kind="stable")
    seeds = sorted(complete["seed"].dropna().unique())
    trained = complete[complete["method"] != BASE.name]
    per_cell = trained.groupby([*CELL, "method_title"], dropna=False, sort=False)["seed"].nunique()
    fewer = per_cell[per_cell < len(seeds)].reset_index()
    collapsed = complete[complete["collapsed"].astype(bool)]
    texts = [cell.text for row in rows for cell in row if cell.style != "paper"]
    known: dict[str, Any] = {
        "models": done["model"].unique(),
        "seeds": seeds,
        "fewer": list(fewer.itertuples()),
        "splits": sorted(complete["split"].unique()),
        "instances": list(complete["instances"]),
    }
    known |= {
        "collapsed": dict.fromkeys(map(audit_title, collapsed.itertuples())),
        "other": _other_instances(complete),
        "num_open": len(audits) - len(complete),
    }
    known |= {
        "demo_note": DEMO_NOTE if done["is_demo"].any() else "",
        "more": more,
        "has_spread": any(" ± " in text for text in texts),
        "has_missing": MISSING in texts,
    }
    notes = render("flip_flop.paper", "notes.txt.jinja", count=count, audit_title=audit_title, **known)
    return [note for note in notes.split("\n") if note]


def _other_instances(complete: pd.DataFrame) -> list[str]:
    """Return the paper's tasks that are not audited on the paper's test split, with their instances."""
    tasks = []
    for line in complete.drop_duplicates(["task", "instances", "split"]).itertuples():
        if line.task not in dataset_names():
            continue
        if line.split != "test" or line.instances != catalog_entry(line.task).paper["test"]:
            tasks.append(f"{task_title(line.task)} {line.instances:,} of {line.split}")
    return tasks


def methods_table(frame: pd.DataFrame) -> Table:
    """Table 1: methods in rows, tasks in columns, with the paper's number below each cell, then held-out templates."""
    settings: tuple[Setting, ...] = ("own", "held_out")
    asked = in_setting(frame, settings)
    tasks = tasks_of(asked)
    cells = pd.concat([_on_own_task(frame, setting) for setting in settings if len(in_setting(frame, setting))])
    is_vote = (cells["metric"] == "vote_f1") & (cells["method"] == BASE.name)
    has_vote = bool(cells.loc[is_vote, "mean"].notna().any())
    lines = cells[cells["metric"].isin(PAPER_METRICS) | (is_vote & has_vote)]
    of_templates = lines["mean"].where(lines["metric"] != "vote_f1")
    improvement = of_templates * lines["metric"].map(direction)
    marks = improvement.groupby([lines["setting"], lines["task"], lines["metric"]]).transform(mark_extremes)
    lines = lines.assign(
        order=2 * lines.groupby(["setting", "method", "metric"], sort=False).ngroup(),
        label=lines["metric"].map(lambda metric: METRICS[metric].title),
        mark=marks,
    )
    printed = lines.assign(mean=lines["paper"], std_over_seeds=np.nan, order=lines["order"] + 1, label="paper")
    printed = printed[printed.groupby("order")["paper"].transform("count") > 0].assign(mark="paper")
    lines = pd.concat([lines, printed])
    # An average over ten tasks is not one over eleven.
    by_row = lines.groupby("order")
    averages = by_row["mean"].transform(lambda means: means.mean(skipna=False))
    averages = lines.assign(mean=averages, task=AVERAGE, std_over_seeds=np.nan)
    averages["mark"] = averages["mark"].where(averages["label"] == "paper", "")
    lines = pd.concat([lines, averages[by_row["task"].transform("size") == len(tasks)]]).sort_values(
        "order", kind="stable"
    )
    heads: list[Write] = [
        method_head(frame),
        lambda line: TableCell(line.label, "paper" if line.label == "paper" else ""),
    ]

    def write(line: Any) -> TableCell:
        return TableCell(number(line.mean, std=line.std_over_seeds), line.mark)

    rows = make_rows(lines, ["order"], "task", heads, [(task, write) for task in [*tasks, AVERAGE]])
    notes = make_notes(
        frame,
        asked,
        rows,
        "Percent. Best per task and metric: bold; worst: italics, or red. An average stands where no task is missing.",
        has_vote and "Vote F1: the base's majority over its templates, which takes no training.",
        bool((cells["setting"] == "held_out").any()) and HELD_OUT_NOTE,
        bool(cells["paper"].notna().any()) and f"Below each number, {PAPER_NOTE}",
    )
    columns = [*[Column(is_text=True)] * 2, *[Column(task_title(task), "name") for task in tasks], Column("average")]
    records = _with_paper(average_seeds(asked))
    records["seeds"] = records["seeds"].map(lambda seeds: " ".join(str(seed) for seed in seeds if not pd.isna(seed)))
    mean, std, *changes = _CHANGES
    names = ["method", "task", "setting", "metric", mean, std, "seeds", *changes, "paper", "paper_change"]
    records = records[[*names, "split", "instances", "templates"]]
    return Table("table1_methods", "Methods on their own task (the paper's Table 1)", columns, rows, notes, records)


def changes_table(frame: pd.DataFrame, setting: Setting = "own") -> Table:
    """Changes by method and task, then the average and the P/N counts, with the paper's over the same tasks."""
    asked = in_setting(frame, setting)
    cells = _on_own_task(frame, setting)
    cells = cells[cells["method"] != BASE.name]
    has_paper = bool(cells["paper"].notna().any())
    num_tasks = cells["task"].nunique()
    averages = average_over_tasks(cells)
    of_change = {"mean_change": "change", "paper_mean_change": "paper_change"}
    lines = pd.concat(
        [cells, *(averages.rename(columns=of_change).assign(task=task, setting=setting) for task in (AVERAGE, COUNTS))]
    )
    lines = lines.sort_values("method", key=lambda names: names.map(methods_of(cells).index), kind="stable")

    def head(line: Any) -> TableCell:
        if line.task == AVERAGE:
            return TableCell(f"average, {count(num_tasks, 'task')}")
        if line.task == COUNTS:
            return TableCell("better/worse")
        return task_head(line)

    def change(line: Any) -> TableCell:
        if line.task == COUNTS:
            return TableCell(win_loss(line.better, line.worse))
        # A task without labels has agreement but no F1.
        is_part = line.task == AVERAGE and 0 < line.tasks < num_tasks
        return TableCell(number(line.change, points) + (f" over {count(int(line.tasks), 'task')}" if is_part else ""))

    def paper(line: Any) -> TableCell:
        is_count = line.task == COUNTS
        if is_count:
            text = win_loss(line.paper_better, line.paper_worse)
        else:
            text = number(line.paper_change, points)
        return TableCell(text, "paper")

    columns, parts = metric_columns(CHANGE | {"Δ": change} | ({"paper": paper} if has_paper else {}))
    rows = make_rows(lines, ["method", "task"], "metric", [method_head(frame), head], parts)
    notes = make_notes(
        frame,
        asked,
        rows,
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        INTERVAL_NOTE,
        setting == "held_out" and HELD_OUT_NOTE,
        has_paper and f"In the columns named paper, {PAPER_NOTE} Its averages: over the same tasks.",
    )
    name = "table1_changes"
    title = "Changes against the base"
    if setting == "held_out":
        name = f"{name}_held_out"
        title = f"{title} under held-out templates"
    return Table(name, title, [*[Column(is_text=True)] * 2, *columns], rows, notes, averages)


def transfer_table(frame: pd.DataFrame, method: str) -> Table:
    """Table 2: one row for all pairs and one for each source, in the paper's layout and with its numbers."""
    asked, has_paper = _transfer(frame, method)
    averages = average_transfers(average_seeds(asked))
    sources = dict.fromkeys(source for source, _ in pairs_of(asked))
    lines = fill(averages, ["source"], [(source,) for source in [ALL, *sources]])
    lines = lines.merge(table2() if has_paper else table2()[:0], how="left", on=["source", "metric"])
    of_sources = lines["improvement"].where(lines["source"] != ALL)
    lines["mark"] = of_sources.groupby(lines["metric"]).transform(mark_extremes).replace("worst", "")
    every = TableCell(f"All ({count(int(averages['pairs'].max()) if len(averages) else 0, 'pair')})")
    parts: Parts = {
        "Δ": lambda line: TableCell(number(line.improvement, points, line.std_over_seeds), line.mark),
        "P/N": lambda line: TableCell(win_loss(line.better, line.worse)),
    }
    if has_paper:  # three decimals, as in the paper
        parts |= {
            "paper Δ": lambda line: TableCell(
                MISSING if pd.isna(line.paper_improvement) else points(line.paper_improvement, 3), "paper"
            ),
            "paper P/N": lambda line: TableCell(win_loss(line.paper_better, line.paper_worse), "paper"),
        }
    columns, cells = metric_columns(parts)
    heads: list[Write] = [lambda line: every if line.source == ALL else task_head(line, "source")]
    rows = make_rows(lines, ["source"], "metric", heads, cells)
    notes = make_notes(
        frame,
        asked,
        rows,
        "Mean change on the targets in points, as an improvement: for sigma_F1, how much lower it is. "
        "P/N: targets better and worse than the base; an unchanged one is neither. Best source: bold.",
        has_paper and f"In the columns named paper, {PAPER_NOTE}",
        has_paper and "Its rows: means over 10 targets each, and over all of its 80 pairs.",
    )
    title = f"Transfer to other tasks under {by_method(frame, 'method_title')[method]}" + " (the paper's Table 2)" * (
        method == "f2c"
    )
    records = lines[lines["improvement"].notna()].drop(columns="mark")
    columns = [Column("trained on", is_text=True), *columns]
    return Table(file_name("table2_transfer", method), title, columns, [rows[0], [], *rows[1:]], notes, records)


def pairs_table(frame: pd.DataFrame, method: str) -> Table:
    """Transfer by pair: changes and their intervals."""
    asked, has_paper = _transfer(frame, method)
    lines = fill(average_seeds(asked), ["source", "task"], pairs_of(asked)).assign(method=method)
    columns, cells = metric_columns(CHANGE)
    heads: list[Write] = [lambda line: task_head(line, "source"), task_head]
    rows = make_rows(lines, ["source", "task"], "metric", heads, cells)
    notes = make_notes(
        frame,
        asked,
        rows,
        "Points against the base; lower sigma_F1 is better.",
        INTERVAL_NOTE,
        has_paper and "The paper gives its pairs only as heat maps.",
    )
    records = lines[lines["metric"].isin(PAPER_METRICS)].rename(columns={"task": "target"})
    records = records[["method", "source", "target", "metric", *_CHANGES]]
    columns = [Column("trained on", is_text=True), Column("evaluated on", is_text=True), *columns]
    title = f"Transfer by pair under {by_method(frame, 'method_title')[method]}"
    return Table(file_name("table2_pairs", method), title, columns, rows, notes, records)


def unseen_table(frame: pd.DataFrame) -> Table:
    """Study 3 by task and K: the metrics on held-out templates, and their changes."""
    asked = in_setting(frame, "unseen")
    titles = by_method(frame, "method_title")
    lines = average_seeds(asked).sort_values("task", key=lambda tasks: tasks.map(task_order), kind="stable")
    lines["seen"] = np.where(lines["held_out"] | (lines["method"] == BASE.name), "", " (seen)")

    def trained(line: Any) -> TableCell:
        words = f"{titles[line.method]}, {line.k} templates{line.seen}"
        return TableCell("base" if line.method == BASE.name else words)

    columns, cells = metric_columns({"%": lambda line: TableCell(number(line.mean, std=line.std_over_seeds)), **CHANGE})
    rows = make_rows(lines, CELL, "metric", [task_head, trained], cells)
    notes = make_notes(
        frame,
        asked,
        rows,
        "All rows of a task are audited on the same templates, those of held_out in the study file.",
        bool(lines["seen"].any()) and "Rows marked (seen): trained on these templates too.",
        "Changes are in points against the base; lower sigma_F1 is better. " + INTERVAL_NOTE,
        "The paper gives this study as a plot, without numbers.",
    )
    names = ["task", "method", "templates_trained_on", "held_out", "templates", "metric", *_CHANGES]
    records = lines[lines["metric"].isin(PAPER_METRICS)].rename(columns={"k": "templates_trained_on"})[names]
    columns = [Column("task", is_text=True), Column("trained on", is_text=True), *columns]
    title = "Unseen templates after training on the first K (the paper's study 3)"
    return Table("study3_unseen_templates", title, columns, rows, notes, records)


def spread_table(frame: pd.DataFrame) -> Table:
    """F1 over templates of the base: quartiles by task, and their mean range."""
    asked = in_setting(frame, "own", BASE.name)
    f1 = template_f1(asked)
    tasks = tasks_of(in_setting(frame, "own"))
    spread = f1.groupby("task")["f1"].quantile(list(QUANTILES.values())).unstack().round(12).reindex(tasks)
    spread["range"] = spread[0.75] - spread[0.25]
    ranges = spread["range"].dropna()
    heads = [TableCell(task_title(task), "name") for task in tasks]
    rows: list[Row] = [
        [head, *map(TableCell, map(number, numbers))] for head, numbers in zip(heads, spread.to_numpy(), strict=True)
    ]
    blank = [TableCell()] * len(QUANTILES)
    rows += [
        [],
        [TableCell("mean"), *blank, TableCell(number(ranges.mean()))],
        [TableCell("above 15 points"), *blank, TableCell(f"{(ranges > WIDE_RANGE).sum()} of {len(ranges)}")],
    ]
    mean, above = (stated_numbers()[f"base {name}"] for name in STATED_RANGES)
    notes = make_notes(
        frame,
        asked,
        rows,
        "F1 over templates, percent; quartiles by linear interpolation.",
        any(task in dataset_names() for task in tasks)
        and f"The paper's mean range over its eleven datasets: {mean:.2f}; above 15 points: {above:.0f} of 11.",
    )
    columns = [Column("task", is_text=True), *map(Column, [*QUANTILES, "Q3-Q1"])]
    title = "F1 of the base over templates (the paper's appendix)"
    records = f1[["task", "template", "f1"]]
    return Table("base_spread", title, columns, rows, notes, records, is_wide=False)


def average_changes(cells: pd.DataFrame, by: str, column: str = "change") -> pd.DataFrame:
    """Count and average the known changes by group and metric. A change of 0 counts as unchanged."""
    known = cells[cells[column].notna() & cells["metric"].isin(PAPER_METRICS)]
    gain = known[column] * known["metric"].map(direction).astype(int)
    groups = known.assign(better=gain > 0, worse=gain < 0).groupby([by, "metric"], sort=False)
    sums = {"better": ("better", "sum"), "worse": ("worse", "sum")}
    return groups.agg(number=(column, "size"), mean_change=(column, fmean), **sums).reset_index()


def average_over_tasks(cells: pd.DataFrame) -> pd.DataFrame:
    """Apply :func:`average_changes` by method. The paper's averages are added if they cover the same tasks."""
    known = fill(average_changes(cells, "method"), ["method"], [(method,) for method in methods_of(cells)])
    known = known[known["metric"].isin(PAPER_METRICS)].rename(columns={"number": "tasks"})
    known["tasks"] = known["tasks"].fillna(0).astype(int)
    printed = average_changes(cells[cells["change"].notna()], "method", "paper_change")
    printed = printed.rename(columns={"number": "tasks"} | {name: f"paper_{name}" for name in printed.columns[3:]})
    return known.merge(printed, how="left", on=["method", "metric", "tasks"]).astype(dict.fromkeys(_PAIRED, "Int64"))


def average_transfers(cells: pd.DataFrame) -> pd.DataFrame:
    """Compute the mean improvement over targets, its spread over seeds and the P/N counts by source and metric.

    The source ``all`` has all pairs. If all pairs have the same seeds, the spread applies to the mean over pairs.
    """

    def spread(group: pd.DataFrame) -> float:
        by_seed = zip(*group["values"], strict=True) if group["seeds"].nunique() == 1 else ()
        return sample_std([*map(fmean, by_seed)])

    known = cells[cells["change"].notna() & cells["metric"].isin(PAPER_METRICS)]
    every = pd.concat([known.assign(source=ALL), known])
    averages = average_changes(every, "source")
    averages["pairs"] = averages.groupby("source")["number"].transform("max")
    averages["improvement"] = (
        averages["mean_change"] * averages["metric"].map(direction).astype(int) + 0.0
    )  # never minus zero
    averages["std_over_seeds"] = [spread(group) for _, group in every.groupby(["source", "metric"], sort=False)]
    columns = ["source", "metric", "pairs", "improvement", "std_over_seeds", "better", "worse"]
    return averages[columns].astype(dict.fromkeys(["pairs", "better", "worse"], "Int64"))


def _on_own_task(frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """Average the audits on the task trained on. Missing cells have a row, and all have the paper's numbers."""
    asked = in_setting(frame, setting)
    wanted = itertools.product(methods_of(asked), tasks_of(asked))
    return _with_paper(fill(average_seeds(asked), ["method", "task"], wanted).assign(setting=setting))


def _with_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's numbers to the audits on the own task under as many templates as in the paper."""
    keys = ["method", "task", "metric"]
    numbers = ["paper", "paper_change"]
    cells = cells.merge(table1()[[*keys, *numbers]], how="left", on=keys)
    counts = cells["task"].map({task: catalog_entry(task).paper["templates"] for task in dataset_names()})
    is_paper = (cells["setting"] == "own") & cells["templates"].fillna(counts).eq(counts)
    return cells.assign(**{name: cells[name].where(is_paper) for name in numbers})


def _transfer(frame: pd.DataFrame, method: str) -> tuple[pd.DataFrame, bool]:
    """Select the pairs of a method. The flag says whether the paper's Table 2 contains its sources."""
    asked = in_setting(frame, "transfer", method)
    return asked, method == "f2c" and bool(table2()["source"].isin(asked["source"]).any())


# ---- all outputs of a study ----


def write_outputs(frame: pd.DataFrame, study: Study, out: Path) -> list[Path]:
    """Write the tables and figures of complete audits, and ``index.md`` with all of them.

    Outdated tables and figures of these names are removed, and no other files. Notes below the tables name incomplete
    audits. Returns the written files, ``index.md`` first.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a run that cannot be read.
    """
    contents = list(make_tables(frame))
    plots = make_plots(frame)
    files = {
        out / "tables" / f"{table.name}.{kind}": utf8(f"{write(table).rstrip()}\n")
        for kind, write in RENDERERS.items()
        for table in contents
    }
    files |= {out / "figures" / f"{plot.name}.{kind}": plot.render(kind) for plot in plots for kind in FORMATS}
    by_method = itertools.product(BY_METHOD, (*METHODS, *study.methods))
    for name in (*STEMS, *itertools.starmap(file_name, by_method)):
        for path in (out / place / f"{name}.{kind}" for place, kinds in KINDS.items() for kind in kinds):
            if path not in files:
                path.unlink(missing_ok=True)
    for path, content in files.items():
        write_bytes(path, content)
    demo_note = DEMO_NOTE if frame["is_demo"].any() else ""
    known = {"study": study, "tables": contents, "plots": plots, "formats": FORMATS, "demo_note": demo_note}
    write_text(out / "index.md", render("flip_flop.paper", "index.md.jinja", cell=markdown_cell, **known))
    return [out / "index.md", *files]


def make_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Make the tables that apply."""
    own_task = in_setting(frame, "own")
    if set(methods_of(own_task)) - {BASE.name}:
        yield methods_table(frame)
        yield changes_table(frame)
        if len(in_setting(frame, "held_out")):
            yield changes_table(frame, "held_out")
    for method in _transferred(frame):
        yield transfer_table(frame, method)
        yield pairs_table(frame, method)
    if in_setting(frame, "unseen")["is_done"].any():
        yield unseen_table(frame)
    if len(template_f1(own_task[own_task["method"] == BASE.name])):
        yield spread_table(frame)


def make_plots(frame: pd.DataFrame) -> list["Plot"]:
    """Make the plots that apply. Without matplotlib there are none, and a warning."""
    if importlib.util.find_spec("matplotlib") is None:
        log.warning(
            "W-STUDY: matplotlib is not installed: there are tables, and no figures. Install it: %s",
            install_command("studies"),
        )
        return []
    from flip_flop.paper.figures import draw_boxes, draw_curves, draw_heatmaps

    f1 = template_f1(frame)
    of_base = f1["method"] == BASE.name
    plots = ([draw_boxes(f1[of_base])] if of_base.any() else []) + ([] if of_base.all() else [draw_boxes(f1)])
    for method in _transferred(frame):
        plots += draw_heatmaps(frame, method)
    return plots + draw_curves(frame)


def _transferred(frame: pd.DataFrame) -> list[str]:
    transfers = in_setting(frame, "transfer")
    return methods_of(transfers[transfers["is_done"]])
