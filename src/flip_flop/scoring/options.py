"""The options of scoring. Importing this module does not import torch."""

# ruff: noqa: RUF009 (each default is a dataclass field)

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

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


def _option(default: Any, help_: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help_, **more})


@dataclass(frozen=True)
class ScoringOptions:
    """The options of scoring. The metadata of a field describes its command-line option."""

    chat_template: ChatTemplate = _option("auto", "Use the tokenizer's chat template; auto: if it has one.")
    backend: Backend = _option(
        "auto", "packed: compute shared tokens of prompts once; padded: separate sequences; auto: packed if tested."
    )
    batch_tokens: int = _option(4096, "Tokens of one forward pass.", min=1)
    too_long: TooLongPolicy = _option(
        "refuse", "Rows that exceed the context length: refuse (exit with an error) or skip."
    )
    by: By = _option(
        "probability",
        "Served models: score each answer (probability), or use the answer that the model writes (generation).",
    )
    api: Api = _option(
        "auto",
        "Served models: how to read probabilities; auto: the first API for log-probabilities that the server has "
        "(docs/how-to/models.md).",
    )
    concurrency: int = _option(8, "Parallel requests to a served model.", min=1)
    prompt_date: str | None = _option(
        None, "The date that chat templates print, such as 2026-11-25; by default today's in UTC."
    )

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
