"""The packed back end: one row of distinct tokens for whole instances.

Either everything in one forward, or in two parts where only some answers will carry a gradient: the trunk first, with
gradient, and the branches of the answers on top of its keys and values, without. Once the votes are in, the branches of
the consensus answers are computed again, with gradient. That costs a few tokens twice, and saves the backward of all
the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from flip_flop.scoring.attention import forward_row, packed_attention
from flip_flop.scoring.head import decoder_of
from flip_flop.scoring.trie import TokenTrie


def packed_hidden_states(
    model: nn.Module, trie: TokenTrie, rows: Int[np.ndarray, " rows"], *, call_cells: float | None = None
) -> Float[Tensor, "rows width"]:
    """Hidden states at some nodes of a trie, all of it in one forward.

    Args:
        model: A causal LM; attention over packed rows is switched on for the call.
        trie: Whole instances.
        rows: Nodes.
        call_cells: See :func:`~flip_flop.scoring.blocks.plan_blocks`.
    """
    with packed_attention(model):
        states, _ = forward_row(decoder_of(model), trie, 0, len(trie), call_cells=call_cells)
    return states[torch.from_numpy(rows).to(states.device)]


# Two parts pay where that spares the backward of so large a share of the tokens.
SPARED_SHARE = 0.1


@dataclass(frozen=True)
class TrunkPass:
    """The trunk's part of a forward, and what is needed to go on into the branches.

    Attributes:
        model: The causal LM.
        trie: Whole instances.
        states: Hidden states of the trunk's nodes.
        memory: The layers' keys and values there.
    """

    model: nn.Module
    trie: TokenTrie
    states: Float[Tensor, "trunk width"]
    memory: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, model: nn.Module, trie: TokenTrie) -> "TrunkPass":
        """Forward the trunk, with gradient where it is enabled."""
        cache = DynamicCache()
        with packed_attention(model):
            states, _ = forward_row(decoder_of(model), trie, 0, trie.num_trunk, past_key_values=cache, use_cache=True)
        return cls(
            model,
            trie,
            states,
            tuple((cast(Tensor, layer.keys), cast(Tensor, layer.values)) for layer in cast(list[Any], cache.layers)),
        )

    def nodes_of(self, labels: Sequence[int | None]) -> Int[np.ndarray, " nodes"]:
        """The branches' nodes that one answer of each template is read from, and what leads there."""
        return self.trie.answer_branches(labels)

    def states_of(self, nodes: Int[np.ndarray, " nodes"]) -> Float[Tensor, "nodes width"]:
        """Hidden states of some of the branches' nodes, each of them with its ancestors among ``nodes``."""
        part = self.trie.with_branches(nodes)
        cache = DynamicCache()
        for number, (keys, values) in enumerate(self.memory):
            cache.update(keys, values, number)
        with packed_attention(self.model):
            states, _ = forward_row(
                decoder_of(self.model), part, part.num_trunk, len(part), past_key_values=cache, use_cache=True
            )
        return states


def is_worth_parting(trie: TokenTrie) -> bool:
    """Whether most of the answers' own tokens, and with them much of the trie, need no gradient.

    One answer of each template will; the first label's stands for it, as which one is not known yet.
    """
    needed = len(trie.answer_branches([0] * trie.token_counts.shape[0]))
    return trie.num_branch - needed > SPARED_SHARE * len(trie)


def keeps_states(decoder: nn.Module) -> bool:
    """Whether a forward leaves what one can go on from: not where layers are computed anew in the backward."""
    return not decoder.training or not any(getattr(part, "gradient_checkpointing", False) for part in decoder.modules())
