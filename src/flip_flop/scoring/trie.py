"""The token trie: every sequence of an instance, with what they have in common kept once.

An instance under V templates with L labels is V x L sequences, and most of their tokens are the same: the labels of a
template share its prompt, templates share their first words. A causal model's state at a token depends on the tokens
before it and on nothing else, so each distinct beginning has to be computed once. The trie holds one *node* for each.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

STORED = np.int32  # a trie is kept for each instance of a training set
TOKEN = np.dtype(">u4")

# Prompt and answer of one label under one template, in tokens.
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """Distinct tokens of one instance, or of several: all that prompts are made of, then what only answers have.

    Parents stand before children. Node ``a`` is ``b`` or an ancestor of it iff ``enter[a] <= enter[b] < leave[a]``.

    Attributes:
        ids: The node's token.
        parent: The node before it; -1 where it is a sequence's first.
        depth: The number of its ancestors: its position for the model.
        enter, leave: Its number in depth-first order, and the first number behind its descendants.
        num_prompt: How many nodes prompts are made of.
        token_node: The node that predicts an answer's token; tokens in the order (instance, template, label).
        token_target: The token's id.
        token_counts: The number of tokens of each answer.
    """

    ids: Int[ndarray, " nodes"]
    parent: Int[ndarray, " nodes"]
    depth: Int[ndarray, " nodes"]
    enter: Int[ndarray, " nodes"]
    leave: Int[ndarray, " nodes"]
    num_prompt: int
    token_node: Int[ndarray, " tokens"]
    token_target: Int[ndarray, " tokens"]
    token_counts: Int[ndarray, "instances templates labels"]

    def __len__(self) -> int:
        return len(self.ids)

    def sequences(self) -> tuple[list[list[int]], Int[ndarray, " nodes"]]:
        """The sequences that are not the beginning of another, and for each node one of those that it is in."""
        leaves = np.flatnonzero(self.leave == self.enter + 1)
        leaves = leaves[np.argsort(self.enter[leaves])]
        ids, parent = self.ids.tolist(), self.parent.tolist()
        sequences = []
        for node in leaves.tolist():
            backwards = []
            while node >= 0:
                backwards.append(ids[node])
                node = parent[node]
            sequences.append(backwards[::-1])
        # In depth-first order the next leaf, or the node itself, is a descendant.
        return sequences, np.searchsorted(self.enter[leaves], self.enter)


def build_trie(answers: Sequence[Sequence[Pair]]) -> TokenTrie:
    """The trie of one instance.

    Args:
        answers: ``[templates][labels]`` pairs of a prompt and an answer, at least one token each. The model reads all
            but the answer's last token, which is only ever a target.
    """
    pairs = [pair for template in answers for pair in template]
    prompts = {id(prompt): prompt for prompt, _ in pairs}  # labels share theirs
    packed = {key: _as_bytes(prompt) for key, prompt in prompts.items()}
    reads = [packed[id(prompt)] + _as_bytes(answer[:-1]) for prompt, answer in pairs]
    ids: list[bytes] = []
    parent: list[int] = []
    depth: list[int] = []
    leave: list[int] = []
    paths: dict[bytes, list[int]] = {}
    before, path = b"", list[int]()
    # In sorted order, what a sequence shares with any earlier one it shares with the one right before it.
    for read in sorted(set(reads)):
        common, start = _common_prefix(before, read), len(parent)
        for node in path[common:]:
            leave[node] = start
        new = range(start, start + len(read) // TOKEN.itemsize - common)
        ids.append(read[common * TOKEN.itemsize :])
        parent += [path[common - 1] if common else -1, *new[:-1]]
        depth += range(common, common + len(new))
        leave += [0] * len(new)
        before, path = read, [*path[:common], *new]
        paths[read] = path
    for node in path:
        leave[node] = len(parent)
    in_prompt = np.zeros(len(parent), dtype=bool)
    for key, read in {id(prompt): read for (prompt, _), read in zip(pairs, reads, strict=True)}.items():
        in_prompt[paths[read][: len(prompts[key])]] = True
    trie = TokenTrie(
        ids=np.frombuffer(b"".join(ids), TOKEN).astype(STORED),
        parent=np.array(parent, dtype=STORED),
        depth=np.array(depth, dtype=STORED),
        enter=np.arange(len(parent), dtype=STORED),
        leave=np.array(leave, dtype=STORED),
        num_prompt=len(parent),
        token_node=np.array(
            [node for (prompt, _), read in zip(pairs, reads, strict=True) for node in paths[read][len(prompt) - 1 :]],
            dtype=STORED,
        ),
        token_target=np.array([token for _, answer in pairs for token in answer], dtype=np.int64),
        token_counts=np.array([[[len(answer) for _, answer in template] for template in answers]], dtype=np.int64),
    )
    return _prompts_first(trie, in_prompt)


def join(tries: Sequence[TokenTrie], shared: int = 0) -> TokenTrie:
    """Several instances side by side, none of which sees another; all with the same templates and labels.

    Their first ``shared`` nodes, as :func:`shared_beginning` counts them, are there once.
    """
    starts = list(accumulate((len(trie) - shared for trie in tries[:-1]), initial=0))

    def joined(name: str, *, shifted: bool = False, skip: int = shared) -> ndarray:
        parts = [getattr(trie, name) for trie in tries]
        if shifted:
            parts = [np.where(part < shared, part, part + start) for part, start in zip(parts, starts, strict=True)]
        return np.concatenate([parts[0][:skip], *(part[skip:] for part in parts)])

    trie = TokenTrie(
        ids=joined("ids"),
        parent=joined("parent", shifted=True),
        depth=joined("depth"),
        enter=joined("enter", shifted=True),
        leave=joined("leave", shifted=True),
        num_prompt=sum(trie.num_prompt - shared for trie in tries) + shared,
        token_node=joined("token_node", shifted=True, skip=0),
        token_target=joined("token_target", skip=0),
        token_counts=joined("token_counts", skip=0),
    )
    trie.leave[:shared] = len(trie)
    in_prompt = [np.arange(shared, len(trie)) < trie.num_prompt for trie in tries]
    return _prompts_first(trie, np.concatenate([np.ones(shared, dtype=bool), *in_prompt]))


def shared_beginning(tries: Sequence[TokenTrie]) -> int:
    """The number of tokens that start every sequence of all these instances, such as those of a long instruction."""
    first, *others = tries
    if not others:
        return 0
    length = min(map(_trunk, tries))
    for trie in others:
        differing = np.flatnonzero(trie.ids[:length] != first.ids[:length])
        length = int(differing[0]) if len(differing) else length
    return length


def _trunk(trie: TokenTrie) -> int:
    """The number of prompt nodes before the first branch: the first in depth-first order, above all other nodes."""
    first = slice(trie.num_prompt)
    # Nodes are numbered prompts first, so an answer's branch has a higher number than the nodes that it precedes.
    is_trunk = (trie.enter[first] == np.arange(trie.num_prompt)) & (trie.leave[first] == len(trie))
    return int(np.append(is_trunk, False).argmin())


def _prompts_first(trie: TokenTrie, in_prompt: Bool[ndarray, " nodes"]) -> TokenTrie:
    order = np.argsort(~in_prompt, kind="stable")
    new_number = np.append(np.argsort(order), -1).astype(STORED)  # the last stands for "no parent"
    return replace(
        trie,
        ids=trie.ids[order],
        parent=new_number[trie.parent[order]],
        depth=trie.depth[order],
        enter=trie.enter[order],
        leave=trie.leave[order],
        num_prompt=int(in_prompt.sum()),
        token_node=new_number[trie.token_node],
    )


def _as_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens so that sequences of them have the order of their bytes, by which they are sorted and told apart fast."""
    return struct.pack(f">{len(tokens)}I", *tokens)


def _common_prefix(a: bytes, b: bytes) -> int:
    """With how many tokens both begin."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * TOKEN.itemsize)
