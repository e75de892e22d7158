"""A packed row gives every token the state that it has in its own sequence; and the gradients that it has there."""

import copy

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from flip_flop.scoring import attention
from flip_flop.scoring.attention import NAME, forward_row, packed_attention
from flip_flop.scoring.head import decoder_of
from flip_flop.scoring.packed import TrunkPass, is_worth_parting, packed_hidden_states
from flip_flop.scoring.trie import build_trie
from tests.scoring.tries import CALL_CELLS, made_trie, path, relative
from tests.tiny import ARCHITECTURES, MORE_ARCHITECTURES, tiny_model

RELATIVE = 1e-6


# ---- a whole model, against its own attention under a dense mask ----


def dense_states(model, trie):
    """The decoder over the same row with transformers' attention, each pair of nodes masked or not."""
    nodes = len(trie)
    mask = torch.full((nodes, nodes), torch.finfo(model.dtype).min, dtype=model.dtype)
    for node in range(nodes):
        mask[node, path(trie, node)] = 0.0
    ids, positions = (torch.from_numpy(part.astype(np.int64))[None] for part in (trie.ids, trie.depth))
    output = decoder_of(model)(input_ids=ids, position_ids=positions, attention_mask=mask[None, None], use_cache=False)
    return output.last_hidden_state[0]


def packed_states(model, trie, call_cells=None):
    return packed_hidden_states(model, trie, np.arange(len(trie)), call_cells=call_cells)


def split_states(model, trie):
    trunk = TrunkPass.of(model, trie)
    return torch.cat([trunk.states, trunk.states_of(np.arange(trie.num_trunk, len(trie)))])


def gradients_of(model, states):
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(4)).to(states.dtype)
    parameters = list(decoder_of(model).parameters())
    return torch.autograd.grad((states * weights).sum(), parameters)


@pytest.mark.parametrize("call_cells", CALL_CELLS)
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
def test_states_and_gradients_of_a_packed_row_are_those_under_a_dense_mask(architecture, call_cells):
    model, trie = tiny_model(architecture), made_trie()
    found, expected = packed_states(model, trie, call_cells), dense_states(model, trie)
    assert relative(found, expected) < RELATIVE
    for gradient, slow in zip(gradients_of(model, found), gradients_of(model, expected), strict=True):
        assert relative(gradient, slow) < 3 * RELATIVE


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
def test_trunk_and_then_branches_give_what_one_pass_gives(architecture):
    model, trie = tiny_model(architecture), made_trie()
    assert trie.num_branch > 10
    found, expected = split_states(model, trie), packed_states(model, trie)
    assert relative(found, expected) < RELATIVE
    for gradient, slow in zip(gradients_of(model, found), gradients_of(model, expected), strict=True):
        assert relative(gradient, slow) < 3 * RELATIVE


def test_some_of_the_branches_give_their_states_alone_and_again():
    model, trie = tiny_model("qwen2"), made_trie()
    expected = packed_states(model, trie)
    trunk = TrunkPass.of(model, trie)
    for labels in ([1, None], [None, 0], [0, 1]):
        nodes = trie.answer_branches(labels)
        assert 0 < len(nodes) < trie.num_branch
        assert relative(trunk.states_of(nodes), expected[nodes]) < RELATIVE


def test_rows_are_the_nodes_that_were_asked_for():
    model, trie = tiny_model("llama"), made_trie()
    rows = np.array([3, 1, len(trie) - 1, 7])
    found = packed_hidden_states(model, trie, rows)
    assert relative(found, dense_states(model, trie)[rows.tolist()]) < RELATIVE


def test_a_prompt_of_several_pieces_is_one_prompt():
    draw = np.random.default_rng(1)
    prompt = tuple(draw.integers(1, 30, size=150).tolist())
    trie = build_trie([[(prompt, (1, 2, 3)), (prompt, (4, 5))], [(prompt[:140], (6,)), (prompt[:140], (7, 8))]])
    model = tiny_model("qwen2")
    assert relative(packed_states(model, trie, 0.0), dense_states(model, trie)) < RELATIVE
    assert relative(split_states(model, trie), dense_states(model, trie)) < RELATIVE


