"""Which positions of which sequences an answer is read from, for a batch of instances.

The unit of work is an instance: all its templates and labels. Many of its answers share what stands before them: the
labels of a template share its prompt, and an answer of one token adds no input at all. So each distinct sequence is
forwarded once, and each distinct position that predicts an answer's token (a *row*) reaches the head once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from flip_flop.scoring.tokens import EncodedInstance


@dataclass(frozen=True)
class AnswerIndex:
    """Where the answers of a batch are to be read.

    Attributes:
        sequences: Distinct token sequences; none is the beginning of another.
        row_sequence, row_position: The row's sequence, and its position in it.
        token_row: The row that predicts an answer's token; tokens stand in the order (instance, template, label).
        token_target: The token's id.
        token_counts: How many tokens each answer has.
    """

    sequences: tuple[tuple[int, ...], ...]
    row_sequence: Int[Tensor, " rows"]
    row_position: Int[Tensor, " rows"]
    token_row: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, counted over the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerIndex":
        """The answers of one instance alone, or one label's; rows and sequences stay those of the batch."""
        wanted = torch.zeros_like(self.token_counts, dtype=torch.bool)
        wanted[instance, :, slice(None) if label is None else label] = True
        mine = wanted.flatten()[self.token_owner]
        counts = self.token_counts[instance : instance + 1]
        return replace(
            self,
            token_row=self.token_row[mine],
            token_target=self.token_target[mine],
            token_counts=counts if label is None else counts[:, :, label : label + 1],
        )

    def to(self, device: torch.device) -> "AnswerIndex":
        """The same index with its tensors on ``device``."""
        tensors = ("row_sequence", "row_position", "token_row", "token_target", "token_counts")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def index_answers(instances: Sequence[EncodedInstance]) -> AnswerIndex:
    """Merge what a batch of instances has in common, and note where each answer's tokens are predicted.

    Args:
        instances: At least one; all with the same number of templates and of labels.
    """
    answers = [answer for instance in instances for template in instance.answers for answer in template]
    sequences, host_of = _longest_sequences({answer.inputs for answer in answers})
    rows: dict[tuple[int, ...], int] = {}
    places: list[tuple[int, int]] = []
    token_row, token_target = [], []
    for answer in answers:
        for offset, target in enumerate(answer.tokens):
            prefix = answer.inputs[: len(answer.context) + offset]
            if prefix not in rows:
                rows[prefix] = len(places)
                places.append((host_of[answer.inputs], len(prefix) - 1))
            token_row.append(rows[prefix])
            token_target.append(target)
    num_templates, num_labels = len(instances[0].answers), len(instances[0].answers[0])
    row_sequence, row_position = torch.tensor(places).unbind(dim=1)
    counts = torch.tensor([len(answer.tokens) for answer in answers])
    return AnswerIndex(
        sequences=sequences,
        row_sequence=row_sequence,
        row_position=row_position,
        token_row=torch.tensor(token_row),
        token_target=torch.tensor(token_target),
        token_counts=counts.view(len(instances), num_templates, num_labels),
    )


def _longest_sequences(
    sequences: set[tuple[int, ...]],
) -> tuple[tuple[tuple[int, ...], ...], dict[tuple[int, ...], int]]:
    """Drop each sequence that is the beginning of another; note which kept sequence reads it instead."""
    kept: list[tuple[int, ...]] = []
    host_of: dict[tuple[int, ...], int] = {}
    # In descending order a sequence comes right after the sequences that begin with it.
    for sequence in sorted(sequences, reverse=True):
        if not kept or kept[-1][: len(sequence)] != sequence:
            kept.append(sequence)
        host_of[sequence] = len(kept) - 1
    return tuple(kept), host_of
