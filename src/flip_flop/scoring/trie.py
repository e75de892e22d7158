"""The token trie: the sequences of one or several instances with shared beginnings stored once.

An instance under V templates with L labels has V x L sequences. The labels of a template share its prompt, templates
share their first words, and instances share instructions and demonstrations. The state of a causal model at a token
depends only on earlier tokens, so that each distinct beginning is computed once. It is one *node* of the trie.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray

TOKEN = np.dtype(">u4")


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """The token ids of one answer and of its context, at least one each.

    ``merged``: the first token spans prompt and answer. The place of a label that an instance lacks has no tokens.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    merged: bool = False

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input of the model. The last token of the answer is only a target."""
        return self.context + self.tokens[:-1]


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """Distinct tokens of one or several instances, in depth-first order.

    A node's descendants directly follow it: node ``a`` is ``b`` or one of its ancestors iff ``a <= b < leave[a]``.

    Attributes:
        ids: The token of each node.
        depth: The number of ancestors, which is the position for the model.
        leave: The number of the first node after the descendants.
        token_node: The node that predicts each token of the answers, in the order (instance, template, label).
        token_target: The id of each token of the answers.
        token_counts: The number of tokens of each answer.
    """

    ids: Int[ndarray, " nodes"]
    depth: Int[ndarray, " nodes"]
    leave: Int[ndarray, " nodes"]
    token_node: Int[ndarray, " tokens"]
    token_target: Int[ndarray, " tokens"]
    token_counts: Int[ndarray, "instances templates labels"]

    def __len__(self) -> int:
        return len(self.ids)

    def ancestors(self, node: int) -> Int[ndarray, " ancestors"]:
        """Return the ancestors of a node, from the first token of its sequence."""
        return np.flatnonzero(self.leave[:node] > node)

    @property
    def leaves(self) -> Int[ndarray, " leaves"]:
        """The last node of each sequence that is not the beginning of another."""
        return np.flatnonzero(self.leave == np.arange(1, len(self) + 1))


def build_trie(instances: Sequence[Sequence[Sequence[EncodedAnswer]]]) -> TokenTrie:
    """Build the trie of instances: one node per distinct beginning.

    Args:
        instances: ``[instances][templates][labels]``. The last token of an answer is only a target, without a node.

    Raises:
        ValueError: Templates have different numbers of labels.
    """
    answers: list[EncodedAnswer] = []
    counts = []
    for instance in instances:
        for labels in instance:
            answers += labels
            counts.append([len(answer.tokens) for answer in labels])
    inputs = inputs_of(answers)
    paths, nodes = _merged(inputs)
    token_node = []
    token_target: list[int] = []
    for answer, sequence in zip(answers, inputs, strict=True):
        first = len(answer.context) - 1
        token_node += paths[sequence][first : first + len(answer.tokens)]
        token_target += answer.tokens
    return TokenTrie(
        **nodes,
        token_node=np.array(token_node),
        token_target=np.array(token_target),
        token_counts=np.array(counts).reshape(len(instances), -1, len(counts[0])),
    )


def inputs_of(answers: Sequence[EncodedAnswer]) -> list[bytes]:
    """Return the inputs of answers in bytes."""
    contexts = {id(answer.context): answer.context for answer in answers}  # labels share theirs
    packed = {key: as_bytes(context) for key, context in contexts.items()}
    return [packed[id(answer.context)] + as_bytes(answer.tokens[:-1]) for answer in answers]


def add_sequences(known: list[bytes], sequences: Iterable[bytes]) -> int:
    """Insert sequences into a sorted list, and return the number of nodes that they add to its trie."""
    num_nodes = 0
    for sequence in sequences:
        place = bisect(known, sequence)
        neighbours = known[max(place - 1, 0) : place + 1]
        num_shared = max((shared_length(sequence, other) for other in neighbours), default=0)
        num_nodes += len(sequence) // TOKEN.itemsize - num_shared
        known.insert(place, sequence)
    return num_nodes


def as_bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as bytes in the same order, which are sorted and compared faster."""
    return np.array(tokens, TOKEN).tobytes()


def shared_length(one: bytes, other: bytes) -> int:
    """Return the number of tokens with which both sequences begin."""
    size = min(len(one), len(other))
    differing = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * TOKEN.itemsize)


def _merged(sequences: Iterable[bytes]) -> tuple[dict[bytes, list[int]], dict[str, ndarray]]:
    """Return the nodes of each sequence, and the arrays ``ids``, ``depth`` and ``leave`` of their trie."""
    ids = []
    depth: list[int] = []
    leave: list[int] = []
    paths = {}
    before = b""
    path: list[int] = []
    # In sorted order, the longest shared beginning with any earlier sequence is that with the preceding sequence.
    # The empty one at the end leaves all nodes.
    for sequence in [*sorted(set(sequences)), b""]:
        common = shared_length(before, sequence)
        start = len(depth)
        for node in path[common:]:
            leave[node] = start
        new = range(start, start + len(sequence) // TOKEN.itemsize - common)
        ids.append(sequence[common * TOKEN.itemsize :])
        depth += range(common, common + len(new))
        leave += [0] * len(new)
        before = sequence
        path = [*path[:common], *new]
        paths[sequence] = path
    arrays = {
        "ids": np.frombuffer(b"".join(ids), TOKEN).astype(np.int64),
        "depth": np.array(depth),
        "leave": np.array(leave),
    }
    return paths, arrays
