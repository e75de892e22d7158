"""Paraphrases of a template by a language model, whose texts are untrusted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from flip_flop.console import track
from flip_flop.drafting.formats import TemplateParts
from flip_flop.prompts import SEPARATOR, AnswerFormat, RenderedInstance, Template
from flip_flop.scoring import DEFAULT_SCORING, LoadedModel
from flip_flop.scoring.open_answers import RandomKey, batches_of, write_all

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
    found = replace(template, name=name, jinja=text + parts.target, wording=template.wording and name)
    other = TemplateParts(found)
    own, new = Counter(parts.holds(parts.text)), Counter(other.holds(other.text))
    lost = [
        answer for answer in parts.answers if parts.names(answer, parts.text) and not parts.names(answer, other.text)
    ]
    why = [f"it lacks {piece}" for piece in own - new] + [f"it adds {piece}" for piece in new - own]
    why += [f"it no longer names the answer {parts.source(answer)!r}" for answer in lost]
    return found, "; ".join(why)


def cut_reply(reply: str) -> str:
    """Return the prompt of a reply; empty for a reply without an end or with a separator."""
    text, end, _ = reply.strip().removeprefix("<template>").partition("</template>")
    return text.strip() if end and SEPARATOR not in text else ""


def sampler(loaded: LoadedModel) -> Generate:
    """Return a generator of texts from a causal LM. A text depends on its prompt and its random numbers only."""
    encoder = loaded.encoder()

    def write(prompts: Sequence[str], random_keys: Sequence[RandomKey]) -> list[str]:
        read = (encoder.as_read(RenderedInstance("", (prompt,), (), None)) for prompt in prompts)
        ids = [encoder.prompt_ids(instance)[0] for instance in read]
        longest = max(map(len, ids), default=0)
        room = longest if encoder.max_length is None else min(longest, encoder.max_length - longest)
        form = AnswerFormat(stop=("</template>",), max_tokens=max(1, room))
        batches = batches_of(ids, form.max_tokens, DEFAULT_SCORING.batch_tokens)
        with track("paraphrases", len(ids), "texts", quiet=False) as advance:
            texts = write_all(loaded, ids, batches, form, random_keys, advance)
        return [texts[place][0] for place in range(len(ids))]

    return write
