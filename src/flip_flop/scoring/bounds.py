"""What a stranger's model or adapter may ask for, checked before anything of its size is built."""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from flip_flop.errors import InputError

MAX_LAYERS = 1000
"""The largest number of layers; published models have up to 130."""

SECONDS = 0.5
"""Processor time of a stranger's code, such as a regular expression or one prompt in a chat template."""


class TimeLimitExceeded(Exception):  # noqa: N818 - turned into an InputError
    """A stranger's code took more than its time."""


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Stop what runs inside after so many seconds of this process's processor time, by :class:`TimeLimitExceeded`.

    Python stops its main thread alone: in another one, and where there are no interval timers, nothing is limited.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeLimitExceeded(f"more than {seconds:g} seconds of work")

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.05)  # and again, should the code catch the first one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def check_model_size(folder: Path, config: PreTrainedConfig) -> None:
    """Refuse a configuration of far more weights than the folder's files hold; of the hub's, of too many layers.

    Raises:
        InputError: ``E-MODEL-FILE``.
    """
    hint = "Give the config.json that belongs to the weights."
    layers = getattr(config.get_text_config(), "num_hidden_layers", None) or 0
    if layers > MAX_LAYERS:
        message = f"config.json of {folder} has {layers:,} layers; {MAX_LAYERS:,} are allowed."
        raise InputError("E-MODEL-FILE", message, hint)
    stored = sum(_numel(shape) for file in folder.glob("*.safetensors") for shape in _shapes(file))
    if not stored:
        return
    times = 32 if getattr(config, "quantization_config", None) is not None else 2  # tied weights are stored once
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    asked = sum(weights.numel() for weights in model.parameters())
    if asked > times * stored + 1000:
        message = f"config.json of {folder} asks for {asked:,} weights, its files hold {stored:,}."
        raise InputError("E-MODEL-FILE", message, hint)


def check_adapter_size(adapter: Path, weights: str, model: nn.Module) -> None:
    """Refuse a rank that the adapter's tensors do not have, and patterns of names that take too long to match.

    Raises:
        InputError: ``E-ADAPTER-KEYS``.
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    patterns = {key: config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")}
    ranks = [rank for rank in (config.get("r") or 0, *patterns["rank_pattern"].values()) if not isinstance(rank, list)]
    largest = max((size for shape in _shapes(adapter / weights) for size in shape), default=0)
    if max(ranks) > largest:
        message = f"{adapter}: adapter_config.json has rank {max(ranks):,}, its tensors have {largest:,} rows at most."
        raise InputError("E-ADAPTER-KEYS", message, "Give the adapter_config.json that belongs to the tensors.")
    given = [config.get(key) for key in ("target_modules", "exclude_modules", "layers_pattern")]
    expressions = [item for item in given if isinstance(item, str)]
    expressions += [rf"(.*\.)?({key})$" for keys in patterns.values() for key in keys if re.search("[*+{]", key)]
    try:
        with time_limit():
            for expression in expressions:
                for name, _ in model.named_modules():
                    re.match(expression, name)
                    re.fullmatch(expression, name)
    except TimeLimitExceeded as error:
        message = f"{adapter}: matching its patterns with the names of layers takes {error}."
        raise InputError("E-ADAPTER-KEYS", message, "List the names in target_modules.") from error


def _shapes(file: Path) -> list[tuple[int, ...]]:
    with safe_open(file, "pt") as tensors:
        return [tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()]  # noqa: SIM118 - no mapping


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
