"""The faster product for frozen weights: the same numbers, only where it is wanted, and nothing left behind."""

import pytest
import torch
from torch import nn

from flip_flop.scoring import linears
from flip_flop.scoring.linears import FrozenLinear, fast_frozen_linears, fast_linear_obstacle, onednn_linear
from flip_flop.scoring.scorer import answer_states
from tests.scoring.made import instances
from tests.tiny import byte_bpe, tiny_model

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of PyTorch has no oneDNN"
)


@pytest.fixture
def fast_enough(monkeypatch):
    """As on a processor whose stock product is slow."""
    monkeypatch.setattr(linears, "_times_faster", lambda slow, fast: 2.0)


def frozen(model):
    return model.requires_grad_(False)


def fail_within(model):
    with fast_frozen_linears(model):
        raise ZeroDivisionError


def answer_gradient(model, layer):
    """Through the frozen layers into one that learns, as an adapter's gradient goes."""
    model.zero_grad()
    answer_states(model, instances(byte_bpe(), 2)).scores(model).sum().backward()
    return layer.weight.grad.clone()


@pytest.mark.usefixtures("fast_enough")
def test_scores_and_gradients_are_the_stock_ones_to_1e_5():
    model = frozen(tiny_model("qwen2"))
    first = model.model.layers[0].self_attn.q_proj.requires_grad_(True)
    expected = answer_gradient(model, first)
    with torch.no_grad():
        scores = answer_states(model, instances(byte_bpe(), 2)).scores(model)
    with fast_frozen_linears(model) as in_use:
        assert in_use
        gradient = answer_gradient(model, first)
        with torch.no_grad():
            ours = answer_states(model, instances(byte_bpe(), 2)).scores(model)
    torch.testing.assert_close(ours, scores, rtol=0, atol=1e-5)
    assert (gradient - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.usefixtures("fast_enough")
def test_only_frozen_float32_layers_take_it():
    model = frozen(tiny_model("qwen2"))
    learning = model.model.layers[0].mlp.up_proj.requires_grad_(True)
    with fast_frozen_linears(model):
        assert type(learning) is nn.Linear
        assert type(model.model.layers[1].mlp.up_proj) is FrozenLinear
    half = frozen(tiny_model("qwen2").to(torch.bfloat16))
    with fast_frozen_linears(half) as in_use:
        assert not in_use


@pytest.mark.usefixtures("fast_enough")
def test_the_model_is_as_it_was_afterwards_also_after_an_error():
    model = frozen(tiny_model("qwen2"))
    before = set(model.state_dict())
    with pytest.raises(ZeroDivisionError):
        fail_within(model)
    assert set(model.state_dict()) == before
    kinds = {type(layer) for layer in model.modules() if isinstance(layer, nn.Linear)}
    assert kinds == {nn.Linear}
    assert not any("_transposed" in vars(layer) for layer in model.modules())


def test_it_is_off_where_it_is_not_faster_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(linears, "_times_faster", lambda slow, fast: 1.07)
    with caplog.at_level("INFO", "flip_flop"), fast_frozen_linears(frozen(tiny_model("qwen2"))) as in_use:
        assert not in_use
    assert "1.07 times as fast" in caplog.text


def test_it_is_off_where_its_product_differs(monkeypatch):
    monkeypatch.setattr(linears, "onednn_linear", lambda inputs, weight, bias: 1.001 * (inputs @ weight.T))
    assert fast_linear_obstacle() == "its oneDNN product differs from the stock one"


def test_a_bias_is_added_and_leading_axes_are_kept():
    draw = torch.Generator().manual_seed(0)
    inputs, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((2, 3, 5), (7, 5), (7,)))
    expected = torch.nn.functional.linear(inputs, weight, bias)
    torch.testing.assert_close(onednn_linear(inputs, weight, bias), expected)


@pytest.mark.usefixtures("fast_enough")
def test_a_layer_whose_bias_learns_keeps_the_stock_product():
    model = frozen(tiny_model("qwen2"))
    learning = model.model.layers[0].self_attn.q_proj
    learning.bias.requires_grad_(True)
    with fast_frozen_linears(model):
        assert type(learning) is nn.Linear
        answer_states(model, instances(byte_bpe(), 2)).scores(model).sum().backward()
    assert learning.bias.grad.abs().sum() > 0
