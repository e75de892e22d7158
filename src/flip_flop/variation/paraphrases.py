"""Paraphrases of templates by a language model, whose texts are untrusted."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice

from flip_flop.errors import InputError
from flip_flop.prompts import SEPARATOR, LintRow, OpenAnswers, RenderedInstance, Template
from flip_flop.reading import AnswerFormat
from flip_flop.scoring.scorer import Scorer
from flip_flop.tasks import Task
from flip_flop.variation.formats import TemplateParts
from flip_flop.variation.vary import VariedTemplate, judge, kept_templates

INSTRUCTION_VERSION = 2  # increases with every change of the instruction
_INSTRUCTION = """\
Below is a prompt between <template> and </template>. Write it in other words. It must mean the same and ask for the \
same answers: {answers}. Copy everything in {{{{ double braces }}}} exactly as it is and add none. \
Write one new prompt and then </template>.

<template>
{prompt}
</template>

In other words, version {index}:
<template>
"""
_FORM = AnswerFormat(stop=("</template>",), max_tokens=512)


def add_paraphrases(
    task: Task, rows: Sequence[LintRow], scorer: Scorer, number: int, *, by: str = ""
) -> tuple[Task, list[VariedTemplate]]:
    """Return the task with paraphrases of its training templates that lint accepts, and a list of all paraphrases.

    Args:
        task: The task.
        rows: Rows for lint.
        scorer: The model that writes paraphrases.
        number: Paraphrases per template.
        by: The name of the model, for the record.
    """
    asked = []
    bases = []
    for template in task.training_templates:
        names = (f"{template.name} paraphrase {index}" for index in count(1))
        free = (name for name in names if name not in task.templates.names)
        for name in islice(free, number):
            prompt = instruction(template, name.rpartition(" ")[2])
            asked.append(RenderedInstance(name, (prompt,), (("", ""),), None, open=OpenAnswers(_FORM)))
            bases.append(template)
    first: dict[str, str] = {}
    for template in task.templates:
        first.setdefault(_plain(template.jinja), template.name)
    found = []
    written = scorer.scores(asked, label="paraphrases", quiet=False).instances
    for base, instance in zip(bases, written, strict=True):
        made = {"from": base.name, "instruction": INSTRUCTION_VERSION, "by": by}
        found.append(replace(_paraphrase(base, instance, first), made=made))
    templates = replace(task.templates, templates=(*task.templates, *kept_templates(found)))
    return judge(replace(task, templates=templates), rows, found)


def _paraphrase(base: Template, written: RenderedInstance, first: dict[str, str]) -> VariedTemplate:
    """Make a template from a reply. ``first`` maps each text, without case and punctuation, to its first template."""
    assert written.open is not None
    text = written.written[0].strip().removeprefix("<template>").strip()
    new = None
    why = "the reply is not one prompt with an end"
    if text and SEPARATOR not in text and written.open.endings != (None,):
        try:
            new, why = read_paraphrase(base, text, written.id)
        except InputError as error:
            why = f"{error.code} {error.message}"
    if new and not why and (earlier := first.setdefault(_plain(new.jinja), written.id)) != written.id:
        why = f"it repeats {earlier!r}"
    return VariedTemplate(written.id, new, text, rejected=why)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def instruction(template: Template, index: str) -> str:
    """Return the instruction to write the paraphrase of this number."""
    parts = TemplateParts(template)
    answers = ", ".join(map(parts.source, parts.answers))
    return _INSTRUCTION.format(answers=answers, prompt=parts.source(parts.text), index=index)


def read_paraphrase(template: Template, text: str, name: str) -> tuple[Template, str]:
    """Make a template from a text, with the original's target and answers. Also return reasons to reject it.

    The text must have every piece of the original's code equally often, and name the same answers.

    Raises:
        InputError: An ``E-TPL`` code for an invalid template.
    """
    parts = TemplateParts(template)
    levels = {"wording": name, "source": "paraphrase"}
    if "language" in template.levels:
        levels["language"] = template.levels["language"]
    found = replace(template, name=name, jinja=text + parts.target, levels=levels)
    other = TemplateParts(found)
    own = Counter(parts.holds(parts.text))
    new = Counter(other.holds(other.text))
    lost = [
        answer for answer in parts.answers if parts.names(answer, parts.text) and not parts.names(answer, other.text)
    ]
    why = [f"it lacks {piece}" for piece in own - new] + [f"it adds {piece}" for piece in new - own]
    why += [f"it no longer names the answer {parts.source(answer)!r}" for answer in lost]
    return found, "; ".join(why)
