"""Task files of variants, and paraphrases by a language model, whose texts are untrusted."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import yaml

from flip_flop.console import track
from flip_flop.errors import InputError
from flip_flop.files import derive_seed
from flip_flop.open_answers.generation import TEMPERATURE, RandomKey, batches_of, write_all
from flip_flop.prompts import SEPARATOR, LintRow, RenderedInstance, Template, lint_templates
from flip_flop.reading import AnswerFormat
from flip_flop.scoring import DEFAULT_SCORING
from flip_flop.scoring.models import LoadedModel
from flip_flop.served.apis import MissingError, Server, UnsupportedError
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks import Task
from flip_flop.variation.axes import format_axis, variants_along
from flip_flop.variation.formats import TemplateParts

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

_MAX_TOKENS = 1024  # of a paraphrase by a served model


@dataclass(frozen=True)
class VariedTemplate:
    """A template made from another.

    Attributes:
        template: The template; None for an invalid text.
        made: Its origin: the template ``from``. Of a paraphrase, also the ``change`` and its details.
        text: The text of a paraphrase, for a table.
        rejected: The reason to reject it, or empty.
        warnings: Lint codes that the original does not have.
    """

    name: str
    template: Template | None
    made: dict[str, Any]
    text: str = ""
    rejected: str = ""
    warnings: tuple[str, ...] = ()


def kept_templates(found: Sequence[VariedTemplate]) -> list[Template]:
    """Return the templates that are not rejected."""
    return [variant.template for variant in found if variant.template and not variant.rejected]


def vary_templates(
    task: Task,
    rows: Sequence[LintRow],
    axes: Mapping[str, Any],
    *,
    seed: int = 0,
    generate: Generate | None = None,
    paraphrases: int = 0,
    by: str = "",
) -> tuple[Task, list[VariedTemplate]]:
    """Return the task with paraphrases of its training templates, and with variants of all along the axes.

    Invalid templates, duplicates, and templates with lint errors are rejected, and only in the list.

    Args:
        task: The task.
        rows: Rows for lint.
        axes: The axes, as in :meth:`flip_flop.tasks.Task.with_axes`, or none.
        seed: The seed of paraphrases.
        generate: The paraphraser; None for none.
        paraphrases: Paraphrases per template.
        by: The name of the paraphraser, for the record.
    """
    found = list[VariedTemplate]()
    if generate is not None:
        keys = [
            (template, index)
            for template in task.training_templates
            for index in islice(_free(task, template), paraphrases)
        ]
        random_keys = [(seed, "paraphrase", template.name, index) for template, index in keys]
        first: dict[str, str] = {}
        for template in task.templates:
            first.setdefault(_plain(template.jinja), template.name)
        for key, reply in zip(keys, generate([instruction(key[0]) for key in keys], random_keys), strict=True):
            found.append(_paraphrase(*key, reply, {"seed": seed, "by": by}, first))
        found = judge(task, rows, found)
        task = _with_templates(task, (*task.templates, *kept_templates(found)))
    if axes:
        known = set(task.templates.names)
        varied = task.with_axes(axes)
        new = [template for template in varied.templates if template.name not in known]
        variants = [VariedTemplate(template.name, template, {"from": template.levels["wording"]}) for template in new]
        judged = judge(_with_templates(varied, varied.templates.select(known)), rows, variants)
        rejected = {variant.name for variant in judged if variant.rejected}
        task = _with_templates(varied, [each for each in varied.templates if each.name not in rejected])
        found += judged
    return task, found


def _with_templates(task: Task, templates: Iterable[Template]) -> Task:
    kept = replace(task.templates, templates=tuple(templates))
    held_out = tuple(name for name in task.held_out_templates if name in kept.names)
    return replace(task, templates=kept, held_out_templates=held_out)


def add_formats(task: Task, rows: Sequence[LintRow], number: int) -> list[Template]:
    """Return the templates of a task and formats of them that lint accepts, at most ``number``."""
    axis = format_axis(max(0, number - len(task.templates)) // len(task.templates), seed=0)
    own = list[Template]()
    variants = list[VariedTemplate]()
    for template in task.templates:
        base, *made = variants_along(template, axis)
        own.append(base)
        variants += [VariedTemplate(each.name, each, {"from": template.name}) for each in made]
    return own + kept_templates(judge(task, rows, variants))


def _free(task: Task, template: Template) -> Iterator[int]:
    """Yield the numbers from 1 that no paraphrase of the task has."""
    return (index for index in count(1) if f"{template.name} paraphrase {index}" not in task.templates.names)


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


def judge(task: Task, rows: Sequence[LintRow], variants: Sequence[VariedTemplate]) -> list[VariedTemplate]:
    """Lint the templates together with those of the task, and reject templates with errors."""
    findings = lint_templates(
        replace(task.templates, templates=(*task.templates, *kept_templates(variants))),
        rows,
        label_field=task.label_field,
        num_labels=None if task.labels is None else len(task.labels),
    )
    codes: dict[str, list[str]] = defaultdict(list)
    errors: dict[str, str] = {}
    for finding in findings:
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
    """Return the text of the task file ``out``: ``source`` with the templates of the task, without comments.

    ``metadata`` has the origin of a paraphrase. Paths are relative to the folder of ``out``.
    """
    document = read_yaml(source)
    there = Path(os.path.relpath(source.parent, out.parent))
    for split, entry in document["data"].items():
        if isinstance(entry, str):
            document["data"][split] = (there / entry).as_posix()
        elif "path" in entry:
            document["data"][split] = entry | {"path": (there / entry["path"]).as_posix()}
    document["name"] = task.name
    document.pop("axes", None)  # the templates are their variants
    entries: dict[str, dict[str, Any]] = {}
    if isinstance(document["templates"], list):
        entries = {entry["name"]: entry for entry in document["templates"]}
    elif task.labels is not None:  # write the labels that the task found
        document |= {"label_field": task.label_field, "labels": list(task.labels)}
    for variant in found:
        if "change" in variant.made:
            entries[variant.name] = {"metadata": variant.made}
    document["templates"] = [entries.get(template.name, {}) | template.entry for template in task.templates]
    if task.held_out_templates:
        document["held_out_templates"] = list(task.held_out_templates)
    number = len(kept_templates(found))
    head = f"# {source.name} with {number} new templates, made by flip-flop templates vary.\n"
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


def served_sampler(name: str) -> Generate:
    """Return a generator of texts from a served model, by its name ``openai:URL#NAME``: a chat, or a completion."""
    server = Server(name)

    def write(prompts: Sequence[str], random_keys: Sequence[RandomKey]) -> list[str]:
        texts = []
        with track("paraphrases", len(prompts), "texts", quiet=False) as advance:
            for prompt, key in zip(prompts, random_keys, strict=True):
                how: dict[str, Any] = {
                    "temperature": TEMPERATURE,
                    "seed": derive_seed(*key) % 2**31,
                    "max_tokens": _MAX_TOKENS,
                }
                try:
                    message = server.chat(prompt, **how).choices[0].message
                    texts.append(message.content if message else "")
                except (UnsupportedError, MissingError):
                    texts.append(server.complete(prompt=prompt, **how).choices[0].text or "")
                advance(1)
        return texts

    return write
