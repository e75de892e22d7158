"""How attention over a trie is cut into dense calls.

A node attends to itself and its ancestors. A *block* is a run of consecutive nodes that is computed by one call: its
keys are the ancestors of its first node, and itself. Small blocks waste nothing and pay for many calls; large ones the
other way round, as every query meets every key and what it must not see is masked. The cut is the cheapest one.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from flip_flop.scoring.trie import TokenTrie

# A chain of nodes is cut into pieces of this length, so that a long prompt wastes little above its diagonal.
PIECE = 128
# Above so many query-key pairs a block's mask is not worth its memory, whatever a call costs.
MAX_CELLS = 1 << 20


@dataclass(frozen=True)
class Block:
    """One call.

    Attributes:
        start, stop: The queries, as nodes.
        keys: Runs of nodes that they attend to, in order; the last one ends with the queries themselves.
    """

    start: int
    stop: int
    keys: tuple[tuple[int, int], ...]

    def key_nodes(self) -> ndarray:
        """The keys' nodes one by one."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.keys])

    def mask(self, trie: TokenTrie) -> Bool[ndarray, "queries keys"]:
        """What each query sees."""
        enter, keys = trie.enter[self.start : self.stop, None], self.key_nodes()
        return (trie.enter[keys] <= enter) & (enter < trie.leave[keys])


def plan_blocks(trie: TokenTrie, call_cells: float) -> list[Block]:
    """The cheapest cut of a trie's nodes, where a call costs ``call_cells`` query-key pairs beside its own ones."""
    numbers = np.arange(len(trie))
    # Where the chain of each node begins: a run of nodes in which each is the next one's parent.
    chain_start = np.maximum.accumulate(np.where((numbers > 0) & (trie.parent == numbers - 1), 0, numbers))
    begins = np.flatnonzero((numbers - chain_start) % PIECE == 0)
    pieces = list(zip(begins.tolist(), [*begins[1:].tolist(), len(trie)], strict=True))
    parents, depths = trie.parent[begins].tolist(), trie.depth[begins].tolist()
    # By dynamic programming: the least cost of the first n pieces, and where their last block begins.
    best = [0.0] + [np.inf] * len(pieces)
    first_piece = [0] * (len(pieces) + 1)
    for first, (begin, _) in enumerate(pieces):
        nodes, apart = 0, 0.0
        for last in range(first, len(pieces)):
            a, b = pieces[last]
            if last > first and parents[last] < begin and not _is_ancestor(trie, parents[last], parents[first]):
                break
            nodes += b - a
            cells = nodes * (depths[first] + nodes)
            apart += (b - a) * (depths[last] + b - a) + call_cells
            if last > first and (cells > apart or cells > MAX_CELLS):
                break
            if best[first] + call_cells + cells < best[last + 1]:
                best[last + 1], first_piece[last + 1] = best[first] + call_cells + cells, first
    blocks, end = [], len(pieces)
    while end:
        first = first_piece[end]
        begin, stop = pieces[first][0], pieces[end - 1][1]
        blocks.append(Block(begin, stop, _with_ancestors(trie, chain_start, begin, stop)))
        end = first
    return blocks[::-1]


def _is_ancestor(trie: TokenTrie, node: int, other: int) -> bool:
    """Whether ``node`` is ``other`` or an ancestor of it; -1, before all sequences, is everyone's ancestor."""
    return node < 0 or (other >= 0 and bool(trie.enter[node] <= trie.enter[other] < trie.leave[node]))


def _with_ancestors(trie: TokenTrie, chain_start: ndarray, begin: int, stop: int) -> tuple[tuple[int, int], ...]:
    runs = [(begin, stop)]
    node = int(trie.parent[begin])
    while node >= 0:
        chain = int(chain_start[node])
        if node + 1 == runs[-1][0]:
            runs[-1] = (chain, runs[-1][1])
        else:
            runs.append((chain, node + 1))
        node = int(trie.parent[chain])
    return tuple(runs[::-1])
