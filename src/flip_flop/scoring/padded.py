"""The padded back end: distinct sequences, sorted by length, in right-padded batches.

For models that the packed back end cannot serve exactly. It computes each sequence once, and what sequences share as
often as there are sequences.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from flip_flop.scoring.rows import pack
from flip_flop.scoring.trie import TokenTrie


def padded_states(decoder: nn.Module, trie: TokenTrie, *, batch_tokens: int) -> Float[Tensor, "nodes width"]:
    """The decoder's hidden state at each node of a trie, from one of the sequences that it is in.

    Right-padded sequences need no mask in a causal model: a real token never sees what stands behind it. Padding is
    token 0, whatever the tokenizer calls its pad token, as nothing reads it. It counts among the ``batch_tokens``.
    """
    device = next(decoder.parameters()).device
    sequences, sequence_of = trie.sequences()
    line_of = np.empty(len(sequences), dtype=np.int64)
    pieces, order = [], []
    for numbers in pack([len(sequence) for sequence in sequences], batch_tokens, padded=True):
        ids = torch.zeros(len(numbers), len(sequences[numbers[0]]), dtype=torch.long)
        for line, number in enumerate(numbers):
            ids[line, : len(sequences[number])] = torch.tensor(sequences[number])
        line_of[numbers] = np.arange(len(numbers))
        states = decoder(input_ids=ids.to(device), use_cache=False).last_hidden_state
        nodes = np.flatnonzero(np.isin(sequence_of, numbers))
        # A model on several devices gives its states on the last one.
        lines, positions = (
            torch.from_numpy(part.astype(np.int64)).to(states.device)
            for part in (line_of[sequence_of[nodes]], trie.depth[nodes])
        )
        pieces.append(states[lines, positions])
        order.append(nodes)
    inverse = torch.from_numpy(np.argsort(np.concatenate(order)))
    return torch.cat(pieces)[inverse.to(pieces[0].device)]
