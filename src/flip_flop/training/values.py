"""Settings' values: how a text becomes one, and whether it is of its field's type."""

import contextlib
import math
import os
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from flip_flop.errors import InputError

# How a text becomes a value of each type.
_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: {"true": True, "false": False}.__getitem__,
    NoneType: {"none": None, "null": None}.__getitem__,
    int: int,
    float: float,
    list[float]: lambda text: [float(part) for part in text.split(",")],
}
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

# What numbers must be besides finite.
RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 0": (
        lambda value: value >= 0,
        (
            *(
                "cce_weight",
                "jsd_weight",
                "vocab_weight",
                "labels_weight",
                "max_share_drift",
                "early_stopping_patience",
                "early_stopping_start",
            ),
            *("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "logging_steps"),
            *("seed", "data_seed", "dataloader_num_workers", "neftune_noise_alpha"),
        ),
    ),
    "at least 1": (
        lambda value: value >= 1,
        (
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "batch_tokens",
            "lora_r",
            "lora_alpha",
            "refresh_steps",
        ),
    ),
    "at least 0 and below 1": (lambda value: 0 <= value < 1, ("lora_dropout", "adam_beta1", "adam_beta2")),
    "above 0": (lambda value: value > 0, ("eval_steps", "adam_epsilon")),
    "above 0, or -1 for the default": (
        lambda value: value > 0 or value == -1,
        ("max_steps", "num_train_epochs", "save_steps"),
    ),
}


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Choices by the list; numbers, switches and texts by their type; the rest is the library's to check."""
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    if choices and value not in choices:
        raise InputError("E-CONFIG-VALUE", f"{name} is {value!r}.", f"Use one of {', '.join(choices)}.")
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = {get_origin(kind) or kind for kind in alternatives}
    if choices or kinds & {Any, Literal} or not (kinds <= {*_PARSERS, str} or isinstance(value, int | float)):
        return
    expected = next((text for kind, text in _TYPE_NAMES.items() if kind in kinds), "of another type")
    classes = {bool} if isinstance(value, bool) else {*type(value).__mro__}
    fits = (
        bool(classes & kinds)
        or (int in classes and float in kinds)
        or (str in kinds and isinstance(value, os.PathLike))
    )
    if fits and classes & {int, float} and name != "unanimous_margin":  # whose infinity means no Case 2
        bound, words = (2**32, f"below {2**32}") if int in classes else (math.inf, "finite")  # a NaN is not
        expected, fits = f"{expected}, {words}", -bound < value < bound
    if not fits:
        given = "has no value" if value is None else f"is {value!r}"
        raise InputError("E-CONFIG-VALUE", f"{name} {given}.", f"It must be {expected}.")


def convert(value: Any, annotation: Any) -> Any:
    """YAML reads ``3e-4`` as text, and a flag's value is always text: read both by the field's type, where they fit."""
    kinds = get_args(annotation) or (annotation,)
    if isinstance(value, str) or (type(value) is int and float in kinds and int not in kinds):
        for kind in (kind for kind in _PARSERS if kind in kinds):
            with contextlib.suppress(KeyError, ValueError):
                return _PARSERS[kind](str(value).strip().lower())
    return value
