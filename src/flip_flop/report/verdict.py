"""The headline numbers of a group of audits, and the caveats that belong to them."""

from dataclasses import dataclass

from flip_flop.console import count, percent
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS, Metric
from flip_flop.report.compare import AuditComparison, Difference, difference_from_vote, mean_difference
from flip_flop.report.tables import HEADLINE, HEADLINE_WITHOUT_GOLD, table_caveats


@dataclass(frozen=True)
class Headline:
    """A metric of the last run: its value, its interval, and for a comparison its change from the baseline."""

    metric: Metric
    value: float | None
    interval: tuple[float, float] | None
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
    base, after = group.base, group.after
    found = []
    for name in HEADLINE if base.has_gold else HEADLINE_WITHOUT_GOLD:
        change = group.difference(name, after) if group.is_comparison else None
        before = base.value(name) if group.is_comparison else None
        found.append(Headline(METRICS[name], after.value(name), after.interval(name), before, change))
    return found


def caveats(group: AuditComparison) -> list[str]:
    """Sentences on missing labels, skipped rows, the effect of templates, and the baselines of training."""
    notes = []
    if not group.base.has_gold:
        notes.append("F1 needs gold labels. Without them the report shows agreement only.")
    if len(group.base.template_names) == 1:
        notes.append("Agreement and spread need at least two templates; this task has one.")
    notes += [
        f"{run.name} leaves out {count(skipped, 'instance')}: longer than the model's context."
        for run in group.runs
        if (skipped := run.record.task.num_too_long)
    ]
    notes += [*group.other_prompts, *table_caveats(group.runs), *group.swing]
    return notes if group.compares_models else [*notes, *_vote_caveat(group), *_method_caveats(group)]


def _vote_caveat(group: AuditComparison) -> list[str]:
    base, others, num_templates = group.base, group.runs[1:], len(group.base.template_names)
    if not others or not base.has_gold or num_templates == 1:
        return []
    clauses, places = [], set()
    for run in others:
        change = difference_from_vote(base, run)
        place = "above" if change.value > 0 else "below"
        if not change.is_clear:
            place = "not clearly different from"
        places.add(place)
        clauses.append(f"{run.name} is {place} the vote at {percent(run.value('mean_f1'))} ({change.words()})")
    text = (
        f"Baseline without training: the majority vote of {base.name} over {num_templates} templates has F1 "
        f"{percent(base.value('vote_f1'))}. With one template per answer, {'; '.join(clauses)}."
    )
    if "below" in places:
        text += f" A run below the vote has worse answers; the vote needs {num_templates} forward passes per answer."
    if "not clearly different from" in places:
        text += f" A run close to the vote saves passes: one per answer instead of {num_templates}."
    return [text]


def _method_caveats(group: AuditComparison) -> list[str]:
    metric = "mean_f1" if group.base.has_gold else "observed_agreement"
    ours = [run for run in group.runs if run.method == "f2c"]
    others = [run for run in group.runs if run.method not in (None, "f2c")]
    pairs = [(f2c, other, mean_difference(metric, other, [f2c])) for f2c in ours for other in others]
    return [
        f"{_method_title(other)} {'is ahead of' if change.is_clear else 'matches'} "
        f"{_method_title(f2c) if len(ours) == 1 else f2c.name} here: {METRICS[metric].title} "
        f"{percent(other.value(metric))} for {other.name}, {percent(f2c.value(metric))} for {f2c.name} "
        f"({f2c.name} minus {other.name}: {change.words()})."
        for f2c, other, change in pairs
        if change and not (change.is_clear and change.value > 0)
    ]


def _method_title(run: Audit) -> str:
    from flip_flop.method import METHODS  # imports torch, which most reports do not need

    return METHODS[str(run.method)].title if run.method in METHODS else str(run.method)
