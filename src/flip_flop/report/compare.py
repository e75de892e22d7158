"""Audits of the same rows: how far their metrics differ, in sentences, tables and one frame."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from statistics import fmean

import pandas as pd

from flip_flop.arrays import PerTemplate
from flip_flop.console import (
    MISSING,
    Interval,
    align_columns,
    count,
    on_one_line,
    percent,
    point_interval,
    points,
)
from flip_flop.evaluation.result import SHOWN, Audit, html_table
from flip_flop.evaluation.run_directory import load_run
from flip_flop.metrics import (
    ALIASES,
    METRICS,
    Scores,
    accuracy_per_template,
    batch_offsets,
    calibrated,
    predicted,
    uniform_prior,
)
from flip_flop.report.audit_tables import render_text
from flip_flop.report.pairing import (
    VOTE,
    data_differences,
    in_order_of,
    is_held_out,
    may_be_same,
    prompt_changes,
    require_same_rows,
    side_by_side,
)
from flip_flop.report.table import Column, Table, TableCell

Run = Audit | str | PathLike[str]  # a path is that of a run directory


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between runs, as a fraction, with its paired 95% interval if it has one.

    ``form`` is that of the metric.
    """

    value: float
    interval: Interval | None
    form: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    @property
    def place(self) -> str:
        """The sign in words: above, below, or not clearly different from."""
        if not self.is_clear:
            return "not clearly different from"
        return "above" if self.value > 0 else "below"

    def words(self) -> str:
        """The difference in points with its interval.

        Example:
            >>> Difference(0.198, (0.176, 0.22)).words()
            '+19.8, 95% CI +17.6 to +22.0'
        """
        if self.interval:
            interval = f", 95% CI {point_interval(self.interval, **self.form)}"
        else:
            interval = ""
        return points(self.value, **self.form) + interval


def mean_difference(metric: str, before: Audit, after: Sequence[Audit], *, choices: int = 1) -> Difference | None:
    """The mean of a metric over several runs minus its value in one run; None if a run has no value.

    The interval covers the sampling of instances: every resample uses the same instances in all runs. It does not
    cover the variation between training seeds. It holds for the best of ``choices`` such differences.
    """
    start = before.value(metric)
    metric = ALIASES.get(metric, metric)
    values = [value for run in after if (value := run.value(metric)) is not None]
    if start is None or len(values) < len(after):
        return None
    data = [run.data for run in after]
    interval = METRICS[metric].change_interval(before.data, *data, confidence=1 - 0.05 / choices)
    return Difference(fmean(values) - start, interval, METRICS[metric].form)


def difference_from_vote(before: Audit, after: Audit) -> Difference:
    """The mean :func:`quality` of single templates after training minus the quality of the majority vote before it."""
    metric = METRICS[quality(before)]
    vote = metric.value(before.data.labelled.voted) or 0.0
    return Difference(after.metrics[metric.name] - vote, metric.change_interval(before.data.voted, after.data))


def quality(run: Audit) -> str:
    """The metric of right answers in sentences and charts: macro-F1, or the accuracy of open answers."""
    return "accuracy" if run.data.answered else "macro_f1"


def quality_per_template(run: Audit) -> PerTemplate | None:
    """The :func:`quality` of each template; None without gold labels."""
    data = run.data.labelled
    if data.answered:
        return accuracy_per_template(data)
    return data.by_f1("macro").f1


