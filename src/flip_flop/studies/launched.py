"""One unit in several processes that a stock launcher has started: ``accelerate launch`` or ``torchrun``.

The main process alone has the lease, finishes cells and audits. The others train with it, and learn from it what to do:
over the process group and not from the file system, which may show another node's file late.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from flip_flop.errors import InputError
from flip_flop.training import F2CConfig, make_config


def num_processes() -> int:
    """How many processes the launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
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


def broadcast_from_rank0(word: str | None = None) -> str:
    """Broadcast a string from rank 0; the other processes give none."""
    words = [word]
    dist.broadcast_object_list(words, src=0)
    assert words[0] is not None, "rank 0 gives a string"
    return words[0]


def split_batch_across_ranks(config: F2CConfig, processes: int) -> None:
    """Divide a step's instances among the processes: a training is the same in one process and in several.

    Raises:
        InputError: ``E-DISTRIBUTED``: they cannot be divided.
    """
    step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    each, rest = divmod(step, processes)
    if rest:
        message = f"A step of {step} instances cannot be divided evenly among {processes} processes."
        raise InputError("E-DISTRIBUTED", message, f"Launch a number of processes that divides {step}.")
    config.per_device_train_batch_size = math.gcd(config.per_device_train_batch_size, each)
    config.gradient_accumulation_steps = each // config.per_device_train_batch_size