def test_bfloat16_runs_and_is_near():
    model, trie = tiny_model("qwen2"), made_trie()
    exact = packed_states(model, trie)
    model = copy.deepcopy(model).to(torch.bfloat16)
    found = packed_states(model, trie)
    assert found.dtype == torch.bfloat16
    assert relative(found, exact) < 3 * relative(dense_states(model, trie), exact) < 0.1
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, found))


@pytest.mark.parametrize(
    ("prompt_length", "lengths", "worth"),
    [(10, (1, 1), False), (10, (1, 9), True), (10, (9, 1), False), (10, (3, 5), True), (60, (3, 5), False)],
)
def test_a_forward_in_two_parts_pays_where_answers_that_need_no_gradient_are_long(prompt_length, lengths, worth):
    prompt = tuple(range(1, prompt_length + 1))
    trie = build_trie([[(prompt, (70 + label,) * length) for label, length in enumerate(lengths)]])
    assert len(trie) == prompt_length + sum(lengths) - 2
    assert is_worth_parting(trie) is worth


# ---- dropout of the attention's own weights ----


def gpt2(drop):
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=50, bos_token_id=0, eos_token_id=0,
        attn_pdrop=drop, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")


def test_attention_that_drops_nothing_is_the_same_in_training():
    trie = made_trie()
    model = gpt2(0.0)
    assert relative(packed_states(model.train(), trie), packed_states(model.eval(), trie)) < RELATIVE


@pytest.mark.parametrize("pass_", [packed_states, split_states])
def test_attention_that_drops_weights_does_so_in_training_alone(pass_):
    trie, model = made_trie(), gpt2(0.4)
    quiet = pass_(model.eval(), trie)
    assert relative(quiet, dense_states(model, trie)) < RELATIVE
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, second = pass_(model, trie), pass_(model, trie)
        torch.manual_seed(1)
        again = pass_(model, trie)
    assert torch.equal(first, again)
    assert relative(first, second) > 1e-3
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, first))


# ---- the model is as it was ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_plain_forward_is_the_same_before_inside_and_after(architecture):
    model = tiny_model(architecture)
    ids = torch.tensor([[1, 5, 2, 9, 4], [3, 3, 8, 1, 7]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with packed_attention(model):
            packed_states(model, made_trie())
            inside = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    torch.testing.assert_close(inside, before, rtol=0, atol=1e-5)
    assert torch.equal(after, before)


def test_a_plain_forward_inside_keeps_its_padding_mask():
    model = tiny_model("qwen2")
    ids, mask = torch.tensor([[0, 0, 1, 5, 2], [3, 3, 8, 1, 7]]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits
        with packed_attention(model):
            inside = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(inside[mask.bool()], before[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("own", ["sdpa", "eager"])
def test_the_models_own_attention_is_restored_also_after_an_error(own):
    model = tiny_model("qwen2")
    model.set_attn_implementation(own)
    with packed_attention(model):
        assert model.config._attn_implementation == NAME
        with packed_attention(model):
            pass
        assert model.config._attn_implementation == NAME, "the outer context is still open"
    assert model.config._attn_implementation == own
    trie = made_trie()
    with pytest.raises(IndexError):
        packed_hidden_states(model, trie, np.array([len(trie)]))
    assert model.config._attn_implementation == own
    with pytest.raises(ZeroDivisionError), packed_attention(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == own


def test_a_row_is_one_forward_of_its_nodes():
    model, trie = tiny_model("qwen2"), made_trie()
    seen = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda layer, arguments: seen.append(arguments[0].shape))
    packed_states(model, trie)
    with packed_attention(model):
        forward_row(decoder_of(model), trie, 0, trie.num_trunk)
    hook.remove()
    assert seen == [(1, len(trie), 32), (1, trie.num_trunk, 32)]


def test_a_kernel_that_gives_back_a_transposed_tensor_serves_as_well(monkeypatch):
    """As those of GPUs do where there is a mask."""
    model = tiny_model("qwen2")
    trie = made_trie()
    rows = np.arange(len(trie))
    with torch.no_grad():
        expected = packed_hidden_states(model, trie, rows)
        stock = attention.F.scaled_dot_product_attention

        def transposed(*arguments, **keywords):
            return stock(*arguments, **keywords).transpose(1, 2).contiguous().transpose(1, 2)

        monkeypatch.setattr(attention.F, "scaled_dot_product_attention", transposed)
        assert relative(packed_hidden_states(model, trie, rows), expected) < RELATIVE
