"""One training in several processes that a stock launcher has started: ``accelerate launch`` or ``torchrun``.

The first process alone claims, logs and finishes a cell. The others train with it, and learn from it what to do: over
the process group and not from the file system, which may show another node's file late.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from flip_flop.errors import InputError
from flip_flop.studies.plan import Cell, Untrained
from flip_flop.training import F2CConfig, make_config
from flip_flop.training.distributed import world_size as world


def num_processes() -> int:
    """How many processes the launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the process that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def require_one_process() -> None:
    """Refuse to be one of several processes.

    Raises:
        InputError: ``E-DISTRIBUTED``.
    """
    if num_processes() > 1:
        message = f"A launcher has started {num_processes()} processes, and a study is run by one."
        raise InputError("E-DISTRIBUTED", message, "Give the study the launcher: --launcher 'accelerate launch ...'.")


def begin_group(settings: Mapping[str, Any], *, on_cpu: bool) -> None:
    """Begin the process group that a training with these settings begins.

    First of all: settings are resolved for a CPU when a cell's key is checked, and that would begin a CPU's group.
    """
    own = {name: value for name, value in settings.items() if name.startswith("ddp")}
    make_config(own | {"use_cpu": on_cpu})


def word_of_first(word: str | None = None) -> str:
    """Tell all processes a word, as the first one; hear it, as another one, which gives none."""
    words = [word]
    dist.broadcast_object_list(words, src=0)
    assert words[0] is not None, "the first process says a word"
    return words[0]


def share_step(config: F2CConfig) -> None:
    """Divide a step's instances among the processes: a cell is the same in one process and in several.

    Raises:
        InputError: ``E-DISTRIBUTED``: they cannot be divided.
    """
    step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    each, rest = divmod(step, world())
    if rest:
        message = f"A step of {step} instances cannot be shared by {world()} processes alike."
        raise InputError("E-DISTRIBUTED", message, f"Launch a number of processes that divides {step}.")
    config.per_device_train_batch_size = math.gcd(config.per_device_train_batch_size, each)
    config.gradient_accumulation_steps = each // config.per_device_train_batch_size


def cell_command(cell: Cell, command: Sequence[str], launcher: Sequence[str], untrained: Untrained) -> list[str]:
    """The command of a cell.

    Args:
        cell: The cell.
        command: The command of any cell, without its name; it begins with the interpreter.
        launcher: What stands in the interpreter's place for a training; none without a launcher.
        untrained: What an audit does whose training is not done.
    """
    if cell.kind == "train":
        return [*launcher, *command[1 if launcher else 0 :], cell.name]
    return [*command, *([] if untrained == "train" else ["--untrained", untrained]), cell.name]
