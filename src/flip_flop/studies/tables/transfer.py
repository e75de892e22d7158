"""Table 2: what training on one task does to the others."""

import itertools
from statistics import fmean

import pandas as pd

from flip_flop.studies.frame import KEPT, average_seeds, file_name, in_setting, method_title, pairs_of, sample_std
from flip_flop.studies.paper import PAPER_METRICS, table2
from flip_flop.studies.tables import layout
from flip_flop.studies.tables.layout import number, win_loss
from flip_flop.studies.tables.methods import average_change
from flip_flop.studies.tables.table import Row, Table, TableCell
from flip_flop.text import MISSING, count, points

ALL = "all"
_PARTS: layout.Parts = {
    "Δ": lambda each: number(each.improvement, points, each.std_over_seeds),
    "P/N": lambda each: win_loss(each.better, each.worse),
}
_PAPER_PARTS: layout.Parts = {  # with three decimals, as the paper prints it
    "paper Δ": lambda each: MISSING if pd.isna(each.paper_improvement) else points(each.paper_improvement, 3),
    "paper P/N": lambda each: win_loss(each.paper_better, each.paper_worse),
}


def transfer_table(frame: pd.DataFrame, method: str) -> Table:
    """One row for all pairs and one for each source, in the paper's layout, with its numbers beside."""
    found, pairs, has_paper = _pairs(frame, method)
    averages, printed = average_transfers(found), table2() if has_paper else table2()[:0]
    sources = [ALL, *dict.fromkeys(source for source, _ in pairs)]
    grid = pd.DataFrame(itertools.product(sources, PAPER_METRICS), columns=["source", "metric"])
    lines = grid.merge(averages, how="left").merge(printed, how="left")
    of_sources = lines["improvement"].where(lines["source"] != ALL)
    lines["mark"] = of_sources.groupby(lines["metric"]).transform(layout.mark_extremes).replace("worst", "")
    parts = _PARTS | (_PAPER_PARTS if has_paper else {})
    num_pairs = int(averages["pairs"].max()) if len(averages) else 0
    rows: list[Row] = []
    for source, line in lines.groupby("source", sort=False):
        head = TableCell(f"All ({count(num_pairs, 'pair')})") if source == ALL else layout.task_cell(source)
        rows.append([head, *layout.metric_cells(line, parts)])
    rows.insert(1, [])
    notes = layout.join(
        layout.about(frame, found),
        layout.deviation(found),
        "Mean change on the targets in points, as an improvement: for sigma_F1, how much lower it is. "
        "P/N: targets better and worse than the base; an unchanged one is neither. Best source: bold.",
        has_paper and layout.paper_notes("In the columns named paper", found),
        has_paper and "Its rows: means over 10 targets each, and over all of its 80 pairs.",
        layout.missing(frame, "transfer", rows, method),
    )
    columns, title = (
        layout.metric_columns(["trained on"], parts),
        f"Transfer to other tasks under {method_title(method)}",
    )
    title += " (the paper's Table 2)" if method == "f2c" else ""
    records = averages.merge(printed, how="left")
    return Table(file_name("table2_transfer", method), title, columns, rows, notes, records)


def pairs_table(frame: pd.DataFrame, method: str) -> Table:
    """Every pair with its changes and their intervals."""
    found, pairs, has_paper = _pairs(frame, method)
    cells = layout.fill(found, ["source", "task"], pairs).assign(method=method)
    rows = layout.group_rows(
        [layout.task_cell(source), layout.task_cell(task), *layout.metric_cells(line, layout.CHANGE)]
        for (source, task), line in cells.groupby(["source", "task"], sort=False)
    )
    notes = layout.join(
        layout.about(frame, found),
        "Points against the base; lower sigma_F1 is better.",
        layout.INTERVAL_NOTE,
        has_paper and "The paper gives its pairs only as heat maps.",
        layout.missing(frame, "transfer", rows, method),
    )
    columns = layout.metric_columns(["trained on", "evaluated on"], layout.CHANGE)
    names = ["method", "source", "target", "metric", "mean", "std_over_seeds", "change", "change_low", "change_high"]
    records = cells[cells["metric"].isin(PAPER_METRICS)].rename(columns={"task": "target"})[names]
    title = f"Transfer by pair under {method_title(method)}"
    return Table(file_name("table2_pairs", method), title, columns, rows, notes, records)


def average_transfers(cells: pd.DataFrame) -> pd.DataFrame:
    """By source and metric, over all targets with a base: the mean improvement, its spread over seeds, the P/N counts.

    The source ``all`` has all pairs. The spread is of the mean over the pairs, where all have the same seeds.
    """
    compared = cells[cells.groupby(["source", "task"])["base"].transform("count") > 0]
    rows = []
    for source, pairs in [(ALL, compared), *compared.groupby("source", sort=False)]:
        for metric in PAPER_METRICS:
            own = pairs[(pairs["metric"] == metric) & pairs["change"].notna()]
            if len(own):
                by_seed = zip(*own["values"], strict=True) if pairs["seeds"].nunique() == 1 else ()
                average = average_change(own["improvement"], "mean_f1")  # of an improvement, more is better
                row = {"source": source, "metric": metric, "pairs": len(pairs) // len(KEPT)}
                row |= {"improvement": average.pop("mean_change"), "std_over_seeds": sample_std([*map(fmean, by_seed)])}
                rows.append(row | average)
    columns = ["source", "metric", "pairs", "improvement", "std_over_seeds", "better", "worse"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(["pairs", "better", "worse"], "Int64"))


def _pairs(frame: pd.DataFrame, method: str) -> tuple[pd.DataFrame, list[tuple[str, str]], bool]:
    """A method's pairs: what was audited, all that the study asks for, and whether the paper's Table 2 is of these."""
    asked = in_setting(frame, "transfer", method)
    has_paper = method == "f2c" and bool(table2()["source"].isin(asked["source"]).any())
    return average_seeds(asked), pairs_of(asked), has_paper
