"""Attention over a packed row matches a loop over nodes."""

import numpy as np
import pytest
import torch

from flip_flop.scoring import attention
from flip_flop.scoring.attention import Layout, attend
from flip_flop.scoring.trie import build_trie
from tests.exact import EXACT
from tests.scoring.tries import CALL_COSTS, made_trie, path, relative, set_call_cost


def slow_attention(query, key, value, trie, scale):
    """Each node's softmax over itself and its ancestors, a head at a time, in float64."""
    _, heads, nodes, _ = query.shape
    groups = heads // key.shape[1]
    rows = []
    for node in range(nodes):
        keys = path(trie, node)
        for head in range(heads):
            weights = (key[0, head // groups, keys] @ query[0, head, node] * scale).softmax(0)
            rows.append(weights @ value[0, head // groups, keys])
    return torch.stack(rows).view(1, nodes, heads, value.shape[3])


def made_states(trie, heads, key_heads, dtype=torch.float64):
    draw = torch.Generator().manual_seed(3)
    shapes = [(1, heads, len(trie), 5), (1, key_heads, len(trie), 5), (1, key_heads, len(trie), 7)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def attended(states, layout, **options):
    return attend(torch.nn.Identity(), *states, None, packed=layout, **options)[0]


def output_and_gradients(states, output, dtype=torch.float64):
    """Gradients of the output with random weights of this dtype."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64).to(dtype)
    return [output, *torch.autograd.grad((output * weights.to(output.dtype)).sum(), states)]


@pytest.mark.parametrize("call_cost", CALL_COSTS)
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_block_attention_and_gradients_match_loop_over_nodes(monkeypatch, heads, key_heads, call_cost, dtype):
    set_call_cost(monkeypatch, call_cost)
    trie = made_trie()
    states = made_states(trie, heads, key_heads, dtype)
    exact = [part.detach().double().requires_grad_() for part in states]
    found = output_and_gradients(states, attended(states, Layout(trie), scaling=0.3))
    expected = output_and_gradients(exact, slow_attention(*exact, trie, 0.3))
    # In float32 two products forward and four backward, of at most as many terms as there are nodes.
    bound = EXACT if dtype == torch.float64 else 6 * len(trie) * 2.0**-24
    for ours, slow in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert relative(ours, slow) < bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_do_not_round_logits(dtype):
    draw = np.random.default_rng(0)
    prompt = tuple(draw.integers(1, 30, size=11).tolist())
    answers = [tuple(draw.integers(1, 30, size=3).tolist()) for _ in range(3)]
    trie = build_trie([[(prompt, answer) for answer in answers]])
    query, key, value = (part.detach() for part in made_states(trie, 6, 2))
    # As in Qwen2.5, whose keys have a large bias: the logits are large, and their differences are not.
    states = [part.to(dtype).requires_grad_() for part in (query + 2, key + 4, value)]
    exact = [part.detach().double().requires_grad_() for part in states]
    found = output_and_gradients(states, attended(states, Layout(trie)), dtype)
    expected = output_and_gradients(exact, slow_attention(*exact, trie, query.shape[3] ** -0.5), dtype)
    for ours, slow in zip(found, expected, strict=True):
        # The output is rounded by eps; in the gradient this weighs what keys share, 4 times as large as what differs.
        assert relative(ours, slow) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", attention.REFUSED)
def test_attention_rejects_other_than_scaled_dot_product(name):
    trie = made_trie()
    with pytest.raises(NotImplementedError, match=name):
        attended(made_states(trie, 3, 3), Layout(trie), **{name: 1.0})


def test_attention_dropout_averages_to_attention():
    trie = made_trie(count=1)
    states = [part.detach() for part in made_states(trie, 6, 2)]
    expected, draws = attended(states, Layout(trie)), 400
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        total = sum(attended(states, Layout(trie), dropout=0.2) for _ in range(draws))
    # A draw deviates by at most half of the value, and the mean by the inverse square root of the number of draws.
    assert relative(total / draws, expected) < 2 * 0.5 * draws**-0.5
