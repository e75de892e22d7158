"""Attention over a trie in half precision: its gradients are those of the rounded inputs, not of rounded logits."""

import numpy as np
import pytest
import torch

from flip_flop.scoring.attention import Layout, attend
from flip_flop.scoring.trie import build_trie
from tests.scoring.tries import path

HEADS, KEY_HEADS, WIDTH = 6, 2, 16


def attention_gradients(trie, inputs, upstream):
    """Of the packed back end, in the dtype of the inputs."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output, _ = attend(torch.nn.Identity(), *leaves, None, packed=Layout(trie, 0, len(trie)))
    output.backward(upstream.to(output.dtype))
    return [leaf.grad.double() for leaf in leaves]


def slow_gradients(trie, inputs, upstream):
    """One softmax in float64 over all pairs, what is no ancestor being hidden."""
    leaves = [tensor.double().requires_grad_() for tensor in inputs]
    query, key, value = leaves
    hidden = torch.ones(len(trie), len(trie), dtype=torch.bool)
    for node in range(len(trie)):
        hidden[node, path(trie, node)] = False
    key, value = (part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (key, value))
    logits = (query @ key.transpose(2, 3) / WIDTH**0.5).masked_fill(hidden, float("-inf"))
    (logits.softmax(dim=-1) @ value).transpose(1, 2).backward(upstream.double())
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_exact_where_all_keys_share_a_large_part(dtype):
    draw = np.random.default_rng(0)
    prompt = tuple(draw.integers(1, 30, size=11).tolist())
    trie = build_trie([[(prompt, (1, 2, 3)), (prompt, (4, 5))], [(prompt[:7], (6,)), (prompt[:7], (7, 8))]])
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(trie), WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    # As in Qwen2.5, whose keys have a large bias: the logits are large, and their differences are not.
    inputs = [tensor.to(dtype) for tensor in (query + 2, key + 4, value)]
    upstream = torch.randn(1, len(trie), HEADS, WIDTH).to(dtype)
    expected = slow_gradients(trie, inputs, upstream)
    for found, right in zip(attention_gradients(trie, inputs, upstream), expected, strict=True):
        assert float((found - right).norm() / right.norm()) < 2 * torch.finfo(dtype).eps
