"""The numbers and sentences of a report's sections, which the parts of the page format; its main table in LaTeX."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flip_flop.arrays import CellFlags
from flip_flop.console import Interval, count, percent, percent_interval, point_interval, points
from flip_flop.evaluation.result import Audit, coverage_rows
from flip_flop.metrics import (
    METRICS,
    Metric,
    chance_f1,
    column_intervals,
    reliability,
    resampled_per_template,
    template_agreement_matrix,
    vote_share,
)
from flip_flop.report import instances
from flip_flop.report.audit_tables import OPEN_COLUMNS, added_metrics, cell_text, has_value, table_caveats
from flip_flop.report.axes import axis_table
from flip_flop.report.compare import AuditComparison, Difference, mean_difference, quality, quality_per_template
from flip_flop.report.table import Column, Row, Table, TableCell

HEADLINE = ("observed_agreement", "mean_f1", "f1_std")
HEADLINE_OPEN = ("observed_agreement", "accuracy", "unmapped_share")
HEADLINE_WITHOUT_GOLD = ("observed_agreement", "no_consensus_share")
_COLUMNS = (*HEADLINE, "f1_range", "macro_f1", "accuracy", "vote_f1", "vote_accuracy")
_COLUMNS_WITHOUT_GOLD = (*HEADLINE_WITHOUT_GOLD, "label_shares")
WIDE = 8  # columns of a table of further metrics
_OTHER_LABELS = {  # columns of several metrics: label and tooltip
    "f1_range": ("F1 min..max", "F1 of the worst template and of the best template."),
    "label_shares": ("Label shares", "Share of each label among the answers."),
}
LEAST_COVERAGE = 0.05
F2C = ("f2c", "f2c_release")
TRUST = ("Stable answers: the same under all templates", "Accuracy of stable answers", "Cohen's κ of the majority vote")
MAX_MATRIX = 40  # templates: the size of a report grows with their number, not with its square
MAX_LEGEND = 20  # labels; colours repeat, so that a longer legend is ambiguous


def report_section(group: AuditComparison, number: int, size: int | None) -> dict[str, Any]:
    """All numbers of one group; ``size`` limits the characters of the embedded instances."""
    after = group.after if group.is_comparison else None
    shown = group.aligned.advised  # the answers in the list of rows
    changes = instances.find_changes(shown.base, shown.after if after else None)
    examples = instances.select_examples(changes)
    printed = {change.instance for members in examples.values() for change in members}
    pairs = [AuditComparison((run, run.calibrated)) for run in group.runs if run.calibrated]
    section = chart_section(group)
    others = other_metrics(group)
    parts = [others[start : start + WIDE] for start in range(0, len(others), WIDE)]
    section |= {
        "id": f"g{number}",
        "number": number,
        "title": "Held-out templates" if group.held_out else group.heading,
        "comparison": group,
        "after": after,
        "shown": shown,
        "row_forms": group.aligned.row_forms,
        "headlines": headlines(group if after else shown),
    }
    section |= {
        "axes": [(run, axis_table(run)) for run in group.runs if run.axis_rows],
        "metrics": metric_table(group),
        "more": [metric_table(group, names) for names in parts],
        "calibration": [metric_table(pair) for pair in pairs],
    }
    section |= {
        "states": instances.state_names(group.base),
        "examples": examples,
        "kind_counts": Counter(change.kind for change in changes),
        "embedded": instances.embed(group, section["order"], printed, size),
        "trust": trust_rows(group),
        "coverage": [_drawn(coverage_rows(run.voting)) for run in group.runs],
        "reliability": [],
    }
    if group.base.has_gold and not any(run.data.is_generated for run in group.runs):
        section["reliability"] = [reliability_curves(run) for run in group.runs]
    return section


def trust_rows(group: AuditComparison) -> list[tuple[str, list[tuple[float | None, Interval | None]]]]:
    """How far answers can be trusted: a title, and value and interval of each of :func:`chart_forms`.

    Empty without an axis or a repeated question.
    """
    forms = chart_forms(group)
    if not any(form.axis_rows for form in forms):
        return []
    columns = []
    for form in forms:
        is_stable = vote_share(form.data) == 1
        hits = form.data.voted.right[is_stable & (form.data.gold >= 0), 0]
        accuracy = float(hits.mean()) if len(hits) else None
        kappa = (form.value("vote_kappa"), form.interval("vote_kappa"))
        columns.append([(float(is_stable.mean()), None), (accuracy, None), kappa])
    rows = zip(TRUST, map(list, zip(*columns, strict=True)), strict=True)
    return [(title, cells) for title, cells in rows if cells != [(None, None)] * len(forms)]


def _drawn(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows of the vote share, and at most 400 of the margin; the risk of the first few instances is chance."""
    line = [row for row in rows if row["by"] == "margin" and row["coverage"] >= LEAST_COVERAGE]
    return [row for row in rows if row["by"] == "vote share"] + line[:: 1 + len(line) // 400]


def reliability_curves(run: Audit) -> list[list[list[float]]]:
    """Mean confidence and accuracy of each bin: all templates together, then each template."""
    sums = reliability(run.data.labelled)
    return [(bins[bins[:, 0] > 0, 1:] / bins[bins[:, 0] > 0, :1]).tolist() for bins in (sums.sum(axis=0), *sums)]


def chart_section(group: AuditComparison) -> dict[str, Any]:
    """The numbers of the charts, with templates in the order of :func:`template_order`."""
    shown = group.aligned
    order = template_order(shown)
    names = [shown.base.template_names[index] for index in order]
    agreement = []
    for run in shown.runs:
        table = template_agreement_matrix(run.predictions[:, order[:MAX_MATRIX]])
        agreement.append(table.tolist())
    lowest = np.min(agreement)
    shares = [("all templates", [run.metrics["label_shares"] for run in group.runs])]
    for name in names:
        of_runs = [run.metrics["label_shares_per_template"].get(name) for run in group.runs]
        shares.append((name, of_runs))
    section: dict[str, Any] = {
        "runs": group.runs,
        "forms": chart_forms(shown),
        "base": group.base,
        "open": group.is_open,
        "legend": [],
        "order": order,
        "names": names,
        "templates": template_scores(group),
        "agreement": agreement,
        "agreement_low": min(0.9, int(lowest * 10) / 10),
        "label_shares": shares,
        "gold_shares": gold_shares(group.base),
    }
    if not group.is_open and group.base.data.num_labels <= MAX_LEGEND:
        section["legend"] = group.base.label_names
    return section


def template_order(group: AuditComparison) -> list[int]:
    """The templates' indices, best first under the baseline as its decision advises; every chart uses this order."""
    values = template_values(group.advised.base)
    return sorted(range(len(values)), key=lambda index: (-(values[index] or 0.0), index))


def template_values(run: Audit) -> list[float | None]:
    """Each template's :func:`quality`; without gold labels, its agreement with the majority if any."""
    f1 = quality_per_template(run)
    if f1 is not None:
        return [float(value) for value in f1]
    agrees = _agreement_with_majority(run)
    if len(agrees):
        return [float(share) for share in agrees.mean(axis=0)]
    return [None] * agrees.shape[1]


def template_intervals(run: Audit) -> list[Interval | None]:
    """The 95% interval of each of :func:`template_values`."""
    if quality_per_template(run) is not None:
        agrees = None
    else:
        agrees = _agreement_with_majority(run).astype(np.float64)
    statistic, data = resampled_per_template(run.data.labelled.by_f1("macro"), agrees)
    if len(data):
        return [*column_intervals(statistic, data)]
    return [None] * len(run.template_names)


def _agreement_with_majority(run: Audit) -> CellFlags:
    """Whether each template gives the majority answer, on the instances with a majority."""
    agrees: CellFlags = run.predictions == run.data.votes[:, None]
    agrees &= run.predictions >= 0
    return agrees[2 * agrees.sum(axis=1) > agrees.shape[1]]


def chart_forms(group: AuditComparison) -> list[Audit]:
    """The columns of the chart of templates: the runs, or a single run raw and calibrated."""
    base = group.base
    if len(group.runs) == 1 and base.calibrated:
        return [base, base.calibrated]
    return list(group.runs)


def template_scores(group: AuditComparison) -> dict[str, Any]:
    """Each template's values by run, best first, the values to compare with, and the scale of their chart.

    ``calibrated`` holds the values of several runs after calibration, ``intervals`` the 95% intervals of ``rows``.
    """
    base = group.base
    forms = chart_forms(group.aligned)
    order = template_order(group.aligned)
    raw = [template_values(form) for form in forms]
    intervals = [template_intervals(form) for form in forms]
    others: list[list[float | None]] = []
    for form in forms:
        after = form.calibrated if group.is_comparison else None
        others.append(template_values(after) if after else [None] * len(form.template_names))
    lines: dict[str, float | None] = {}
    if base.has_gold:
        if not group.is_open:
            lines["chance"] = chance_f1(base.data.labelled.by_f1("macro"))
        for form in base.views:
            lines[f"majority vote of {form.name}"] = METRICS[quality(form)].value(form.data.labelled.voted)
    values = itertools.chain(*raw, *others, lines.values())
    ends = [interval[0] for interval in itertools.chain(*intervals) if interval is not None]
    known = [value for value in (*values, *ends) if value is not None]
    low = min(int(min(known, default=0.0) * 10 + 1e-9), 9)
    ticks = [tick / 10 for tick in sorted(range(10, low - 1, -1 if low > 4 else -2))]
    return {
        "rows": _by_template(raw, order),
        "calibrated": _by_template(others, order),
        "intervals": _by_template(intervals, order),
        "lines": lines,
        "low": low / 10,
        "ticks": ticks,
    }


def _by_template(values: Sequence[Sequence[Any]], order: Sequence[int]) -> list[tuple[Any, ...]]:
    """The values of all runs for each template."""
    templates = [*zip(*values, strict=True)]
    return [templates[index] for index in order]


def gold_shares(run: Audit) -> list[float] | None:
    """The share of each gold label among the labelled instances; None without any, and for open answers."""
    labelled = run.gold[run.gold >= 0]
    if not run.has_gold or not len(labelled) or run.data.answered:
        return None
    return (np.bincount(labelled, minlength=len(run.label_names)) / len(labelled)).tolist()


@dataclass(frozen=True)
class Headline:
    """A metric of the last run: its value, its interval, and for a comparison its change from the baseline."""

    metric: Metric
    value: float | None
    interval: Interval | None
    before: float | None
    change: Difference | None

    @property
    def trend(self) -> str:
        """The direction of the change. Without an interval, the printed values decide."""
        if self.change is None or percent(self.before) == percent(self.value):
            return "same"
        if self.change.interval and not self.change.is_clear:
            return "unclear"
        return "up" if self.change.value > 0 else "down"


def headlines(group: AuditComparison) -> list[Headline]:
    """The headline metrics of the group."""
    base = group.base
    after = group.after
    names = HEADLINE_OPEN if group.is_open else HEADLINE
    return [
        Headline(
            METRICS[name],
            after.value(name),
            after.interval(name),
            before=base.value(name) if group.is_comparison else None,
            change=group.difference(name, after) if group.is_comparison else None,
        )
        for name in (names if base.has_gold else HEADLINE_WITHOUT_GOLD)
    ]


def caveats(group: AuditComparison) -> list[str]:
    """Sentences on missing labels, skipped rows, prompts, constant templates, and other methods."""
    notes = []
    if not group.base.has_gold:
        notes.append(
            f"{'Accuracy' if group.is_open else 'F1'} needs gold labels. Without them the report shows agreement only."
        )
    if len(group.base.template_names) == 1:
        notes.append("Agreement and spread need at least two templates; this task has one.")
    notes += [
        f"{run.name} leaves out {count(skipped, 'instance')}: longer than the model's context."
        for run in group.runs
        if (skipped := run.record.task.num_too_long)
    ]
    notes += [*group.other_prompts, *table_caveats(group.runs)]
    if group.compares_models:
        return notes
    return [*notes, *_method_caveats(group)]


def _method_caveats(group: AuditComparison) -> list[str]:
    if not group.base.has_gold:
        metric = "observed_agreement"
    elif group.is_open:
        metric = "accuracy"
    else:
        metric = "mean_f1"
    title = METRICS[metric].title
    ours = [run for run in group.runs if run.method in F2C]
    others = [run for run in group.runs if run.method not in (None, *F2C)]
    notes = []
    for f2c, other in itertools.product(ours, others):
        change = mean_difference(metric, other, [f2c])
        if change is None or change.place == "above":
            continue
        how = "is ahead of" if change.is_clear else "is not clearly different from"
        name = _method_title(f2c) if len(ours) == 1 else f2c.name
        values = f"{percent(other.value(metric))} for {other.name}, {percent(f2c.value(metric))} for {f2c.name}"
        difference = f"{f2c.name} minus {other.name}: {change.words()}"
        notes.append(f"{_method_title(other)} {how} {name} here: {title} {values} ({difference}).")
    return notes


def _method_title(run: Audit) -> str:
    from flip_flop.method import METHODS  # imports torch, which most reports do not need

    if run.method in METHODS:
        return METHODS[str(run.method)].title
    return str(run.method)


def metric_table(group: AuditComparison, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The table that HTML and LaTeX print: values in percent, and their differences from the baseline.

    Returns:
        ``columns``, each with ``name``, ``label`` and ``meaning``; ``rows`` of cells, each with ``value``,
        ``difference``, ``interval`` and ``best``.
    """
    if columns is None:
        columns = _main_columns(group)
    labels = _OTHER_LABELS | {name: (metric.label, metric.meaning) for name, metric in METRICS.items()}
    best = {name: _best(name, group.runs) if group.is_comparison else [] for name in columns}
    rows = []
    for run in group.runs:
        cells = []
        for name in columns:
            cell = {"value": cell_text(run, name), "best": run in best[name]}
            cells.append(cell | _parts(group, run, name))
        rows.append({"run": run, "cells": cells})
    headings = [{"name": name, "label": labels[name][0], "meaning": labels[name][1]} for name in columns]
    return {"columns": headings, "rows": rows}


def _main_columns(group: AuditComparison) -> list[str]:
    columns: Sequence[str] = _COLUMNS if group.base.has_gold else _COLUMNS_WITHOUT_GOLD
    if group.is_open:
        columns = [name for name in OPEN_COLUMNS if name in METRICS and group.base.value(name) is not None]
    return [*columns, *added_metrics(group.runs)]


def other_metrics(group: AuditComparison) -> list[str]:
    """The metrics with a value that the main table omits."""
    main = _main_columns(group)
    return [name for name in METRICS if name not in main and has_value(group.runs, name)]


def _parts(group: AuditComparison, run: Audit, name: str) -> dict[str, str | None]:
    """The small print of a cell: an interval, and for a later run the difference from the baseline."""
    if name not in METRICS:
        return {"difference": None, "interval": None}
    form = METRICS[name].form
    if run is group.base:
        interval = run.interval(name)
        return {"difference": None, "interval": percent_interval(interval, **form) if interval else None}
    change = group.difference(name, run)
    return {
        "difference": points(change.value, **form) if change else None,
        "interval": point_interval(change.interval, **form) if change and change.interval else None,
    }


def _best(name: str, runs: Sequence[Audit]) -> list[Audit]:
    """The runs with the best printed value.

    A collapsed run is excluded, and from metrics without gold labels a run with a constant template: its agreement
    says little.
    """
    if name not in METRICS or METRICS[name].higher_is_better is None:
        return []
    sound = [run for run in runs if not run.is_collapsed and (METRICS[name].needs_gold or not run.constant_templates)]
    values = {cell_text(run, name): value for run in sound if (value := run.value(name)) is not None}
    best = (max if METRICS[name].higher_is_better else min)(values, key=values.__getitem__, default="")
    return [run for run in sound if cell_text(run, name) == best]


def render_latex(groups: Sequence[AuditComparison]) -> str:
    r"""A float for each group, for ``\\input``: values, and below them differences and intervals."""
    floats = []
    for number, group in enumerate(groups, start=1):
        table = metric_table(group)
        rows: list[Row] = []
        for row in table["rows"]:
            name = TableCell(row["run"].name + (" (collapsed)" if row["run"].is_collapsed else ""), "name")
            rows.append([name, *(TableCell(cell["value"], "best" if cell["best"] else "") for cell in row["cells"])])
            for part in ("difference", "interval"):
                texts = [cell[part] or "" for cell in row["cells"]]
                if any(texts):
                    rows.append([TableCell(), *(TableCell(text, "small") for text in texts)])
        columns = [Column("Run", is_text=True), *(Column(column["label"]) for column in table["columns"])]
        floats.append(Table(f"consistency-{number}", group.heading, columns, rows, [table_caption(group)]).latex())
    return "\n".join(floats)


def table_caption(group: AuditComparison) -> str:
    """The units, the reference of the differences and the definition of F1."""
    caption = "In percent."
    if group.is_comparison:
        caption += f" Differences from {group.base.name} are in percentage points, with 95% intervals."
        caption += " Bold marks the best value. It skips collapsed runs and, for agreement, constant templates."
    if group.is_open:
        caption += " Distinct answers are numbers of answers, answer length is in characters."
    elif group.base.has_gold:
        if group.base.data.is_binary:
            f1 = f"for label {group.base.label_name(1)!r}"
        else:
            f1 = "averaged over all labels"
        caption += f" F1 is {f1}; σ is its population standard deviation over templates."
    return caption
