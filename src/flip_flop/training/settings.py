"""Settings of training: those of the methods, and those with another default than in transformers. No torch."""

# ruff: noqa: RUF009 (each default is a dataclass field)

import functools
import math
import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from flip_flop.errors import InputError
from flip_flop.method.settings import Aggregation, DivergenceSpace, Reduction, TrainingProtocol
from flip_flop.metrics.calibration import Calibration
from flip_flop.scoring.options import Backend, ChatTemplate, TooLongPolicy

SelectBy = Literal["auto", "macro_f1", "mean_f1", "worst_f1", "vote_agreement", "worst_agreement", "last"]
# Optimizer steps without max_steps and num_train_epochs: those of the evidence, and those of the authors' release.
MAX_STEPS = {"recommended": 16, "paper": 150, "release": 150}
# Types of settings that are converted and checked here. The library checks the others.
_SIMPLE = {bool, int, float, str, NoneType}
# Settings that change only the execution. After an out-of-memory error they may be changed.
EXECUTION_ONLY = ("per_device_eval_batch_size", "torch_empty_cache_steps", "batch_tokens")
# Short flags.
ALIASES = {"--lr": "learning_rate", "--epochs": "num_train_epochs", "--batch-size": "per_device_train_batch_size"}


def as_flag(name: str) -> str:
    """The flag of a setting.

    Example:
        >>> as_flag("learning_rate")
        '--learning-rate'
    """
    return f"--{name.replace('_', '-')}"


def setting_of(key: str) -> str:
    """The setting of a flag or of a key in a file, in which dashes count as underscores.

    Example:
        >>> setting_of("--learning-rate"), setting_of("--lr"), setting_of("learning_rate")
        ('learning_rate', 'learning_rate', 'learning_rate')
    """
    return ALIASES.get(key) or key.removeprefix("--").replace("-", "_")


def wrong_value(name: str, value: Any, range_: str) -> InputError:
    """The error of a setting's value (``E-CONFIG``)."""
    return InputError("E-CONFIG", f"{name} is {value!r}.", f"It must be {range_}.")


@functools.cache
def _adapter(annotation: Any, *, is_finite: bool) -> TypeAdapter[Any] | None:
    kinds = {*get_args(annotation)} or {annotation}
    if get_origin(annotation) is not Literal and not kinds <= _SIMPLE:
        return None
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=not is_finite))


def read_value(item: "Field[Any]", value: Any) -> Any:
    """Check a setting, and convert a text to its type: YAML reads ``3e-4`` as text, and flags are always text.

    The library checks other types than numbers, switches, texts and choices.

    Raises:
        InputError: ``E-CONFIG``.
    """
    value = value.item() if isinstance(value, np.generic) else value
    kind: Any = item.type
    if isinstance(value, str) and NoneType in get_args(kind) and value.lower() in ("none", "null"):
        return None
    adapter = _adapter(kind, is_finite=item.name != "unanimous_margin")  # infinity means no Case 2
    if adapter is not None:
        read = os.fspath(value) if isinstance(value, os.PathLike) else value
        try:
            value = adapter.validate_python(read, strict=not isinstance(value, str))
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Input should be ").partition(", unable")[0]
            raise wrong_value(item.name, value, message) from error
    range_ = item.metadata.get("range") or INHERITED_RANGES.get(item.name)
    if range_ is not None and value is not None and not RANGES[range_](value):
        raise wrong_value(item.name, value, range_)
    return value


# Ranges of numbers, which must also be finite, but for unanimous_margin.
RANGES: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 0, and below 2**32": lambda value: 0 <= value < 2**32,
    "at least 1": lambda value: value >= 1,
    "at least 2": lambda value: value >= 2,
    "a number": lambda value: not math.isnan(value),
}
RANGES |= {
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "above 0": lambda value: value > 0,
    "above 0, or -1 for the default": lambda value: value > 0 or value == -1,
}
# Ranges of inherited settings.
INHERITED_RANGES = {
    "max_grad_norm": "at least 0",
    "data_seed": "at least 0, and below 2**32",
    "dataloader_num_workers": "at least 0",
    "gradient_accumulation_steps": "at least 1",
    "adam_beta1": "at least 0 and below 1",
    "adam_beta2": "at least 0 and below 1",
    "adam_epsilon": "above 0",
}


