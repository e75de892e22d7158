"""Attention over a packed row is each node's softmax over itself and its ancestors, against a loop over nodes."""

import pytest
import torch

from flip_flop.scoring import attention
from flip_flop.scoring.attention import Layout, PathAttention, attend
from tests.scoring.tries import CALL_CELLS, made_trie, path, relative

RELATIVE = 1e-6


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


def made_states(trie, heads, key_heads, dtype):
    draw = torch.Generator().manual_seed(3)
    shapes = [(1, heads, len(trie), 5), (1, key_heads, len(trie), 5), (1, key_heads, len(trie), 7)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("call_cells", CALL_CELLS)
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize("folded", [True, False])
def test_attention_and_its_gradients_are_those_of_each_node_alone(monkeypatch, heads, key_heads, call_cells, folded):
    if not folded:
        monkeypatch.setattr(attention, "MOST_FOLDED", 0)
    trie = made_trie()
    states = made_states(trie, heads, key_heads, torch.float32)
    layout = Layout(trie, 0, len(trie), call_cells)
    layout.prepare(states[0])
    found = PathAttention.apply(*states, layout, 0.3)
    exact = [part.detach().double().requires_grad_() for part in states]
    expected = slow_attention(*exact, trie, 0.3)
    assert relative(found, expected) < RELATIVE
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(8))
    gradients = torch.autograd.grad((found * weights).sum(), states)
    slow_gradients = torch.autograd.grad((expected * weights).sum(), exact)
    for gradient, slow in zip(gradients, slow_gradients, strict=True):
        assert gradient.dtype == torch.float32
        assert relative(gradient, slow) < RELATIVE


def test_attention_of_float64_is_exact_in_float64():
    trie = made_trie()
    states = made_states(trie, 6, 2, torch.float64)
    layout = Layout(trie, 0, len(trie), 1e5)
    layout.prepare(states[0])
    found = PathAttention.apply(*states, layout, 0.3)
    expected = slow_attention(*states, trie, 0.3)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    assert relative(found, expected) < 1e-12
    gradients = torch.autograd.grad((found * weights).sum(), states)
    slow_gradients = torch.autograd.grad((expected * weights).sum(), states)
    for gradient, slow in zip(gradients, slow_gradients, strict=True):
        assert relative(gradient, slow) < 1e-12


@pytest.mark.parametrize("name", attention.REFUSED)
def test_what_is_not_a_scaled_dot_product_is_refused(name):
    trie = made_trie()
    states = made_states(trie, 3, 3, torch.float32)
    with pytest.raises(NotImplementedError, match=name):
        attend(torch.nn.Identity(), *states, None, packed=Layout(trie, 0, len(trie)), **{name: 1.0})


def test_attention_with_dropout_is_the_average_of_many_draws():
    trie = made_trie(count=1)
    query, key, value = (part.detach() for part in made_states(trie, 6, 2, torch.float32))
    layout = Layout(trie, 0, len(trie))
    expected, _ = attend(torch.nn.Identity(), query, key, value, None, packed=layout)
    total = torch.zeros_like(expected)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(400):
            total += attend(torch.nn.Identity(), query, key, value, None, dropout=0.2, packed=layout)[0]
    assert relative(total / 400, expected) < 0.05