@dataclass(frozen=True, repr=False)
class AuditComparison:
    """Audits of the same instances, with distinct names. The first is the baseline. Their prompts may differ."""

    runs: tuple[Audit, ...]

    @property
    def base(self) -> Audit:
        """The baseline: the first run."""
        return self.runs[0]

    @property
    def after(self) -> Audit:
        """The run that headlines compare with the baseline: the last run."""
        return self.runs[-1]

    @property
    def is_comparison(self) -> bool:
        """Whether there is a run besides the baseline."""
        return len(self.runs) > 1

    @property
    def held_out(self) -> bool:
        """Whether training used none of the templates."""
        return is_held_out(self.base)

    @property
    def heading(self) -> str:
        """The task, split, templates and instances as one line of plain text."""
        task = self.base.record.task
        kind = "held-out template" if self.held_out else "template"
        size = len(self.template_names)
        parts = [task.name, task.split, count(size, kind), count(len(self.base.scores), "instance")]
        return on_one_line(", ".join(parts))

    @property
    def compares_models(self) -> bool:
        """Whether the runs are of different base models, so that none is before or after another."""
        return _of_several_models(self.runs)

    @property
    def title(self) -> str:
        """The task, and the runs if there are several."""
        names = [run.name for run in self.runs]
        pair = f" against {' and '.join(names[1:])}" if self.compares_models else f" → {names[-1]}"
        return self.base.record.task.name + (f": {names[0]}{pair}" if self.is_comparison else "")

    @property
    def other_prompts(self) -> list[str]:
        """A sentence if a model read different prompts in the runs, as with a chat template that prints the date."""
        runs = [run for run in self.runs if run not in self.reworded]
        records = [run.record for run in runs if "prompts_digest" in run.record.scoring]
        read = set()
        models = set()
        for record in records:
            model = (record.model.digest or record.model.name, record.scoring.get("chat_template"))
            models.add(model)
            read.add((model, record.scoring["prompts_digest"]))
        dates = sorted({record.scoring.get("prompt_date") or "none" for record in records})
        text = (
            "W-PROMPTS: a model read different prompts in these runs, from the same rows and templates "
            f"(printed date: {', '.join(dates)}). Audit again with the same --prompt-date, chat template and versions."
        )
        if len(read) > len(models):
            return [on_one_line(text)]
        return []

    @property
    def is_open(self) -> bool:
        """Whether the answers are open."""
        return bool(self.base.data.answered)

    @property
    def quality_title(self) -> str:
        """The name of :func:`quality` in sentences."""
        return "accuracy" if self.is_open else "macro-F1"

    @property
    def trained(self) -> list[Audit]:
        """The runs with an adapter and the prompts of the baseline, if all runs are of one base."""
        if self.compares_models:
            return []
        return [run for run in self.runs[1:] if run.record.adapter and run not in self.reworded]

    @cached_property
    def reworded(self) -> list[Audit]:
        """The runs with other prompts than the baseline."""
        return [run for run in self.runs if self.note(run)]

    @cached_property
    def is_calibrated_alike(self) -> bool:
        """Whether the baseline and the runs with an adapter have the same calibration."""
        return len({_calibration(run) for run in (self.base, *self.trained)}) == 1

    @cached_property
    def untrained_form(self) -> Audit:
        """The form of the baseline that is compared with training: calibrated if all runs are calibrated alike."""
        return (self.base.calibrated if self.is_calibrated_alike else None) or self.base

    @property
    def trained_forms(self) -> list[Audit]:
        """The runs with an adapter, in the form of :attr:`untrained_form`."""
        return [(run.calibrated if self.is_calibrated_alike else None) or run for run in self.trained]

    @cached_property
    def advised(self) -> "AuditComparison":
        """The runs in the forms that their decisions name: raw, or calibrated."""
        return AuditComparison(
            tuple(run.calibrated if run.calibrated and run.decision.is_calibrated else run for run in self.runs)
        )

    @cached_property
    def row_forms(self) -> list[Audit]:
        """The runs whose answers the list of rows can show: all of them, then the calibrated forms of advice."""
        return [*self.runs, *(form for form in self.advised.runs if form not in self.runs)]

    @cached_property
    def aligned(self) -> "AuditComparison":
        """The comparison with the templates that all runs have, by name, or without any with the majority votes."""
        is_aligned = len({run.template_names for run in self.runs}) == 1
        if is_aligned:
            return self
        return AuditComparison(tuple(side_by_side(self.runs)))

    @property
    def template_names(self) -> list[str]:
        """The templates of all runs."""
        return [*dict.fromkeys(name for run in self.runs for name in run.template_names)]

    def note(self, run: Audit) -> str:
        """The changed prompts of a run in words, see :func:`prompt_changes`."""
        return prompt_changes(self.base, run)

    @cached_property
    def lines(self) -> list[list[str]]:
        """The main metrics and :meth:`template_lines`, in percent, with differences from the baseline."""
        names = [name for name in SHOWN if name != "vote_f1"]
        if self.base.data.is_binary:
            names.insert(names.index("mean_f1"), "macro_f1")
        lines = [self.line(name) for name in names]
        return [line for line in lines + self.template_lines() if {*line[1:]} != {MISSING}]

    def template_lines(self, name: str = "") -> list[list[str]]:
        """A metric, by default :func:`quality`, of the majority vote and of each template."""
        metric = name or quality(self.base)
        return [self.line(metric, template) for template in (VOTE, *self.template_names)]

    def line(self, name: str, template: str = "") -> list[str]:
        """A metric of each run, with its difference from the first one, of all templates, of one or of the vote."""
        metric = METRICS[name]
        line = [f"{metric.title} of {template}" if template else metric.title]
        answers = [answers_of(run, template) if template else run.data for run in self.runs]
        values = [metric.value(data) if data else None for data in answers]
        for data, value in zip(answers, values, strict=True):
            cell = percent(value, **metric.form)
            if line[1:] and data and answers[0] and value is not None and values[0] is not None:
                change = Difference(value - values[0], metric.change_interval(answers[0], data), metric.form)
                cell += f" ({change.words()})"
            line.append(cell)
        return line

    @property
    def table(self) -> Table:
        """The table of :attr:`lines`."""
        columns = [Column("%", is_text=True), *(Column(run.name, "name") for run in self.runs)]
        rows = []
        for line in self.lines:
            row = [TableCell(text, "name") for text in line]
            rows.append(row)
        return Table("", f"Differences from {self.base.name}", columns, rows)

    def tables(self, width: int | None = None) -> str:
        """The values of the runs and their differences as text, for a terminal of ``width`` columns."""
        values = render_text(comparison_blocks(self.runs), width)
        matrices = map(self.matrix_text, self.paired_metrics)
        return "\n\n".join([values, self.table.text(width), *matrices])

    @property
    def readings(self) -> list[str]:
        """Sentences on answers that cannot be read."""
        runs = [run for run in self.runs if run.reading]
        return [f"{run.name}: {run.reading}" if self.is_comparison else run.reading for run in runs]

    @cached_property
    def verdict(self) -> str:
        """Whether the best run is better than the untrained baseline, or an empty text without gold labels.

        The interval accounts for the choice among all runs, as that of a decision does among templates.
        """
        free = self.untrained_form
        forms = self.trained_forms
        metric = quality(free)
        if not forms or free.value(metric) is None or self.base.record.adapter:
            return ""
        run = max(forms, key=lambda form: form.value(metric) or 0.0)
        change = mean_difference(metric, free, [run], choices=len(forms))
        assert change
        helped = {"above": "helped", "below": "did harm"}.get(change.place, "did not clearly help")
        how = "calibrated, without training" if free is not self.base else "without training"
        before = percent(free.value(metric))
        after = percent(run.value(metric))
        words = change.words()
        if len(forms) > 1:
            after = f"at best {after}"
            words += f" for the best of {len(forms)}"
        start = f"a template has on average {self.quality_title} {before} {how}"
        return on_one_line(f"Training {helped}: {start}, {after} with {run.name} ({words}).")

    @cached_property
    def decision(self) -> list[str]:
        """Sentences on unread answers, the verdict, changes by training, the vote, and runs that have collapsed."""
        free = self.untrained_form
        size = len(self.base.template_names)
        is_calibrated = free is not self.base
        sentences = [*self.readings, *filter(None, [self.verdict])]
        for run in (*self.trained, *self.reworded):
            form = f"{run.name}, not calibrated" if is_calibrated else run.name
            parts = [*filter(None, [self.note(run)]), *self.changes(run)]
            sentences.append(f"{form}: {', '.join(parts)}.")
        if not self.is_calibrated_alike and any(run.calibrated for run in (self.base, *self.trained)):
            sentences.append("The runs are not calibrated in the same way, so they are compared without calibration.")
        if self.trained and is_calibrated and size > 1 and not self.base.record.adapter:
            agreement = percent(free.value("observed_agreement"))
            sentences.append(f"Without training, {free.name} has agreement {agreement}.")
        if self.verdict and size > 1:
            vote = percent(METRICS[quality(free)].value(free.data.labelled.voted))
            places = []
            for run in self.trained_forms:
                change = difference_from_vote(free, run)
                places.append(f"{run.name} is {change.place} it ({change.words()})")
            sentences.append(
                f"The majority vote of {free.name} has {self.quality_title} {vote} for {size} passes per answer. "
                f"With one pass, {'; '.join(places)}."
            )
        untrained = [run.name for run in self.runs if not run.record.adapter]
        if self.base.record.adapter and untrained and not self.compares_models:
            sentences.append(
                f"The baseline, {self.base.name}, is trained. To compare with {untrained[0]}, give it first."
            )
        sentences += [f"{run.name} has collapsed." for run in self.runs if run.is_collapsed]
        return [on_one_line(sentence) for sentence in sentences]

    def changes(self, run: Audit) -> list[str]:
        """The changes of agreement and of :func:`quality` from the baseline in words, if they have values."""
        names = {"observed_agreement": "agreement", quality(self.base): self.quality_title}
        words = []
        for name, title in names.items():
            if self.base.value(name) is not None:
                line = self.line(name)
                words.append(f"{title} {line[1]} to {line[1 + self.runs.index(run)]}")
        return words

    @property
    def paired_metrics(self) -> list[str]:
        """Agreement, and :func:`quality` with gold labels, for runs of several models."""
        names = ("observed_agreement", quality(self.base)) if self.compares_models else ()
        return [name for name in names if self.base.value(name) is not None]

    def matrix(self, metric: str) -> list[list[Difference | None]]:
        """The difference of a metric between each run (row) and each other run (column), as fractions."""
        lines = []
        for run in self.runs:
            line = [None if run is other else mean_difference(metric, other, [run]) for other in self.runs]
            lines.append(line)
        return lines

    def matrix_text(self, metric: str) -> str:
        """The matrix as aligned text, in points, with 95% intervals."""
        title = METRICS[ALIASES.get(metric, metric)].title
        lines = [[f"{title}: row minus column", *(run.name for run in self.runs)]]
        for run, line in zip(self.runs, self.matrix(metric), strict=True):
            lines.append([run.name, *(difference.words() if difference else MISSING for difference in line)])
        return align_columns(lines, num_left=1, rule=True)

    def difference(self, metric: str, run: Audit) -> Difference | None:
        """The difference of a metric between a run and the baseline, as a fraction."""
        return mean_difference(metric, self.base, [run])

    def to_pandas(self) -> pd.DataFrame:
        """One row for each metric and run after the first, in fractions.

        Columns: ``metric``, ``run``, ``before``, ``after``, ``difference``, and ``low`` and ``high``, the ends of the
        paired 95% interval of the difference.
        """
        rows = []
        for name in METRICS:
            for run in self.runs[1:]:
                difference = self.difference(name, run)
                low, high = (difference and difference.interval) or (None, None)
                values = (self.base.value(name), run.value(name), difference and difference.value)
                rows.append((name, run.name, *values, low, high))
        columns = ("metric", "run", "before", "after", "difference", "low", "high")
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return "\n\n".join([self.tables(), *self.other_prompts, *self.decision])

    def _repr_html_(self) -> str:
        return html_table(self.heading, ("%", *(run.name for run in self.runs)), self.lines)


