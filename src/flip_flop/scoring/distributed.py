"""Communication of several processes that accelerate or torchrun started.

In training, a process runs several backward passes per step, so that DistributedDataParallel does not synchronize
gradients. An adapter has few gradients, which are summed once per step.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers import PreTrainedConfig

from flip_flop.console import num_processes
from flip_flop.errors import OTHER_ENDED, InputError, first_sentence
from flip_flop.method.divergences import at_least_float32
from flip_flop.scoring.causal_lm import as_input_error, unwrap
from flip_flop.scoring.options import Shard

T = TypeVar("T")
_answered = functools.partial(as_input_error, *OTHER_ENDED)


def world_size() -> int:
    """Return the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def rank() -> int:
    """Return the rank of this process. Rank 0 writes."""
    return dist.get_rank() if world_size() > 1 else 0


def join_processes(device: str) -> None:
    """Initialize communication if a launcher started several processes. The trainer does this in training."""
    if num_processes() > 1:
        from accelerate import PartialState

        on_cpu = device == "cpu" or not torch.accelerator.is_available()
        PartialState(cpu=on_cpu, timeout=timedelta(hours=2))  # the rows of a process may take much longer


@_answered()
def _sum(value: Tensor) -> Tensor:
    dist.all_reduce(value)
    return value


@_answered()
def wait_for_all() -> None:
    """Wait until all processes call this function."""
    if world_size() > 1:
        dist.barrier()


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
    """Return whether the flag is set in any process. A tensor, because sharded models ask before each pass."""
    if world_size() > 1:
        return bool(_sum(torch.tensor(int(flag), device=device)))
    return flag


def shard(items: Sequence[Any]) -> Sequence[Any]:
    """Return the part of this process: every n-th item of a list."""
    return items[rank() :: world_size()]


@_answered()
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
    except PassError:  # the others still compute
        raise
    except (InputError, torch.OutOfMemoryError) as error:
        result = (None, error)
    results = all_gather(result)
    for _, failure in results:
        if failure is not None:
            raise failure
    return [cast(T, value) for value, _ in results]


# ---- models whose weights are divided between the processes ----

SHARDING_SINCE = "5.24"  # of transformers, with the parts that are used here


class PassError(InputError):
    """A computation that all processes share has failed in this process, which can only end: the others wait in it."""


def sharding_arguments(name: str, config: PreTrainedConfig, device: str) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that divide a model between all processes.

    Raises:
        InputError: ``E-DISTRIBUTED`` if the model cannot be divided.
    """
    default = torch.accelerator.current_accelerator() or torch.device("cpu")
    obstacles = {
        f"transformers {transformers.__version__} is installed, and --shard needs {SHARDING_SINCE}": (
            Version(transformers.__version__) < Version(SHARDING_SINCE)
        ),
        f"the weights of {name} are quantized, and --shard does not divide those": (
            bool(getattr(config, "quantization_config", None))
        ),
        f"--shard uses {default.type} on this machine, and --device is {device}": (
            torch.device(device).type != default.type
        ),
    }
    for obstacle, is_met in obstacles.items():
        if is_met:
            raise InputError("E-DISTRIBUTED", f"{obstacle}.", "Leave --shard out.")
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(fsdp_size=world_size()), "device_map": None}


def sharding_of(model: nn.Module) -> Shard | None:
    """Return how a model is divided between the processes."""
    if getattr(unwrap(model).config, "distributed_config", None) is None:
        return None
    return "fsdp"


@contextmanager
def shared_pass(model: nn.Module) -> Iterator[None]:
    """Compute what all processes of a sharded model compute together, inside of this context.

    Raises:
        PassError: ``E-MEMORY``, or ``E-DISTRIBUTED`` if another process has ended.
    """
    if sharding_of(model) is None:
        yield
        return
    try:
        with _answered():
            yield
    except NotImplementedError:  # of an attention, in all processes
        raise
    except torch.OutOfMemoryError as error:
        raise PassError(
            "E-MEMORY",
            f"process {rank()}: {first_sentence(error)}.",
            "Lower --batch-tokens, or start more processes. --resume continues a run.",
        ) from error
    except InputError as error:
        raise PassError(error.code, error.message, error.hint) from error


def announce_pass(model: nn.Module) -> None:
    """Tell the other processes that this process computes a pass, for which the weights of all are gathered."""
    if sharding_of(model) is not None:
        any_rank(True, unwrap(model).device)


@contextmanager
def in_step(model: nn.Module, spare: Callable[[], Any]) -> Iterator[None]:
    """Compute passes inside of this context; then ``spare`` passes, as long as another process announces one.

    The weights of a sharded model are gathered for each pass, so that all processes compute the same number of them.
    """
    failure: Exception | None = None
    try:
        yield
    except PassError:
        raise
    except (InputError, torch.OutOfMemoryError) as error:  # between two passes
        failure = error
    while sharding_of(model) is not None and any_rank(False, unwrap(model).device):
        spare()
    if failure is not None:
        raise failure
