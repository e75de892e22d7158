"""What changes the answers of a model most, and the cheapest remedy, in sentences."""

from itertools import chain

from flip_flop.console import count, percent, percent_interval, point_interval, points
from flip_flop.evaluation.values import AuditValues
from flip_flop.metrics import BETWEEN_RUNS, FLIP_RATE, METRICS, AxisRow, Scores, along, paired_bootstrap_interval

ACCURACY = METRICS.built_in["accuracy"]  # METRICS["accuracy"] would import plugins, which import us
CAUSES = {
    "order": "the order of the options",
    "wording": "the wording",
    "format": "the format",
    "examples": "adding examples or changing their set",
    "example_order": "the order of the examples",
    "typos": "adding typos",
    "language": "the language",
    "source": "the source of the wording",
    "again": "asking the same question again",
    "chat": "the chat template",
}
FORMS = {
    "calibrated": "Calibrate, which ends most of these changes",
    "average": "Average over the orders, one pass for each, which ends most of these changes",
}
NOTABLE = 0.05  # flips that call for a remedy
FAILS = -0.1  # difference in accuracy of a wording that fails from the others
MIN_GAIN = -0.05  # of accuracy, by a remedy


def changes(run: AuditValues, axis: str) -> str:
    """Return how often an axis changes the answer, also after calibration."""
    row = run.axis_rows[axis, None, "raw"]
    after = run.axis_rows.get((axis, None, "calibrated"))
    more = f"; {percent(after.flips)} after calibration" if after else ""
    pairs = f"{percent(row.flips)} % of {count(row.pairs, 'pair')} of answers"
    return f"{CAUSES[axis]} changes {pairs} (95% interval: {percent_interval((row.low, row.high))}{more})"


def sentence(words: str) -> str:
    """Return the words with a capital letter and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def causes(run: AuditValues) -> list[str]:
    """Return the axes of the prompts with a pair of answers, that with most flips first."""
    known = [(axis, wording) for (axis, wording, form), row in run.axis_rows.items() if row.pairs and form == "raw"]
    return [axis for axis, wording in known if wording is None and axis not in BETWEEN_RUNS.values()]


def first_cause(run: AuditValues) -> list[str]:
    """Return a sentence on the axis with most flips, if any, and whether it has clearly more than the second."""
    ranked = causes(run)
    if len(ranked) < 2:
        return [sentence(changes(run, axis)) for axis in ranked]
    words = changes(run, ranked[0]).replace("changes", "changes the answer most:")
    most, second = ([run.data.flips_along(axis)] for axis in ranked[:2])
    if paired_bootstrap_interval(FLIP_RATE, second, most)[0] <= 0:
        words += f", not clearly more than {CAUSES[ranked[1]]}"
    return [sentence(words)]


def failing_wordings(run: AuditValues) -> list[str]:
    """Return a sentence on each wording whose accuracy is clearly more than 10 points below the others.

    It is the accuracy after calibration and averaged over the orders, as far as the audit has them, of variants that
    all wordings have.
    """
    data = [*run.forms.values()][-1]
    groups = data.design.groups("wording")
    names = dict.fromkeys(chain(*groups))
    complete = [group for group in groups if len(group) == len(names)]
    variants = data.select([place for group in complete for same in group.values() for place in same])
    wordings = [own["wording"] for own in variants.design.levels]
    found = []
    for wording in names if complete else ():
        own = variants.select([place for place, name in enumerate(wordings) if name == wording])
        others = variants.select([place for place, name in enumerate(wordings) if name != wording])
        gap = ACCURACY.change_interval(others, own, confidence=1 - 0.05 / len(names))
        if gap and gap[1] < FAILS:
            found.append(f"Drop the wording {wording}, which is worse than the others: {_compared(others, own)}.")
    return found


def cheapest_remedy(run: AuditValues, template: str | None, is_calibrated: bool, by_position: bool) -> list[str]:
    """Return a sentence on the cheapest remedy for the axis with most flips, if there is one.

    A remedy clearly ends at least half of these flips, and costs at most 5 points of accuracy. Training has to gain
    accuracy, and if the model answers by position, so has any remedy. Without labels, only flips count.

    Args:
        run: The audit.
        template: The template to use, if there is one.
        is_calibrated: Whether to use its calibrated scores.
        by_position: Whether the model answers by position.
    """
    axis, *_ = [*causes(run), ""]
    rows = {form: run.axis_rows[axis, None, form] for form in run.forms if (axis, None, form) in run.axis_rows}
    if not rows or rows["raw"].low <= NOTABLE:
        return []
    raw = rows["raw"]
    steady = [form for form in FORMS if form in rows and _ends(raw, rows[form])]
    if not run.has_gold:
        return [f"{FORMS[form]}." for form in steady[:1]]
    forms = {form: run.forms[form].select(along(run.forms[form].design, axis)) for form in rows}
    ways = list[tuple[str, Scores, Scores, float]]()
    if axis == "order" and template:
        used = forms["calibrated" if is_calibrated else "raw"]
        level = run.data.design.levels[run.template_names.index(template)].get("order")
        kept = used.select([place for place, own in enumerate(used.design.levels) if own.get("order") == level])
        words = f"Keep the order {level} of this template, which costs little against averages"
        ways.append((words, [*forms.values()][-1], kept, MIN_GAIN))
    ways += [(FORMS[form], forms["raw"], forms[form], MIN_GAIN) for form in steady]
    if not by_position and not run.record.adapter:
        voting = run.forms.get("calibrated", run.data)
        ways.append(("Train on the vote of all variants, which is right more often", voting, voting.voted, 0.0))
    for words, before, after, least in ways:
        gap = ACCURACY.change_interval(before, after)
        if gap and gap[0] > (0.0 if by_position else least):
            return [f"{words}: {_compared(before, after)}."]
    return []


def _ends(raw: AxisRow, row: AxisRow) -> bool:
    """Return whether a form has no pairs, as an average over this axis, or at most half and clearly fewer flips."""
    return not row.pairs or (row.flips <= raw.flips / 2 and row.high < raw.low)


def _compared(before: Scores, after: Scores) -> str:
    """Return the accuracy of some variants against that of others, with the paired interval of the difference."""
    old = ACCURACY.value(before) or 0.0
    new = ACCURACY.value(after) or 0.0
    interval = point_interval(ACCURACY.change_interval(before, after))
    return f"accuracy {percent(new)} % against {percent(old)} % ({points(new - old)} points, 95% interval: {interval})"
