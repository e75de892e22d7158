"""Size and time limits of untrusted models and adapters, checked before they are built."""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from flip_flop.errors import InputError
from flip_flop.record import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from flip_flop.scoring.causal_lm import as_input_error

MAX_LAYERS = 1000
"""The largest number of layers; published models have up to 130."""

# Behind the name of a module: the scale of its quantized weights.
SCALE = re.compile(r"\.(weight_scale|scale|qscale|SCB|weight\.absmax)")

SECONDS = 0.5
"""Processor time of untrusted code, such as a regular expression or a prompt in a chat template."""

# Kinds that change weights. PEFT reads only the adapter's two files for them.
ADAPTER_KINDS = (  # noqa: SIM905 - quotes round twenty words hide the words
    "ADALORA BOFT C3A DELORA FOURIERFT HRA IA3 LN_TUNING LOHA LOKR LORA MISS OFT RANDLORA ROAD SHIRA TRAINABLE_TOKENS "
    "VBLORA VERA WAVEFT"
).split()


class TimeLimitExceeded(Exception):  # noqa: N818 - turned into an InputError
    """Untrusted code exceeded its time limit."""


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise :class:`TimeLimitExceeded` in the context after this processor time.

    Python can only interrupt its main thread. In other threads, and without interval timers, time is not limited.
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


def weight_files(source: str, config: PreTrainedConfig, **hub: Any) -> Collection[str]:
    """Return the names of the files from which transformers loads a model's weights.

    Args:
        source: A folder, or a name on the hub.
        config: The model's configuration, which may name the file.
        hub: ``revision`` and ``local_files_only``.

    Raises:
        ValueError: A file is not a safetensors file, or is outside the model's folder.
    """
    hub |= {"_raise_exceptions_for_missing_entries": False}
    if other := cached_file(source, ADAPTER_CONFIG, **hub) or next(Path(source).glob("shard-*-model-*"), None):
        raise ValueError(f"{Path(other).name} makes it an adapter (see --adapter) or a distributed checkpoint")
    first = getattr(config, "transformers_weights", None) or SAFE_WEIGHTS_NAME
    is_index = first.endswith(".json") or not (Path(source) / first).is_file()
    index = is_index and cached_file(source, first if first.endswith(".json") else SAFE_WEIGHTS_INDEX_NAME, **hub)
    names = set(json.loads(Path(index).read_bytes())["weight_map"].values()) if index else {first}
    if wrong := [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]:
        raise ValueError(f"{wrong[0]!r} is not a safetensors file in the model's folder")
    return names


def max_weights(name: str, folder: Path, files: Collection[str], config: PreTrainedConfig) -> int | None:
    """Return the largest number of weights that a folder's files can be for; ``None`` for the hub's.

    Raises:
        InputError: ``E-MODEL-FILE`` for quantized weights without their scale.
    """
    if not folder.is_dir():
        return None
    times = 32 if getattr(config, "quantization_config", None) is not None else 2  # tied weights are stored once
    stored = {key: tensor for file in files for key, tensor in _tensors(folder / file).items()}
    scaled = {f"{SCALE.split(key)[0]}.weight" for key in stored}
    codes = {key for key, (dtype, _) in stored.items() if dtype[:2] in ("I8", "U8", "F8") and key.endswith(".weight")}
    refuse_tensors(name, codes - scaled, "hold, without the scale of its quantization,")
    return times * sum(shape.numel() for _, shape in stored.values()) + 1000


def refuse_tensors(name: str, tensors: Collection[str], what: str) -> None:
    """Refuse a model because of these tensors (``E-MODEL-FILE``)."""
    if tensors:
        raise InputError(
            "E-MODEL-FILE",
            f"The weights of {name} {what} {min(tensors)}; {len(tensors)} such tensors in all.",
            "Give the complete weights of a causal language model, with the configuration that belongs to them.",
        )


def check_num_layers(name: str, layers: int) -> None:
    """Reject a number of layers that would take minutes to build (``E-MODEL-FILE``)."""
    if layers > MAX_LAYERS:
        raise InputError(
            "E-MODEL-FILE",
            f"{name} has {layers:,} layers in its configuration; {MAX_LAYERS:,} are allowed.",
            "Give the configuration that belongs to the weights.",
        )


def check_model_size(name: str, config: PreTrainedConfig, largest: int | None) -> None:
    """Reject a configuration of more weights than its files can hold, or of too many layers (``E-MODEL-FILE``)."""
    check_num_layers(name, getattr(config.get_text_config(), "num_hidden_layers", None) or 0)
    if largest is None:
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    asked = sum(weights.numel() for weights in model.parameters())
    if asked > largest:
        raise InputError(
            "E-MODEL-FILE",
            f"{name} asks for {asked:,} weights in its configuration; its files have {largest:,} at most.",
            "Give the configuration that belongs to the weights.",
        )


def check_adapter_size(adapter: Path, model: nn.Module) -> None:
    """Refuse an adapter that reads other files, asks for more rank than its tensors have, or has slow patterns.

    Raises:
        InputError: ``E-ADAPTER-KIND`` or ``E-ADAPTER-KEYS``.
    """
    config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if (kind := config.get("peft_type")) not in ADAPTER_KINDS:
        raise InputError("E-ADAPTER-KIND", f"{adapter}: an adapter of kind {kind!r} is not supported.")
    patterns = {key: config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")}
    ranks = [rank for rank in (config.get("r") or 0, *patterns["rank_pattern"].values()) if not isinstance(rank, list)]
    largest = max((size for _, shape in _tensors(adapter / ADAPTER_WEIGHTS).values() for size in shape), default=0)
    if max(ranks) > largest:
        raise InputError(
            "E-ADAPTER-KEYS",
            f"{adapter}: adapter_config.json has rank {max(ranks):,}, its tensors have {largest:,} rows at most.",
            "Give the adapter_config.json that belongs to the tensors.",
        )
    given = [config.get(key) for key in ("target_modules", "exclude_modules", "layers_pattern")]
    expressions = [item for item in given if isinstance(item, str)]
    expressions += [rf"(.*\.)?({key})$" for keys in patterns.values() for key in keys if re.search("[*+{]", key)]
    with (
        as_input_error(
            "E-ADAPTER-KEYS",
            f"{adapter}: its patterns take too long to match",
            "List the names in target_modules.",
            TimeLimitExceeded,
        ),
        time_limit(),
    ):
        for expression in expressions:
            for name, _ in model.named_modules():
                re.match(expression, name)
                re.fullmatch(expression, name)


def _tensors(file: Path) -> dict[str, tuple[str, torch.Size]]:
    """Return the type and the shape of each tensor of a safetensors file."""
    with safe_open(file, "pt") as tensors:
        parts = {key: tensors.get_slice(key) for key in tensors.keys()}  # noqa: SIM118 - no mapping
        return {key: (part.get_dtype(), torch.Size(part.get_shape())) for key, part in parts.items()}
