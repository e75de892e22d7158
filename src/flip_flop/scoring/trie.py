"""The token trie: the sequences of an instance with shared beginnings stored once.

An instance under V templates with L labels has V x L sequences. The labels of a template share its prompt, and
templates share their first words. The state of a causal model at a token depends only on earlier tokens, so that each
distinct beginning is computed once. It is one *node* of the trie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    # Bytes in the order of the tokens are sorted and compared faster.
    packed = {key: np.array(prompt, TOKEN).tobytes() for key, prompt in prompts.items()}
    reads = [packed[id(prompt)] + np.array(answer[:-1], TOKEN).tobytes() for prompt, answer in pairs]
    ids: list[bytes] = []
    depth: list[int] = []
    leave: list[int] = []
    paths: dict[bytes, list[int]] = {}
    before = b""
    path: list[int] = []
    # In sorted order, the longest shared beginning with any earlier sequence is that with the preceding sequence.
    for read in sorted(set(reads)):
        common = _common_prefix(before, read)
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
    token_node: list[int] = []
    token_target: list[int] = []
    for (prompt, answer), read in zip(pairs, reads, strict=True):
        first = len(prompt) - 1
        token_node += paths[read][first : first + len(answer)]
        token_target += answer
    token_counts = np.array([counts], dtype=np.int64)
    return TokenTrie(
        ids=np.frombuffer(b"".join(ids), TOKEN).astype(STORED),
        depth=np.array(depth, dtype=STORED),
        leave=np.array(leave, dtype=STORED),
        token_node=np.array(token_node, dtype=STORED),
        token_target=np.array(token_target, dtype=np.int64),
        token_counts=token_counts,
    )


def join(tries: Sequence[TokenTrie], shared: int = 0) -> TokenTrie:
    """Join the tries of instances with the same numbers of templates and labels. Instances do not see each other.

    The first ``shared`` nodes of all tries, see :func:`shared_beginning`, become one.
    """
    starts = list(accumulate((len(trie) - shared for trie in tries[:-1]), initial=0))

    def joined(name: str, *, shifted: bool = False, skip: int = shared) -> ndarray:
        parts = [getattr(trie, name) for trie in tries]
        if shifted:
            parts = [np.where(part < shared, part, part + start) for part, start in zip(parts, starts, strict=True)]
        return np.concatenate([parts[0][:skip], *(part[skip:] for part in parts)])

    trie = TokenTrie(
        ids=joined("ids"),
        depth=joined("depth"),
        leave=joined("leave", shifted=True),
        token_node=joined("token_node", shifted=True, skip=0),
        token_target=joined("token_target", skip=0),
        token_counts=joined("token_counts", skip=0),
    )
    trie.leave[:shared] = len(trie)
    return trie


def shared_beginning(tries: Sequence[TokenTrie]) -> int:
    """Return the number of tokens with which all sequences of these instances begin, for example an instruction."""
    if len(tries) == 1:
        return 0
    length = min(int(np.append(trie.leave == len(trie), False).argmin()) for trie in tries)  # before the first branch
    ids = np.stack([trie.ids[:length] for trie in tries])
    return int(np.append((ids == ids[0]).all(axis=0), False).argmin())


def _common_prefix(a: bytes, b: bytes) -> int:
    """Return the number of tokens with which both begin."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * TOKEN.itemsize)
