"""The comparison as a table: plain text for the terminal, Markdown, and CSV."""

import csv
import io
from collections.abc import Sequence

from flip_flop.console import (
    MISSING,
    align_columns,
    count,
    markdown_cell,
    percent,
    percent_interval,
    spreadsheet_cell,
    visible,
)
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS
from flip_flop.report.compare import group_runs

_HEADINGS = ("run", "P_o", "95% of P_o", "mean F1", "sigma_F1", "min..max F1", "accuracy", "vote F1", "collapsed")
_CSV_HEADINGS = (
    "run", "templates", "instances", "observed_agreement", "mean_f1", "f1_std", "f1_min", "f1_max",
    "macro_f1", "accuracy", "vote_f1", "vote_accuracy", "no_consensus_share", "collapsed", "constant_templates",
    "calibration",
)  # fmt: skip
_LEGEND = (
    "In percent. P_o: how likely two templates give the same label, with its 95 % interval over instances.",
    "sigma_F1: the standard deviation of F1 over templates. min..max F1: of the worst and of the best template.",
    "vote F1: of the templates' majority vote. collapsed: one label dominates, or every template is constant.",
)
FEW_INSTANCES = 50  # below, percentile intervals are too narrow
Rows = dict[str, list[Audit]]


def comparison_rows(runs: Sequence[Audit]) -> Rows:
    """The runs by their instances and templates; the calibrated row of an audit follows its raw row."""
    rows: Rows = {}
    for group in group_runs(runs):
        both = [each for run in group.runs for each in (run, run.calibrated) if each is not None]
        rows.setdefault(group.heading, []).extend(both)
    return rows


def render_text(rows: Rows) -> str:
    """Aligned plain text, in percent; one block per set of templates."""
    tables = ((name, _lines(runs)) for name, runs in rows.items())
    return "\n\n".join(f"{name}\n{align_columns(lines, num_left=1, rule=True)}" for name, lines in tables)


def legend(rows: Rows) -> str:
    """The columns of :func:`render_text` in few words, and why cells are dashes, each on a line."""
    runs = [run for runs in rows.values() for run in runs]
    lines = list(_LEGEND)
    if any(not run.has_gold for run in runs):
        lines.append(f"{MISSING} of F1 and accuracy: they need gold labels, and there are none.")
    if any(len(run.template_names) < 2 for run in runs):
        lines.append(f"{MISSING} of P_o and sigma_F1: they need two templates, and there is one.")
    return "\n".join(lines)


def render_markdown(rows: Rows) -> str:
    """A Markdown table per set of templates, in percent, with :func:`table_caveats`."""
    blocks = []
    for heading, runs in rows.items():
        head, *lines = _lines(runs)
        lines = [head, ("---", *("---:" for _ in head[1:])), *(tuple(map(markdown_cell, line)) for line in lines)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append("\n\n".join([markdown_cell(heading), table, *map(markdown_cell, table_caveats(runs))]))
    return "\n\n".join(blocks)


def render_csv(rows: Rows) -> str:
    """CSV with fractions from 0 to 1 in full, and empty cells where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings = [*_CSV_HEADINGS, *(name for name in METRICS if name not in _CSV_HEADINGS)]
    writer.writerow(headings)
    for run in (run for runs in rows.values() for run in runs):
        low, high = run.f1_range or (None, None)
        values = {
            "run": spreadsheet_cell(visible(run.name, one_line=True)),
            "templates": len(run.template_names),
            "instances": len(run.scores),
            "f1_min": low,
            "f1_max": high,
            "collapsed": run.is_collapsed,
            "constant_templates": None if run.constant_templates is None else len(run.constant_templates),
            "calibration": spreadsheet_cell(assumption(run)),
            **{name: run.value(name) for name in METRICS},
        }
        writer.writerow(["" if values[heading] is None else values[heading] for heading in headings])
    return text.getvalue()


def range_words(run: Audit) -> str:
    """F1 of the worst template and of the best, in percent."""
    return MISSING if run.f1_range is None else "..".join(map(percent, run.f1_range))


def assumption(run: Audit) -> str | None:
    """The method of a calibrated run and the label frequencies that it assumes, in words; None for a raw run."""
    found = run.metrics
    if "label_prior" not in found:
        return None
    shares = (f"{name}: {100 * share:.3g} %" for name, share in zip(run.label_names, found["label_prior"], strict=True))
    words = f"the given label frequencies {', '.join(shares)}"
    if len(set(found["label_prior"])) == 1:
        words = "equal label frequencies"
    return visible(f"{found['method']} calibration assumes {words}", one_line=True)


def table_caveats(runs: Sequence[Audit]) -> list[str]:
    """Sentences on intervals over few instances, calibration, constant templates and fragile answers."""
    number = min(len(run.data.labelled) or len(run.data) for run in runs)
    noun = "labelled instance" if number < min(len(run.data) for run in runs) else "instance"
    few = f"Of {count(number, noun)} 95% intervals are too narrow; trust them from {FEW_INSTANCES} on."
    notes = [few] * (number < FEW_INSTANCES)
    assumptions = dict.fromkeys(filter(None, map(assumption, runs)))
    notes += [f"calibrated: label bias corrected from the same scores; {words}." for words in assumptions]
    notes += [
        f"{visible(run.name, one_line=True)}: constant templates (one label for every instance): "
        f"{visible(', '.join(f'{name} ({label})' for name, label in constant.items()), one_line=True)}."
        for run in runs
        if (constant := run.constant_templates)
    ]
    return notes + [
        f"{visible(run.name, one_line=True)}: noise decides {percent(share)}% of the answers, the fragile ones: their "
        f"margin over the second label is under {run.metrics['resolution']:.2g} nats, which "
        f"{run.record.model.dtype or 'the data type'} does not resolve. "
        f"{percent(run.value('fragile_vote_share'))}% of the votes hang on them."
        for run in runs
        if (share := run.value("fragile_share"))
    ]


def _lines(runs: Sequence[Audit]) -> list[tuple[str, ...]]:
    """Headings and a line per run. Constant templates and fragile answers have a column only if a run has some."""
    lines = [_HEADINGS, *map(_cells, runs)]
    columns: dict[str, list[tuple[object, str]]] = {
        "constant": [(run.constant_templates, constant_count(run)) for run in runs],
        "fragile": [(share, percent(share)) for share in (run.value("fragile_share") for run in runs)],
    }
    for heading, column in columns.items():
        if any(value for value, _ in column):
            lines = [(*line, cell) for line, (_, cell) in zip(lines, [(None, heading), *column], strict=True)]
    return lines


def constant_count(run: Audit) -> str:
    """The number of constant templates, as ``3 of 4``."""
    return MISSING if run.constant_templates is None else f"{len(run.constant_templates)} of {len(run.template_names)}"


def _cells(run: Audit) -> tuple[str, ...]:
    return (
        visible(run.name, one_line=True),
        percent(run.value("observed_agreement")),
        percent_interval(run.interval("observed_agreement")),
        *(percent(run.value(metric)) for metric in ("mean_f1", "f1_std")),
        range_words(run),
        *(percent(run.value(metric)) for metric in ("accuracy", "vote_f1")),
        "yes" if run.is_collapsed else "no",
    )
