"""The F2C paper's own numbers, typed in once: Table 1, Table 2, and what its text states.

The files hold percent as printed; the frames hold fractions, like ``metrics.json``. Study 3 and the box plot of the
appendix are plots in the paper: of their numbers there are only those in the text.
"""

import csv
import functools
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from flip_flop.method import BASE

PAPER_METRICS = ("mean_f1", "f1_std", "observed_agreement")


@functools.cache
def table1() -> pd.DataFrame:
    """Table 1: method, task, dataset (the task's name in the paper), metric, paper, paper_change, paper_mark.

    Example:
        >>> found = table1().set_index(["method", "task", "metric"])["paper"]
        >>> float(found["f2c", "rte", "observed_agreement"])
        0.934
    """
    wide = _read("table1.csv")
    frame = wide.melt(["method", "task", "dataset", "best", "worst"], PAPER_METRICS, "metric", "paper")
    frame["paper"] = frame["paper"].map(float) / 100
    base = frame[frame["method"] == BASE.name].set_index(["task", "metric"])["paper"]
    change = frame["paper"] - frame.join(base.rename("base"), on=["task", "metric"])["base"]
    frame["paper_change"] = change.where(frame["method"] != BASE.name)
    frame["paper_mark"] = [
        "best" if row.metric in row.best.split() else "worst" if row.metric in row.worst.split() else ""
        for row in frame.itertuples()
    ]
    return frame.drop(columns=["best", "worst"])


@functools.cache
def table2() -> pd.DataFrame:
    """Table 2: source (``all``: all 80 pairs), metric, paper_improvement, paper_better, paper_worse.

    An improvement is a mean over the targets: of sigma, how much lower it is. The other two are the P/N counts.

    Example:
        >>> print(table2().set_index(["source", "metric"]).loc[("all", "mean_f1"), "paper_better"])
        74
    """
    wide = _read("table2.csv")
    parts = []
    for metric in PAPER_METRICS:
        counts = {f"paper_{side}": wide[f"{metric}_{side}"].map(int) for side in ("better", "worse")}
        improvement = wide[metric].map(float) / 100
        parts.append(
            pd.DataFrame({"source": wide["source"], "metric": metric, "paper_improvement": improvement} | counts)
        )
    return pd.concat(parts, ignore_index=True).astype({"paper_better": "Int64", "paper_worse": "Int64"})


@functools.cache
def text() -> dict[str, float]:
    """The numbers that the paper states in words: points, and counts of tasks, as printed."""
    return {row.statement: float(row.value) for row in _read("text.csv").itertuples()}


@functools.cache
def dataset_names() -> dict[str, str]:
    """The paper's name of each task, in the order of Table 1.

    Example:
        >>> list(dataset_names().items())[0]
        ('anli_r1', 'ANLI R1')
    """
    return dict(zip(table1()["task"], table1()["dataset"], strict=True))


def in_table1(methods: Iterable[str], tasks: Iterable[str]) -> bool:
    """Whether Table 1 has some of these."""
    return bool((table1()["method"].isin(list(methods)) & table1()["task"].isin(list(tasks))).any())


def _read(name: str) -> pd.DataFrame:
    """All as text: a number is to be read as Python reads it."""
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return pd.DataFrame(list(csv.DictReader(file)))
