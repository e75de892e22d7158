"""Attention in blocks: each node is computed once with its ancestors, and the division has minimum cost."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flip_flop.scoring import attention as blocks_module
from flip_flop.scoring.attention import PIECE, plan_blocks
from flip_flop.scoring.trie import build_trie
from tests.scoring.tries import batches, joined, path

CALL_CELLS = st.sampled_from([0.0, 1.0, 7.5, 60.0, 1e9])


def chains(trie):
    """Runs of nodes in which each is the next one's parent, at most ``PIECE`` of them."""
    runs = []
    for node in range(len(trie)):
        if runs and trie.parent[node] == node - 1 and len(runs[-1]) < PIECE:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def allowed(trie, run):
    """Whether one call can compute a run: its keys are the first node's ancestors, and itself."""
    keys = set(path(trie, run[0])) | set(run)
    return all(set(path(trie, node)) <= keys for node in run)


def cost(trie, run, call_cells):
    return call_cells + len(run) * (len(path(trie, run[0])) - 1 + len(run))


def cuts(trie):
    """Every way to join neighbouring chains into blocks."""
    runs = chains(trie)
    assume(len(runs) <= 10)
    for joints in itertools.product([True, False], repeat=len(runs) - 1):
        cut = [list(runs[0])]
        for joint, run in zip(joints, runs[1:], strict=True):
            if joint:
                cut[-1] += run
            else:
                cut.append(list(run))
        if all(allowed(trie, run) for run in cut):
            yield cut


def nodes_of(plan):
    return [list(range(block.start, block.stop)) for block in plan]


@given(batches(), CALL_CELLS)
def test_blocks_partition_nodes_and_mask_all_but_ancestors(batch, call_cells):
    trie = joined(batch)
    plan = plan_blocks(trie, call_cells)
    assert [node for run in nodes_of(plan) for node in run] == list(range(len(trie)))
    for block in plan:
        keys = block.key_nodes().tolist()
        assert len(set(keys)) == len(keys)
        assert keys[-(block.stop - block.start) :] == list(range(block.start, block.stop))
        assert keys == [node for run in block.keys for node in range(*run)]
        mask = block.mask(trie)
        assert mask.shape == (block.stop - block.start, len(keys))
        for row, node in enumerate(range(block.start, block.stop)):
            assert [key for key, seen in zip(keys, mask[row], strict=True) if seen] == path(trie, node)


@given(batches(most=2), CALL_CELLS)
def test_blocks_have_minimum_cost(batch, call_cells):
    trie = joined(batch)
    found = nodes_of(plan_blocks(trie, call_cells))
    cheapest = min(sum(cost(trie, run, call_cells) for run in cut) for cut in cuts(trie))
    assert sum(cost(trie, run, call_cells) for run in found) == cheapest


def long_prompt(length):
    """One template, two labels: a chain of the prompt, and two branches of an answer each."""
    return build_trie([[(tuple(range(length)), (1, 2, 3)), (tuple(range(length)), (4, 5))]])


@pytest.mark.parametrize(("length", "pieces"), [(128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_long_chain_is_divided_into_pieces(length, pieces):
    assert PIECE == 128
    prompt = tuple(range(length))
    chain = plan_blocks(build_trie([[(prompt, (1,)), (prompt, (2,))]]), 0.0)
    assert [block.stop - block.start for block in chain] == pieces
    assert [block.keys for block in chain] == [((0, block.stop),) for block in chain]


def test_mask_size_is_limited(monkeypatch):
    monkeypatch.setattr(blocks_module, "MAX_CELLS", 200 * 200)
    trie = long_prompt(600)
    for block in plan_blocks(trie, 1e9):
        cells = (block.stop - block.start) * len(block.key_nodes())
        assert cells <= 200 * 200 or list(range(block.start, block.stop)) in chains(trie)
