"""How prompts are scored. Importing these options needs no torch."""

from dataclasses import dataclass, field
from typing import Literal

ChatTemplate = Literal["auto", "on", "off"]
Backend = Literal["packed", "padded"]
By = Literal["probability", "generation"]
TooLongPolicy = Literal["refuse", "skip"]
# Bits of quantized weights: NF4 with double quantization as in QLoRA, or LLM.int8().
LoadIn = Literal["4bit", "8bit"]
DeviceMap = Literal["auto"]

_HELP = {
    "chat_template": "Put prompts into the tokenizer's chat template; auto: where it has one.",
    "backend": "packed: compute what prompts share once, where the model allows it; padded: each alone.",
    "batch_tokens": "Tokens of one forward pass.",
    "too_long": "Refuse rows that are longer than the model's context, or skip them under every template.",
    "by": "Of a served model: score each answer, or take the answer that it writes (generation).",
    "concurrency": "Requests to a served model at a time.",
}


@dataclass(frozen=True)
class ScoringOptions:
    """How prompts are put to a model and scored. The metadata of a field describes its command-line option."""

    chat_template: ChatTemplate = field(default="auto", metadata={"help": _HELP["chat_template"]})
    backend: Backend = field(default="packed", metadata={"help": _HELP["backend"]})
    batch_tokens: int = field(default=4096, metadata={"help": _HELP["batch_tokens"], "min": 1})
    too_long: TooLongPolicy = field(default="refuse", metadata={"help": _HELP["too_long"]})
    by: By = field(default="probability", metadata={"help": _HELP["by"]})
    concurrency: int = field(default=8, metadata={"help": _HELP["concurrency"], "min": 1})


DEFAULT_SCORING = ScoringOptions()
