"""Which instances go through a model together."""

from collections.abc import Iterator, Sequence

from torch import nn

from flip_flop.scoring.causal_lm import decoder_weights
from flip_flop.scoring.tokens import EncodedInstance

# Floating-point operations of a forward that is worth what it costs to start one; an order of magnitude, by device.
WORTHWHILE_FLOPS = {"cpu": 2e9, "cuda": 2e13}


def pack(instances: Sequence[EncodedInstance], row_tokens: int) -> Iterator[list[int]]:
    """Indices of the instances, largest first, in rows of at most ``row_tokens`` nodes or of one instance."""
    sizes = [len(instance.trie) for instance in instances]
    row: list[int] = []
    total = 0
    for index in sorted(range(len(instances)), key=lambda index: -sizes[index]):
        if row and total + sizes[index] > row_tokens:
            yield row
            row, total = [], 0
        row.append(index)
        total += sizes[index]
    if row:
        yield row


def training_row_tokens(model: nn.Module, most: int) -> int:
    """How many nodes a row of training should have: no more than it takes to be worth a forward, nor than ``most``.

    All of a row goes through the backward, also an instance without a consensus, which needs none. So rows are short
    where the model is large: one instance each.
    """
    device = next(model.parameters()).device.type
    worthwhile = WORTHWHILE_FLOPS.get(device, WORTHWHILE_FLOPS["cuda"]) / (2 * max(decoder_weights(model), 1))
    return max(1, min(most, int(worthwhile)))
