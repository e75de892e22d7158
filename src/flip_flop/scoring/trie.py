"""The token trie: the sequences of one or several instances with shared beginnings stored once.

An instance under V templates with L labels has V x L sequences. The labels of a template share its prompt, templates
share their first words, and instances share instructions and demonstrations. The state of a causal model at a token
depends only on earlier tokens, so that each distinct beginning is computed once. It is one *node* of the trie.
"""

import itertools
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray

STORED = np.int32  # the tries of a training set stay in memory
TOKEN = np.dtype(">u4")

# Prompt and answer of one label under one template, in tokens.
Pair = tuple[Sequence[int], Sequence[int]]


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

    def sequences(self) -> list[bytes]:
        """Return the tokens of the sequences that end in the leaves, sorted."""
        paths = ([*self.ancestors(leaf), leaf] for leaf in self.leaves)
        return [as_bytes(self.ids[path]) for path in paths]


def build_trie(answers: Sequence[Sequence[Pair]]) -> TokenTrie:
    """Build the trie of one instance.

    Args:
        answers: ``[templates][labels]`` pairs of prompt and answer. A prompt has at least one token, an answer has
            none if the instance lacks its label. The last token of an answer is only a target, without a node.

    Raises:
        ValueError: Templates have different numbers of labels.
    """
    pairs: list[Pair] = []
    counts: list[list[int]] = []
    for template in answers:
        pairs += template
        counts.append([len(answer) for _, answer in template])
    prompts = {id(prompt): prompt for prompt, _ in pairs}  # labels share theirs
    packed = {key: as_bytes(prompt) for key, prompt in prompts.items()}
    reads = [packed[id(prompt)] + as_bytes(answer[:-1]) for prompt, answer in pairs]
    paths, nodes = _merged(reads)
    token_node: list[int] = []
    token_target: list[int] = []
    for (prompt, answer), read in zip(pairs, reads, strict=True):
        first = len(prompt) - 1
        token_node += paths[read][first : first + len(answer)]
        token_target += answer
    return TokenTrie(
        **nodes,
        token_node=np.array(token_node, dtype=STORED),
        token_target=np.array(token_target, dtype=np.int64),
        token_counts=np.array([counts], dtype=np.int64),
    )


def merge(tries: Sequence[TokenTrie]) -> TokenTrie:
    """Merge the tries of instances with the same numbers of templates and labels: one node per distinct beginning."""
    if len(tries) == 1:
        return tries[0]
    reads = [trie.sequences() for trie in tries]
    paths, nodes = _merged(itertools.chain.from_iterable(reads))
    token_node: list[int] = []
    for trie, own in zip(tries, reads, strict=True):
        numbers = np.searchsorted(trie.leaves, trie.token_node).tolist()  # the first sequence through each node
        depths = trie.depth[trie.token_node].tolist()
        token_node += [paths[own[number]][depth] for number, depth in zip(numbers, depths, strict=True)]
    return TokenTrie(
        **nodes,
        token_node=np.array(token_node, dtype=STORED),
        token_target=np.concatenate([trie.token_target for trie in tries]),
        token_counts=np.concatenate([trie.token_counts for trie in tries]),
    )


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


def as_bytes(tokens: Sequence[int] | ndarray) -> bytes:
    """Return tokens as bytes in the same order, which are sorted and compared faster."""
    return np.array(tokens, TOKEN).tobytes()


def shared_length(one: bytes, other: bytes) -> int:
    """Return the number of tokens with which both sequences begin."""
    size = min(len(one), len(other))
    differing = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * TOKEN.itemsize)


def _merged(reads: Iterable[bytes]) -> tuple[dict[bytes, list[int]], dict[str, ndarray]]:
    """Return the nodes of each sequence, and the arrays ``ids``, ``depth`` and ``leave`` of their trie."""
    ids: list[bytes] = []
    depth: list[int] = []
    leave: list[int] = []
    paths: dict[bytes, list[int]] = {}
    before = b""
    path: list[int] = []
    # In sorted order, the longest shared beginning with any earlier sequence is that with the preceding sequence.
    for read in sorted(set(reads)):
        common = shared_length(before, read)
        start = len(depth)
        for node in path[common:]:
            leave[node] = start
        new = range(start, start + len(read) // TOKEN.itemsize - common)
        ids.append(read[common * TOKEN.itemsize :])
        depth += range(common, common + len(new))
        leave += [0] * len(new)
        before = read
        path = [*path[:common], *new]
        paths[read] = path
    for node in path:
        leave[node] = len(depth)
    arrays = {
        "ids": np.frombuffer(b"".join(ids), TOKEN).astype(STORED),
        "depth": np.array(depth, dtype=STORED),
        "leave": np.array(leave, dtype=STORED),
    }
    return paths, arrays
