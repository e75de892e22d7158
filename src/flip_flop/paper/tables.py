"""The tables of a study: Table 1, Table 2, study 3 and the base's F1 over templates; and a page with its figures."""

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flip_flop.console import DEMO_NOTE, MISSING, count, markdown_cell, percent, point_interval, points
from flip_flop.errors import install_command
from flip_flop.files import write_bytes, write_text
from flip_flop.method import BASE, METHODS
from flip_flop.metrics import METRICS
from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.frame import (
    CELL,
    KEPT,
    Setting,
    average_seeds,
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
    titles_of,
)
from flip_flop.paper.published import PAPER_METRICS, dataset_names, stated_numbers, table1, table2
from flip_flop.paper.study import Study
from flip_flop.report.tables import Column, Row, Table, TableCell

if TYPE_CHECKING:
    from flip_flop.paper.figures import Plot

log = logging.getLogger("flip_flop")

RENDERERS = {"md": Table.markdown, "csv": Table.csv, "tex": Table.latex}
FORMATS = ("pdf", "svg", "png")
ALL = "all"
WIDE_RANGE = 0.15  # the paper counts the datasets with a larger interquartile range
QUANTILES = {"min": 0, "Q1": 0.25, "median": 0.5, "Q3": 0.75, "max": 1}
HELD_OUT_NOTE = "Held out: under the templates that a task holds out from training, where it holds out any."
_CHANGES = ["mean", "std_over_seeds", "change", "change_low", "change_high"]
_PAIRED = ["better", "worse", "paper_better", "paper_worse"]
DECIMALS = METRICS["mean_f1"].decimals
MAX_NAMED = 12
INTERVAL_NOTE = "95% CI: paired bootstrap over instances; it says nothing about another training seed."
# The columns under each of the paper's metrics, by heading. A function formats a row of averaged seeds.
Parts = dict[str, Callable[[Any], str]]


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
    return MISSING if pd.isna(better) else f"{better}/{worse}"


CHANGE: Parts = {
    "Δ": lambda cell: "" if cell.method == BASE.name else number(cell.change, points),
    "95% CI": lambda cell: (
        ""
        if pd.isna(getattr(cell, "change_low", None))
        else point_interval((cell.change_low, cell.change_high), DECIMALS)
    ),
}


def held_out(record: Any) -> str:
    """Return the suffix of a name for audits of held-out templates."""
    return " (held out)" if getattr(record, "setting", "") == "held_out" else ""


def task_head(record: Any) -> TableCell:
    """Return the cell of the audited task."""
    return TableCell(task_title(record.task), "name")


def source_head(record: Any) -> TableCell:
    """Return the cell of the task trained on."""
    return TableCell(task_title(record.source), "name")


def pivot(
    cells: pd.DataFrame, by: Sequence[str], heads: Sequence[tuple[str, Callable[[Any], TableCell]]], parts: Parts
) -> tuple[list[Column], list[Row]]:
    """Make a row for each group of ``cells``: the ``heads``, then the parts of each metric.

    A group has one row of each metric. A head is a heading and a function of such a row. The ``mark`` of a row applies
    to its change.
    """
    pairs = [(metric, heading) for metric in PAPER_METRICS for heading in parts]
    shown = [(metric, heading) for metric, heading in pairs if heading != "95% CI" or METRICS[metric].has_interval]
    columns = [Column(heading, is_text=True) for heading, _ in heads]
    columns += [Column(heading, group=METRICS[metric].title) for metric, heading in shown]
    rows: list[Row] = []
    for _, group in cells.groupby(list(by), sort=False):
        by_metric = {cell.metric: cell for cell in group.itertuples()}
        row = [head(by_metric[PAPER_METRICS[0]]) for _, head in heads]
        for metric, heading in shown:
            mark: Any = getattr(by_metric[metric], "mark", "") if heading == "Δ" else ""
            row.append(TableCell(parts[heading](by_metric[metric]), "paper" if heading.startswith("paper") else mark))
        rows.append(row)
    return columns, rows


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


def group_rows(rows: Iterable[Row]) -> list[Row]:
    """Print the first cell of a group of rows once, below a rule."""
    grouped: list[Row] = []
    last: TableCell | None = None
    for first, *rest in rows:
        grouped += [[]] if grouped and first != last else []
        grouped.append([first if first != last else TableCell(), *rest])
        last = first
    return grouped


