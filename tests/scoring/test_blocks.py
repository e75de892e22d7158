"""Attention in blocks: every node is computed once, sees its ancestors and itself, and the cut is the cheapest."""

import itertools
import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flip_flop.scoring import blocks as blocks_module
from flip_flop.scoring.blocks import PIECE, plan_blocks
from flip_flop.scoring.trie import build_trie
from tests.scoring.tries import batches, instances, joined, path

CALL_CELLS = st.sampled_from([0.0, 1.0, 7.5, 60.0, 1e4, math.inf])
# The whole trie, its trunk, its branches.
PARTS = st.sampled_from(["all", "trunk", "branches"])


def bounds(trie, part):
    return {"all": (0, len(trie)), "trunk": (0, trie.num_trunk), "branches": (trie.num_trunk, len(trie))}[part]


def chains(trie, start, stop, longest=PIECE):
    """Runs of nodes in which each is the next one's parent, at most ``longest`` of them."""
    runs = []
    for node in range(start, stop):
        if runs and trie.parent[node] == node - 1 and node > start and len(runs[-1]) < longest:
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


def cuts(trie, runs):
    """Every way to join neighbouring chains into blocks."""
    for joints in itertools.product([True, False], repeat=len(runs) - 1):
        cut = [list(runs[0])]
        for joint, run in zip(joints, runs[1:], strict=True):
            if joint:
                cut[-1] += run
            else:
                cut.append(list(run))
        if all(allowed(trie, run) for run in cut):
            yield cut


@given(batches(), CALL_CELLS, PARTS)
def test_blocks_cut_the_nodes_and_show_each_its_ancestors_and_itself(batch, call_cells, part):
    trie = joined(batch)
    start, stop = bounds(trie, part)
    assume(start < stop)
    plan = plan_blocks(trie, start, stop, call_cells)
    assert [node for block in plan for node in range(block.start, block.stop)] == list(range(start, stop))
    for block in plan:
        keys = block.key_nodes().tolist()
        assert len(set(keys)) == len(keys)
        assert keys[-(block.stop - block.start) :] == list(range(block.start, block.stop))
        assert keys == [node for run in block.keys for node in range(*run)]
        mask = block.mask(trie)
        assert mask.shape == (block.stop - block.start, len(keys))
        for row, node in enumerate(range(block.start, block.stop)):
            assert [key for key, seen in zip(keys, mask[row], strict=True) if seen] == path(trie, node)


@given(batches(most=2), st.sampled_from([0.0, 1.0, 7.5, 60.0, 1e4]), PARTS)
def test_no_cut_is_cheaper(batch, call_cells, part):
    trie = joined(batch)
    start, stop = bounds(trie, part)
    assume(start < stop)
    runs = chains(trie, start, stop)
    assume(len(runs) <= 10)
    found = sum(cost(trie, list(range(block.start, block.stop)), call_cells) for block in
                plan_blocks(trie, start, stop, call_cells))  # fmt: skip
    cheapest = min(sum(cost(trie, run, call_cells) for run in cut) for cut in cuts(trie, runs))
    assert found == pytest.approx(cheapest)


@given(batches(most=2), PARTS)
def test_calls_of_infinite_cost_are_as_few_as_can_be(batch, part):
    trie = joined(batch)
    start, stop = bounds(trie, part)
    assume(start < stop)
    runs = chains(trie, start, stop)
    assume(len(runs) <= 10)
    plan = plan_blocks(trie, start, stop, math.inf)
    assert len(plan) == min(len(cut) for cut in cuts(trie, runs))


@given(batches(), PARTS)
def test_calls_that_cost_nothing_are_one_for_each_chain(batch, part):
    trie = joined(batch)
    start, stop = bounds(trie, part)
    assume(start < stop)
    plan = plan_blocks(trie, start, stop, 0.0)
    assert [list(range(block.start, block.stop)) for block in plan] == chains(trie, start, stop)


def long_prompt(length):
    """One template, two labels: a chain of the prompt, and two branches of an answer each."""
    return build_trie([[(tuple(range(length)), (1, 2, 3)), (tuple(range(length)), (4, 5))]])


@pytest.mark.parametrize(("length", "pieces"), [(128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_a_long_chain_is_cut_into_pieces(length, pieces):
    trie = long_prompt(length)
    assert PIECE == 128
    plan = plan_blocks(trie, 0, trie.num_trunk, 0.0)
    assert [block.stop - block.start for block in plan] == pieces
    assert [block.keys for block in plan] == [((0, block.stop),) for block in plan]


def test_a_branch_begins_at_the_prompt_that_it_answers():
    trie = long_prompt(300)
    plan = plan_blocks(trie, trie.num_trunk, len(trie), 0.0)
    assert [(block.start, block.stop) for block in plan] == [(300, 302), (302, 303)]
    assert plan[0].keys == ((0, 302),)
    assert plan[1].keys == ((0, 300), (302, 303))
    together = plan_blocks(trie, trie.num_trunk, len(trie), 1e9)
    assert [(block.start, block.stop, block.keys) for block in together] == [(300, 303, ((0, 303),))]


@pytest.mark.parametrize("call_cells", [1e9, math.inf])
def test_a_mask_that_takes_much_memory_is_not_made_whatever_a_call_costs(monkeypatch, call_cells):
    monkeypatch.setattr(blocks_module, "MOST_CELLS", 200 * 200)
    trie = long_prompt(600)
    plan = plan_blocks(trie, 0, len(trie), call_cells)
    chain = chains(trie, 0, len(trie))
    for block in plan:
        cells = (block.stop - block.start) * len(block.key_nodes())
        assert cells <= 200 * 200 or list(range(block.start, block.stop)) in chain


@given(instances(), st.sampled_from([0.0, 7.5, 1e4]))
@example([[((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (2, 2, 2))]], 7.5)
def test_branches_alone_are_cut_as_the_branches_of_a_part_of_the_trie(answers, call_cells):
    trie = build_trie(answers)
    nodes = trie.answer_branches([0])
    assume(len(nodes))
    part = trie.with_branches(nodes)
    for block in plan_blocks(part, part.num_trunk, len(part), call_cells):
        keys = block.key_nodes()
        for row, node in enumerate(range(block.start, block.stop)):
            assert keys[block.mask(part)[row]].tolist() == path(part, node)
