"""What tables are laid out with: numbers as printed, the columns under each metric, rows in groups, marks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from flip_flop.method import BASE
from flip_flop.metrics import METRICS
from flip_flop.studies.frame import KEPT, method_title, task_title
from flip_flop.studies.paper import PAPER_METRICS
from flip_flop.studies.tables.table import Column, TableCell, TableRow
from flip_flop.text import MISSING, percent, point_interval, points


def number(
    value: Any, write: Callable[[float, int], str] = percent, metric: str = "mean_f1", std: float = math.nan
) -> str:
    """A number as printed, with its spread over seeds; a dash where there is none.

    Example:
        >>> number(0.5843, std=0.0021), number(float("nan"))
        ('58.43 ± 0.21', '–')
    """
    if pd.isna(value):
        return MISSING
    decimals = METRICS[metric].decimals
    return write(value, decimals) + ("" if pd.isna(std) else f" ± {100 * std:.{decimals}f}")


def win_loss(better: Any, worse: Any) -> str:
    """P/N, as the paper prints it."""
    return MISSING if pd.isna(better) else f"{better}/{worse}"


def method_cell(method: str) -> TableCell:
    """A method's name: our titles are words of ours."""
    return TableCell(method_title(method), is_name=method_title(method) == method)


def task_cell(task: str) -> TableCell:
    """A task's name."""
    return TableCell(task_title(task), is_name=True)


def change_cell(cell: Any) -> TableCell:
    """How far the mean over seeds is from the base."""
    return TableCell("" if cell.method == BASE.name else number(cell.change, points, cell.metric))


def interval_cell(cell: Any) -> TableCell:
    """The interval of that."""
    known = not math.isnan(cell.change_low)
    return TableCell(
        point_interval((cell.change_low, cell.change_high), METRICS[cell.metric].decimals) if known else ""
    )


# The columns that stand once under each of the paper's metrics; each cell is made of a row of averaged seeds.
Parts = Mapping[str, Callable[[Any], TableCell]]
INTERVAL = "95% CI"
CHANGE: Parts = {"Δ": change_cell, INTERVAL: interval_cell}
VALUE_AND_CHANGE: Parts = {"%": lambda cell: TableCell(number(cell.mean, std=cell.std_over_seeds)), **CHANGE}
PAPER_CHANGE: Parts = {"paper": lambda cell: TableCell(number(cell.paper_change, points, cell.metric), is_paper=True)}


def metric_columns(heads: Sequence[str], parts: Parts) -> list[Column]:
    """Columns of text, and these parts under each metric; sigma has no interval, as resampling instances adds to it."""
    every = [Column(heading, group=METRICS[metric].title) for metric in PAPER_METRICS for heading in parts]
    metrics = [column for column in every if column != Column(INTERVAL, group=METRICS["f1_std"].title)]
    return [*(Column(head, is_text=True) for head in heads), *metrics]


def metric_cells(cells: pd.DataFrame, parts: Parts) -> list[TableCell]:
    """The cells below them, from one row of each metric."""
    found = {cell.metric: cell for cell in cells.itertuples()}
    every = [(metric, heading) for metric in PAPER_METRICS for heading in parts]
    return [parts[heading](found[metric]) for metric, heading in every if (metric, heading) != ("f1_std", INTERVAL)]


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
    printed = values.map(lambda value: round(100 * float(value), METRICS["mean_f1"].decimals))
    marks = {printed.max(): "best", printed.min(): "worst"} if printed.nunique() > 1 else {}
    return printed.map(lambda value: marks.get(value, "")).astype(object)


def group_rows(rows: Iterable[Sequence[TableCell]]) -> list[TableRow]:
    """Rows whose first cell stands once for all that have it, below a rule."""
    grouped: list[TableRow] = []
    last: TableCell | None = None
    for first, *rest in rows:
        is_new, last = first != last, first
        grouped.append(TableRow((first if is_new else TableCell(), *rest), rule=is_new and bool(grouped)))
    return grouped


def count_missing(rows: Iterable[TableRow]) -> int:
    """How many cells are a dash where the study should have a number; the paper's have none to give."""
    return sum(cell.text == MISSING and not cell.is_paper for row in rows for cell in row.cells)