@dataclass(frozen=True)
class Selection:
    """The part of a frame that a table shows: the ``asked`` audits, and the averaged ``cells`` of complete ones."""

    frame: pd.DataFrame
    asked: pd.DataFrame
    cells: pd.DataFrame

    @cached_property
    def titles(self) -> dict[str, str]:
        """Return the titles of methods by name."""
        return titles_of(self.frame)

    def method_head(self, record: Any) -> TableCell:
        """Return the first cell of a method's rows. Titles of other methods are untrusted text."""
        is_ours = record.method in (BASE.name, *METHODS)
        return TableCell(self.titles[record.method] + held_out(record), "" if is_ours else "name")

    def notes(self, rows: Iterable[Row], *more: Any) -> list[str]:
        """Return the notes below a table: about its cells, then ``more``, then about numbers missing in ``rows``.

        An element of ``more`` is a note, a list of notes, or a false value.
        """
        texts = [cell.text for row in rows for cell in row if cell.style != "paper"]
        deviation = any(" ± " in text for text in texts) and "±: sample standard deviation over training seeds."
        return _join(*self._about(), deviation, *more, *self._missing(texts.count(MISSING)))

    def paper_notes(self, where: str, *more: str) -> list[str]:
        """Explain the published numbers, and name tasks with other instances than in the paper."""
        other = {}
        for record in _once(self.cells).itertuples():
            printed = catalog_entry(record.task).paper["test"] if record.task in dataset_names() else None
            if printed is not None and (record.instances, record.split) != (printed, "test"):
                here = f"{record.instances:,} of {record.split}"
                other[record.task] = f"{task_title(record.task)} {here} (the paper: {printed:,} of test)"
        return _join(
            f"{where}, in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its test splits.",
            other and f"Not the paper's instances: {', '.join(other.values())}.",
            *more,
        )

    def _about(self) -> list[str]:
        """Describe model, seeds, sizes and collapse. The demo model has a warning."""
        done, cells = self.frame[self.frame["is_done"]].sort_values("position", kind="stable"), _once(self.cells)
        seeds = sorted({seed for record in cells["seeds"] for seed in record if not pd.isna(seed)})
        seed_words = f"; {count(len(seeds), 'training seed')} ({', '.join(map(str, seeds))})" if seeds else ""
        sizes = {
            task_title(record.task) + held_out(record): f"{record.instances:,} x {record.templates}"
            for record in cells.itertuples()
        }
        size_words = ", ".join(f"{task} {size}" for task, size in sizes.items())
        trained = cells[cells["method"] != BASE.name].itertuples()
        fewer = [f"{self._words(record)} ({len(record.seeds)})" for record in trained if len(record.seeds) < len(seeds)]
        collapsed = [self._words(record) for record in cells[cells["collapsed"].astype(bool)].itertuples()]
        return _join(
            f"Model: {', '.join(done['model'].unique())}{seed_words}.",
            sizes and f"Instances x templates, split {' and '.join(sorted(cells['split'].unique()))}: {size_words}.",
            fewer and f"Over fewer seeds than the others: {_listed(fewer)}.",
            collapsed and f"Collapsed, one label nearly everywhere or for each template: {_listed(collapsed)}.",
            done["is_demo"].any() and DEMO_NOTE,
        )

    def _missing(self, dashes: int) -> list[str]:
        """Count the dashes, and name tasks without labels and incomplete audits."""
        asked = self.asked
        without = asked["is_done"] & (asked["metric"] == "mean_f1") & asked["value"].isna()
        unlabelled = asked.loc[without, "task"].unique()
        bases = in_setting(self.frame, "own", BASE.name)[: None if (asked["setting"] == "transfer").any() else 0]
        left = pd.concat([_once(part[~part["is_done"]]).sort_values("position") for part in (asked, bases)])
        names = [
            self._words(record) + ("" if pd.isna(record.seed) else f", seed {record.seed}")
            for record in left.itertuples()
        ]
        return _join(
            dashes and f"{count(dashes, 'cell')} without a number (a dash).",
            len(unlabelled) and f"Without labels, hence without F1: {', '.join(map(task_title, unlabelled))}.",
            names and f"{count(len(names), 'audit')} of this table not done yet: {_listed(names)}.",
        )

    def _words(self, record: Any) -> str:
        """Describe an audit or a cell."""
        trained = f" trained on {task_title(record.source)}" if record.setting == "transfer" and record.source else ""
        kept = f" ({record.k} templates)" if record.setting == "unseen" and record.k else ""
        return f"{self.titles[record.method]}{trained} on {task_title(record.task)}{held_out(record)}{kept}"


