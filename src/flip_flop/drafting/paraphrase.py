"""Paraphrases of a template by a language model, whose texts are untrusted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig

from flip_flop.drafting.formats import TemplateParts
from flip_flop.files import generator
from flip_flop.prompts import SEPARATOR, RenderedInstance, Template
from flip_flop.scoring import LoadedModel
from flip_flop.scoring.causal_lm import evaluation_mode
from flip_flop.scoring.open_answers import GumbelNoise

# From prompts and seeds to continuations.
Generate = Callable[[Sequence[str], Sequence[int]], Sequence[str]]

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
    """Return a generator of texts from a causal LM. Each text depends on its prompt and seed only."""
    encoder, tokenizer, model = loaded.encoder(), loaded.tokenizer, loaded.model
    end: dict[str, Any] = {"stop_strings": ["</template>"], "eos_token_id": tokenizer.eos_token_id}

    @torch.no_grad()
    def write(prompt: str, seed: int) -> str:
        (read,) = encoder.as_read(RenderedInstance("", (prompt,), (), None)).prompts
        ids = [*([] if encoder.bos is None else [encoder.bos]), *tokenizer(read, add_special_tokens=False)["input_ids"]]
        room = len(ids) if encoder.max_length is None else min(len(ids), encoder.max_length - len(ids))
        config = GenerationConfig(max_new_tokens=max(1, room), do_sample=False, pad_token_id=0, **end)
        given = torch.tensor([ids], device=next(model.parameters()).device)
        settings = {
            "generation_config": config,
            "logits_processor": [GumbelNoise([generator(seed, "paraphrase")], temperature=0.8)],
            "tokenizer": tokenizer,
        }
        with evaluation_mode(model):
            out = model.generate(input_ids=given, attention_mask=torch.ones_like(given), **settings)  # type: ignore[operator]
        return str(tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))

    return lambda prompts, seeds: list(map(write, prompts, seeds))
