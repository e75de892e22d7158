"""What scoring and training cost, counted: tokens forwarded, tokens that carry a backward, rows that reach the head.

The counts are the packed back end's, exactly: tests hold its forwards against them, so that a saving cannot be lost
unnoticed. Times are reports; these are bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from flip_flop.scoring.head import decoder_of
from flip_flop.scoring.packed import is_worth_parting
from flip_flop.scoring.tokens import EncodedInstance


@dataclass(frozen=True)
class Costs:
    """Counts of one pass.

    Attributes:
        forwarded: Tokens that go through the decoder.
        backward: Tokens that the backward goes through.
        head_rows: Rows that go through the head without gradient.
        loss_rows: Rows that go through it with gradient.
    """

    forwarded: int
    backward: int = 0
    head_rows: int = 0
    loss_rows: int = 0

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            self.forwarded + other.forwarded,
            self.backward + other.backward,
            self.head_rows + other.head_rows,
            self.loss_rows + other.loss_rows,
        )


def scoring_costs(instances: Sequence[EncodedInstance]) -> Costs:
    """What it takes to score instances."""
    return Costs(
        forwarded=sum(len(instance.trie) for instance in instances),
        head_rows=sum(len(np.unique(instance.trie.token_node)) for instance in instances),
    )


def training_costs(instance: EncodedInstance, label: int | None, *, one_label: bool = True) -> Costs:
    """What it takes to train on one instance, alone in its row.

    Args:
        instance: The instance.
        label: Its consensus label; ``None`` where it has none, and nothing is derived.
        one_label: The loss reads the consensus label's answers alone.
    """
    trie = instance.trie
    scoring = scoring_costs([instance])
    if not (one_label and is_worth_parting(trie)):
        if label is None:
            return scoring
        rows = len(trie.answer_rows([label])) if one_label else scoring.head_rows
        return scoring + Costs(forwarded=0, backward=len(trie), loss_rows=rows)
    if label is None:
        return scoring
    again = len(trie.answer_branches([label]))
    return scoring + Costs(forwarded=again, backward=trie.num_trunk + again, loss_rows=len(trie.answer_rows([label])))


def decoder_weights(model: nn.Module) -> int:
    """The number of a decoder's weights that every token is multiplied with: all but the embeddings."""
    decoder = decoder_of(model)
    embeddings = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)}
    return sum(parameter.numel() for parameter in decoder.parameters() if id(parameter) not in embeddings)
