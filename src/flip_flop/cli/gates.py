"""The gates of ``flip-flop audit``, which decide its exit code, and their file for CI."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from flip_flop.console import count, markdown_cell, on_one_line
from flip_flop.errors import InputError, look_up
from flip_flop.evaluation.result import Audit
from flip_flop.evaluation.run_directory import load_run
from flip_flop.metrics import ALIASES, METRICS, Scores, mean_statistic, paired_bootstrap_interval
from flip_flop.record import ModelRecord, RunRecord, TaskRecord
from flip_flop.tasks import RenderedSplit

EXIT_CODES = {True: 0, False: 1, None: 2}
RESULTS = {True: "passed", False: "**failed**", None: "**no value**"}
CHANGE = "{} {} to {}"  # of a metric
OF_PAIRS = ("observed_agreement", "fleiss_kappa")  # of two or more templates


@dataclass(frozen=True)
class Gate:
    """The result of a gate for one run: the condition, whether the run meets it, and a line with the numbers.

    ``passed`` is None if the metric has no value. The line is then an error.
    """

    run: str
    condition: str
    passed: bool | None
    message: str


@dataclass(frozen=True)
class Checks:
    """The gates of a command: metrics with their minimum, and the stored runs of ``--fail-if-worse-than``.

    Each stored run has the metric that compares it. By default, it is macro-F1, or the accuracy of open answers, or
    without gold labels agreement.
    """

    thresholds: Sequence[tuple[str, float]]
    stored: Sequence[tuple[Audit, str | None]]

    @classmethod
    def of(cls, fail_under: Sequence[str], fail_if_worse_than: Sequence[str]) -> "Checks":
        """Parse the options (``E-FAIL-UNDER``), and load the stored runs."""
        return cls([parse_threshold(text) for text in fail_under], [stored_run(text) for text in fail_if_worse_than])

    def require_values(self, split: RenderedSplit, *, skips_rows: bool) -> None:
        """Refuse gates without a value on this split, before it is scored. Skipped rows are known after scoring."""
        for name, _ in self.thresholds:
            check_threshold(name, split)
        for stored, metric in () if skips_rows else self.stored:
            check_stored(stored, unscored_audit(split.distinct), metric)

    def results(self, runs: "Sequence[Audit]") -> list[Gate]:
        """Return the results of all gates for all runs."""
        gates = [threshold_gate(run, *threshold) for run in runs for threshold in self.thresholds]
        return gates + [comparison_gate(stored, run, metric) for run in runs for stored, metric in self.stored]


def stored_run(text: str) -> tuple[Audit, str | None]:
    """Load the run of ``RUN[:METRIC]``, and return it with the metric or None (``E-FAIL-UNDER``)."""
    run, _, metric = text.rpartition(":")
    if not run or Path(text).exists():
        return load_run(text), None
    return load_run(run), known_metric("--fail-if-worse-than", metric)


def parse_threshold(text: str) -> tuple[str, float]:
    """Return the metric and the minimum of ``METRIC=VALUE``.

    Raises:
        InputError: ``E-FAIL-UNDER``.
    """
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        minimum = float(value)
    except ValueError:
        minimum = math.nan
    if not 0 <= minimum <= 1:  # NaN too: the check would always pass
        raise InputError(
            "E-FAIL-UNDER",
            f"--fail-under {text!r} is not METRIC=VALUE with a number from 0 to 1.",
            "Write, for example, --fail-under agreement=0.9.",
        )
    known_metric("--fail-under", name)
    return name, minimum


def known_metric(option: str, name: str) -> str:
    """Return the name in :data:`~flip_flop.metrics.METRICS` of a metric of which more is better (``E-FAIL-UNDER``)."""
    known = ALIASES | {metric.name: metric.name for metric in METRICS.values() if metric.higher_is_better}
    return look_up(name, known, "E-FAIL-UNDER", f"{option} takes no metric")


def unscored_audit(split: RenderedSplit) -> Audit:
    """Return an audit of this split without scores, to compare its data with those of a stored run."""
    names = tuple(split.task.templates.names)
    instances = split.instances
    shape = (len(instances), len(names), len(instances[0].choices[0]))
    scores = Scores(np.zeros(shape, np.float32), split.gold, ids=tuple(instance.id for instance in instances))
    return Audit(RunRecord(kind="audit", task=TaskRecord(**split.record), model=ModelRecord()), {}, scores, names)


def check_threshold(name: str, split: RenderedSplit) -> None:
    """Refuse a threshold whose metric has no value on this split (``E-FAIL-UNDER``)."""
    metric = METRICS[ALIASES.get(name, name)]
    if split.task.answer and (metric.needs_labels or metric.needs_probabilities):
        raise _no_value(name, "the answers are open", "Use agreement or accuracy.")
    labelled = int((split.gold >= 0).sum())
    number = len(split.task.templates)
    if (metric.needs_gold and not labelled) or (metric.name in OF_PAIRS and number < 2):
        raise _no_value(
            name, f"split {split.split!r} has {count(labelled, 'gold label')} and {count(number, 'template')}"
        )


def compared(stored: Audit, metric: str | None) -> str:
    """Return the metric that compares the runs."""
    from flip_flop.report.compare import quality

    default = quality(stored)
    return metric or ("observed_agreement" if stored.value(default) is None else default)


def check_stored(stored: Audit, run: Audit, metric: str | None) -> None:
    """Refuse a stored run on other data, or without a metric to compare (``E-RUN-MISMATCH``)."""
    from flip_flop.report.pairing import require_same_rows

    require_same_rows(stored, run, f"--fail-if-worse-than {stored.path}: the stored run and this audit")
    name = compared(stored, metric)
    if stored.value(name) is None:
        raise InputError(
            "E-RUN-MISMATCH",
            f"--fail-if-worse-than {stored.path}: the stored run has no {name}.",
            "Audit two or more templates, or rows with gold labels.",
        )


def threshold_gate(run: Audit, name: str, minimum: float) -> Gate:
    """Compare a metric with its minimum. A run fails if each of its templates has one answer to every row."""
    value = run.metrics[ALIASES.get(name, name)]
    limit = f"{minimum:.15g}"
    gate = partial(Gate, str(run.path), f"{name} >= {limit}")
    if value is None:
        if len({*run.predictions.flat}) == 1:
            why = "all answers are one label"
        else:
            why = "these answers do not define it"
        return gate(None, str(_no_value(name, why, "Choose another metric, such as agreement.")))
    reached = value >= minimum - 1e-9  # 33 / 60 is less than 0.55 in floating point
    digits = 4
    while digits < 15 and (round(value, digits) >= minimum) != reached:
        digits += 1
    shown = f"{name} is {value:.{digits}f}"
    if reached:
        line = f"{shown}, at least {limit}"
    else:
        line = f"below the threshold: {shown}, under {limit}"
    constant = run.constant_templates
    if constant:
        line += f"; constant: {on_one_line(', '.join(constant))}"
    return gate(reached and len(constant) < len(run.template_names), line)


def comparison_gate(stored: Audit, run: Audit, metric: str | None) -> Gate:
    """Compare a metric. A run is worse if the paired interval is below 0, or if a template has clearly become constant.

    The gate has no value if the data differ, or the metric has no value any more, or it is lower and has no interval.
    """
    gate = partial(Gate, str(run.path), f"not worse than {stored.path}{f' in {metric}' if metric else ''}")
    try:
        return gate(*_compared(stored, run, metric))
    except InputError as error:
        return gate(None, str(error))


def _compared(stored: Audit, run: Audit, metric: str | None) -> tuple[bool, str]:
    from flip_flop.report.compare import compare, mean_difference

    check_stored(stored, run, metric)
    pair = compare(stored, run)
    stored, run = pair.runs
    name = compared(stored, metric)
    change = mean_difference(name, stored, [run])
    constant = [template for template in run.constant_templates if _is_newly_constant(template, stored, run)]
    if not constant and (change is None or (change.interval is None and change.value < 0)):
        lacks = "value" if change is None else "interval, so a lower value cannot be judged"
        raise InputError(
            "E-FAIL-UNDER",
            f"--fail-if-worse-than: {name} of this run has no {lacks}.",
            "Choose another metric, such as agreement, or audit 50 or more rows.",
        )
    worse = bool(constant) or (change is not None and change.place == "below")
    parts = [CHANGE.format(*pair.line(name))]
    if constant:
        parts.append(f"constant now: {on_one_line(', '.join(constant))}")
    if pair.reworded:
        parts.append(pair.note(run))
    if pair.reworded and METRICS[name].needs_gold:
        parts += [CHANGE.format(*line) for line in pair.template_lines(name)]
    parts += pair.other_prompts
    return not worse, f"{'worse' if worse else 'not clearly worse'} than {stored.path}: {'; '.join(parts)}"


def _is_newly_constant(template: str, stored: Audit, run: Audit) -> bool:
    """Whether a constant template was not constant before, and clearly has fewer answers of other labels now.

    The paired interval of their share accounts for the number of templates.
    """
    from flip_flop.report.compare import answers_of

    if template in stored.constant_templates:
        return False
    after = run.data.answer_keys[:, run.template_names.index(template)]
    earlier = answers_of(stored, template) or stored.data.voted  # which an added template joins
    before = earlier.answer_keys[:, 0]
    answers, counts = np.unique(after, return_counts=True)
    top = answers[counts.argmax()]
    share = mean_statistic(np.asarray, bounds=(0.0, 1.0))
    confidence = 1 - 0.05 / len(run.template_names)
    _, high = paired_bootstrap_interval(share, [before != top], [after != top], confidence=confidence)
    return high < 0


def markdown(gates: Sequence[Gate], table: str) -> str:
    """Return the Markdown table of the audit, and a table of the gates."""
    lines = [table, ""]
    if gates:
        lines += ["| gate | result | numbers | run |", "|---|---|---|---|"]
    for gate in gates:
        cells = [markdown_cell(on_one_line(text)) for text in (gate.condition, gate.message, gate.run)]
        lines.append("| {0} | {result} | {1} | {2} |".format(*cells, result=RESULTS[gate.passed]))
    return "\n".join(lines) + "\n"


def _no_value(name: str, why: str, hint: str = "It needs gold labels, or a second template.") -> InputError:
    return InputError("E-FAIL-UNDER", f"--fail-under: {name} has no value here: {why}.", hint)