def select(frame: pd.DataFrame, setting: Setting | Sequence[Setting], method: str | None = None) -> Selection:
    """Select the audits of settings, and of a method if given."""
    asked = in_setting(frame, setting, method)
    return Selection(frame, asked, average_seeds(asked))


def _join(*parts: Any) -> list[str]:
    return [line for part in parts if part for line in ([part] if isinstance(part, str) else part)]


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the first row of each audit or cell."""
    return rows[rows["metric"] == KEPT[0]]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more


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
    lines = lines.assign(mark=signed.groupby(compared).transform(mark_extremes))
    rows: list[Row] = []
    for (_, _, metric), line in lines.groupby(["setting", "method", "metric"], sort=False):
        head, by_task = shown.method_head(line.iloc[0]), {record.task: record for record in line.itertuples()}
        of_tasks = [by_task.get(task) for task in tasks_of(shown.asked)]
        cells_of_tasks = [
            TableCell() if cell is None else TableCell(number(cell.mean, std=cell.std_over_seeds), cell.mark)
            for cell in of_tasks
        ]
        rows.append([head, TableCell(METRICS[metric].title), *cells_of_tasks, TableCell(_average(line["mean"]))])
        if line["paper"].notna().any():
            theirs = ("" if cell is None else number(cell.paper) for cell in of_tasks)
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
    return Table("table1_methods", title, columns, group_rows(rows), notes, records)


def changes_table(frame: pd.DataFrame, setting: Setting = "own") -> Table:
    """Changes by method and task, then the average and the P/N counts, with the paper's over the same tasks."""
    shown, cells = _on_own_task(frame, setting)
    cells = cells[cells["method"] != BASE.name]
    has_paper, num_tasks = cells["paper"].notna().any(), cells["task"].nunique()
    averages = average_over_tasks(cells)
    most = averages.groupby("method")["tasks"].max()

    def size(record: Any) -> TableCell:
        tasks = count(num_tasks, "task")
        return TableCell(
            f"average, {tasks if most[record.method] == num_tasks else f'{most[record.method]} of {tasks}'}"
        )

    def mean(record: Any) -> str:  # a task without labels has agreement but no F1
        fewer = f" over {count(record.tasks, 'task')}" if 0 < record.tasks < most[record.method] else ""
        return number(record.mean_change, points) + fewer

    def part(lines: pd.DataFrame, head: Any, change: Any, printed: Any) -> Any:
        by = [name for name in ("method", "task") if name in lines]
        parts = CHANGE | {"Δ": change} | ({"paper": printed} if has_paper else {})
        return pivot(lines.assign(setting=setting), by, [("", shown.method_head), ("", head)], parts)

    columns, rows = part(cells, task_head, CHANGE["Δ"], lambda record: number(record.paper_change, points))
    notes = replace(shown, cells=shown.cells[shown.cells["method"] != BASE.name]).notes(
        rows,
        "Points against the base. Lower sigma_F1 is better, and counts as better.",
        INTERVAL_NOTE,
        setting == "held_out" and HELD_OUT_NOTE,
        has_paper and shown.paper_notes("In the columns named paper", "Its averages: over the same tasks."),
    )
    methods = [row[0] for row in rows]
    rows += part(averages, size, mean, lambda record: number(record.paper_mean_change, points))[1]
    counts = (
        lambda record: win_loss(record.better, record.worse),
        lambda record: win_loss(record.paper_better, record.paper_worse),
    )
    rows += part(averages, lambda record: TableCell("better/worse"), *counts)[1]
    rows.sort(key=lambda row: methods.index(row[0]))
    name, title = "table1_changes", "Changes against the base"
    if setting == "held_out":
        name, title = f"{name}_held_out", f"{title} under held-out templates"
    return Table(name, title, columns, group_rows(rows), notes, averages)