def answers_of(run: Audit, template: str) -> Scores | None:
    """The answers under one template, or of the majority vote; None if the run does not have the template."""
    if template in run.template_names:
        return run.data.single(run.template_names.index(template))
    return run.data.voted if template == VOTE else None


def compare(before: Run, *after: Run) -> AuditComparison:
    """Compare audits of the same rows, paired by id; a path means a run directory. Their prompts may differ.

    Raises:
        InputError: ``E-RUN-MISMATCH`` if rows or labels differ; ``E-RUN-MISSING`` or ``E-RUN-BROKEN``.
    """
    groups = group_runs(as_audits([before, *after]))
    require_comparable([AuditComparison(group.runs[:1]) for group in groups])
    return groups[0]


def as_audits(runs: Run | Iterable[Run]) -> list[Audit]:
    """Return a list of audits, with run directories loaded."""
    given = [runs] if isinstance(runs, Audit | str | PathLike) else runs
    return [run if isinstance(run, Audit) else load_run(run) for run in given]


def comparison_blocks(runs: Sequence[Audit]) -> dict[str, list[Audit]]:
    """The runs of each table by its heading. A calibrated run follows its raw run."""
    blocks: dict[str, list[Audit]] = {}
    for number, group in enumerate(group_runs(runs), start=1):
        heading = f"{group.heading} ({number})" if group.heading in blocks else group.heading
        blocks[heading] = [audit for run in group.runs for audit in run.views]
    return blocks


