"""A template in other words, from any model that writes texts; what it writes is not trusted."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from flip_flop.prompts import RenderedInstance, Template
from flip_flop.prompts.safety import SEPARATOR
from flip_flop.scoring import LoadedModel
from flip_flop.scoring.causal_lm import evaluation_mode
from flip_flop_phrasings.formats import TemplateParts

# From prompts, and a seed for each, to the texts that go on from them.
Generate = Callable[[Sequence[str], Sequence[int]], Sequence[str]]

INSTRUCTION_VERSION = 1  # counts up whenever a letter of the instruction changes
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
    """What a model is asked for a paraphrase of this template."""
    parts = TemplateParts(template)
    return _INSTRUCTION.format(answers=", ".join(map(parts.source, parts.answers)), prompt=parts.source(parts.text))


def read_paraphrase(template: Template, text: str, name: str) -> tuple[Template, str]:
    """The template that a text makes, with the target and answers of the one it is from; and why it is rejected.

    It must hold the template's own code, each piece as often, and name the answers that the template names.

    Raises:
        InputError: An ``E-TPL`` code where it cannot be read as a template.
    """
    parts = TemplateParts(template)
    found = Template(name, text + parts.target, template.answer_choices)
    other = TemplateParts(found)
    own, new = Counter(parts.holds(parts.text)), Counter(other.holds(other.text))
    lost = [each for each in parts.answers if parts.names(each, parts.text) and not parts.names(each, other.text)]
    why = [f"it lacks {each}" for each in own - new] + [f"it adds {each}" for each in new - own]
    why += [f"it no longer names the answer {parts.source(each)!r}" for each in lost]
    return found, "; ".join(why)


def cut_reply(reply: str) -> str:
    """The one prompt that a reply holds; nothing where it has no end, or a separator."""
    text, end, _ = reply.strip().removeprefix("<template>").partition("</template>")
    return text.strip() if end and SEPARATOR not in text else ""


class GumbelNoise(LogitsProcessor):
    """Noise under which the largest logit is a draw from the softmax: no global generator is read."""

    def __init__(self, seed: int, temperature: float = 0.8):
        self.random, self.temperature = torch.Generator().manual_seed(seed), temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The logits ``[batch, vocab]`` over the temperature, with the noise."""
        exponential = torch.empty(scores.shape, dtype=torch.float32).exponential_(generator=self.random)
        return scores.float() / self.temperature - exponential.log().to(scores.device)


def sampler(loaded: LoadedModel) -> Generate:
    """Texts from a causal LM, in its chat template where it has one; each a function of its prompt and its seed."""
    encoder, tokenizer, model = loaded.encoder(), loaded.tokenizer, loaded.model
    end: dict[str, Any] = {"stop_strings": ["</template>"], "eos_token_id": tokenizer.eos_token_id}

    @torch.no_grad()
    def write(prompt: str, seed: int) -> str:
        (read,) = encoder.as_read(RenderedInstance("", (prompt,), (), None)).prompts
        ids = [*([] if encoder.bos is None else [encoder.bos]), *tokenizer(read, add_special_tokens=False)["input_ids"]]
        room = len(ids) if encoder.max_length is None else min(len(ids), encoder.max_length - len(ids))
        config = GenerationConfig(max_new_tokens=max(1, room), do_sample=False, pad_token_id=0, **end)
        given = torch.tensor([ids], device=next(model.parameters()).device)
        settings = {"generation_config": config, "logits_processor": [GumbelNoise(seed)], "tokenizer": tokenizer}
        with evaluation_mode(model):
            out = model.generate(input_ids=given, attention_mask=torch.ones_like(given), **settings)  # type: ignore[operator]
        return str(tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))

    return lambda prompts, seeds: list(map(write, prompts, seeds))
