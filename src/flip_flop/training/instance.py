"""An instance of a batch, and the rows of instances that are computed together."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.files import derive_seed, generator
from flip_flop.method import Consensus, TemplateSplit
from flip_flop.method.divergences import to_device
from flip_flop.method.settings import Reduction
from flip_flop.scoring.packed import AnswerStates, pack

Found = TypeVar("Found")
log = logging.getLogger("flip_flop")


@dataclass(eq=False)
class TrainingInstance:
    """A :class:`~flip_flop.method.Instance` of a batch. No method waits for the device.

    Args:
        id: The instance's id.
        consensus: The majority vote.
        split: The result of Algorithm 1.
        vote_scores: The scores that vote, on the CPU and without gradient.
        gold: The index of the gold label, for methods that use labels.
        states: The answer states of this instance, with gradient.
        keys: The run's seed and the epoch, counted from 0.
    """

    id: str
    consensus: Consensus
    split: TemplateSplit
    vote_scores: Float[Tensor, "templates labels"]
    gold: int | None
    states: AnswerStates
    keys: tuple[int, int]
    token_counts: Int[Tensor, "templates labels"] = field(init=False)
    _scores: Tensor | None = field(default=None, init=False)
    _token_log_softmax: dict[int, tuple[AnswerStates, Tensor]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.token_counts = to_device(self.states.token_counts[0], self.states.logits.device)

    def scores(self) -> Float[Tensor, "templates labels"]:
        """Mean log-probability of each answer's tokens, in nats."""
        if self._scores is None:
            self._scores = self.states.scores()[0]
        return self._scores

    def nll(self, label: int, reduction: Reduction = "mean") -> Float[Tensor, " templates"]:
        """Negative log-likelihood of a label's answer; reuses earlier results."""
        if label in self._token_log_softmax:
            answer, log_probs = self._token_log_softmax[label]
            target = to_device(answer.token_target, log_probs.device)
            picked = log_probs.gather(1, target[:, None]).squeeze(1)
            scores = torch.stack([tokens.mean() for tokens in picked.split(self._lengths(label))])
        elif self._scores is not None:
            scores = self._scores[:, label]
        else:
            scores = self.states.of(0, label).scores()[0, :, 0]
        return -scores * self.token_counts[:, label] if reduction == "sum" else -scores

    def answer_log_probs(self, label: int) -> list[Float[Tensor, "_positions vocab"]]:
        """Vocabulary distributions at each token of a label's answer, per template."""
        if label not in self._token_log_softmax:
            answer = self.states.of(0, label)
            self._token_log_softmax[label] = answer, answer.token_log_softmax()
        return list(self._token_log_softmax[label][1].split(self._lengths(label)))

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator for (seed, purpose, epoch, id)."""
        seed, epoch = self.keys
        return generator(seed, purpose, epoch, self.id)

    def _lengths(self, label: int) -> list[int]:
        return cast(list[int], self.states.token_counts[0, :, label].tolist())


@contextmanager
def drawn_for(device: torch.device, seed: int, purpose: str, *keys: int | str) -> Iterator[None]:
    """Make random draws inside, such as dropout, depend only on these keys; then restore the generators."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, purpose, *keys))
        yield


def by_rows(
    run: Callable[[list[int]], Found], sizes: Sequence[int], max_tokens: int, parameters: Sequence[nn.Parameter]
) -> tuple[list[Found], int]:
    """Apply ``run``, a forward and backward pass, to rows of instances.

    If a row of several instances exceeds the device's memory, all rows restart with half the length and the original
    gradients.

    Args:
        run: From the indices of a row's instances to its result.
        sizes: Tokens of each instance.
        max_tokens: Tokens of a row. A longer instance has its own row.
        parameters: The parameters that receive gradients.

    Returns:
        The result of each row, and the tokens of a row to use from now on.
    """
    rows = [sorted(row) for row in pack(sizes, max_tokens)]
    divisible = any(len(row) > 1 for row in rows)
    gradients = [None if each.grad is None or not divisible else each.grad.clone() for each in parameters]
    while True:
        found: list[Found] = []
        try:
            found.extend(run(row) for row in rows)  # keeps the results before a failure
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
