"""New templates from a few: other formats, and paraphrases by a language model, whose texts are untrusted."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import yaml

from flip_flop.console import track
from flip_flop.drafting.formats import TemplateParts, apply_format, draw_format
from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.open_answers.generation import RandomKey, batches_of, write_all
from flip_flop.prompts import SEPARATOR, LintRow, RenderedInstance, Template, lint_templates
from flip_flop.reading import AnswerFormat
from flip_flop.scoring import DEFAULT_SCORING
from flip_flop.scoring.models import LoadedModel
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks import Task

# From prompts and random numbers to continuations.
Generate = Callable[[Sequence[str], Sequence[RandomKey]], Sequence[str]]

INSTRUCTION_VERSION = 1  # increases with every change of the instruction
_INSTRUCTION = """\
Below is a prompt between <template> and </template>. Write it in other words. It must mean the same and ask for the \
same answers: {answers}. Copy everything in {{{{ double braces }}}} exactly as it is and add none. \
Write one new prompt and then </template>.

<template>
{prompt}
</template>

In other words:
<template>
"""

_DRAWS = 30  # sampled formats per requested format: a short template has few


@dataclass(frozen=True)
class VariedTemplate:
    """A template made from another.

    Attributes:
        template: The template; None for an invalid text.
        made: Its origin: the template ``from``, the ``change`` and its details, ``seed`` and ``index``.
        text: The change, for a table.
        rejected: The reason to reject it, or empty.
        warnings: Lint codes that the original does not have.
    """

    name: str
    template: Template | None
    made: dict[str, Any]
    text: str
    rejected: str = ""
    warnings: tuple[str, ...] = ()


def kept_templates(found: Sequence[VariedTemplate]) -> list[Template]:
    """Return the templates that are not rejected."""
    return [variant.template for variant in found if variant.template and not variant.rejected]


def vary_templates(
    task: Task,
    rows: Sequence[LintRow],
    *,
    number: int,
    seed: int = 0,
    generate: Generate | None = None,
    paraphrases: int = 0,
    by: str = "",
    **form: Any,
) -> list[VariedTemplate]:
    """Make new templates from the training templates, up to ``number`` in all.

    Paraphrases come first, then formats of templates and paraphrases in turn. Invalid templates, duplicates, and
    templates with lint errors are rejected. A short template has few formats, so there may be fewer templates.

    Args:
        task: The task.
        rows: Rows for lint.
        number: The number of templates, including the original ones.
        seed: The seed of formats and paraphrases.
        generate: The paraphraser; None for formats only.
        paraphrases: Paraphrases per template.
        by: The name of the paraphraser, for the record.
        form: ``typos`` and ``keep_punctuation`` of :func:`flip_flop.drafting.formats.draw_format`.
    """
    found = list[VariedTemplate]()
    own = list(task.training_templates)
    if generate is not None:
        keys = [
            (template, index) for template in own for index in islice(_free(task, template, "paraphrase"), paraphrases)
        ]
        random_keys = [(seed, "paraphrase", template.name, index) for template, index in keys]
        first: dict[str, str] = {}
        for template in task.templates:
            first.setdefault(_plain(template.jinja), template.name)
        for key, reply in zip(keys, generate([instruction(key[0]) for key in keys], random_keys), strict=True):
            found.append(_paraphrase(*key, reply, {"seed": seed, "by": by}, first))
        found = _judge(task, rows, found)
    bases = own + kept_templates(found)
    seen = {_texts(apply_format(template, {}, template.name)) for template in [*task.templates, *bases]}
    rounds = islice(zip(*(_free(task, base, "format") for base in bases), strict=True), _DRAWS * number)
    draws = ((base, index) for indices in rounds for base, index in zip(bases, indices, strict=True))
    batch: list[VariedTemplate] | None = None
    while batch != [] and (missing := number - len(own) - len(kept_templates(found))) > 0:
        batch = []
        for base, index in draws:
            made = draw_format(base, generator(seed, "format", base.name, index), **form)
            template = apply_format(base, made, f"{base.name} format {index}")
            if _texts(template) not in seen:
                seen.add(_texts(template))
                details = {"from": base.name, "change": "format", "seed": seed, "index": index, **made}
                text = ", ".join(f"{key} {value!r}" for key, value in made.items())
                batch.append(VariedTemplate(template.name, template, details, text))
            if len(batch) == missing:
                break
        found = _judge(task, rows, [*found, *batch])
    return found


def _free(task: Task, template: Template, change: str) -> Iterator[int]:
    """Yield the numbers from 1 that the task does not use. It may have varied templates already."""
    return (index for index in count(1) if f"{template.name} {change} {index}" not in task.templates.names)


def _texts(template: Template) -> tuple[str, str | None]:
    return template.jinja, template.answer_choices


def _paraphrase(
    template: Template, index: int, reply: str, made: dict[str, Any], first: dict[str, str]
) -> VariedTemplate:
    """Make a template from a reply. ``first`` maps each text, without case and punctuation, to its first template."""
    name = f"{template.name} paraphrase {index}"
    text = cut_reply(reply)
    new = None
    why = "" if text else "the reply is not one prompt with an end"
    if text:
        try:
            new, why = read_paraphrase(template, text, name)
        except InputError as error:
            why = f"{error.code} {error.message}"
    if new and not why and (earlier := first.setdefault(_plain(new.jinja), name)) != name:
        why = f"it repeats {earlier!r}"
    change = {"from": template.name, "change": "paraphrase", "index": index, "instruction": INSTRUCTION_VERSION}
    return VariedTemplate(name, new, change | made, text or reply, why)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _judge(task: Task, rows: Sequence[LintRow], variants: Sequence[VariedTemplate]) -> list[VariedTemplate]:
    """Lint the templates together with those of the task, and reject templates with errors."""
    findings = lint_templates(
        replace(task.templates, templates=(*task.templates, *kept_templates(variants))),
        rows,
        label_field=task.label_field,
        num_labels=None if task.labels is None else len(task.labels),
    )
    orders = {variant.name for variant in variants if "order" in variant.made}  # their marks move with the options
    codes: dict[str, list[str]] = defaultdict(list)
    errors: dict[str, str] = {}
    for finding in findings:
        if finding.code != "W-TPL-LABEL-ORDER" or finding.template not in orders:
            codes[finding.template].append(finding.code)
        if finding.is_error:
            errors.setdefault(finding.template, f"{finding.code} {finding.message}")
    judged = []
    for variant in variants:
        codes_before = codes[variant.made["from"]]
        warnings = tuple(code for code in codes[variant.name] if code not in codes_before)
        rejected = variant.rejected or errors.get(variant.name, "")
        judged.append(replace(variant, rejected=rejected, warnings=warnings))
    return judged


def varied_task_text(source: Path, out: Path, task: Task, found: Sequence[VariedTemplate]) -> str:
    """Return the text of the task file ``out``: ``source`` with the kept templates, without comments.

    ``metadata`` has the origin of each new template. Paths are relative to the folder of ``out``.
    """
    document = read_yaml(source)
    there = Path(os.path.relpath(source.parent, out.parent))
    for split, entry in document["data"].items():
        if isinstance(entry, str):
            document["data"][split] = (there / entry).as_posix()
        elif "path" in entry:
            document["data"][split] = entry | {"path": (there / entry["path"]).as_posix()}
    made = {variant.name: variant.made for variant in found}
    kept = kept_templates(found)
    document["name"] = task.name
    if isinstance(document["templates"], dict):  # write the templates and labels that the task found
        document["templates"] = [template.entry for template in task.templates]
        if task.labels is not None:
            document |= {"label_field": task.label_field, "labels": list(task.labels)}
    document["templates"] += [template.entry | {"metadata": made[template.name]} for template in kept]
    head = f"# {source.name} with {len(kept)} new templates, made by flip-flop templates vary.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


# ---- paraphrases ----


def instruction(template: Template) -> str:
    """Return the instruction to paraphrase this template."""
    parts = TemplateParts(template)
    return _INSTRUCTION.format(answers=", ".join(map(parts.source, parts.answers)), prompt=parts.source(parts.text))


def read_paraphrase(template: Template, text: str, name: str) -> tuple[Template, str]:
    """Make a template from a text, with the original's target and answers. Also return reasons to reject it.

    The text must have every piece of the original's code equally often, and name the same answers.

    Raises:
        InputError: An ``E-TPL`` code for an invalid template.
    """
    parts = TemplateParts(template)
    found = replace(template, name=name, jinja=text + parts.target, levels={})
    other = TemplateParts(found)
    own = Counter(parts.holds(parts.text))
    new = Counter(other.holds(other.text))
    lost = [
        answer for answer in parts.answers if parts.names(answer, parts.text) and not parts.names(answer, other.text)
    ]
    why = [f"it lacks {piece}" for piece in own - new] + [f"it adds {piece}" for piece in new - own]
    why += [f"it no longer names the answer {parts.source(answer)!r}" for answer in lost]
    return found, "; ".join(why)


def cut_reply(reply: str) -> str:
    """Return the prompt of a reply; empty for a reply without an end or with a separator."""
    text, end, _ = reply.strip().removeprefix("<template>").partition("</template>")
    if end and SEPARATOR not in text:
        return text.strip()
    return ""


def sampler(loaded: LoadedModel) -> Generate:
    """Return a generator of texts from a causal LM. A text depends on its prompt and its random numbers only."""
    encoder = loaded.encoder()

    def write(prompts: Sequence[str], random_keys: Sequence[RandomKey]) -> list[str]:
        read = (encoder.as_read(RenderedInstance("", (prompt,), (), None)) for prompt in prompts)
        ids = [encoder.prompt_ids(instance)[0] for instance in read]
        longest = max(map(len, ids), default=0)
        if encoder.max_length is None:
            room = longest
        else:
            room = min(longest, encoder.max_length - longest)
        form = AnswerFormat(stop=("</template>",), max_tokens=max(1, room))
        batches = batches_of(ids, form.max_tokens, DEFAULT_SCORING.batch_tokens)
        with track("paraphrases", len(ids), "texts", quiet=False) as advance:
            texts = write_all(loaded, ids, batches, form, random_keys, advance)
        return [texts[place][0] for place in range(len(ids))]

    return write