def _setting(default: Any, help_: str, range_: str | None = None) -> Any:
    return field(default=default, metadata={"help": help_, "range": range_})


def _by_protocol(help_: str, range_: str | None = None, *, paper: Any, **others: Any) -> Any:
    """A setting whose default depends on ``protocol``: the paper's, unless ``others`` have one."""
    defaults = dict.fromkeys(get_args(TrainingProtocol), paper) | others
    return field(default=None, metadata={"help": help_, "range": range_, **defaults})


@dataclass
class TrainingSettings:
    """The fields of :class:`~flip_flop.training.config.F2CConfig` that differ from ``TrainingArguments``."""

    output_dir: str | None = _setting("f2c", "Folder of the checkpoints.")
    learning_rate: float = _by_protocol("Peak learning rate of AdamW.", "at least 0", paper=1e-5, recommended=3e-4)
    lr_scheduler_type: Any = _setting("cosine", "Learning rate schedule after the warm-up.")
    warmup_steps: float = _by_protocol(
        "Warm-up steps, or below 1 their share of all steps.", "at least 0", paper=0.0, recommended=0.1
    )
    weight_decay: float = _setting(0.01, "AdamW's weight decay.", "at least 0")
    per_device_train_batch_size: int = _by_protocol(
        "Instances per micro-batch and device.", "at least 1", paper=32, recommended=16
    )
    max_steps: int = _setting(
        -1,
        "Maximum number of optimizer steps. Without num_train_epochs, 150, recommended 16.",
        "above 0, or -1 for the default",
    )
    num_train_epochs: float = _setting(
        -1.0, "Passes over the training instances, if max_steps is not given.", "above 0, or -1 for the default"
    )
    eval_strategy: str = _setting("steps", "When to score the validation split.")
    eval_steps: float | None = _setting(
        None, "Steps between two evaluations; by default 5, recommended a twelfth of max_steps, at least 4.", "above 0"
    )
    save_strategy: str = _setting("auto", "When to write a checkpoint: with each evaluation, or no, steps or epoch.")
    save_steps: float = _setting(
        -1, "Steps between two checkpoints; by default eval_steps.", "above 0, or -1 for the default"
    )
    eval_on_start: bool = _setting(True, "Score the validation split before the first step.")
    load_best_model_at_end: bool = _setting(True, "Load the best checkpoint by select_by at the end.")
    save_total_limit: int | None = _setting(
        2, "Checkpoints to keep, the best one included. An older one is kept with its former best."
    )
    logging_steps: float = _setting(10, "Optimizer steps between two log lines.", "at least 0")
    logging_first_step: bool = _setting(True, "Log the first step too.")
    report_to: Any = _setting("none", "trackio, wandb, tensorboard, ..., or none.")
    remove_unused_columns: bool = _setting(False, "Must be False: instances are not model inputs.")
    seed: int = _setting(42, "Seed of data order, initialization and dropout.", "at least 0, and below 2**32")
    ddp_timeout: int = _setting(7200, "On GPUs: seconds that a process waits for the others.")
    dataloader_pin_memory: bool = _setting(False, "No effect: batches hold no tensors to pin.")

    method: Any = _setting("f2c", "A name in flip_flop.method.METHODS, or MODULE:NAME of a custom Method.")
    protocol: TrainingProtocol = _setting(
        "recommended", "Default settings: ours, the paper's or the authors' release's."
    )
    cce_weight: float = _setting(1.0, "lambda_CCE, Eq. 6.", "at least 0")
    jsd_weight: float = _by_protocol("beta_jsd, Eq. 8.", "at least 0", paper=0.05, recommended=1.0)
    unanimous_margin: float = _setting(1.4, "tau_unanimous in nats, Algorithm 1 line 6.", "a number")
    max_cc_size: int = _setting(3, "k_max >= 2, Algorithm 1 line 10.", "at least 2")
    cc_size_bound: Literal["templates", "group"] = _by_protocol(
        "Algorithm 1 line 10: k is less than the number of templates, or of majority voters.",
        paper="templates",
        release="group",
    )
    flip_weight_min: float = _by_protocol("f_min, Algorithm 1 line 18.", "at least 0", paper=0.01, recommended=0.1)
    flip_weight_max: float = _by_protocol("f_max, Algorithm 1 line 18.", "at least 0", paper=0.1, recommended=1.0)
    flip_temperature: float = _setting(2.0, "t > 0, Algorithm 1 line 18.", "above 0")
    divergence_space: DivergenceSpace = _by_protocol(
        "Divergences over the vocabulary, the labels, or both.", paper="vocab", recommended="labels"
    )
    vocab_weight: float = _setting(1.0, "Weight of the divergences over the vocabulary.", "at least 0")
    labels_weight: float = _setting(1.0, "Weight of the divergences over the labels.", "at least 0")
    cce_space: DivergenceSpace = _by_protocol(
        "Cross-entropy over the answer's tokens (vocab), over the labels, or both.",
        paper="vocab",
        recommended="both",
    )
    cce_reduction: Reduction = _setting("mean", "Mean or sum over the answer's tokens.")
    answer_aggregation: Aggregation = _setting(
        "mean_log_prob", "How the distributions at several answer tokens are combined."
    )
    votes: Literal["online", "frozen"] = _by_protocol(
        "Source of pseudo-labels: online (current model) or frozen (base model).",
        paper="online",
        recommended="frozen",
    )
    vote_calibration: Literal["none", Calibration] = _by_protocol(
        "Correct the label bias of each template in the pseudo-labels.",
        paper="none",
        recommended="batch",
    )
    label_prior: list[float] | None = _setting(None, "vote_calibration: the true label frequencies; by default equal.")
    vote_pass: Literal["shared", "separate"] = _by_protocol(
        "votes online: from the forward pass of the loss, or from a separate one without dropout.",
        paper="shared",
        release="separate",
    )
    variants_per_step: int | None = _setting(
        None,
        "Templates of each instance in a step, drawn again in each epoch; by default all. Frozen votes are of all.",
        "at least 2",
    )
    num_samples: int = _setting(
        0, "Open answers: sampled answers per training prompt, next to the greedy one.", "at least 0"
    )
    swarm_pairs: Literal["derangement", "all"] = _setting(
        "derangement", "Teachers of each template: one at random, or all."
    )
    supervised_weight: float = _setting(
        0.0,
        "Weight of the gold label's cross-entropy on labelled training rows; above 0, training uses labels.",
        "at least 0",
    )
    clean_template: int = _setting(0, "bct, opct, ppcl: index of the template that the others imitate.", "at least 0")
    ppcl_beta: float = _setting(1.0, "ppcl: weight of the divergence.", "at least 0")
    early_stopping_patience: int = _by_protocol(
        "Stop after this many evaluations without a lower unsupervised validation loss; 0: never.",
        "at least 0",
        paper=0,
        release=5,
    )
    early_stopping_start: int = _setting(20, "Step after which evaluations count for early stopping.", "at least 0")
    select_by: SelectBy = _setting(
        "auto",
        "Criterion of the best checkpoint: macro_f1, mean_f1 (the paper), vote_agreement with the base (no labels), "
        "worst_f1 or worst_agreement (of the worst template), or last. auto: macro_f1 (mean_f1 if stop_on_collapse is "
        "false), or without labels vote_agreement. "
        "The last one is compared with the base by the criterion of auto.",
    )
    max_share_drift: float = _setting(
        0.2,
        "Collapse threshold: maximum total variation distance from the base model's label distribution.",
        "at least 0",
    )
    stop_on_collapse: bool = _by_protocol(
        "Stop after two collapsed evaluations in a row (max_share_drift).", paper=False, recommended=True
    )
    chat_template: ChatTemplate = _setting("auto", "auto, on or off.")
    prompt_date: str | None = _setting(
        None, "The date that chat templates print, such as 2026-11-25; by default the run's first day, in UTC."
    )
    backend: Backend = _setting("auto", "auto, packed or padded (see audit --help).")
    batch_tokens: int = _setting(4096, "Tokens of one forward pass; an instance is never split.", "at least 1")
    too_long: TooLongPolicy = _setting("refuse", "Rows that exceed the context length: refuse or skip.")
    lora_r: int = _setting(16, "LoRA rank (the paper's).", "at least 1")
    lora_alpha: int = _setting(32, "LoRA scaling (the paper's).", "at least 1")
    lora_dropout: float = _setting(0.05, "LoRA dropout (the paper's).", "at least 0 and below 1")
    model_init_kwargs: dict[str, Any] | None = _setting(
        None, "In Python, for a model given by name: revision, dtype, device, quantization_config."
    )
