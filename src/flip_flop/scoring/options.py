"""The options of scoring. Importing this module does not import torch."""

from dataclasses import dataclass, field, fields
from typing import Literal, get_args, get_origin

from flip_flop.errors import InputError, require_whole

ChatTemplate = Literal["auto", "on", "off"]
Backend = Literal["auto", "packed", "padded"]
By = Literal["probability", "generation"]
Api = Literal["auto", "echo", "prompt_logprobs", "top_logprobs", "systemone", "decisions"]
TooLongPolicy = Literal["refuse", "skip"]
# Bits of quantized weights: NF4 with double quantization as in QLoRA, or LLM.int8().
LoadIn = Literal["4bit", "8bit"]
DeviceMap = Literal["auto"]
# Weights in parts, one in each process, which are gathered for each pass.
Shard = Literal["fsdp"]

_HELP = {
    "chat_template": "Use the tokenizer's chat template; auto: if it has one.",
    "backend": "packed: compute shared tokens of prompts once; padded: separate sequences; auto: packed if tested.",
    "batch_tokens": "Tokens of one forward pass.",
    "too_long": "Rows that exceed the context length: refuse (exit with an error) or skip.",
    "by": "Served models: score each answer (probability), or use the answer that the model writes (generation).",
    "api": (
        "Served models: how to read probabilities; auto: the first API for log-probabilities that the server has "
        "(docs/how-to/models.md)."
    ),
    "prompt_date": "The date that chat templates print, such as 2026-11-25; by default today's in UTC.",
    "concurrency": "Parallel requests to a served model.",
}


@dataclass(frozen=True)
class ScoringOptions:
    """The options of scoring. The metadata of a field describes its command-line option."""

    chat_template: ChatTemplate = field(default="auto", metadata={"help": _HELP["chat_template"]})
    backend: Backend = field(default="auto", metadata={"help": _HELP["backend"]})
    batch_tokens: int = field(default=4096, metadata={"help": _HELP["batch_tokens"], "min": 1})
    too_long: TooLongPolicy = field(default="refuse", metadata={"help": _HELP["too_long"]})
    by: By = field(default="probability", metadata={"help": _HELP["by"]})
    api: Api = field(default="auto", metadata={"help": _HELP["api"]})
    concurrency: int = field(default=8, metadata={"help": _HELP["concurrency"], "min": 1})
    prompt_date: str | None = field(default=None, metadata={"help": _HELP["prompt_date"]})

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            choices = get_args(item.type) if get_origin(item.type) is Literal else ()
            if choices and value not in choices:
                raise InputError("E-CONFIG", f"{item.name} is {value!r}.", f"Choose one of {', '.join(choices)}.")
            if "min" in item.metadata:
                object.__setattr__(self, item.name, require_whole(item.name, value, item.metadata["min"]))
        if self.by == "generation" and self.api != "auto":
            raise InputError("E-ENDPOINT", f"--api {self.api} has no effect on generated answers.", "Remove it.")


DEFAULT_SCORING = ScoringOptions()
