"""An instance of a training batch, as a method reads it; the head runs where it asks."""

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.files import generator
from flip_flop.method import Consensus, TemplateSplit
from flip_flop.method.divergences import to_device
from flip_flop.method.settings import Reduction
from flip_flop.scoring.answers import AnswerStates


@dataclass(eq=False)
class TrainingInstance:
    """A :class:`~flip_flop.method.Instance` of a batch.

    ``states`` are of this instance alone and with gradient, ``model`` is for its head, and ``keys`` are the run's
    seed and the epoch, counted from 0. Whatever is asked of it, nothing waits for the device.
    """

    id: str
    consensus: Consensus
    split: TemplateSplit
    states: AnswerStates
    model: nn.Module
    keys: tuple[int, int]
    token_counts: Int[Tensor, "templates labels"] = field(init=False)
    _scores: Tensor | None = field(default=None, init=False)
    _token_log_softmax: dict[int, tuple[AnswerStates, Tensor]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.token_counts = to_device(self.states.token_counts[0], self.states.hidden.device)

    def scores(self) -> Float[Tensor, "templates labels"]:
        """Mean log-probability of each answer's tokens, in nats."""
        if self._scores is None:
            self._scores = self.states.scores(self.model)[0]
        return self._scores

    def nll(self, label: int, reduction: Reduction = "mean") -> Float[Tensor, " templates"]:
        """Negative log-likelihood of a label's answer, taken from what has been read of it already."""
        if label in self._token_log_softmax:
            answer, log_probs = self._token_log_softmax[label]
            target = to_device(answer.token_target, log_probs.device)
            picked = log_probs.gather(1, target[:, None]).squeeze(1)
            scores = torch.stack([tokens.mean() for tokens in picked.split(self._lengths(label))])
        elif self._scores is not None:
            scores = self._scores[:, label]
        else:
            scores = self.states.of(0, label).scores(self.model)[0, :, 0]
        return -scores * self.token_counts[:, label] if reduction == "sum" else -scores

    def answer_log_probs(self, label: int) -> list[Float[Tensor, "_positions vocab"]]:
        """A label's answer under each template: the distribution over the vocabulary at each of its tokens."""
        if label not in self._token_log_softmax:
            answer = self.states.of(0, label)
            self._token_log_softmax[label] = answer, answer.token_log_softmax(self.model)
        return list(self._token_log_softmax[label][1].split(self._lengths(label)))

    def random(self, purpose: str) -> np.random.Generator:
        """A generator for (seed, purpose, epoch, id)."""
        seed, epoch = self.keys
        return generator(seed, purpose, epoch, self.id)

    def _lengths(self, label: int) -> list[int]:
        return cast(list[int], self.states.token_counts[0, :, label].tolist())
