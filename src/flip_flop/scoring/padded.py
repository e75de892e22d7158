"""The padded back end: distinct sequences, sorted by length, in right-padded batches.

For models that the packed back end cannot serve exactly. It computes each sequence once, and what sequences share as
often as there are sequences. Where only some answers will carry a gradient and the others are long, all are computed
without first, and those of the consensus once more, with gradient.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.scoring.trie import TokenTrie


def padded_hidden_states(
    decoder: nn.Module,
    trie: TokenTrie,
    rows: Int[np.ndarray, " rows"],
    *,
    batch_tokens: int,
    padding_side: str = "right",
) -> Float[Tensor, "rows width"]:
    """Hidden states at some nodes of a trie, from the sequences that lead there.

    Right-padded sequences need no mask in a causal model: a real token never sees what stands behind it. Padding is
    token 0, whatever the tokenizer calls its pad token, as nothing reads it.

    Args:
        decoder: The model without its head: ``input_ids [batch, sequence]`` to ``last_hidden_state``.
        trie: Whole instances.
        rows: Nodes.
        batch_tokens: Upper bound of one forward's tokens, padding included; a longer sequence goes alone.
        padding_side: ``right``, or ``left`` for models that insist on it (a mask and positions are then passed).
    """
    device = next(decoder.parameters()).device
    sequences, sequence_of = trie.sequences(rows)
    row_sequence = torch.from_numpy(sequence_of)
    row_position = torch.from_numpy(trie.depth[rows].astype(np.int64))
    pieces, order = [], []
    for numbers in _batches(sequences, batch_tokens):
        width = max(len(sequences[number]) for number in numbers)
        ids = torch.zeros(len(numbers), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        shift = torch.zeros(len(sequences), dtype=torch.long)
        line = torch.full((len(sequences),), -1)
        for place, number in enumerate(numbers):
            sequence = torch.tensor(sequences[number])
            start = width - len(sequence) if padding_side == "left" else 0
            ids[place, start : start + len(sequence)] = sequence
            mask[place, start : start + len(sequence)] = 1
            shift[number], line[number] = start, place
        arguments = {}
        if padding_side == "left":
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            arguments = {"attention_mask": mask.to(device), "position_ids": positions.to(device)}
        states = decoder(input_ids=ids.to(device), use_cache=False, **arguments).last_hidden_state
        found = (line[row_sequence] >= 0).nonzero().squeeze(1)
        own = row_sequence[found]
        # A model on several devices gives its states on the last one.
        lines, places = (number.to(states.device) for number in (line[own], row_position[found] + shift[own]))
        pieces.append(states[lines, places])
        order.append(found)
    inverse = torch.argsort(torch.cat(order))
    return torch.cat(pieces)[inverse.to(pieces[0].device)]


@dataclass(frozen=True)
class PaddedPass:
    """What it takes to compute some answers once more.

    Attributes:
        decoder: The model without its head.
        trie: Whole instances.
        batch_tokens: Upper bound of one forward's tokens.
    """

    decoder: nn.Module
    trie: TokenTrie
    batch_tokens: int

    def nodes_of(self, labels: Sequence[int | None]) -> Int[np.ndarray, " rows"]:
        """The nodes that one answer of each template is read from."""
        return self.trie.answer_rows(labels)

    def states_of(self, nodes: Int[np.ndarray, " rows"]) -> Float[Tensor, "rows width"]:
        """Hidden states there, with gradient where it is enabled."""
        return padded_hidden_states(self.decoder, self.trie, nodes, batch_tokens=self.batch_tokens)


def is_worth_twice(trie: TokenTrie) -> bool:
    """Whether a forward without gradient and one answer of each template with it cost less than all answers with it.

    The first label's answers stand for the consensus label's, which is not known yet. A backward costs two forwards.
    """
    one_label = trie.answer_rows([0] * trie.token_counts.shape[0])
    everything, one = (
        int((trie.depth[trie.leaves(nodes)] + 1).sum()) for nodes in (np.unique(trie.token_node), one_label)
    )
    return everything + 3 * one < 3 * everything


def _batches(sequences: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the sequences, longest first, in batches of at most ``batch_tokens`` padded tokens."""
    batch: list[int] = []
    for number in sorted(range(len(sequences)), key=lambda number: -len(sequences[number])):
        width = len(sequences[batch[0]]) if batch else 0
        if batch and width * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
