"""What to do after an audit: which template to use, how sure that is, and what to fix first."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flip_flop.console import Interval, count, on_one_line, percent, percent_interval, point_interval, points
from flip_flop.evaluation.causes import causes, changes, cheapest_remedy, failing_wordings, first_cause, sentence
from flip_flop.evaluation.handover import classifier_of
from flip_flop.evaluation.values import AuditValues
from flip_flop.metrics import (
    BETWEEN_RUNS,
    METRICS,
    MIN_LABELLED,
    Design,
    Scores,
    TemplateRanking,
    answers_by_position,
    bootstrap_interval,
    chance_f1,
    rank_templates,
)
from flip_flop.prompts import RenderedInstance
from flip_flop.reading import has_spaces
from flip_flop.record import Classifier

# Of the statement that a template is better than another: at 95 %, 5 % of these statements about equal templates would
# be wrong.
CONFIDENCE = 0.98
# Threshold of low own-label mass; rows from which on a template is constant; templates in a sentence.
LOW_MASS = 0.1
MIN_ROWS = 10
MAX_LISTED = 3
UNREAD = 0.1  # share of the answers that cannot be read, from which on a decision begins with reading


@dataclass(frozen=True)
class Decision:
    """What an audit shows.

    Attributes:
        sentences: The template to use or why there is none, what changes the answer and its remedy, the majority vote,
            and what to fix first.
        template: The template to use, or ``None``: the best, or one that is tied with it.
        is_calibrated: Whether to use its calibrated scores.
        macro_f1: Of the template, on the labelled instances.
        interval: The 95% interval of ``macro_f1``. It accounts for the choice among all templates.
        close: The other candidates that are not clearly worse than the best, as (template, is_calibrated), best first.
        classifier: What ``predict --with`` applies: the template, or without one the vote of all templates, calibrated
            if the audit is. ``None`` if the texts of the templates are unknown.
        command: Applies the template to new rows; empty without one.
    """

    sentences: tuple[str, ...]
    template: str | None = None
    is_calibrated: bool = False
    macro_f1: float | None = None
    interval: Interval | None = None
    close: tuple[tuple[str, bool], ...] = ()
    classifier: Classifier | None = field(default=None, repr=False, compare=False)
    command: str = field(default="", repr=False, compare=False)

    @property
    def text(self) -> str:
        """The sentences, and the command."""
        command = [f"Apply it: `{self.command}`."] if self.command else []
        return on_one_line(" ".join([*self.sentences, *command]))


def decide(run: AuditValues) -> Decision:
    """Choose the template to use, after sentences on answers that cannot be read, and on what changes the others."""
    chosen = _decide_read(run)
    found = _classifier(run, chosen)
    if chosen.template and found:
        command = f"flip-flop {predict_with(run)} --input rows.csv --out predictions.csv"
    else:
        command = ""
    sentences = tuple(filter(None, (reading_advice(run), *chosen.sentences)))
    return replace(chosen, sentences=sentences, classifier=found, command=command)


def predict_with(run: AuditValues) -> str:
    """Return the beginning of the command that applies the decision of an audit."""
    return f"predict --with {shlex.quote(str(run.path)) if run.folder else 'RUN'}"


def _classifier(run: AuditValues, chosen: Decision) -> Classifier | None:
    """Return the classifier of a decision: its template, or the vote of all templates."""
    if chosen.template is None:
        return classifier_of(run, run.template_names, chosen.text, is_calibrated=True)
    measured = {"macro_f1": chosen.macro_f1, "interval": chosen.interval and list(chosen.interval)}
    return classifier_of(run, [chosen.template], chosen.text, is_calibrated=chosen.is_calibrated, **measured)


def reading_advice(run: AuditValues) -> str:
    """Return a sentence on how to read more answers, with three of them, or an empty text if most were read."""
    share = run.value("unmapped_share") or 0.0
    if share <= UNREAD or "unparsed_per_template" not in run.metrics:
        return ""
    numbers = Counter[str]()
    for texts in run.metrics["unparsed_per_template"].values():
        numbers.update(dict(texts))
    examples = _listed([repr(text) for text, _ in numbers.most_common(MAX_LISTED)])
    more = "" if run.data.answered else ", or answer choices in the words of the model"
    return f"{percent(share)} % of the answers cannot be read, such as {examples}. Set extract in the task{more}."


def _decide_read(run: AuditValues) -> Decision:
    """Choose the template to use, with sentences on what changes the answers and on the cheapest remedy.

    Templates are not used raw if their answers depend on the position of the options.
    """
    by_position = answers_by_position(run.data)
    forms = [run, run.calibrated] if run.calibrated else [run]
    if by_position:
        forms = forms[1:]
    chosen = _choose(run, forms) if forms else Decision(())
    advice = failing_wordings(run)
    if not advice and not (by_position and chosen.template):
        advice = cheapest_remedy(run, chosen.template, chosen.is_calibrated, by_position)
    again = [sentence(changes(run, axis)) for axis, *_ in run.axis_rows if axis in BETWEEN_RUNS.values()]
    if not by_position:
        use, *others = chosen.sentences
        return replace(chosen, sentences=(use, *first_cause(run), *advice, *others, *again))
    if not chosen.template and not advice:
        advice = ["Use a stronger model, or let it grade one answer at a time."]
    words = f"The model answers by position, not by content: {changes(run, 'order')}."
    others = [sentence(changes(run, axis)) for axis in causes(run) if axis != "order"]
    return replace(chosen, sentences=(words, *chosen.sentences, *advice, *others, *again))


def _choose(run: AuditValues, forms: Sequence[AuditValues]) -> Decision:
    """Choose from the templates of these forms of a run, raw and calibrated, by macro-F1.

    No template is chosen from fewer than 50 labelled instances, no constant template, and none whose macro-F1 is not
    clearly above that of answers that ignore the input. Of those that are not clearly worse than the best, also by the
    narrower interval of the two alone, the first template is chosen, which may be a prompt of the user, or else a raw
    form, or else a short prompt. All printed intervals hold together, because the instances that compare the
    candidates also choose among them.
    """
    if run.data.answered:
        return _decide_open(run)
    templates = run.template_names
    names = [(name, form is not run) for form in forms for name in templates]
    number = len(run.data.labelled)
    if number < MIN_LABELLED or not np.ptp(run.data.labelled.gold):
        too_few = f"{count(number, 'labelled row')} {'is' if number == 1 else 'are'} too few"
        words = f"{too_few if number else 'It takes labels'} to choose a template; at least {MIN_LABELLED} are needed."
        if number >= MIN_LABELLED:
            words = "All labelled rows have one label. To choose a template, rows of the other labels are needed."
        collapsed = (f"{form.name} has collapsed." for form in forms if form.is_collapsed)
        return Decision((words, *collapsed, *_fixes(run, run.template_ranking)))
    scores = np.concatenate([form.data.values for form in forms], axis=1)
    candidates = Scores(scores, run.data.gold, design=Design("macro"))
    ranking = rank_templates(candidates, confidence=CONFIDENCE)
    best, *others = ranking.order
    is_raw = forms[0] is run
    hint = ""
    if is_raw and not reading_advice(run):  # otherwise the sentence on the position, or the one on reading, is the hint
        hint = f" {remedy(run, bool(run.record.scoring.get('chat_template')), 'use a stronger model')}"
    if ranking.faults[best] == "constant":
        which = "every one is constant" if len(templates) > 1 else "it is constant"
        return Decision((f"None of these templates works: {which}.{hint}",))
    metric = METRICS["macro_f1"]
    chance = chance_f1(candidates.labelled)
    ends = {index: difference[2] for index, difference in enumerate(ranking.differences) if difference}
    tied = [best, *(index for index in others if ranking.faults[index] is None and ends[index] >= 0)]
    tokens = run.metrics.get("prompt_tokens_per_template") or dict.fromkeys(templates, 0)
    ranks = [(name != templates[0], is_calibrated, tokens[name]) for name, is_calibrated in names]
    for used in sorted(tied, key=ranks.__getitem__):
        single = candidates.labelled.single(used)
        interval = bootstrap_interval(metric.statistic, single, confidence=1 - 0.05 / len(names))
        change = metric.change_interval(candidates.labelled.single(best), single)
        is_worse = change is not None and change[1] < 0
        if used == best or (interval[0] > chance and not is_worse):
            break
    value = float(ranking.values[used])
    if len(names) > 1:
        what = f"95% interval for the choice among {len(names)}"
    else:
        what = "95% interval"
    numbers = f"macro-F1 {percent(value)} ({what}: {percent_interval(interval)}), chance {percent(chance)}"
    if interval[0] <= chance:
        words = "None of these templates is clearly above chance: the best,"
        return Decision((f"{words} {_form(*names[best])}, has {numbers}.{hint}",))
    close = tuple(names[index] for index in tied if index != used)
    choice = _form(*names[used])
    sentences = [f"Use {choice}: {numbers}, on {count(number, 'labelled row')}."]
    mass = (run.metrics.get("own_label_mass_per_template") or {}).get(names[used][0], 1.0)
    if mass < LOW_MASS:
        said = f"they have {percent(mass)} % of the probability"
        sentences.append(f"Score the labels of {choice}, as predict does, instead of generating text: {said}.")
    if used != best:
        first = f"{_form(*names[best])} ({percent(float(ranking.values[best]))})"
        rule = "Ties go to the first template, then to raw scores, then to short prompts."
        sentences.append(f"{choice} is not clearly worse than the best, {first}. {rule}")
    elif close:
        if len(close) < len(others):
            worse = f"{len(close)} of the {len(others)} other forms"
        else:
            worse = "any other form"
        sentences.append(f"{choice} is not clearly better than {worse}: {_listed([_form(*name) for name in close])}.")
    if len(templates) > 1:
        kind = "calibrated vote" if names[used][1] or "offsets" in run.metrics else "vote"
        voted = (forms[-1] if names[used][1] else run).data.labelled.voted
        vote = metric.value(voted) or 0.0
        gain = point_interval(metric.change_interval(single, voted))
        what = f"{percent(vote)} ({points(vote - value)}, 95% interval: {gain})"
        sentences.append(f"The {kind} over {len(templates)} templates, {len(templates)} passes per answer, has {what}.")
    sentences += _fixes(run, ranking, used=names[used][0], is_raw=is_raw)
    return Decision(tuple(sentences), *names[used], value, interval, close)


def remedy(run: AuditValues, has_chat_template: bool, other: str) -> str:
    """Return a sentence on what may help a model that does not answer with the labels: only settings that it lacks."""
    is_compared = "--compare-chat" in (run.record.command or "")
    hints = [] if _lists_labels(run.instances) else ["list the labels in the prompt"]
    if has_chat_template and not is_compared:
        hints.append("compare --chat-template on and off (--compare-chat)")
    words = f"{', '.join(hints)} or {other}" if hints else other
    return sentence(words)


def _lists_labels(instances: Iterable[RenderedInstance]) -> bool:
    """Return whether all prompts of the first instance have all of their answers."""
    for first in instances:
        pairs = zip(first.prompts, first.choices, strict=True)
        return all(_has_word(prompt.casefold(), choice.casefold()) for prompt, choices in pairs for choice in choices)
    return False


def _has_word(text: str, word: str) -> bool:
    if has_spaces(word):
        return bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text))
    return word in text


def _decide_open(run: AuditValues) -> Decision:
    """Choose the template with the highest accuracy of open answers, if there are 50 rows with references.

    It must be right, and clearly better than a template with one answer to all rows.
    """
    ranking = run.template_ranking
    names = run.template_names
    best = ranking.order[0]
    if ranking.faults[best] == "constant":
        return Decision(("No template is chosen: each gives one answer to all rows.",))
    if not ranking.by_f1:
        return Decision((f"It takes {MIN_LABELLED} rows with right answers to choose a template.",))
    near = [index for index, gap in enumerate(ranking.differences) if gap and gap[2] >= 0]
    accuracy, vote = (percent(value) for value in (float(ranking.values[best]), run.value("vote_accuracy")))
    flat = [
        f"{names[index]}, with one answer to all rows, has {percent(float(ranking.values[index]))}"
        for index in near
        if ranking.faults[index] == "constant"
    ]
    if flat or not ranking.values[best]:
        why = ", and ".join([f"the best, {names[best]}, has accuracy {accuracy}", *flat])
        return Decision((f"No template is chosen: {why}.",))
    close = [names[index] for index in near]
    also = f", not clearly better than {_listed(close)}" if close else ""
    words = f"{names[best]} has the highest accuracy, {accuracy}{also}. The vote of all templates has {vote}."
    return Decision((words,), names[best], close=tuple((name, False) for name in close))


def _fixes(run: AuditValues, ranking: TemplateRanking, used: str | None = None, is_raw: bool = True) -> list[str]:
    """Return a sentence on templates that are constant or whose label words the model does not say, if there are any.

    The forms without calibration, if they are candidates, are the first of the ranking. The template that is used may
    have another form that is constant.
    """
    mass = run.metrics.get("own_label_mass_per_template") or {}
    kind = "constant"
    if run.calibrated:
        kind += " without calibration" if is_raw else " after calibration"
    is_seen = len(run.data.values) >= MIN_ROWS
    constant = []
    unsaid = []
    for name, fault, share in zip(run.template_names, ranking.faults, ranking.constancy.tolist(), strict=False):
        if name == used:
            continue
        if fault == "constant" and is_seen:
            rows = "every row" if share == 1.0 else f"{percent(share)} % of the rows"
            constant.append(f"{name} ({kind}: one label for {rows})")
        elif fault != "constant" and mass.get(name, 1.0) < LOW_MASS:
            unsaid.append(f"{name} (label words have {percent(mass[name])} % of the probability)")
    fixes = [*constant, *unsaid]
    return [f"Fix first: {_listed(fixes)}."] if fixes else []


def _form(name: str, is_calibrated: bool) -> str:
    return f"{name}, calibrated" if is_calibrated else name


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    *first, last = [*names[:MAX_LISTED], *more]
    mark = "; " if any("," in name for name in first) else ", "
    if first:
        return f"{mark.join(first)} and {last}"
    return last
