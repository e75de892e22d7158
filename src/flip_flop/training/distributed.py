"""Training in several processes, started by accelerate or torchrun: what they share.

The loss calls decoder and head separately, and a process runs several backwards a step, so DistributedDataParallel's
own synchronisation never starts. It is not needed: an adapter's gradients are few, and are summed once a step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from flip_flop.method.divergences import at_least_float32
from flip_flop.scoring.scorer import ScoreTable


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's rank; rank 0 writes."""
    return dist.get_rank() if world_size() > 1 else 0


def wait_for_all() -> None:
    """A barrier."""
    if world_size() > 1:
        dist.barrier()


def all_reduce_sum(count: int, device: torch.device) -> int:
    """The sum of a number over all processes."""
    if world_size() == 1:
        return count
    value = torch.tensor(count, device=device)
    dist.all_reduce(value)
    return int(value)


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up each parameter's gradient over all processes; where one has none, it counts as zero.

    A process's loss is divided by the number of all processes' instances: the sum is the whole step's gradient.
    """
    if world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    present = torch.tensor([parameter.grad is not None for parameter in trained], device=trained[0].device).int()
    dist.all_reduce(present)
    shared = [parameter for parameter, count in zip(trained, present.tolist(), strict=True) if count]
    if not shared:
        return
    grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in shared]
    flat = torch.cat([at_least_float32(grad.flatten()) for grad in grads])  # one message instead of hundreds
    dist.all_reduce(flat)
    for parameter, grad, summed in zip(shared, grads, flat.split([grad.numel() for grad in grads]), strict=True):
        parameter.grad = summed.view_as(grad).to(grad.dtype)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    return bool(all_reduce_sum(int(flag), device))


def shard(items: Sequence[Any]) -> Sequence[Any]:
    """This process's part of a list: every n-th item."""
    return items[rank() :: world_size()]


def all_gather(value: Any) -> list[Any]:
    """Every process's value, by rank."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def gather_table(own: ScoreTable, length: int) -> ScoreTable:
    """The whole table from the parts that :func:`shard` gave to the processes."""
    scores = np.empty((length, *own.scores.shape[1:]), dtype=own.scores.dtype)
    counts = np.empty((length, *own.token_counts.shape[1:]), dtype=own.token_counts.dtype)
    parts: list[ScoreTable] = all_gather(own)[:length]  # beyond, a process had nothing of its own to score
    for number, part in enumerate(parts):
        scores[number :: world_size()], counts[number :: world_size()] = part.scores, part.token_counts
    return ScoreTable(scores, counts, sum(part.num_merged for part in parts), own.backend)
