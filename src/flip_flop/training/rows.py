"""A micro-batch is computed in rows of whole instances: dropout of a row, and rows that memory does not hold."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from flip_flop.randomness import derive_seed
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

    Where the device's memory does not hold a row, all begin again with rows half as long as the longest one of several
    instances, and with the gradients as they were.
    """
    gradients = [None if each.grad is None else each.grad.clone() for each in parameters]
    while True:
        rows = [sorted(row) for row in pack(sizes, max_tokens)]
        try:
            return [run(row) for row in rows], max_tokens
        except torch.OutOfMemoryError:
            longest = max((sum(sizes[index] for index in row) for row in rows if len(row) > 1), default=0)
            if not longest:
                raise
        max_tokens = longest // 2
        log.warning("W-MEMORY: rows of up to %d tokens do not fit; they now have %d", longest, max_tokens)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