def transfer_table(frame: pd.DataFrame, method: str) -> Table:
    """Table 2: one row for all pairs and one for each source, in the paper's layout and with its numbers."""
    shown, has_paper = _transfer(frame, method)
    averages, sources = average_transfers(shown.cells), dict.fromkeys(source for source, _ in pairs_of(shown.asked))
    lines = fill(averages, ["source"], [(source,) for source in [ALL, *sources]])
    lines = lines.merge(table2() if has_paper else table2()[:0], how="left", on=["source", "metric"])
    of_sources = lines["improvement"].where(lines["source"] != ALL)
    lines["mark"] = of_sources.groupby(lines["metric"]).transform(mark_extremes).replace("worst", "")
    every = TableCell(f"All ({count(int(averages['pairs'].max()) if len(averages) else 0, 'pair')})")
    parts: Parts = {
        "Δ": lambda record: number(record.improvement, points, record.std_over_seeds),
        "P/N": lambda record: win_loss(record.better, record.worse),
    }
    if has_paper:  # three decimals, as in the paper
        parts |= {
            "paper Δ": lambda record: (
                MISSING if pd.isna(record.paper_improvement) else points(record.paper_improvement, 3)
            ),
            "paper P/N": lambda record: win_loss(record.paper_better, record.paper_worse),
        }
    head = ("trained on", lambda record: every if record.source == ALL else source_head(record))
    columns, rows = pivot(lines, ["source"], [head], parts)
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
    cells = fill(shown.cells, ["source", "task"], pairs_of(shown.asked)).assign(method=method)
    heads = [("trained on", source_head), ("evaluated on", task_head)]
    columns, rows = pivot(cells, ["source", "task"], heads, CHANGE)
    notes = shown.notes(
        rows,
        "Points against the base; lower sigma_F1 is better.",
        INTERVAL_NOTE,
        has_paper and "The paper gives its pairs only as heat maps.",
    )
    records = cells[cells["metric"].isin(PAPER_METRICS)].rename(columns={"task": "target"})
    records = records[["method", "source", "target", "metric", *_CHANGES]]
    title = f"Transfer by pair under {shown.titles[method]}"
    return Table(file_name("table2_pairs", method), title, columns, group_rows(rows), notes, records)


def unseen_table(frame: pd.DataFrame) -> Table:
    """Study 3 by task and K: the metrics on held-out templates, and their changes."""
    shown = select(frame, "unseen")
    cells = shown.cells.sort_values("task", key=lambda tasks: tasks.map(task_order), kind="stable")
    seen = np.where(cells["held_out"] | (cells["method"] == BASE.name), "", " (seen)")

    def trained(record: Any) -> TableCell:
        words = f"{shown.titles[record.method]}, {record.k} templates{record.seen}"
        return TableCell("base" if record.method == BASE.name else words)

    parts = {"%": lambda cell: number(cell.mean, std=cell.std_over_seeds), **CHANGE}
    columns, rows = pivot(cells.assign(seen=seen), CELL, [("task", task_head), ("trained on", trained)], parts)
    notes = replace(shown, cells=cells).notes(
        rows,
        "All rows of a task are audited on the same templates, the ones held out from training on the first K.",
        seen.any() and "Rows marked (seen): trained on these templates too.",
        "Changes are in points against the base; lower sigma_F1 is better. " + INTERVAL_NOTE,
        "The paper gives this study as a plot, without numbers.",
    )
    names = ["task", "method", "templates_trained_on", "held_out", "templates", "metric", *_CHANGES]
    records = cells[cells["metric"].isin(PAPER_METRICS)].rename(columns={"k": "templates_trained_on"})[names]
    title = "Unseen templates after training on the first K (the paper's study 3)"
    return Table("study3_unseen_templates", title, columns, group_rows(rows), notes, records)


def spread_table(frame: pd.DataFrame) -> Table:
    """F1 over templates of the base: quartiles by task, and their mean range beside the paper's."""
    own_task, bases = select(frame, "own"), select(frame, "own", BASE.name)
    shown, tasks, stated = replace(bases, asked=own_task.asked), tasks_of(own_task.asked), stated_numbers()
    f1, has_paper = template_f1(bases.asked), any(task in dataset_names() for task in tasks)
    spread = quartiles(f1).reindex(tasks)
    ranges = spread["Q3-Q1"].dropna()
    below = [
        ("mean", number(fmean(ranges)), f"{stated['base mean interquartile range']:.2f}"),
        (
            "above 15 points",
            f"{(ranges > WIDE_RANGE).sum()} of {len(ranges)}",
            f"{stated['base tasks with interquartile range above 15']:.0f} of 11",
        ),
    ]

    def row(head: TableCell, own_task: Sequence[str], theirs: str = "") -> Row:
        return [head, *map(TableCell, own_task), *[TableCell(theirs, "paper")] * has_paper]

    rows = [row(TableCell(task_title(record[0]), "name"), [*map(number, record[1:])]) for record in spread.itertuples()]
    rows += [row(TableCell(head), [*[""] * len(QUANTILES), own_task], theirs) for head, own_task, theirs in below]
    whose = shown.paper_notes("Beside the mean range", "Its mean range: over its eleven datasets.")
    notes = shown.notes(rows, "F1 over templates, percent; quartiles by linear interpolation.", has_paper and whose)
    columns = [Column("task", is_text=True), *map(Column, [*spread.columns, *["paper"] * has_paper])]
    title, records = "F1 of the base over templates (the paper's appendix)", f1[["task", "template", "f1"]]
    rows = [*rows[: len(tasks)], [], *rows[len(tasks) :]]
    return Table("base_spread", title, columns, rows, notes, records, is_wide=False)


