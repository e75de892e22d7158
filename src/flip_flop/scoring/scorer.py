"""Scores of every label under every template: mean log-probability of the answer's tokens, in nats (Eq. 13)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from flip_flop.errors import InputError
from flip_flop.progress import track
from flip_flop.scoring.answers import AnswerIndex, index_answers
from flip_flop.scoring.head import decoder_of, head_logits, token_log_probs
from flip_flop.scoring.padded import BATCH_TOKENS, padded_hidden_states
from flip_flop.scoring.tokens import EncodedInstance


@dataclass(frozen=True)
class ScoreTable:
    """Scores of a set of instances.

    Attributes:
        scores: Mean log-probability of each answer's tokens, in nats.
        token_counts: The number of tokens of each answer.
        num_merged: How many answers' first token spanned the join of prompt and answer.
    """

    scores: Float32[np.ndarray, "instances templates labels"]
    token_counts: Int64[np.ndarray, "instances templates labels"]
    num_merged: int

    @property
    def own_label_mass(self) -> Float[np.ndarray, "instances templates"]:
        """Probability that a template's answer is one of its own labels, whole: sum over labels of p(y_c | x)."""
        return np.exp(self.scores.astype(np.float64) * self.token_counts).sum(axis=-1)


@dataclass(frozen=True)
class AnswerStates:
    """The decoder's hidden states of a batch at its answer rows, and what to read from them.

    Attributes:
        hidden: One state per row.
        index: Rows, targets and owners.
    """

    hidden: Float[Tensor, "rows width"]
    index: AnswerIndex

    def scores(self, model: nn.Module) -> Float[Tensor, "instances templates labels"]:
        """Mean log-probability of each answer's tokens (Eq. 13), in float32, with gradient where it is enabled."""
        picked = token_log_probs(model, self.hidden, self.index.token_row, self.index.token_target)
        counts = self.index.token_counts
        sums = torch.zeros(counts.numel(), dtype=picked.dtype, device=picked.device)
        return sums.index_add(0, self.index.token_owner, picked).view(counts.shape) / counts

    def token_log_softmax(self, model: nn.Module) -> Float[Tensor, "tokens vocab"]:
        """The distribution over the vocabulary that each answer token is drawn from, as log-probabilities."""
        rows, place = self.index.token_row.unique(return_inverse=True)
        return head_logits(model, self.hidden[rows]).log_softmax(dim=-1)[place]

    def of(self, instance: int, label: int | None = None) -> "AnswerStates":
        """The answers of one instance of the batch alone, or those of one label."""
        return AnswerStates(self.hidden, self.index.of(instance, label))


def answer_states(
    model: nn.Module, instances: Sequence[EncodedInstance], *, batch_tokens: int = BATCH_TOKENS
) -> AnswerStates:
    """One pass of the decoder over a batch of whole instances."""
    device = next(model.parameters()).device
    index = index_answers(instances).to(device)
    return AnswerStates(padded_hidden_states(decoder_of(model), index, batch_tokens=batch_tokens), index)


@torch.no_grad()
def score_instances(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    batch_tokens: int = BATCH_TOKENS,
    label: str = "scoring",
    quiet: bool = False,
) -> ScoreTable:
    """Score every label of every instance under every template.

    The result does not depend on the order of the instances, nor, to 2e-6 nats in float32, on ``batch_tokens``.

    Args:
        model: A causal LM of transformers, with an adapter or without; it is read in evaluation mode.
        instances: From :class:`~flip_flop.scoring.tokens.PromptEncoder`; templates and labels are as many in each.
        batch_tokens: Tokens of one forward, padding included.
        label: What the progress bar says.
        quiet: Show no progress.

    Raises:
        InputError: ``E-NONFINITE`` where the model's output is not finite, with the instance's id.
    """
    was_training = model.training
    model.eval()
    try:
        scores: list[np.ndarray] = [np.empty(0)] * len(instances)
        counts: list[np.ndarray] = [np.empty(0)] * len(instances)
        with track(label, len(instances), "instances", quiet=quiet) as advance:
            for numbers in _groups(instances, batch_tokens):
                states = answer_states(model, [instances[number] for number in numbers], batch_tokens=batch_tokens)
                batch = states.scores(model).float().cpu().numpy()
                for place, number in enumerate(numbers):
                    scores[number] = batch[place]
                    counts[number] = states.index.token_counts[place].cpu().numpy()
                    _check_finite(batch[place], instances[number].id)
                advance(len(numbers))
    finally:
        model.train(was_training)
    merged = sum(answer.merged for instance in instances for row in instance.answers for answer in row)
    return ScoreTable(np.stack(scores), np.stack(counts), merged)


def _groups(instances: Sequence[EncodedInstance], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the instances, longest first, in groups of about ``batch_tokens`` distinct tokens."""
    sizes = [_num_tokens(instance) for instance in instances]
    group: list[int] = []
    for number in sorted(range(len(instances)), key=lambda number: -sizes[number]):
        if group and sum(sizes[member] for member in group) + sizes[number] > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _num_tokens(instance: EncodedInstance) -> int:
    return sum(len(inputs) for inputs in {answer.inputs for row in instance.answers for answer in row})


def _check_finite(scores: Float32[np.ndarray, "templates labels"], instance_id: str) -> None:
    if not np.isfinite(scores).all():
        raise InputError(
            "E-NONFINITE",
            f"The model's scores of instance {instance_id!r} are not finite.",
            "Check the weights and the dtype (bfloat16 or float32 instead of float16).",
        )
