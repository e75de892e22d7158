"""The F2C paper's own numbers, typed in once: Table 1, Table 2, and what its text states.

The files hold percent as printed; the frames hold fractions, like ``metrics.json``. Study 3 and the box plot of the
appendix are plots in the paper: of their numbers there are only those in the text.
"""

import functools
from pathlib import Path

import pandas as pd

from flip_flop.method import BASE

PAPER_METRICS = ("mean_f1", "f1_std", "observed_agreement")


@functools.cache
def table1() -> pd.DataFrame:
    """Table 1: method, task, dataset (the task's name in the paper), metric, paper, paper_change; best, worst: metrics.

    Example:
        >>> found = table1().set_index(["method", "task", "metric"])["paper"]
        >>> float(found["f2c", "rte", "observed_agreement"])
        0.934
    """
    wide = _read("table1.csv")  # the base first
    frame = wide.melt([name for name in wide if name not in PAPER_METRICS], PAPER_METRICS, "metric", "paper")
    frame["paper"] /= 100
    base = frame.groupby(["task", "metric"])["paper"].transform("first")
    frame["paper_change"] = (frame["paper"] - base).where(frame["method"] != BASE.name)
    return frame


@functools.cache
def table2() -> pd.DataFrame:
    """Table 2: source (``all``: all 80 pairs), metric, paper_improvement, paper_better, paper_worse.

    An improvement is a mean over the targets: of sigma, how much lower it is. The other two are the P/N counts.

    Example:
        >>> print(table2().set_index(["source", "metric"]).loc[("all", "mean_f1"), "paper_better"])
        74
    """
    frame = _read("table2.csv").astype({"paper_better": "Int64", "paper_worse": "Int64"})
    return frame.assign(paper_improvement=frame["paper_improvement"] / 100)


@functools.cache
def stated_numbers() -> dict[str, float]:
    """The numbers that the paper states in words: points, and counts of tasks, as printed."""
    return _read("text.csv").set_index("statement")["value"].to_dict()


@functools.cache
def dataset_names() -> dict[str, str]:
    """The paper's name of each task, in the order of Table 1.

    Example:
        >>> list(dataset_names().items())[0]
        ('anli_r1', 'ANLI R1')
    """
    return dict(zip(table1()["task"], table1()["dataset"], strict=True))


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(__file__).with_name(name), keep_default_na=False)
