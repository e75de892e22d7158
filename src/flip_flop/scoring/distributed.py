"""Communication of several processes that accelerate or torchrun started.

In training, a process runs several backward passes per step, so that DistributedDataParallel does not synchronize
gradients. An adapter has few gradients, which are summed once per step.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from flip_flop.errors import InputError
from flip_flop.method.divergences import at_least_float32
from flip_flop.scoring.causal_lm import as_input_error

T = TypeVar("T")
_answered = as_input_error(
    "E-DISTRIBUTED",
    "another process has ended, or has not answered in time",
    "Look for the reason in its output. Add --resume to continue a training run.",
)


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process. Rank 0 writes."""
    return dist.get_rank() if world_size() > 1 else 0


def join_processes(device: str) -> None:
    """Initialize communication if a launcher started several processes. The trainer does this in training."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState(cpu=device == "cpu", timeout=timedelta(hours=2))  # the rows of a process may take much longer


@_answered
def _sum(value: Tensor) -> Tensor:
    dist.all_reduce(value)
    return value


@_answered
def wait_for_all() -> None:
    """Wait until all processes call this function."""
    if world_size() > 1:
        dist.barrier()


def all_reduce_sum(count: int, device: torch.device) -> int:
    """Return the sum of a number over all processes."""
    if world_size() == 1:
        return count
    return int(_sum(torch.tensor(count, device=device)))


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum the gradient of each parameter over all processes. A missing gradient counts as zero.

    Losses are divided by the number of instances of all processes, so that the sum is the gradient of the step.
    """
    if world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    present = _sum(torch.tensor([parameter.grad is not None for parameter in trained], device=trained[0].device).int())
    shared = [parameter for parameter, count in zip(trained, present.tolist(), strict=True) if count]
    if not shared:
        return
    grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in shared]
    flat = _sum(torch.cat([at_least_float32(grad.flatten()) for grad in grads]))  # one message instead of hundreds
    for parameter, grad, summed in zip(shared, grads, flat.split([grad.numel() for grad in grads]), strict=True):
        parameter.grad = summed.view_as(grad).to(grad.dtype)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set in any process."""
    return bool(all_reduce_sum(int(flag), device))


def shard(items: Sequence[Any]) -> Sequence[Any]:
    """Return the part of this process: every n-th item of a list."""
    return items[rank() :: world_size()]


@_answered
def all_gather(value: T) -> list[T]:
    """Return the values of all processes, by rank."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def all_results(work: Callable[[], T]) -> list[T]:
    """Run a function in all processes and return the results by rank.

    Raises:
        InputError: The first error of any process, in all processes. Also for memory that runs out.
    """
    try:
        result: tuple[T | None, Exception | None] = (work(), None)
    except (InputError, torch.OutOfMemoryError) as error:
        result = (None, error)
    results = all_gather(result)
    for _, failure in results:
        if failure is not None:
            raise failure
    return [cast(T, value) for value, _ in results]
