"""Models in 4 or 8 bits: scores of the rounded weights, and runs that record the quantization."""

import sys

import numpy as np
import pytest
import torch

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import load_model, score
from flip_flop.scoring.models import as_loaded
from flip_flop.scoring.options import ScoringOptions
from tests.scoring.oracle import naive_scores
from tests.tiny import save_tiny

INSTANCES = [
    RenderedInstance(str(number), (f"tea {number} is", "is it warm?"), (("good", "bad", "cold"),) * 2, 0)
    for number in range(3)
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    pytest.importorskip("bitsandbytes")
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def test_4bit_scores_match_dequantized_weights(base):
    from bitsandbytes.functional import dequantize_4bit

    loaded = load_model(base, quantization_config="4bit")
    assert loaded.record.dtype == "4bit, float32"
    plain = load_model(base)
    assert loaded.record.num_parameters == plain.record.num_parameters
    given = as_loaded((loaded.model, loaded.tokenizer)).record
    for part in ("dtype", "num_parameters", "quantization"):
        assert getattr(given, part) == getattr(loaded.record, part)
    found = score(loaded, INSTANCES)
    assert found.settings["backend"] == "packed"
    assert np.abs(found.scores - score(plain, INSTANCES).scores).max() > 1e-3
    with torch.no_grad():
        for name, module in loaded.model.named_modules():
            if type(module).__name__ == "Linear4bit":
                weight = dequantize_4bit(module.weight.data, module.weight.quant_state)
                plain.model.get_submodule(name).weight.copy_(weight)
    expected = naive_scores(plain.model.double(), plain.encoder().encode_all(INSTANCES)[0])
    np.testing.assert_allclose(found.scores, expected, atol=1e-4)
    # bitsandbytes would compute in bfloat16 on CPUs that support it.
    assert {getattr(module, "support_avx512bf16_for_cpu", False) for module in loaded.model.modules()} == {False}


def test_8bit_models_use_padded_backend(base):
    found = score(load_model(base, quantization_config="8bit"), INSTANCES, ScoringOptions(backend="padded"))
    np.testing.assert_allclose(found.scores, score(load_model(base), INSTANCES).scores, atol=0.5)


@pytest.mark.slow
def test_resume_needs_same_quantization(flip_flop, tmp_path, caplog):
    pytest.importorskip("bitsandbytes")
    command = ["train", "-m", "demo", "-t", "demo", "--limit", 16, "--eval-limit", 10, "--out", tmp_path / "run"]
    more = ["--max-steps", 1]
    assert flip_flop(*command, *more, "--load-in", "4bit", "--keep-worse").code == 0
    audit = ["audit", "-m", "demo", "-t", "demo", "--limit", 4, "--adapter", tmp_path / "run/adapter", "--out"]
    assert flip_flop(*audit, tmp_path / "in_4_bits", "--load-in", "4bit").code == 0
    assert "W-ADAPTER" not in caplog.text
    assert flip_flop(*audit, tmp_path / "plain").code == 0
    assert "W-ADAPTER: the adapter was trained on a base in 4bit, float32, and is now" in caplog.text
    found = flip_flop(*command, *more, "--resume")
    assert found.code == 2
    assert "model.dtype ('4bit, float32', now 'float32')" in found.err


def test_missing_bitsandbytes_is_reported(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(InputError, match=r"E-MODEL-DEVICE: .* -m pip install 'bitsandbytes>=0\.46'"):
        load_model(base, quantization_config="8bit")


def test_device_map_replaces_device(flip_flop, tmp_path):
    command = ["audit", "-m", "demo", "-t", "demo", "--limit", 5, "--device-map", "auto"]
    assert flip_flop(*command, "--out", tmp_path / "run").code == 0
    found = flip_flop(*command, "--device", "cpu", "--out", tmp_path / "other")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "E-MODEL-DEVICE" in found.err
