"""Tables of audits, a row per audit: for a terminal, as Markdown and as CSV."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from flip_flop.console import MISSING, on_one_line, percent, percent_interval, spreadsheet_cell
from flip_flop.evaluation.result import Audit
from flip_flop.files import Json
from flip_flop.metrics import METRICS
from flip_flop.report.axes import LEGEND
from flip_flop.report.table import Column, Table, TableCell

_CSV_COLUMNS = (
    "run", "templates", "instances", "observed_agreement", "mean_f1", "f1_std", "f1_min", "f1_max",
    "macro_f1", "accuracy", "vote_f1", "vote_accuracy", "no_consensus_share", "collapsed", "constant_templates",
    "calibration",
)  # fmt: skip
_TEXT_COLUMNS = {
    "run": "run",
    "observed_agreement": "P_o",
    "agreement_interval": "95% of P_o",
    "mean_f1": "mean F1",
    "f1_std": "sigma F1",
    "f1_range": "min..max F1",
    "accuracy": "accuracy",
    "vote_f1": "vote F1",
}
OPEN_COLUMNS = {
    **{name: _TEXT_COLUMNS[name] for name in ("run", "observed_agreement", "agreement_interval", "accuracy")},
    "token_f1": "token F1",
    "vote_accuracy": "vote accuracy",
    "unmapped_share": "unreadable",
    "distinct_answers": "distinct",
    "answer_length": "length",
}
_LEGEND = (
    "P_o: how likely two templates give the same label, with its 95% interval over instances.",
    "sigma F1: standard deviation of F1 over templates. min..max F1: F1 of the worst and of the best template.",
    "vote F1: F1 of the templates' majority vote. collapsed: one label dominates, or every template is constant.",
)
_OPEN_LEGEND = (
    "P_o: how likely two templates give the same answer, with its 95% interval over instances.",
    "accuracy: answers equal to a reference after normalization. vote accuracy: of the most frequent answer.",
    "unreadable answers agree with nothing. distinct: different answers to an instance. length: in characters.",
)
Blocks = Mapping[str, Sequence[Audit]]  # runs by the heading of their table


def constant_count(run: Audit) -> str:
    """The number of constant templates, as ``3 of 4``."""
    return f"{len(run.constant_templates)} of {len(run.template_names)}"


def cell_text(run: Audit, name: str) -> str:
    """A metric of a run as tables print it: a percentage, a range or a word. A dash is a missing value."""
    match name:
        case "run":
            return run.name
        case "agreement_interval":
            return percent_interval(run.interval("observed_agreement"))
        case "f1_range":
            if run.f1_range is None:
                return MISSING
            return "..".join(map(percent, run.f1_range))
        case "label_shares":
            return " / ".join(map(percent, run.metrics["label_shares"]))
        case "collapsed":
            return "yes" if run.is_collapsed else "no"
        case "constant_templates":
            return constant_count(run)
    return percent(run.value(name), **METRICS[name].form)


def render_text(blocks: Blocks, width: int | None = None) -> str:
    """Aligned plain text in percent, with a table for each set of templates, for a terminal of ``width`` columns."""
    return "\n\n".join(_audit_table(heading, runs).text(width) for heading, runs in blocks.items())


def render_markdown(blocks: Blocks) -> str:
    """A Markdown table in percent for each set of templates, followed by its :func:`table_caveats`."""
    tables = (replace(_audit_table(heading, runs), notes=table_caveats(runs)) for heading, runs in blocks.items())
    return "\n\n".join(table.markdown() for table in tables)


def _audit_table(heading: str, runs: Sequence[Audit]) -> Table:
    titles = dict(OPEN_COLUMNS if any(run.data.answered for run in runs) else _TEXT_COLUMNS)
    titles |= {name: METRICS[name].label for name in added_metrics(runs)}
    if any(run.is_collapsed for run in runs):
        titles["collapsed"] = "collapsed"
    if any(run.constant_templates for run in runs):
        titles["constant_templates"] = "constant"
    columns = [Column(title, is_text=name == "run") for name, title in titles.items()]
    rows = []
    for run in runs:
        cells = [TableCell(_with_interval(run, name), "name" if name == "run" else "") for name in titles]
        rows.append(cells)
    return Table("", f"{heading}, in percent", columns, rows)


def _with_interval(run: Audit, name: str) -> str:
    """A metric as in :func:`cell_text`; an added one with its interval, which has no column."""
    interval = run.interval(name) if name in METRICS.added else None
    text = cell_text(run, name)
    if interval is None:
        return text
    return f"{text} ({percent_interval(interval, **METRICS[name].form)})"


def render_csv(blocks: Blocks) -> str:
    """CSV with all digits of the fractions from 0 to 1, and empty cells for missing values."""
    columns = [*_CSV_COLUMNS, *(name for name in METRICS if name not in _CSV_COLUMNS)]
    rows = [_csv_row(run) for run in itertools.chain(*blocks.values())]
    return pd.DataFrame(rows, columns=columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _csv_row(run: Audit) -> Json:
    low, high = run.f1_range or (None, None)
    return {name: run.value(name) for name in METRICS} | {
        "run": spreadsheet_cell(on_one_line(run.name)),
        "templates": len(run.template_names),
        "instances": len(run.scores),
        "f1_min": low,
        "f1_max": high,
        "collapsed": run.is_collapsed,
        "constant_templates": len(run.constant_templates),
        "calibration": spreadsheet_cell(assumption(run)),
    }


def legend(runs: Collection[Audit]) -> Sequence[str]:
    """The columns of :func:`render_text` and of the table of axes explained."""
    columns = _OPEN_LEGEND if any(run.data.answered for run in runs) else _LEGEND
    return columns + LEGEND if any(run.axis_rows for run in runs) else columns


def missing_values(runs: Collection[Audit]) -> list[str]:
    """The reasons for missing values in :func:`render_text`."""
    lines = []
    if not all(run.has_gold for run in runs):
        lines.append(f"{MISSING} of F1 and accuracy: they need gold labels, and the data have none.")
    if any(len(run.template_names) < 2 for run in runs):
        lines.append(f"{MISSING} of P_o and sigma F1: they need two templates, and there is one.")
    return lines


def assumption(run: Audit) -> str | None:
    """The method of a calibrated run and the label frequencies that it assumes; None for a raw run."""
    metrics = run.metrics
    if "label_prior" not in metrics:
        return None
    if metrics["method"] == "position":
        return "position calibration assumes no label frequencies"
    shares = (
        f"{name}: {100 * share:.3g} %" for name, share in zip(run.label_names, metrics["label_prior"], strict=True)
    )
    words = f"the given label frequencies {', '.join(shares)}"
    if len(set(metrics["label_prior"])) == 1:
        words = "equal label frequencies"
    return on_one_line(f"{metrics['method']} calibration assumes {words}")


def table_caveats(runs: Sequence[Audit]) -> list[str]:
    """Sentences on the F1 of one label, calibration and constant templates."""
    assumptions = dict.fromkeys(filter(None, map(assumption, runs)))
    notes = [f"calibrated: label bias corrected from the same scores; {words}." for words in assumptions]
    if runs[0].data.is_binary and runs[0].value("mean_f1") is not None:
        label = on_one_line(runs[0].label_names[1])
        notes.insert(0, f"The table has the F1 of the label {label}; the decision has macro-F1, of both labels.")
    for run in runs:
        name = on_one_line(run.name)
        if constant := run.constant_templates:
            listed = on_one_line(", ".join(f"{name} ({label})" for name, label in constant.items()))
            notes.append(f"{name}: constant templates (one label for every instance): {listed}.")
    return notes


def added_metrics(runs: Collection[Audit]) -> list[str]:
    """The metrics with a value that are not of this package. Every table has them."""
    return [name for name in METRICS.added if has_value(runs, name)]


def has_value(runs: Collection[Audit], name: str) -> bool:
    """Whether a metric has a value for some run."""
    return any(run.value(name) is not None for run in runs)
