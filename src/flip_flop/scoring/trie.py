"""The token trie: every sequence of an instance, with what they have in common kept once.

An instance under V templates with L labels is V x L sequences, and most of their tokens are the same: the labels of a
template share its prompt, templates share their first words. A causal model's state at a token depends on the tokens
before it and on nothing else, so each distinct beginning has to be computed once. The trie holds one *node* for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

STORED = np.int32  # a trie is kept for each instance of a training set

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
    pairs = [(tuple(prompt), tuple(answer)) for template in answers for prompt, answer in template]
    reads = [prompt + answer[:-1] for prompt, answer in pairs]
    ids: list[int] = []
    parents, depths, closed = [], [], []
    nodes_of: dict[tuple[int, ...], ndarray] = {}
    before: tuple[int, ...] = ()
    path = np.empty(0, dtype=np.int64)
    # In sorted order, what a sequence shares with any earlier one it shares with the one right before it.
    for sequence in sorted(set(reads)):
        common = _common_prefix(before, sequence)
        new = np.arange(len(ids), len(ids) + len(sequence) - common)
        closed.append((path[common:], len(ids)))
        parents.append(np.concatenate([path[common - 1 : common] if common else [-1], new[:-1]]))
        depths.append(np.arange(common, len(sequence)))
        ids.extend(sequence[common:])
        before, path = sequence, np.concatenate([path[:common], new])
        nodes_of[sequence] = path
    closed.append((path, len(ids)))
    leave = np.empty(len(ids), dtype=STORED)
    for nodes, end in closed:
        leave[nodes] = end
    in_prompt = np.zeros(len(ids), dtype=bool)
    for (prompt, _), sequence in zip(pairs, reads, strict=True):
        in_prompt[nodes_of[sequence][: len(prompt)]] = True
    predicting = [nodes_of[sequence][len(prompt) - 1 :] for (prompt, _), sequence in zip(pairs, reads, strict=True)]
    trie = TokenTrie(
        ids=np.array(ids, dtype=STORED),
        parent=np.concatenate(parents).astype(STORED),
        depth=np.concatenate(depths).astype(STORED),
        enter=np.arange(len(ids), dtype=STORED),
        leave=leave,
        num_prompt=len(ids),
        token_node=np.concatenate(predicting).astype(STORED),
        token_target=np.concatenate([np.array(answer, dtype=np.int64) for _, answer in pairs]),
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
    """With how many tokens all sequences of all these instances begin, such as those of a long instruction."""
    first, *others = tries
    if not others:
        return 0
    length = min(map(_trunk, tries))
    for trie in others:
        differing = np.flatnonzero(trie.ids[:length] != first.ids[:length])
        length = int(differing[0]) if len(differing) else length
    return length


def _trunk(trie: TokenTrie) -> int:
    """How many nodes stand before the first branch: all sequences go through them, and on; all are of prompts."""
    number = np.arange(trie.num_prompt)
    is_trunk = (trie.parent[: trie.num_prompt] == number - 1) & (trie.leave[: trie.num_prompt] == len(trie))
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


def _common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many first elements are the same; slices compare faster than elements one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
