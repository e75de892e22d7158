"""Options that the command line and Python share. No torch: the command line's help reads their fields."""

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

ChatTemplate = Literal["auto", "on", "off"]
Backend = Literal["packed", "padded"]
# What becomes of instances that are longer than the model's context.
TooLongPolicy = Literal["refuse", "skip"]
Protocol = Literal["paper", "release"]
# Of a training's settings; what is recommended has the paper's rows and prompts.
TrainingProtocol = Literal["recommended", "paper", "release"]
# How a preference for a label is taken out of scores; see flip_flop.metrics.calibration.
Calibration = Literal["batch", "contextual", "prior"]

# The parts of a run (flip_flop.identity): a name, as --allow-changed takes it, and what it is in words.
MODEL_PARTS = {
    "weights": "weights",
    "config": "config.json",
    "tokenizer": "tokenizer",
    "chat_template": "chat template",
}
DATA_PARTS = {
    "templates": "templates",
    "task": "task (its name, labels or F1, or the order of its templates)",
    "rows": "training rows",
    "gold": "gold labels of the training rows",
    "validation": "validation rows",
    "validation_gold": "gold labels of the validation rows",
}
ADAPTER_PARTS = {"adapter": "adapter_model.safetensors", "adapter_config": "adapter_config.json"}
TRAINING_PARTS = MODEL_PARTS | DATA_PARTS
LOADED_PARTS = MODEL_PARTS | ADAPTER_PARTS


def option(default: Any = MISSING, *, help: str | None = None, **details: Any) -> Any:
    """A dataclass field that may also be an option of the command line; see :func:`flip_flop.cli.options.options`."""
    return field(default=default, metadata={"help": help, **details})


def row_protocol_of(protocol: TrainingProtocol) -> Protocol:
    """Whose rows and prompts a training of this protocol takes."""
    return "release" if protocol == "release" else "paper"


@dataclass(frozen=True)
class ScoringOptions:
    """How prompts are put to a model and scored."""

    chat_template: ChatTemplate = option(
        "auto", help="Put prompts into the tokenizer's chat template; auto: where it has one."
    )
    backend: Backend = option(
        "packed", help="packed: compute what prompts share once, where the model allows it; padded: each alone."
    )
    batch_tokens: int = option(4096, min=1, help="Tokens of one forward pass.")
    too_long: TooLongPolicy = option(
        "refuse", help="Refuse rows that are longer than the model's context, or skip them under every template."
    )


DEFAULT_SCORING = ScoringOptions()
