"""A micro-batch is computed in rows of whole instances: dropout of a row, and rows that memory does not hold."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from flip_flop.files import derive_seed
from flip_flop.scoring.answers import pack

Found = TypeVar("Found")
log = logging.getLogger("flip_flop")


@contextmanager
def drawn_for(device: torch.device, seed: int, purpose: str, *keys: int | str) -> Iterator[None]:
    """What is drawn inside, such as dropout, depends on these keys alone; the generators are afterwards as before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, purpose, *keys))
        yield


def by_rows(
    run: Callable[[list[int]], Found], sizes: Sequence[int], max_tokens: int, parameters: Sequence[nn.Parameter]
) -> tuple[list[Found], int]:
    """What ``run`` gives for each row of the instances of these sizes, after its backward; and how long a row may be.

    Where the device's memory does not hold a row of several instances, all begin again with rows half as long, and with
    the gradients as they were.
    """
    rows = [sorted(row) for row in pack(sizes, max_tokens)]
    divisible = any(len(row) > 1 for row in rows)
    gradients = [None if each.grad is None or not divisible else each.grad.clone() for each in parameters]
    while True:
        found: list[Found] = []
        try:
            found.extend(run(row) for row in rows)  # those before one that fails stay
            return found, max_tokens
        except torch.OutOfMemoryError:
            if len(rows[len(found)]) == 1:
                raise
        tokens = sum(sizes[index] for index in rows[len(found)])
        max_tokens = tokens // 2
        log.warning("W-MEMORY: a row of %d tokens does not fit; rows now have %d", tokens, max_tokens)
        rows = [sorted(row) for row in pack(sizes, max_tokens)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
