"""The settings of a training run: ``transformers.TrainingArguments`` and what the method adds to it."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from flip_flop.errors import InputError, nearest
from flip_flop.scoring.support import Backend
from flip_flop.scoring.tokens import ChatTemplate

Method = Literal["f2c", "cce", "swarm"]
Reduction = Literal["mean", "sum"]
Aggregation = Literal["mean_log_prob", "mean_prob"]
DivergenceSpace = Literal["vocab", "labels"]
VotePass = Literal["shared", "separate"]
SwarmPairs = Literal["derangement", "all"]
SelectBy = Literal["auto", "mean_f1", "agreement", "last"]
_SCALARS = tuple(map(str, (bool, int, float)))


@dataclass
class F2CConfig(TrainingArguments):
    r"""Settings of :class:`~flip_flop.training.trainer.F2CTrainer`.

    Only what the method adds is declared here; every other field is ``TrainingArguments``'. A batch is counted in
    *instances*: ``per_device_train_batch_size=8`` is 8 instances under all their templates.

    Note:
        Defaults that differ from ``TrainingArguments``: ``output_dir="f2c"``, ``learning_rate=3e-4``,
        ``per_device_train_batch_size=8``, ``eval_strategy`` and ``save_strategy="epoch"``,
        ``eval_on_start=True``, ``load_best_model_at_end=True``, ``save_total_limit=2``, ``logging_steps=10``,
        ``logging_first_step=True``, ``report_to="none"``, ``remove_unused_columns=False``,
        ``dataloader_pin_memory=False``.

    Raises:
        InputError: ``E-CONFIG-VALUE`` where a value is out of its range.
    """

    output_dir: str | None = field(default="f2c", metadata={"help": "Folder of the checkpoints."})
    learning_rate: float = field(default=3e-4, metadata={"help": "Peak learning rate of AdamW (the paper gives none)."})
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Instances per micro-batch and device."})
    eval_strategy: str = field(default="epoch", metadata={"help": "When to score the validation split."})
    save_strategy: str = field(default="epoch", metadata={"help": "When to write a checkpoint."})
    eval_on_start: bool = field(default=True, metadata={"help": "Score the validation split before the first step."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Keep the checkpoint that select_by prefers."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep, the best one included."})
    logging_steps: float = field(default=10, metadata={"help": "Optimizer steps between two log lines."})
    logging_first_step: bool = field(default=True, metadata={"help": "A log line for the first step too."})
    report_to: Any = field(default="none", metadata={"help": "trackio, wandb, tensorboard, ..., or none."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Instances are no model inputs; keep False."})
    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Batches hold no tensors to pin."})

    method: Method = field(default="f2c", metadata={"help": "f2c, cce (consensus cross-entropy alone) or swarm."})
    cce_weight: float = field(default=1.0, metadata={"help": "lambda_CCE, Eq. 6."})
    jsd_weight: float = field(default=0.1, metadata={"help": "beta_jsd, Eq. 8."})
    unanimous_margin: float = field(default=1.0, metadata={"help": "tau_unanimous in nats, Algorithm 1 line 6."})
    max_cc_size: int = field(default=4, metadata={"help": "k_max >= 2, Algorithm 1 line 10."})
    flip_weight_min: float = field(default=0.02, metadata={"help": "f_min, Algorithm 1 line 18."})
    flip_weight_max: float = field(default=0.1, metadata={"help": "f_max, Algorithm 1 line 18."})
    flip_temperature: float = field(default=1.0, metadata={"help": "t > 0, Algorithm 1 line 18."})
    divergence_space: DivergenceSpace = field(
        default="vocab", metadata={"help": "Divergences over the vocabulary (the paper) or over the labels."}
    )
    cce_reduction: Reduction = field(default="mean", metadata={"help": "Mean or sum over the answer's tokens."})
    answer_aggregation: Aggregation = field(
        default="mean_log_prob", metadata={"help": "How distributions of several answer tokens become one."}
    )
    detach_cc_mixture: bool = field(default=True, metadata={"help": "The flip term's target carries no gradient."})
    vote_pass: VotePass = field(
        default="shared",
        metadata={"help": "Votes from the loss's own pass, or from a separate one without dropout."},
    )
    swarm_pairs: SwarmPairs = field(
        default="derangement", metadata={"help": "One random teacher per template, or all."}
    )
    select_by: SelectBy = field(
        default="auto",
        metadata={"help": "Best checkpoint by mean_f1 (the paper), by agreement (needs no labels), or the last one."},
    )
    max_share_drift: float = field(
        default=0.2,
        metadata={"help": "select_by agreement: how far the label shares may move from the base's votes."},
    )
    chat_template: ChatTemplate = field(default="auto", metadata={"help": "auto, on or off."})
    backend: Backend = field(
        default="packed", metadata={"help": "packed, where the model allows it, or padded (see audit --help)."}
    )
    batch_tokens: int = field(default=4096, metadata={"help": "Tokens of one forward; an instance is never divided."})
    lora_r: int = field(default=16, metadata={"help": "LoRA rank (the paper's)."})
    lora_alpha: int = field(default=32, metadata={"help": "LoRA scaling (the paper's)."})
    lora_dropout: float = field(default=0.05, metadata={"help": "LoRA dropout (the paper's)."})

    def __post_init__(self):
        for item in fields(self):
            _check_choice(item.name, getattr(self, item.name), item.type)
        _require(self.max_cc_size >= 2, "max_cc_size", self.max_cc_size, "at least 2")
        _require(self.flip_temperature > 0, "flip_temperature", self.flip_temperature, "above 0")
        _require(
            0 <= self.flip_weight_min <= self.flip_weight_max,
            "flip_weight_min",
            self.flip_weight_min,
            f"between 0 and flip_weight_max ({self.flip_weight_max})",
        )
        _require(self.unanimous_margin == self.unanimous_margin, "unanimous_margin", self.unanimous_margin, "a number")
        for name in ("cce_weight", "jsd_weight", "flip_weight_max", "learning_rate", "max_share_drift"):
            value = getattr(self, name)
            _require(0 <= value < math.inf, name, value, "at least 0 and finite")
        _require(0 <= self.lora_dropout < 1, "lora_dropout", self.lora_dropout, "at least 0 and below 1")
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "batch_tokens", "lora_r"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        if self.eval_strategy == "no":
            self.eval_on_start = False
        if self.select_by == "last" or self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.load_best_model_at_end:
            self.metric_for_best_model, self.greater_is_better = "selection", True
        super().__post_init__()
        if self.load_best_model_at_end and self.save_strategy == "steps":
            # The best state of an evaluation that saves nothing would be lost.
            _require(
                self.save_steps == self.eval_steps, "save_steps", self.save_steps, f"eval_steps, {self.eval_steps}"
            )


def _check_choice(name: str, value: Any, annotation: Any) -> None:
    allowed = get_args(annotation) if get_origin(annotation) is Literal else ()
    if allowed and value not in allowed:
        raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"Use one of {', '.join(allowed)}.")


def _require(holds: bool, name: str, value: Any, range_: str) -> None:
    if not holds:  # NaN fails every comparison, and so ends here too
        raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"It must be {range_}.")


def make_config(settings: dict[str, Any], source: str = "the settings") -> F2CConfig:
    """An :class:`F2CConfig` from a YAML file's or the command line's values; texts are converted to the field's type.

    Args:
        settings: Field names and values. Dashes in a name count as underscores.
        source: Where they come from, for the message.

    Raises:
        InputError: ``E-CONFIG-KEY`` for an unknown field, with the nearest one; ``E-CONFIG-VALUE`` for a bad value.
    """
    known = {item.name: item for item in fields(F2CConfig) if item.init}
    values = {}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise InputError("E-CONFIG-KEY", f"Unknown setting {key!r} in {source}.", nearest(name, known))
        values[name] = _convert(name, value, known[name].type)
    try:
        config = F2CConfig(**values)
    except InputError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError("E-CONFIG-VALUE", f"{source}: {reason}.") from error
    for name in config.report_to:
        if name not in get_available_reporting_integrations():
            raise InputError(
                "E-CONFIG-VALUE", f"report_to is {name!r}, which is not installed.", f"pip install {name}."
            )
    return config


def _convert(name: str, value: Any, annotation: Any) -> Any:
    """YAML reads ``3e-4`` as text, and a flag's value is always text: read both by the field's type."""
    kinds = str(annotation)
    _check_choice(name, value, annotation)
    if value is None and kinds in _SCALARS:
        raise InputError("E-CONFIG-VALUE", f"{name} has no value.", f"It must be {_plain(kinds)}.")
    if not isinstance(value, str):
        if isinstance(value, list | dict) and kinds in _SCALARS:
            raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"It must be {_plain(kinds)}.")
        if isinstance(value, int) and not isinstance(value, bool) and "float" in kinds and "int" not in kinds:
            return float(value)
        if isinstance(value, float) and kinds == "<class 'int'>":
            raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"It must be {_plain(kinds)}.")
        return value
    text = value.strip()
    try:
        if "bool" in kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if "None" in kinds and text.lower() in ("none", "null"):
            return None
        if "int" in kinds and text.lstrip("+-").isdigit():
            return int(text)
        if "float" in kinds:
            return float(text)
    except ValueError:
        pass
    if get_origin(annotation) is Literal or "str" in kinds or "dict" in kinds or "list" in kinds or "Any" in kinds:
        return value
    raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"It must be {_plain(kinds)}.")


def _plain(kinds: str) -> str:
    words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    return next((text for word, text in words.items() if word in kinds), kinds)
