"""Scores of every label under every template: mean log-probability of the answer's tokens, in nats (Eq. 13)."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor, nn

from flip_flop.errors import InputError
from flip_flop.progress import track
from flip_flop.scoring.answers import AnswerIndex, index_answers
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.head import decoder_of, evaluation_mode, head_logits, token_log_probs
from flip_flop.scoring.packed import TrunkPass, is_worth_parting, keeps_states, packed_hidden_states
from flip_flop.scoring.padded import PaddedPass, is_worth_twice
from flip_flop.scoring.rows import pack
from flip_flop.scoring.support import Backend, choose_backend
from flip_flop.scoring.tokens import EncodedInstance
from flip_flop.scoring.trie import join

# Tokens of one forward: enough to fill the matrix products, and still within a small memory.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class ScoreTable:
    """Scores of a set of instances.

    Attributes:
        scores: Mean log-probability of each answer's tokens, in nats.
        token_counts: The number of tokens of each answer.
        num_merged: How many answers' first token spanned the join of prompt and answer.
        backend: What computed them: ``packed`` or ``padded``.
    """

    scores: Float32[np.ndarray, "instances templates labels"]
    token_counts: Int64[np.ndarray, "instances templates labels"]
    num_merged: int
    backend: Backend

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
        again: Where answers were computed without gradient: what it takes to compute some with.
        row_node: The node of each row, where there is such a pass.
    """

    hidden: Float[Tensor, "rows width"]
    index: AnswerIndex
    again: TrunkPass | PaddedPass | None = None
    row_node: Int[np.ndarray, " rows"] | None = None

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
        return replace(self, index=self.index.of(instance, label))

    def with_gradient(self, labels: Sequence[int | None]) -> "AnswerStates":
        """The same states, those of one answer per template with gradient.

        Args:
            labels: The answer's label for each instance; ``None`` where no gradient is wanted.
        """
        if self.again is None or self.row_node is None:
            return self
        nodes = self.again.nodes_of(labels)
        if not len(nodes):
            return self
        again = self.again.states_of(nodes)
        rows = np.flatnonzero(np.isin(self.row_node, nodes))
        new_row = np.arange(len(self.row_node))
        new_row[rows] = len(self.row_node) + np.arange(len(rows))
        places = torch.from_numpy(np.searchsorted(nodes, self.row_node[rows])).to(again.device)
        index = self.index.moved(torch.from_numpy(new_row).to(again.device))
        return AnswerStates(torch.cat([self.hidden, again[places]]), index)


def answer_states(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
    one_label: bool = False,
) -> AnswerStates:
    """One pass of the decoder over a batch of whole instances.

    Args:
        model: A causal LM.
        instances: All with the same numbers of templates and of labels.
        backend: ``packed`` forwards them as one row; ``padded`` in batches of sequences.
        batch_tokens: Tokens of one forward of the padded back end, padding included.
        one_label: A gradient is wanted for one answer of each template only, to be named in
            :meth:`AnswerStates.with_gradient`. Where other answers are long, they are then computed without.
    """
    trie = join([instance.trie for instance in instances])
    index, row_node = index_answers(trie)
    one_label = one_label and torch.is_grad_enabled() and keeps_states(decoder_of(model))
    if backend == "padded":
        padded = PaddedPass(decoder_of(model), trie, batch_tokens)
        twice = one_label and is_worth_twice(trie)
        with torch.no_grad() if twice else contextlib.nullcontext():
            hidden = padded.states_of(row_node)
        return AnswerStates(hidden, index.to(hidden.device), padded if twice else None, row_node)
    if not (one_label and is_worth_parting(trie)):
        hidden = packed_hidden_states(model, trie, row_node)
        return AnswerStates(hidden, index.to(hidden.device))
    trunk = TrunkPass.of(model, trie)
    with torch.no_grad():
        branches = trunk.states_of(np.arange(trie.num_trunk, len(trie)))
    rows = torch.from_numpy(row_node.astype(np.int64)).to(branches.device)
    in_trunk = rows < trie.num_trunk
    # Rows stand in the nodes' order, and the trunk's nodes come first.
    hidden = torch.cat([trunk.states[rows[in_trunk]], branches[rows[~in_trunk] - trie.num_trunk]])
    return AnswerStates(hidden, index.to(hidden.device), trunk, row_node)


@torch.no_grad()
def score_instances(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
    label: str = "scoring",
    quiet: bool = False,
) -> ScoreTable:
    """Score every label of every instance under every template.

    The result does not depend on the order of the instances, nor, to 2e-6 nats in float32, on ``batch_tokens``.

    Args:
        model: A causal LM of transformers, with an adapter or without; it is read in evaluation mode.
        instances: From :class:`~flip_flop.scoring.tokens.PromptEncoder`; templates and labels are as many in each.
        backend: ``packed``, which gives way to ``padded`` for models that it cannot serve exactly; or ``padded``.
        batch_tokens: Tokens of one forward; an instance is never divided.
        label: What the progress bar says.
        quiet: Show no progress.

    Raises:
        InputError: ``E-NONFINITE`` where the model's output is not finite, with the instance's id.
    """
    backend = choose_backend(model, instances, backend)
    with evaluation_mode(model):
        scores: list[np.ndarray] = [np.empty(0)] * len(instances)
        counts: list[np.ndarray] = [np.empty(0)] * len(instances)
        switched = packed_attention(model) if backend == "packed" else contextlib.nullcontext()
        with switched, track(label, len(instances), "instances", quiet=quiet) as advance:
            for numbers in pack(instances, batch_tokens):
                members = [instances[number] for number in numbers]
                states = answer_states(model, members, backend=backend, batch_tokens=batch_tokens)
                batch = states.scores(model).float().cpu().numpy()
                for place, number in enumerate(numbers):
                    scores[number] = batch[place]
                    counts[number] = states.index.token_counts[place].cpu().numpy()
                    _check_finite(batch[place], instances[number].id)
                advance(len(numbers))
    merged = sum(answer.merged for instance in instances for row in instance.answers for answer in row)
    return ScoreTable(np.stack(scores), np.stack(counts), merged, backend)


def _check_finite(scores: Float32[np.ndarray, "templates labels"], instance_id: str) -> None:
    if not np.isfinite(scores).all():
        raise InputError(
            "E-NONFINITE",
            f"The model's scores of instance {instance_id!r} are not finite.",
            "Check the weights and the dtype (bfloat16 or float32 instead of float16).",
        )
