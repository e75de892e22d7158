"""What goes through a model together: instances in a packed row, sequences in a padded batch."""

from collections.abc import Iterator, Sequence

from torch import nn

from flip_flop.scoring.causal_lm import decoder_weights

# Floating-point operations of a forward that is worth what it costs to start one; an order of magnitude, by device.
WORTHWHILE_FLOPS = {"cpu": 2e9, "cuda": 2e13}


def pack(sizes: Sequence[int], max_tokens: int, *, padded: bool = False) -> Iterator[list[int]]:
    """Indices of the sizes, largest first, in groups of at most ``max_tokens``; a larger one goes alone.

    A group takes the sum of its sizes or, where it is padded, their number times the largest.
    """
    group: list[int] = []
    total = 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[group[0] if padded and group else index]
        if group and total + size > max_tokens:
            yield group
            group, total, size = [], 0, sizes[index]
        group.append(index)
        total += size
    if group:
        yield group


def training_row_tokens(model: nn.Module, max_tokens: int) -> int:
    """How many nodes a row of training should have: no more than it takes to be worth a forward.

    All of a row goes through the backward, also an instance without a consensus, which needs none. So rows are short
    where the model is large: one instance each.
    """
    device = next(model.parameters()).device.type
    worthwhile = WORTHWHILE_FLOPS.get(device, WORTHWHILE_FLOPS["cuda"]) / (2 * max(decoder_weights(model), 1))
    return max(1, min(max_tokens, int(worthwhile)))
