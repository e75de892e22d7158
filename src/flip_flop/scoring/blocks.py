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
MOST_CELLS = 1 << 20
# A call that costs more than any plan's work; a float still counts query-key pairs beside it.
MOST_CALL_CELLS = 1e11


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
        enter = trie.enter[self.start : self.stop, None]
        keys = self.key_nodes()
        return (trie.enter[keys] <= enter) & (enter < trie.leave[keys])


def plan_blocks(trie: TokenTrie, start: int, stop: int, call_cells: float) -> list[Block]:
    """The cheapest cut of the nodes from ``start`` to ``stop``.

    Args:
        trie: What the nodes belong to.
        start: The first query.
        stop: The node behind the last one: of the whole trie, its trunk, or its branches.
        call_cells: What a call costs beside its work, in query-key pairs. Infinite: as few calls as the memory of
            masks allows; 0: one call for each chain of nodes.
    """
    call_cells = min(call_cells, MOST_CALL_CELLS)  # infinite costs could not be compared
    chain_start = _chain_starts(trie, start, stop)
    pieces = _pieces(chain_start, start, stop)
    begins = [begin for begin, _ in pieces]
    parents, depths = trie.parent[begins].tolist(), trie.depth[begins].tolist()
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
            if last > first and (cells > apart or cells > MOST_CELLS):
                break
            if best[first] + call_cells + cells < best[last + 1] or best[last + 1] == np.inf:
                best[last + 1], first_piece[last + 1] = best[first] + call_cells + cells, first
    blocks, end = [], len(pieces)
    while end:
        first = first_piece[end]
        begin, stop_ = pieces[first][0], pieces[end - 1][1]
        blocks.append(Block(begin, stop_, _with_ancestors(trie, chain_start, begin, stop_)))
        end = first
    return blocks[::-1]


def _chain_starts(trie: TokenTrie, start: int, stop: int) -> ndarray:
    """For each node, where the run of nodes begins in which each is the next one's parent."""
    numbers = np.arange(stop)
    begins = trie.parent[:stop] != numbers - 1
    begins[[0, start]] = True
    return np.maximum.accumulate(np.where(begins, numbers, 0))


def _pieces(chain_start: ndarray, start: int, stop: int) -> list[tuple[int, int]]:
    begins = np.flatnonzero((np.arange(start, stop) - chain_start[start:stop]) % PIECE == 0) + start
    return list(zip(begins.tolist(), [*begins[1:].tolist(), stop], strict=True))


def _is_ancestor(trie: TokenTrie, node: int, other: int) -> bool:
    """Whether what stands before ``node``, and ``node`` itself, is among what stands before ``other`` and itself."""
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
