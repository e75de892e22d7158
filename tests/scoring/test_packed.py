"""Packed rows, padded sequences and tries have the scores and gradients of separate sequences."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from flip_flop.scoring import packed
from flip_flop.scoring.packed import NAME, REFUSED, Layout, answer_states, attend, packed_attention
from tests.exact import EXACT, in_float64
from tests.scoring.oracle import instances
from tests.scoring.tries import (
    batches,
    batches_with_a_common_beginning,
    expected_prefixes,
    made_trie,
    merged,
    relative,
    words,
)
from tests.tiny import ARCHITECTURES, MORE_ARCHITECTURES, byte_bpe, tiny_model


def made_states(trie, heads, key_heads):
    draw = torch.Generator().manual_seed(3)
    shapes = [(1, heads, len(trie), 5), (1, key_heads, len(trie), 5), (1, key_heads, len(trie), 7)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]


def attended(states, layout, **options):
    return attend(torch.nn.Identity(), *states, None, packed=layout, **options)[0]


@pytest.mark.parametrize("name", REFUSED)
def test_attention_rejects_other_than_scaled_dot_product(name):
    trie = made_trie()
    with pytest.raises(NotImplementedError, match=name):
        attended(made_states(trie, 3, 3), Layout(trie), **{name: 1.0})


def test_kernel_may_return_transposed_tensor(monkeypatch):
    """Like masked kernels of GPUs."""
    trie = made_trie()
    states, stock = made_states(trie, 6, 2), packed.F.scaled_dot_product_attention
    expected = attended(states, Layout(trie))

    def transposed(*arguments, **keywords):
        return stock(*arguments, **keywords).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(packed.F, "scaled_dot_product_attention", transposed)
    assert relative(attended(states, Layout(trie)), expected) < EXACT


def slow_scores(model, encoded):
    """Eq. 13 with gradient, one answer at a time."""
    scores = []
    for answer in (answer for instance in encoded for template in instance.answers for answer in template):
        logits = model(input_ids=torch.tensor([answer.inputs]), use_cache=False).logits[0, len(answer.context) - 1 :]
        scores.append(logits.log_softmax(-1)[torch.arange(len(answer.tokens)), list(answer.tokens)].mean())
    return torch.stack(scores).view(len(encoded), 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "batch_tokens"), [("packed", 1), ("padded", 1), ("padded", 60), ("padded", 9999)])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
def test_scores_and_gradients_match_separate_sequences(monkeypatch, architecture, backend, batch_tokens):
    monkeypatch.setattr(packed, "CHUNK", 5)
    model, encoded = in_float64(tiny_model(architecture)), instances(byte_bpe(), 2)
    weights = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = answer_states(model, encoded, backend=backend, batch_tokens=batch_tokens).scores()
    expected, parameters = slow_scores(model, encoded), list(model.parameters())
    assert relative(found, expected) < EXACT
    ours, slow = (torch.autograd.grad((scores * weights).sum(), parameters) for scores in (found, expected))
    assert all(relative(gradient, exact) < EXACT for gradient, exact in zip(ours, slow, strict=True))


def test_bfloat16_logits_become_float32():
    model, encoded = tiny_model("qwen2"), instances(byte_bpe(), 2)
    exact = answer_states(model, encoded).scores()
    states = answer_states(copy.deepcopy(model).to(torch.bfloat16), encoded)
    assert states.logits.dtype == states.scores().dtype == states.token_log_softmax().dtype == torch.float32
    assert relative(states.scores(), exact) < 0.1


@pytest.mark.parametrize("label", [None, 1])
@torch.no_grad()
def test_answers_of_instance_and_label_exclude_others(label):
    model, encoded = in_float64(tiny_model("qwen2")), instances(byte_bpe(), 3)
    states, labels = answer_states(model, encoded), slice(None) if label is None else slice(label, label + 1)
    chosen = [answer for template in encoded[1].answers for answer in template[labels]]
    part = states.of(1, label)
    assert relative(part.scores(), states.scores()[1:2, :, labels]) < EXACT
    assert part.token_target.tolist() == [token for answer in chosen for token in answer.tokens]
    token_log_probs = part.token_log_softmax()[range(len(part.token_target)), part.token_target]
    sums = [float(tokens.sum()) for tokens in token_log_probs.split([len(answer.tokens) for answer in chosen])]
    expected = states.scores()[1, :, labels].flatten() * torch.tensor([len(answer.tokens) for answer in chosen])
    assert sums == pytest.approx(expected.tolist(), rel=EXACT)


def test_cudnn_computes_no_gradients():
    # Its gradients are NaN for some lengths. No GPU is needed to see which kernels are enabled.
    model, enabled = tiny_model("qwen2"), torch.backends.cuda.cudnn_sdp_enabled
    with packed_attention(model):
        assert not enabled()
    with torch.no_grad(), packed_attention(model):
        assert enabled()
    assert enabled()


@pytest.mark.parametrize("own", ["sdpa", "eager"])
def test_own_attention_is_restored_also_after_error(own):
    model, ids = in_float64(tiny_model("qwen2")), torch.tensor([[1, 5, 2, 9, 4], [3, 3, 8, 1, 7]])
    model.set_attn_implementation(own)
    before = model(input_ids=ids).logits
    with packed_attention(model):
        with packed_attention(model):
            answer_states(model, instances(byte_bpe(), 1))
        assert model.config._attn_implementation == NAME, "the outer context is still open"
        with pytest.raises(NotImplementedError, match="was not given the layout"):  # its mask would not be made
            model(input_ids=ids)
    with pytest.raises(ZeroDivisionError), packed_attention(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == own
    assert torch.equal(model(input_ids=ids).logits, before)


# ---- tries ----


# 2 templates, 3 labels; the second label of the second template has another prompt.
EXAMPLE = [
    [((1, 2, 3), (4,)), ((1, 2, 3), (5, 6)), ((1, 2, 3), (5, 7, 8))],
    [((1, 2), (3, 9)), ((1, 4, 4), (1,)), ((1, 2), (6, 1))],
]


def test_trie_of_example():
    trie = merged([EXAMPLE])
    # (1, 2, 3) is also the input of the answer (3, 9), and (1, 2, 6) of (6, 1).
    assert words(trie) == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 5), (1, 2, 3, 5, 7), (1, 2, 6), (1, 4), (1, 4, 4)]
    assert trie.depth.tolist() == [0, 1, 2, 3, 4, 2, 1, 2]
    assert trie.leave.tolist() == [8, 6, 5, 5, 5, 6, 8, 8]
    assert trie.token_node.tolist() == [2, *[2, 3], *[2, 3, 4], *[1, 2], 7, *[1, 5]]
    assert trie.token_target.tolist() == [4, 5, 6, 5, 7, 8, 3, 9, 1, 6, 1]
    assert trie.token_counts.tolist() == [[[1, 2, 3], [2, 1, 2]]]


def test_templates_of_a_trie_have_the_same_number_of_labels():
    first, second = EXAMPLE
    with pytest.raises(ValueError, match="inhomogeneous"):
        merged([[[*first, second[0]], second[:2]]])


@given(batches() | batches_with_a_common_beginning())
def test_one_node_per_distinct_prefix_of_all_instances(batch):
    trie = merged(batch)
    assert words(trie) == sorted(set().union(*map(expected_prefixes, batch)))
    assert trie.depth.tolist() == [len(word) - 1 for word in words(trie)]


@settings(max_examples=60)
@given(batches_with_a_common_beginning())
def test_merged_tries_keep_visibility_positions_and_targets(batch):
    trie = merged(batch)
    spelt = words(trie)
    # Visibility: the nodes that an attention mask shows are the node and its ancestors.
    nodes = np.arange(len(trie))
    is_seen = (nodes <= nodes[:, None]) & (nodes[:, None] < trie.leave)
    assert [np.flatnonzero(row).tolist() for row in is_seen] == [[*trie.ancestors(node), node] for node in nodes]
    # Targets: each answer token is predicted after its own prompt and the tokens before it.
    pairs = [pair for answers in batch for template in answers for pair in template]
    contexts = [prompt + answer[:at] for prompt, answer in pairs for at in range(len(answer))]
    assert [spelt[node] for node in trie.token_node] == contexts
    assert trie.token_target.tolist() == [token for _, answer in pairs for token in answer]
    assert trie.token_counts.flatten().tolist() == [len(answer) for _, answer in pairs]
