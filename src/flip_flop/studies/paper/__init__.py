"""The F2C paper's own numbers, typed in once: Table 1, Table 2, and what its text states.

The files hold percent as printed; everything here gives fractions, like ``metrics.json``. Study 3 and the box plot
of the appendix are pictures in the paper: of their numbers there are only those in the text.
"""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
FIGURES = ("mean_f1", "f1_std", "observed_agreement")


@dataclass(frozen=True)
class PaperCell:
    """One method on one dataset, from Table 1.

    Attributes:
        method: ``base``, ``swarm``, ``cce`` or ``f2c``.
        task: The dataset's name in the catalog.
        dataset: Its name in the paper.
        figures: ``mean_f1``, ``f1_std``, ``observed_agreement``.
        best: The figures that the paper prints in green.
        worst: The figures that it prints in red.
    """

    method: str
    task: str
    dataset: str
    figures: Mapping[str, float]
    best: tuple[str, ...]
    worst: tuple[str, ...]


@dataclass(frozen=True)
class PaperTransfer:
    """One row of Table 2: means over the targets, as improvements (of sigma: how much lower it is), and P/N counts."""

    source: str
    improvements: Mapping[str, float]
    better: Mapping[str, int]
    worse: Mapping[str, int]


@functools.cache
def table1() -> dict[tuple[str, str], PaperCell]:
    """Table 1 by (method, task), in the paper's order.

    Example:
        >>> table1()["f2c", "rte"].figures["observed_agreement"]
        0.934
    """
    return {
        (row["method"], row["task"]): PaperCell(
            row["method"],
            row["task"],
            row["dataset"],
            {figure: float(row[figure]) / 100 for figure in FIGURES},
            tuple(row["best"].split()),
            tuple(row["worst"].split()),
        )
        for row in _rows("table1.csv")
    }


@functools.cache
def table2() -> dict[str, PaperTransfer]:
    """Table 2 by source; ``all`` has all 80 pairs.

    Example:
        >>> table2()["all"].better["mean_f1"], table2()["all"].worse["mean_f1"]
        (74, 6)
    """
    return {
        row["source"]: PaperTransfer(
            row["source"],
            {figure: float(row[figure]) / 100 for figure in FIGURES},
            {figure: int(row[f"{figure}_better"]) for figure in FIGURES},
            {figure: int(row[f"{figure}_worse"]) for figure in FIGURES},
        )
        for row in _rows("table2.csv")
    }


@functools.cache
def text() -> dict[str, float]:
    """The numbers that the paper states in words: points, and counts of tasks, as printed."""
    return {row["statement"]: float(row["value"]) for row in _rows("text.csv")}


@functools.cache
def dataset_names() -> dict[str, str]:
    """The paper's name of each task, in the order of Table 1.

    Example:
        >>> list(dataset_names().items())[0]
        ('anli_r1', 'ANLI R1')
    """
    return {cell.task: cell.dataset for cell in table1().values()}


def _rows(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