def group_runs(runs: Sequence[Audit]) -> list[AuditComparison]:
    """Group runs over the same rows, in the order of the first of each group. Their prompts may differ."""
    if _of_several_models(runs):
        runs = [_renamed(run, _name_by_model(run)) for run in runs]
    groups: list[list[Audit]] = []
    for run in runs:
        group = next((group for group in groups if not data_differences(group[0], run)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(in_order_of(group[0], run))
    return [AuditComparison(tuple(_with_distinct_names(group))) for group in groups]


def require_comparable(groups: Sequence[AuditComparison]) -> None:
    """Refuse several groups of runs if none has two runs.

    Raises:
        InputError: ``E-RUN-MISMATCH``, with the differences between the first two runs.
    """
    if len(groups) > 1 and not any(group.is_comparison for group in groups):
        left = groups[0].base
        right = groups[1].base
        require_same_rows(left, right, f"{left.place} and {right.place} cannot be compared: they")


def what_differs(left: Audit, right: Audit) -> str:
    """The differences, in words, that prevent a comparison of two runs as one model before and after training."""
    one = left.record.model
    other = right.record.model
    found = [data_differences(left, right)]
    if left.template_names != right.template_names or prompt_changes(left, right):
        found.append("templates")
    if not may_be_same(one.digest, other.digest):
        found.append("model's weights")
    if one.dtype != other.dtype:
        found.append("data type")
    return " and ".join(filter(None, found))


def _calibration(run: Audit) -> tuple[str, tuple[float, ...]] | None:
    """Return the method and the prior of a run's calibration. A run that ``batch`` does not change has it as well."""
    if run.calibrated is not None:
        method = run.calibrated.metrics["method"]
        return "batch" if method == "stored" else method, tuple(run.calibrated.metrics["label_prior"])
    if run.data.is_generated:
        return None
    is_same = predicted(calibrated(run.scores, batch_offsets(run.scores))) == run.predictions
    if is_same.all():
        return ("batch", uniform_prior(run.data.num_labels))
    return None


def _with_distinct_names(runs: Sequence[Audit]) -> list[Audit]:
    """Add the folders, or numbers, to runs that share their name."""
    named = []
    for place, run in enumerate(runs):
        duplicates = [at for at, each in enumerate(runs) if each.name == run.name]
        folders = {runs[at].folder for at in duplicates} - {""}
        mark = run.folder if len(folders) == len(duplicates) else str(1 + duplicates.index(place))
        named.append(run if len(duplicates) == 1 else _renamed(run, f"{run.name} ({mark})"))
    return named


def _renamed(run: Audit, name: str) -> Audit:
    return replace(run, record=replace(run.record, name=name))


def _of_several_models(runs: Sequence[Audit]) -> bool:
    return len({run.record.model.digest or run.record.model.name for run in runs}) > 1


def _name_by_model(run: Audit) -> str:
    """The last part of the model's name, and the name of the run unless it is the default for a base model."""
    model = run.record.model.name.rstrip("/").rpartition("/")[2]
    return " ".join(part for part in (model, run.name) if part and (part != "base" or not model))