def quartiles(f1: pd.DataFrame) -> pd.DataFrame:
    """Compute minimum, quartiles (linear interpolation), maximum and interquartile range of F1 by task."""
    groups = f1.groupby("task", sort=False)["f1"]
    ranges = {task: np.quantile(values, list(QUANTILES.values())).round(12) for task, values in groups}
    frame = pd.DataFrame.from_dict(ranges, orient="index", columns=list(QUANTILES))
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


def _on_own_task(frame: pd.DataFrame, setting: Setting) -> tuple[Selection, pd.DataFrame]:
    """Select the audits on the task trained on. Missing cells have a row, and all have the paper's numbers."""
    shown = select(frame, setting)
    wanted = itertools.product(methods_of(shown.asked), tasks_of(shown.asked))
    return shown, _with_paper(fill(shown.cells, ["method", "task"], wanted).assign(setting=setting))


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


# ---- all outputs of a study ----


def write_outputs(frame: pd.DataFrame, study: Study, out: Path) -> list[Path]:
    """Write the tables and figures of complete audits, and ``index.md`` with all of them.

    Outdated tables and figures are removed. Notes below the tables name incomplete audits. Returns the written files,
    ``index.md`` first, or none if no audit is complete.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a run that cannot be read.
    """
    if not frame["is_done"].any():
        return []
    contents, plots = list(make_tables(frame)), make_plots(frame)
    files = {
        out / "tables" / f"{table.name}.{kind}": f"{render(table).rstrip()}\n".encode()
        for kind, render in RENDERERS.items()
        for table in contents
    }
    files |= {out / "figures" / f"{plot.name}.{kind}": plot.render(kind) for plot in plots for kind in FORMATS}
    for path in [*(out / "tables").glob("*.*"), *(out / "figures").glob("*.*")]:
        if path not in files and path.suffix.removeprefix(".") in (*RENDERERS, *FORMATS):
            path.unlink()
    for path, content in files.items():
        write_bytes(path, content)
    write_text(out / "index.md", _page(frame, study, contents, plots))
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
    try:
        from flip_flop.paper.figures import draw_boxes, draw_curves, draw_heatmaps
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] != "matplotlib":
            raise
        log.warning(
            "W-STUDY: matplotlib is not installed: there are tables, and no figures. Install it: %s",
            install_command("studies"),
        )
        return []
    f1 = template_f1(frame)
    of_base = f1["method"] == BASE.name
    plots = ([draw_boxes(f1[of_base])] if of_base.any() else []) + ([] if of_base.all() else [draw_boxes(f1)])
    for method in _transferred(frame):
        plots += draw_heatmaps(frame, method)
    return plots + draw_curves(frame)


def _transferred(frame: pd.DataFrame) -> list[str]:
    transfers = in_setting(frame, "transfer")
    return methods_of(transfers[transfers["is_done"]])


def _page(frame: pd.DataFrame, study: Study, contents: Sequence[Table], plots: Sequence["Plot"]) -> str:
    parts = [f"# {markdown_cell(study.name)}"]
    if study.description:
        parts.append(markdown_cell(study.description))
    if frame["is_demo"].any():
        parts.append(f"**{DEMO_NOTE}**")
    parts += [f"{table.markdown()}\n\n{_links('tables', table.name, ('csv', 'tex'))}" for table in contents]
    for plot in plots:
        image = f"![{markdown_cell(plot.alt)}](figures/{plot.name}.png)"
        parts.append(f"### {markdown_cell(plot.title)}\n\n{image}\n\n{_links('figures', plot.name, FORMATS)}")
    return "\n\n".join(parts) + "\n"


def _links(folder: str, name: str, kinds: Sequence[str]) -> str:
    return "Files: " + ", ".join(f"[{kind}]({folder}/{name}.{kind})" for kind in kinds)
