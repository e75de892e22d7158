"""What is read of a batch: hidden states, and which of them predict which tokens of which answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.options import Backend
from flip_flop.scoring.causal_lm import decoder_of
from flip_flop.scoring.head import head_logits, token_log_probs
from flip_flop.scoring.packed import packed_states
from flip_flop.scoring.padded import padded_states
from flip_flop.scoring.tokens import EncodedInstance
from flip_flop.scoring.trie import join

# Tokens of one forward: enough to fill the matrix products, and still within a small memory.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class AnswerStates:
    """The decoder's hidden states of a batch, and the answers to read from them.

    Attributes:
        hidden: One state for each node of the instances' tries.
        token_node, token_target, token_counts: As in :class:`~flip_flop.scoring.trie.TokenTrie`.
    """

    hidden: Float[Tensor, "nodes width"]
    token_node: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, counted over the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerStates":
        """The answers of one instance of the batch alone, or those of one label."""
        labels = slice(None) if label is None else slice(label, label + 1)
        wanted = torch.zeros_like(self.token_counts, dtype=torch.bool)
        wanted[instance, :, labels] = True
        mine = wanted.flatten()[self.token_owner]
        return replace(
            self,
            token_node=self.token_node[mine],
            token_target=self.token_target[mine],
            token_counts=self.token_counts[instance : instance + 1, :, labels],
        )

    def scores(self, model: nn.Module) -> Float[Tensor, "instances templates labels"]:
        """Mean log-probability of each answer's tokens (Eq. 13), in float32, with gradient where it is enabled."""
        picked = token_log_probs(model, self.hidden, self.token_node, self.token_target)
        sums = torch.zeros(self.token_counts.numel(), dtype=picked.dtype, device=picked.device)
        return sums.index_add(0, self.token_owner, picked).view(self.token_counts.shape) / self.token_counts

    def token_log_softmax(self, model: nn.Module) -> Float[Tensor, "tokens vocab"]:
        """The distribution over the vocabulary that each answer token is drawn from, as log-probabilities."""
        nodes, row = self.token_node.unique(return_inverse=True)
        return head_logits(model, self.hidden[nodes]).log_softmax(dim=-1)[row]


def answer_states(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
) -> AnswerStates:
    """One pass of the decoder over a batch of whole instances, with gradient where it is enabled.

    All have the same numbers of templates and labels. ``packed`` forwards them as one row, whatever its length;
    ``padded`` in batches of sequences, of at most ``batch_tokens`` with padding.
    """
    trie = join([instance.trie for instance in instances])
    if backend == "packed":
        hidden = packed_states(model, trie)
    else:
        hidden = padded_states(decoder_of(model), trie, batch_tokens=batch_tokens)
    parts = (trie.token_node.astype(np.int64), trie.token_target, trie.token_counts)
    # A model on several devices gives its states on the last one.
    return AnswerStates(hidden, *(torch.from_numpy(part).to(hidden.device) for part in parts))
