"""What a resumed run goes on with, without pickles: tensors as safetensors, all else as JSON."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flip_flop.errors import InputError
from flip_flop.files import read_object, write_json


def write_state(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write nested dicts and lists: ``NAME.json``, and ``NAME.safetensors`` where there are tensors.

    Raises:
        InputError: ``E-CONFIG-VALUE`` for a value that neither has: of an optimizer that keeps objects.
    """
    tensors: dict[str, Tensor] = {}
    content = _encode(state, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        save_file(tensors, folder / f"{name}.safetensors")
    write_json(folder / f"{name}.json", content)


def read_state(folder: Path, name: str) -> dict[str, Any] | None:
    """What was written, with lists in place of tuples and tensors on the CPU; ``None`` where nothing was."""
    content = read_object(folder / f"{name}.json")
    if content is None:
        return None
    path = folder / f"{name}.safetensors"
    decoded: dict[str, Any] = _decode(content, load_file(path) if path.exists() else {})
    return decoded


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value in JSON; a tensor goes into ``tensors``, under the way to it."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()  # a copy: one file has no tensor twice
        return {"tensor": path}
    if isinstance(value, dict):
        return {str(key): _encode(each, f"{path}.{key}".lstrip("."), tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(each, f"{path}.{number}".lstrip("."), tensors) for number, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    message = f"The optimizer or schedule keeps a {type(value).__name__} ({path}), which no checkpoint can hold."
    raise InputError("E-CONFIG-VALUE", message, "Choose another optim or lr_scheduler_type, or set --save-only-model.")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    if value.keys() == {"float"}:
        return float(value["float"])
    # An optimizer's parameters have numbers.
    return {int(key) if key.isdecimal() else key: _decode(each, tensors) for key, each in value.items()}


def random_state() -> dict[str, Any]:
    """The state of all global generators: Python's, numpy's, torch's, and of this process's GPU."""
    of_numpy = [np.asarray(part).tolist() for part in np.random.get_state()]
    state = {"python": random.getstate(), "numpy": of_numpy, "torch": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def restore_random_state(state: dict[str, Any]) -> None:
    """Set the generators to what :func:`random_state` gave."""
    version, numbers, next_gauss = state["python"]
    random.setstate((version, tuple(numbers), next_gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
