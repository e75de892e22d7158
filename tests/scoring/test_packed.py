"""Packed rows and padded sequences have the scores and gradients of separate sequences."""

import copy

import pytest
import torch

from flip_flop.scoring import packed
from flip_flop.scoring.packed import NAME, REFUSED, Layout, answer_states, attend, packed_attention
from tests.exact import EXACT, in_float64
from tests.scoring.made import instances
from tests.scoring.tries import made_trie, relative
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
