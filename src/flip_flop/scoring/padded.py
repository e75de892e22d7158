"""The padded back end: distinct sequences, sorted by length, in right-padded batches.

A back end is a function ``(decoder, index) -> hidden [rows, width]``: the hidden states at the answer rows of an
:class:`~flip_flop.scoring.answers.AnswerIndex`, with gradient where the decoder's weights have one. That is the seam:
nothing outside knows how the rows were computed.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flip_flop.scoring.answers import AnswerIndex

# Tokens of one forward, padding included: enough to fill the matrix products, and still within a small memory.
BATCH_TOKENS = 4096


def padded_hidden_states(
    decoder: nn.Module, index: AnswerIndex, *, batch_tokens: int = BATCH_TOKENS, padding_side: str = "right"
) -> Float[Tensor, "rows width"]:
    """Hidden states at the answer rows.

    Right-padded sequences need no mask in a causal model: a real token never sees what stands behind it. Padding is
    token 0, whatever the tokenizer calls its pad token, as nothing reads it.

    Args:
        decoder: The model without its head: ``input_ids [batch, sequence]`` to ``last_hidden_state``.
        index: What to read.
        batch_tokens: Upper bound of one forward's tokens, padding included; a longer sequence goes alone.
        padding_side: ``right``, or ``left`` for models that insist on it (a mask and positions are then passed).
    """
    device = index.row_sequence.device
    pieces, order = [], []
    for numbers in _batches(index.sequences, batch_tokens):
        width = max(len(index.sequences[number]) for number in numbers)
        ids = torch.zeros(len(numbers), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        shift = torch.zeros(len(index.sequences), dtype=torch.long)
        line = torch.full((len(index.sequences),), -1)
        for place, number in enumerate(numbers):
            sequence = torch.tensor(index.sequences[number])
            start = width - len(sequence) if padding_side == "left" else 0
            ids[place, start : start + len(sequence)] = sequence
            mask[place, start : start + len(sequence)] = 1
            shift[number], line[number] = start, place
        arguments = {}
        if padding_side == "left":
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            arguments = {"attention_mask": mask.to(device), "position_ids": positions.to(device)}
        states = decoder(input_ids=ids.to(device), use_cache=False, **arguments).last_hidden_state
        lines = line.to(device)[index.row_sequence]
        rows = (lines >= 0).nonzero().squeeze(1)
        pieces.append(states[lines[rows], index.row_position[rows] + shift.to(device)[index.row_sequence[rows]]])
        order.append(rows)
    inverse = torch.argsort(torch.cat(order))
    return torch.cat(pieces)[inverse]


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
