"""The kernel for GPUs gives the same states; on a CPU, uncompiled, and without a backward, which it has not there."""

import pytest
import torch

from flip_flop.scoring import attention
from flip_flop.scoring.answers import answer_states
from tests.exact import EXACT, in_float64
from tests.scoring.made import instances
from tests.tiny import byte_bpe, tiny_model


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
@torch.no_grad()
def test_flex_attention_sees_what_path_attention_sees(monkeypatch, architecture):
    model = in_float64(tiny_model(architecture))
    encoded = instances(byte_bpe(), 3)
    expected = answer_states(model, encoded).scores(model)
    monkeypatch.setitem(attention.KERNELS, "cpu", "flex")
    monkeypatch.setattr(attention.PathAttention, "apply", None)  # the other kernel is not called
    torch.testing.assert_close(answer_states(model, encoded).scores(model), expected, rtol=EXACT, atol=0)
