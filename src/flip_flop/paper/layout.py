"""The layout of tables: printed numbers, columns under each metric, groups of rows, marks and notes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from flip_flop.console import DEMO_NOTE, MISSING, count, percent, point_interval, points
from flip_flop.method import BASE, METHODS
from flip_flop.metrics import METRICS
from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.frame import KEPT, Setting, average_seeds, in_setting, task_title, titles_of
from flip_flop.paper.paper import PAPER_METRICS, dataset_names
from flip_flop.paper.table import Column, Row, TableCell

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


def held_out(each: Any) -> str:
    """Return the suffix of a name for audits of held-out templates."""
    return " (held out)" if getattr(each, "setting", "") == "held_out" else ""


def task_head(each: Any) -> TableCell:
    """Return the cell of the audited task."""
    return TableCell(task_title(each.task), "name")


def source_head(each: Any) -> TableCell:
    """Return the cell of the task trained on."""
    return TableCell(task_title(each.source), "name")


def pivot(
    cells: pd.DataFrame, by: Sequence[str], heads: Sequence[tuple[str, Callable[[Any], TableCell]]], parts: Parts
) -> tuple[list[Column], list[Row]]:
    """Make a row for each group of ``cells``: the ``heads``, then the parts of each metric.

    A group has one row of each metric. A head is a heading and a function of such a row. The ``mark`` of a row applies
    to its change.
    """
    every = [(metric, heading) for metric in PAPER_METRICS for heading in parts]
    shown = [(metric, heading) for metric, heading in every if heading != "95% CI" or METRICS[metric].has_interval]
    columns = [Column(heading, is_text=True) for heading, _ in heads]
    columns += [Column(heading, group=METRICS[metric].title) for metric, heading in shown]
    rows: list[Row] = []
    for _, group in cells.groupby(list(by), sort=False):
        found = {cell.metric: cell for cell in group.itertuples()}
        row = [head(found[PAPER_METRICS[0]]) for _, head in heads]
        for metric, heading in shown:
            mark: Any = getattr(found[metric], "mark", "") if heading == "Δ" else ""
            row.append(TableCell(parts[heading](found[metric]), "paper" if heading.startswith("paper") else mark))
        rows.append(row)
    return columns, rows


def fill(cells: pd.DataFrame, names: Sequence[str], wanted: Iterable[tuple[str, ...]]) -> pd.DataFrame:
    """Return a row for each wanted combination of these columns and each metric, with NaN for missing audits."""
    on = [*names, "metric"]
    grid = pd.DataFrame([(*each, metric) for each in wanted for metric in KEPT], columns=on)
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

    def method_head(self, each: Any) -> TableCell:
        """Return the first cell of a method's rows. Titles of other methods are untrusted text."""
        is_ours = each.method in (BASE.name, *METHODS)
        return TableCell(self.titles[each.method] + held_out(each), "" if is_ours else "name")

    def notes(self, rows: Iterable[Row], *own: Any) -> list[str]:
        """Return the notes below a table: about its cells, then ``own``, then about numbers missing in ``rows``.

        An element of ``own`` is a note, a list of notes, or a false value.
        """
        texts = [cell.text for row in rows for cell in row if cell.style != "paper"]
        deviation = any(" ± " in text for text in texts) and "±: sample standard deviation over training seeds."
        return _join(*self._about(), deviation, *own, *self._missing(texts.count(MISSING)))

    def paper_notes(self, where: str, *more: str) -> list[str]:
        """Explain the published numbers, and name tasks with other instances than in the paper."""
        other = {}
        for each in _once(self.cells).itertuples():
            printed = catalog_entry(each.task).paper["test"] if each.task in dataset_names() else None
            if printed is not None and (each.instances, each.split) != (printed, "test"):
                found = f"{each.instances:,} of {each.split}"
                other[each.task] = f"{task_title(each.task)} {found} (the paper: {printed:,} of test)"
        return _join(
            f"{where}, in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its test splits.",
            other and f"Not the paper's instances: {', '.join(other.values())}.",
            *more,
        )

    def _about(self) -> list[str]:
        """Describe model, seeds, sizes and collapse. The demo model has a warning."""
        done, cells = self.frame[self.frame["is_done"]].sort_values("position", kind="stable"), _once(self.cells)
        seeds = sorted({seed for each in cells["seeds"] for seed in each if not pd.isna(seed)})
        seed_words = f"; {count(len(seeds), 'training seed')} ({', '.join(map(str, seeds))})" if seeds else ""
        sizes = {
            task_title(each.task) + held_out(each): f"{each.instances:,} x {each.templates}"
            for each in cells.itertuples()
        }
        size_words = ", ".join(f"{task} {size}" for task, size in sizes.items())
        trained = cells[cells["method"] != BASE.name].itertuples()
        fewer = [f"{self._words(each)} ({len(each.seeds)})" for each in trained if len(each.seeds) < len(seeds)]
        collapsed = [self._words(each) for each in cells[cells["collapsed"].astype(bool)].itertuples()]
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
            self._words(each) + ("" if pd.isna(each.seed) else f", seed {each.seed}") for each in left.itertuples()
        ]
        return _join(
            dashes and f"{count(dashes, 'cell')} without a number (a dash).",
            len(unlabelled) and f"Without labels, hence without F1: {', '.join(map(task_title, unlabelled))}.",
            names and f"{count(len(names), 'audit')} of this table not done yet: {_listed(names)}.",
        )

    def _words(self, each: Any) -> str:
        """Describe an audit or a cell."""
        trained = f" trained on {task_title(each.source)}" if each.setting == "transfer" and each.source else ""
        kept = f" ({each.k} templates)" if each.setting == "unseen" and each.k else ""
        return f"{self.titles[each.method]}{trained} on {task_title(each.task)}{held_out(each)}{kept}"


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
