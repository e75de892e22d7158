"""Which hidden states answers are read from, for a batch of instances.

An answer's token is predicted by the node before it; each such node is a *row*. Answers that begin alike share rows,
and the first tokens of all labels of a template are read from one row. Each row reaches the head once.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from flip_flop.scoring.trie import TokenTrie


@dataclass(frozen=True)
class AnswerIndex:
    """Where the answers of a batch are to be read.

    Attributes:
        token_row: The row that predicts an answer's token; tokens stand in the order (instance, template, label).
        token_target: The token's id.
        token_counts: How many tokens each answer has.
    """

    token_row: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, counted over the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerIndex":
        """The answers of one instance alone, or one label's; rows stay those of the batch."""
        wanted = torch.zeros_like(self.token_counts, dtype=torch.bool)
        wanted[instance, :, slice(None) if label is None else label] = True
        mine = wanted.flatten()[self.token_owner]
        counts = self.token_counts[instance : instance + 1]
        return AnswerIndex(
            token_row=self.token_row[mine],
            token_target=self.token_target[mine],
            token_counts=counts if label is None else counts[:, :, label : label + 1],
        )

    def to(self, device: torch.device) -> "AnswerIndex":
        """The same on a device: that of the states, which a model on several devices gives on its last one."""
        return AnswerIndex(self.token_row.to(device), self.token_target.to(device), self.token_counts.to(device))

    def moved(self, new_row: Int[Tensor, " rows"]) -> "AnswerIndex":
        """The same answers where row ``r`` now is row ``new_row[r]``."""
        return replace(self, token_row=new_row[self.token_row])


def index_answers(trie: TokenTrie) -> tuple[AnswerIndex, Int[np.ndarray, " rows"]]:
    """Where a trie's answers are to be read, and the node of each row; rows stand in the nodes' order."""
    row_node, token_row = np.unique(trie.token_node, return_inverse=True)
    index = AnswerIndex(
        token_row=torch.from_numpy(token_row),
        token_target=torch.from_numpy(trie.token_target),
        token_counts=torch.from_numpy(trie.token_counts),
    )
    return index, row_node
