"""Packed rows have the states and gradients of separate sequences."""

import copy

import numpy as np
import pytest
import torch

from flip_flop.scoring import attention
from flip_flop.scoring.answers import packed_states, padded_states
from flip_flop.scoring.attention import NAME, packed_attention
from flip_flop.scoring.causal_lm import decoder_of
from flip_flop.scoring.trie import build_trie
from tests.exact import EXACT, float32_bound, in_float64
from tests.scoring.tries import CALL_COSTS, made_trie, path, relative, set_call_cost
from tests.tiny import ARCHITECTURES, MORE_ARCHITECTURES, tiny_model

EVERY_ARCHITECTURE = [*ARCHITECTURES, *MORE_ARCHITECTURES]


def exact_model(architecture):
    return in_float64(tiny_model(architecture))


def dense_states(model, trie):
    """The decoder over the same row with transformers' attention, each pair of nodes masked or not."""
    nodes = len(trie)
    mask = torch.full((nodes, nodes), torch.finfo(model.dtype).min, dtype=model.dtype)
    for node in range(nodes):
        mask[node, path(trie, node)] = 0.0
    ids, positions = (torch.from_numpy(part.astype(np.int64))[None] for part in (trie.ids, trie.depth))
    output = decoder_of(model)(input_ids=ids, position_ids=positions, attention_mask=mask[None, None], use_cache=False)
    return output.last_hidden_state[0]


def gradients_of(model, states):
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(4)).to(states.dtype)
    parameters = list(decoder_of(model).parameters())
    return torch.autograd.grad((states * weights).sum(), parameters)


def assert_same_states_and_gradients(model, found, expected):
    assert relative(found, expected) < EXACT
    for gradient, slow in zip(gradients_of(model, found), gradients_of(model, expected), strict=True):
        assert relative(gradient, slow) < EXACT


@pytest.mark.parametrize("call_cost", CALL_COSTS)
@pytest.mark.parametrize("architecture", EVERY_ARCHITECTURE)
def test_packed_states_and_gradients_match_dense_mask(monkeypatch, architecture, call_cost):
    set_call_cost(monkeypatch, call_cost)
    model, trie = exact_model(architecture), made_trie()
    assert_same_states_and_gradients(model, packed_states(model, trie), dense_states(model, trie))


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("architecture", EVERY_ARCHITECTURE)
def test_padded_states_and_gradients_match_packed_row(architecture, batch_tokens):
    model, trie = exact_model(architecture), made_trie()
    assert_same_states_and_gradients(model, padded_states(model, trie, batch_tokens), packed_states(model, trie))


@pytest.mark.parametrize("architecture", EVERY_ARCHITECTURE)
def test_float32_states_match_within_rounding(architecture):
    model, trie = tiny_model(architecture), made_trie()
    bound = float32_bound(model)
    assert relative(packed_states(model, trie), dense_states(exact_model(architecture), trie)) < bound


def test_prompt_may_span_several_pieces(monkeypatch):
    set_call_cost(monkeypatch, 0.0)
    draw = np.random.default_rng(1)
    prompt = tuple(draw.integers(1, 30, size=150).tolist())
    trie = build_trie([[(prompt, (1, 2, 3)), (prompt, (4, 5))], [(prompt[:140], (6,)), (prompt[:140], (7, 8))]])
    model = exact_model("qwen2")
    assert relative(packed_states(model, trie), dense_states(model, trie)) < EXACT


def test_bfloat16_states_are_close():
    model, trie = tiny_model("qwen2"), made_trie()
    exact = packed_states(model, trie)
    model = copy.deepcopy(model).to(torch.bfloat16)
    found = packed_states(model, trie)
    assert found.dtype == torch.bfloat16
    assert relative(found, exact) < 3 * relative(dense_states(model, trie), exact) < 0.1
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, found))


def test_attention_dropout_applies_only_in_training():
    trie, model = made_trie(), exact_model("gpt2")
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.4 if name.endswith("attn_dropout") else 0.0
    assert relative(packed_states(model.eval(), trie), dense_states(model, trie)) < EXACT
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, second = packed_states(model, trie), packed_states(model, trie)
        torch.manual_seed(1)
        again = packed_states(model, trie)
    assert torch.equal(first, again)
    assert relative(first, second) > 1e-3
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, first))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_forward_is_rejected_inside_context_and_unchanged_after_it(architecture):
    model = exact_model(architecture)
    ids = torch.tensor([[1, 5, 2, 9, 4], [3, 3, 8, 1, 7]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with packed_attention(model):
            packed_states(model, made_trie())
            with pytest.raises(NotImplementedError, match="was not given the layout"):  # its mask would not be made
                model(input_ids=ids)
        after = model(input_ids=ids).logits
    assert torch.equal(after, before)


@pytest.mark.parametrize("own", ["sdpa", "eager"])
def test_attention_is_restored_after_error(own):
    model = tiny_model("qwen2")
    model.set_attn_implementation(own)
    with packed_attention(model):
        assert model.config._attn_implementation == NAME
        with packed_attention(model):
            pass
        assert model.config._attn_implementation == NAME, "the outer context is still open"
    assert model.config._attn_implementation == own
    with pytest.raises(ZeroDivisionError), packed_attention(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == own


def test_kernel_may_return_transposed_tensor(monkeypatch):
    """Like masked kernels of GPUs."""
    model, trie = exact_model("qwen2"), made_trie()
    with torch.no_grad():
        expected = packed_states(model, trie)
        stock = attention.F.scaled_dot_product_attention

        def transposed(*arguments, **keywords):
            return stock(*arguments, **keywords).transpose(1, 2).contiguous().transpose(1, 2)

        monkeypatch.setattr(attention.F, "scaled_dot_product_attention", transposed)
        assert relative(packed_states(model, trie), expected) < EXACT
