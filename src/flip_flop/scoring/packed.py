"""The packed back end: whole instances as one row of distinct tokens, in one forward."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from flip_flop.scoring.attention import Layout, packed_attention
from flip_flop.scoring.causal_lm import decoder_of
from flip_flop.scoring.trie import TokenTrie


def packed_states(
    model: nn.Module, trie: TokenTrie, *, call_cells: float | None = None
) -> Float[Tensor, "nodes width"]:
    """The decoder's hidden state at each node of a trie; for ``call_cells`` see :class:`Layout`."""
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device
    ids, positions = (torch.from_numpy(part.astype(np.int64))[None].to(device) for part in (trie.ids, trie.depth))
    with packed_attention(model):
        output = decoder(input_ids=ids, position_ids=positions, packed=Layout(trie, call_cells), use_cache=False)
    return output.last_hidden_state[0]
