"""Over templates: study 3, what training on the first K does for unseen ones; and how far the base's F1 spreads."""

from statistics import fmean

import numpy as np
import pandas as pd

from flip_flop.method import BASE
from flip_flop.studies import paper
from flip_flop.studies.frame import CELL, average_seeds, in_setting, method_title, task_order, tasks_of, template_f1
from flip_flop.studies.tables import layout
from flip_flop.studies.tables.layout import number
from flip_flop.studies.tables.table import Column, Row, Table, TableCell

WIDE_RANGE = 0.15  # the paper counts the datasets whose interquartile range exceeds this
QUANTILES = {"min": 0, "Q1": 0.25, "median": 0.5, "Q3": 0.75, "max": 1}
_PARTS: layout.Parts = {"%": lambda cell: number(cell.mean, std=cell.std_over_seeds), **layout.CHANGE}


def unseen_table(frame: pd.DataFrame) -> Table:
    """By task and K: the metrics on templates that the training never saw, and their changes."""
    cells = average_seeds(in_setting(frame, "unseen"))
    cells = cells.iloc[sorted(range(len(cells)), key=lambda index: task_order(cells["task"].iloc[index]))]
    has_seen, rows = False, []
    for (_, method, _, task, k, held_out, _), line in cells.groupby(CELL, sort=False):
        seen = "" if held_out or method == BASE.name else " (seen)"
        has_seen = has_seen or bool(seen)
        trained = TableCell("base" if method == BASE.name else f"{method_title(method)}, {k} templates{seen}")
        rows.append([layout.task_cell(task), trained, *layout.metric_cells(line, _PARTS)])
    notes = layout.join(
        layout.about(frame, cells),
        layout.deviation(cells),
        "All rows of a task are audited on the same templates, the ones held out from training on the first K.",
        has_seen and "Rows marked (seen): trained on these templates too.",
        "Changes are in points against the base; lower sigma_F1 is better. " + layout.INTERVAL_NOTE,
        "The paper gives this study as a plot, without numbers.",
        layout.missing(frame, "unseen", rows),
    )
    names = ["task", "method", "templates_trained_on", "held_out", "templates", "metric", "mean", "std_over_seeds"]
    records = cells[cells["metric"].isin(paper.PAPER_METRICS)].rename(columns={"k": "templates_trained_on"})
    return Table(
        "study3_unseen_templates",
        "Unseen templates after training on the first K (the paper's study 3)",
        layout.metric_columns(["task", "trained on"], _PARTS),
        layout.group_rows(rows),
        notes,
        records[[*names, "change", "change_low", "change_high"]],
    )


def spread_table(frame: pd.DataFrame) -> Table:
    """F1 over templates of the base: quartiles by task, and their mean range beside the paper's."""
    own, tasks = in_setting(frame, "own", BASE.name), tasks_of(in_setting(frame, "own"))
    f1, cells = template_f1(own), average_seeds(own)
    found = quartiles(f1).reindex(tasks)
    ranges, stated = found["Q3-Q1"].dropna(), paper.text()
    lines = {
        "mean": (number(fmean(ranges)), f"{stated['base mean interquartile range']:.2f}"),
        "above 15 points": (
            f"{(ranges > WIDE_RANGE).sum()} of {len(ranges)}",
            f"{stated['base tasks with interquartile range above 15']:.0f} of 11",
        ),
    }
    has_paper = any(task in paper.dataset_names() for task in tasks)
    body: list[Row] = [
        [layout.task_cell(task), *(TableCell(number(value)) for value in line), *[TableCell(is_paper=True)] * has_paper]
        for task, line in zip(tasks, found.to_numpy(), strict=True)
    ]
    below = [
        [*map(TableCell, [head, *[""] * len(QUANTILES), range_]), *[TableCell(theirs, is_paper=True)] * has_paper]
        for head, (range_, theirs) in lines.items()
    ]
    notes = layout.join(
        layout.about(frame, cells),
        "F1 over templates, percent; quartiles by linear interpolation.",
        has_paper and layout.paper_notes("Beside the mean range", cells),
        has_paper and "Its mean range: over its eleven datasets.",
        layout.missing(frame, "own", body),
    )
    columns = [Column("task", is_text=True), *map(Column, [*found.columns, *["paper"] * has_paper])]
    title, records = "F1 of the base over templates (the paper's appendix)", f1.drop(columns="method")
    return Table("base_spread", title, columns, [*body, [], *below], notes, records, is_wide=False)


def quartiles(f1: pd.DataFrame) -> pd.DataFrame:
    """By task: the smallest, the quartiles (linear interpolation) and the largest F1, and the interquartile range."""
    groups = f1.groupby("task", sort=False)["f1"]
    found = {task: np.quantile(values, list(QUANTILES.values())).round(12) for task, values in groups}
    frame = pd.DataFrame.from_dict(found, orient="index", columns=list(QUANTILES))
    return frame.assign(**{"Q3-Q1": frame["Q3"] - frame["Q1"]})
