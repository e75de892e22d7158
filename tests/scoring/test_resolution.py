"""The smallest margin that a dtype resolves."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flip_flop.scoring import score_instances
from flip_flop.scoring.checks import find_resolution
from flip_flop.scoring.encoder import KEPT
from tests.scoring.made import instances
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe, tiny_model

EPS = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-23}


class Encoded(list):
    first: list


def scored(model, rows):
    encoded = Encoded(rows)
    encoded.first = rows[:KEPT]
    return replace(score_instances(model, rows, quiet=True), encoded=encoded)


def found(model, rows):
    table = scored(model, rows)
    return table.scores, find_resolution(model, table, 512)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
def test_half_precision_resolution_is_largest_change_of_margin(dtype, architecture):
    model, rows = tiny_model(architecture).to(dtype), instances(byte_bpe())
    before = copy.deepcopy(model.state_dict())
    scores, resolution = found(model, rows)
    exact = np.array(naive_scores(copy.deepcopy(model).float(), rows))
    best, other = scores.argmax(axis=2, keepdims=True), scores.argmin(axis=2, keepdims=True)  # of two labels
    margins = [np.take_along_axis(s, best, 2) - np.take_along_axis(s, other, 2) for s in (scores, exact)]
    assert resolution.found == "measured"
    assert resolution.nats == pytest.approx(np.abs(margins[0] - margins[1]).max(), abs=1e-5)
    assert 0 < resolution.nats < 32 * EPS[dtype]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_resolution_sample_is_first_instances():
    model, rows = tiny_model().bfloat16(), instances(byte_bpe(), 5) * 8
    table = scored(model, rows)
    table.scores[KEPT:] = 1e3  # not looked at
    assert find_resolution(model, table, 512).nats < 1


def test_float32_resolution_is_stated():
    _, resolution = found(tiny_model(), instances(byte_bpe()))
    assert (resolution.nats, resolution.found) == (32 * EPS[torch.float32], "stated")


class HalfOnly(nn.Module):
    """Like a kernel that supports only half precision."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states):
        out = self.inner(states)
        if states.dtype == torch.float32 and HalfOnly.refuses:
            raise RuntimeError("only half precision is supported")
        return out

    refuses = False


def test_resolution_is_stated_if_float32_fails(monkeypatch):
    model, rows = tiny_model().bfloat16(), instances(byte_bpe())
    model.model.layers[0].mlp = HalfOnly(model.model.layers[0].mlp)
    table = scored(model, rows)
    monkeypatch.setattr(HalfOnly, "refuses", True)
    resolution = find_resolution(model, table, 512)
    assert (resolution.nats, resolution.found) == (32 * EPS[torch.bfloat16], "stated")
