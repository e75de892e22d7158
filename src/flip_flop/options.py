"""Options that the command line and Python share. No torch: the command line's help reads their fields."""

import math
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

ChatTemplate = Literal["auto", "on", "off"]
Backend = Literal["packed", "padded"]
# What a served model is asked for: the probability of each answer, or an answer.
By = Literal["probability", "generation"]
# What becomes of instances that are longer than the model's context.
TooLongPolicy = Literal["refuse", "skip"]
# Bits of a base's weights, by bitsandbytes: NF4 with double quantization, as in QLoRA; LLM.int8().
LoadIn = Literal["4bit", "8bit"]
DeviceMap = Literal["auto"]
Protocol = Literal["paper", "release"]
# Of a training's settings; what is recommended has the paper's rows and prompts.
TrainingProtocol = Literal["recommended", "paper", "release"]
# Methods of calibration; see flip_flop.metrics.calibration.
Calibration = Literal["batch", "contextual", "prior"]
# auto: batch, if it changes a prediction; stored: the offsets in the adapter's folder.
CalibrationChoice = Literal["auto", "none", Calibration, "stored"]

# The methods of flip_flop.method.METHODS, and how their losses are read (flip_flop.method.Reading).
METHOD_NAMES = ("swarm", "cce", "f2c")
Reduction = Literal["mean", "sum"]
Aggregation = Literal["mean_log_prob", "mean_prob", "per_position"]
Space = Literal["vocab", "labels"]
DivergenceSpace = Literal["vocab", "labels", "both"]
JsdForm = Literal["mean", "symmetric"]
FlipDirection = Literal["forward", "reverse"]
SwarmPairs = Literal["derangement", "all", "mixture"]
CcSizeBound = Literal["templates", "group"]

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
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER_PARTS = {"adapter": ADAPTER_WEIGHTS, "adapter_config": ADAPTER_CONFIG}
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
    by: By = option(
        "probability", help="Of a served model: score each answer, or take the answer that it writes (generation)."
    )
    concurrency: int = option(8, min=1, help="Requests to a served model at a time.")


DEFAULT_SCORING = ScoringOptions()


@dataclass(frozen=True)
class SplitSettings:
    r"""The settings of Algorithm 1.

    Args:
        unanimous_margin: :math:`\tau_{\text{unanimous}}`, in nats; ``inf`` for no Case 2.
        max_cc_size: :math:`k_{\max}`, at least 2.
        flip_weight_min: :math:`f_{\min}`, at least 0.
        flip_weight_max: :math:`f_{\max}`, at least :math:`f_{\min}`.
        flip_temperature: :math:`t`, above 0, in nats.
        cc_size_bound: Line 10. ``templates``: :math:`k = \min(k_{\max}, V - 1)`, the paper's; ``group``:
            :math:`k = \min(k_{\max}, |G| - 1)`, the release's row "k, line 10".

    Raises:
        ValueError: A setting is out of its range.
    """

    unanimous_margin: float
    max_cc_size: int
    flip_weight_min: float
    flip_weight_max: float
    flip_temperature: float
    cc_size_bound: CcSizeBound = "templates"

    def __post_init__(self) -> None:
        # Written as `not (...)`, so that a NaN fails each of them.
        if math.isnan(self.unanimous_margin):
            raise ValueError("unanimous_margin is nan. It must be a number.")
        if not self.max_cc_size >= 2:
            raise ValueError(f"max_cc_size is {self.max_cc_size}. It must be at least 2.")
        if not 0 <= self.flip_weight_min <= self.flip_weight_max < math.inf:
            raise ValueError(
                f"flip_weight_min is {self.flip_weight_min} and flip_weight_max {self.flip_weight_max}. "
                "They must be finite, with 0 <= flip_weight_min <= flip_weight_max."
            )
        if not 0 < self.flip_temperature < math.inf:
            raise ValueError(f"flip_temperature is {self.flip_temperature}. It must be above 0 and finite.")
