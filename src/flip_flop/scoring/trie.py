"""The token trie: every sequence of an instance, with what they have in common kept once.

An instance under V templates with L labels is V x L sequences, and most of their tokens are the same: the labels of a
template share its prompt, templates share their first words. A causal model's state at a token depends on the tokens
before it and on nothing else, so each distinct beginning has to be computed once. The trie holds one *node* for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int
from numpy import ndarray

STORED = np.int32  # a trie is kept for each instance of a training set

# Prompt and answer of one label under one template, in tokens.
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """Distinct tokens of one instance, or of several side by side, in an order where parents stand before children.

    The *trunk*, what prompts are made of, stands first; after it the *branches*, tokens that only answers have.
    Node ``a`` is node ``b`` or stands before it in a sequence iff ``enter[a] <= enter[b] < leave[a]``.

    Attributes:
        ids: The node's token.
        parent: The node before it; -1 where it is a sequence's first.
        depth: How many nodes stand before it: its position for the model.
        enter, leave: The node's number in depth-first order, and the first number behind its descendants.
        num_trunk: The number of nodes of the trunk.
        token_node: The node that predicts an answer's token; tokens stand in the order (instance, template, label).
        token_target: The token's id.
        token_counts: How many tokens each answer has.
    """

    ids: Int[ndarray, " nodes"]
    parent: Int[ndarray, " nodes"]
    depth: Int[ndarray, " nodes"]
    enter: Int[ndarray, " nodes"]
    leave: Int[ndarray, " nodes"]
    num_trunk: int
    token_node: Int[ndarray, " tokens"]
    token_target: Int[ndarray, " tokens"]
    token_counts: Int[ndarray, "instances templates labels"]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_branch(self) -> int:
        """Nodes that only answers have."""
        return len(self) - self.num_trunk

    def answer_rows(self, label_of: Sequence[int | None]) -> Int[ndarray, " rows"]:
        """Nodes that predict a token of one answer of each template, in order; ``label_of`` as below."""
        wanted = np.zeros(self.token_counts.shape, dtype=bool)
        for instance, label in enumerate(label_of):
            if label is not None:
                wanted[instance, :, label] = True
        return np.unique(self.token_node[np.repeat(wanted.ravel(), self.token_counts.ravel())])

    def answer_branches(self, label_of: Sequence[int | None]) -> Int[ndarray, " nodes"]:
        """Branch nodes that one answer of each template needs, in order.

        Args:
            label_of: The label, for each instance; ``None`` asks for nothing.
        """
        nodes = self.answer_rows(label_of)
        found: set[int] = set()
        while len(nodes := nodes[nodes >= self.num_trunk]):
            found.update(nodes.tolist())
            nodes = np.unique(self.parent[nodes])
        return np.array(sorted(found), dtype=np.int64)

    def with_branches(self, nodes: Int[ndarray, " branch_nodes"]) -> "TokenTrie":
        """The trunk and some of the branches, for a forward alone: it says nothing of answers."""
        kept = np.concatenate([np.arange(self.num_trunk), nodes])
        new_number = np.full(len(self) + 1, -1)  # the last stands for "no parent"
        new_number[kept] = np.arange(len(kept))
        none = np.empty(0, dtype=np.int64)
        return replace(
            self,
            ids=self.ids[kept],
            parent=new_number[self.parent[kept]],
            depth=self.depth[kept],
            enter=self.enter[kept],
            leave=self.leave[kept],
            token_node=none,
            token_target=none,
            token_counts=np.zeros((0, 0, 0), dtype=np.int64),
        )

    def leaves(self, nodes: Int[ndarray, " chosen"]) -> Int[ndarray, " leaves"]:
        """Those of some nodes that stand before none of the others, in depth-first order."""
        ordered = nodes[np.argsort(self.enter[nodes])]
        # One that stands before another stands right before one of its descendants.
        return ordered[np.append(self.enter[ordered[1:]] >= self.leave[ordered[:-1]], True)]

    def sequences(self, nodes: Int[ndarray, " chosen"]) -> tuple[list[list[int]], Int[ndarray, " chosen"]]:
        """The sequences that end at some nodes and are not the beginning of another, and one of them for each node."""
        leaves = self.leaves(nodes)
        ids, parent = self.ids.tolist(), self.parent.tolist()
        sequences = []
        for node in leaves.tolist():
            backwards = []
            while node >= 0:
                backwards.append(ids[node])
                node = parent[node]
            sequences.append(backwards[::-1])
        # A node's first leaf is the first one that is entered at the node or after it.
        return sequences, np.searchsorted(self.enter[leaves], self.enter[nodes])


def build_trie(answers: Sequence[Sequence[Pair]]) -> TokenTrie:
    """The trie of one instance.

    Args:
        answers: ``[templates][labels]`` pairs of a prompt and an answer, at least one token each. The model reads all
            but the answer's last token, which is only ever a target.
    """
    pairs = [(tuple(prompt), tuple(answer)) for template in answers for prompt, answer in template]
    reads = [prompt + answer[:-1] for prompt, answer in pairs]
    ids: list[int] = []
    parents, depths, leaves = [], [], []
    nodes_of: dict[tuple[int, ...], ndarray] = {}
    before: tuple[int, ...] = ()
    path = np.empty(0, dtype=np.int64)
    # In sorted order, what a sequence shares with any earlier one it shares with the one right before it.
    for sequence in sorted(set(reads)):
        common = _common_prefix(before, sequence)
        fresh = np.arange(len(ids), len(ids) + len(sequence) - common)
        leaves.append((path[common:], len(ids)))
        parents.append(np.concatenate([path[common - 1 : common] if common else [-1], fresh[:-1]]))
        depths.append(np.arange(common, len(sequence)))
        ids.extend(sequence[common:])
        before, path = sequence, np.concatenate([path[:common], fresh])
        nodes_of[sequence] = path
    leaves.append((path, len(ids)))
    leave = np.empty(len(ids), dtype=np.int64)
    for closed, number in leaves:
        leave[closed] = number
    in_trunk = np.zeros(len(ids), dtype=bool)
    for (prompt, _), sequence in zip(pairs, reads, strict=True):
        in_trunk[nodes_of[sequence][: len(prompt)]] = True
    order = np.argsort(~in_trunk, kind="stable")
    new_number = np.full(len(ids) + 1, -1)  # the last stands for "no parent"
    new_number[order] = np.arange(len(ids))
    predicting = [nodes_of[sequence][len(prompt) - 1 :] for (prompt, _), sequence in zip(pairs, reads, strict=True)]
    return TokenTrie(
        ids=np.array(ids, dtype=STORED)[order],
        parent=new_number[np.concatenate(parents).astype(np.int64)[order]].astype(STORED),
        depth=np.concatenate(depths)[order].astype(STORED),
        enter=order.astype(STORED),
        leave=leave[order].astype(STORED),
        num_trunk=int(in_trunk.sum()),
        token_node=new_number[np.concatenate(predicting)].astype(STORED),
        token_target=np.concatenate([np.array(answer, dtype=np.int64) for _, answer in pairs]),
        token_counts=np.array([[[len(answer) for _, answer in template] for template in answers]], dtype=np.int64),
    )


def join(tries: Sequence[TokenTrie]) -> TokenTrie:
    """Several instances side by side, none of which sees another; all with the same templates and labels."""
    if len(tries) == 1:
        return tries[0]
    num_trunk = sum(trie.num_trunk for trie in tries)
    trunk_start, branch_start, entered = 0, num_trunk, 0
    numbers, enters, leaves = [], [], []
    for trie in tries:
        trunk = np.arange(trunk_start, trunk_start + trie.num_trunk)
        branch = np.arange(branch_start, branch_start + trie.num_branch)
        numbers.append(np.concatenate([trunk, branch, [-1]]))  # the last stands for "no parent"
        enters.append(trie.enter + entered)
        leaves.append(trie.leave + entered)
        trunk_start, branch_start, entered = trunk_start + len(trunk), branch_start + len(branch), entered + len(trie)
    place = np.concatenate([number[:-1] for number in numbers])

    def placed(values: Sequence[ndarray]) -> ndarray:
        result = np.empty(entered, dtype=STORED)
        result[place] = np.concatenate(values)
        return result

    return TokenTrie(
        ids=placed([trie.ids for trie in tries]),
        parent=placed([number[trie.parent] for trie, number in zip(tries, numbers, strict=True)]),
        depth=placed([trie.depth for trie in tries]),
        enter=placed(enters),
        leave=placed(leaves),
        num_trunk=num_trunk,
        token_node=np.concatenate([number[trie.token_node] for trie, number in zip(tries, numbers, strict=True)]),
        token_target=np.concatenate([trie.token_target for trie in tries]),
        token_counts=np.concatenate([trie.token_counts for trie in tries]),
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
