"""Every tensor of a model's files belongs to the model, and quantized files give the scores of their weights."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from flip_flop import PromptEncoder, load_model, score
from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.models import as_loaded
from flip_flop.scoring.options import ScoringOptions
from tests.refused import refused
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe, save_tiny, tiny_model

INSTANCES = [
    RenderedInstance(str(number), (f"tea {number} is", "is it warm?"), (("good", "bad", "cold"),) * 2, 0)
    for number in range(3)
]
QUERY = "model.layers.0.self_attn.q_proj"


def change(folder, weights=(), gone="", **config):
    """Add tensors, remove the first with this ending, and change config.json."""
    stored = load_file(folder / "model.safetensors") | dict(weights)
    if gone:
        del stored[next(name for name in sorted(stored) if name.endswith(gone))]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(before | config))
    return folder


def rejected(folder, *words, code="E-MODEL-FILE", **options):
    line = refused(f"^{code}: ", load_model, folder, **options)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("layers", [-1, 0, 1, 3])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox"])
def test_number_of_layers_is_that_of_the_weights(tmp_path, architecture, layers):
    name, parts = ("n_layer", "h") if architecture == "gpt2" else ("num_hidden_layers", "layers")
    folder = change(save_tiny(tmp_path / "model", architecture=architecture), **{name: layers})
    rejected(folder, f".{parts}.{max(layers, 0) if layers < 2 else 2}.", "such tensors in all")


@pytest.mark.parametrize(
    "tensor",
    [f"{QUERY}.bias", "model.layers.7.mlp.up_proj.weight", "model.norm.bias", "lm_head.bias", "layers.2.a", "model.a"],
)
def test_tensor_without_a_place_in_the_model_is_refused(tmp_path, tensor):
    folder = change(save_tiny(tmp_path / "model", architecture="llama"), {tensor: torch.ones(32)})
    rejected(folder, tensor, "1 such tensors")
    rejected(folder, tensor, "1 such tensors", quantization_config="4bit")


def test_tensors_without_effect_are_accepted(tmp_path):
    base = save_tiny(tmp_path / "base", architecture="llama")
    folder = shutil.copytree(base, tmp_path / "copy")
    names = (
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.k_scale",
        "model.visual.patch_embed.weight",
        "v_head.summary.weight",
        "mtp.layers.0.input_layernorm.weight",
    )
    change(folder, {name: torch.ones(4) for name in names})
    found, expected = (score(load_model(path), INSTANCES).scores.values for path in (folder, base))
    assert (found == expected).all()


@pytest.mark.parametrize("load_in", [None, "4bit", "8bit"])
@pytest.mark.parametrize("values", [{"num_key_value_heads": 1}, {"intermediate_size": 24}])
def test_shapes_are_checked_before_weights_are_quantized(tmp_path, load_in, values):
    pytest.importorskip("bitsandbytes")
    folder = change(save_tiny(tmp_path / "model", architecture="llama"), **values)
    rejected(folder, "model.layers.0.", "another shape", quantization_config=load_in)


def projections(weights):
    return {name: weight for name, weight in weights.items() if name.endswith("proj.weight")}


def write_fp8(folder, block=16):
    """Blocks of FP8 codes, each with a scale."""
    stored, dequantized = {}, {}
    for name, weight in projections(load_file(folder / "model.safetensors")).items():
        rows, columns = weight.shape
        blocks = weight.view(rows // block, block, columns // block, block)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
        codes = (blocks / scales).to(torch.float8_e4m3fn)
        stored |= {name: codes.view(rows, columns), f"{name}_scale_inv": scales[:, 0, :, 0].contiguous()}
        dequantized[name] = (codes.float() * scales).view(rows, columns)
    how = {"quant_method": "fp8", "weight_block_size": [block, block], "modules_to_not_convert": ["lm_head"]}
    change(folder, stored, quantization_config=how)
    return dequantized


def write_bitsandbytes(folder, config):
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    model.save_pretrained(folder)
    return dequantized_by_bitsandbytes(model)


def dequantized_by_bitsandbytes(model):
    from bitsandbytes.functional import dequantize_4bit

    dequantized = {}
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            dequantized[f"{name}.weight"] = dequantize_4bit(module.weight.data, module.weight.quant_state)
        if type(module).__name__ == "Linear8bitLt":
            dequantized[f"{name}.weight"] = module.weight.data * module.weight.SCB[:, None] / 127
    return dequantized


def write_compressed(folder):
    """Compressed-tensors: 8-bit integers, with a scale per row."""
    stored, dequantized = {}, {}
    for name, weight in projections(load_file(folder / "model.safetensors")).items():
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        codes = (weight / scale).round()
        stored |= {name: codes.to(torch.int8), f"{name}_scale": scale}
        dequantized[name] = codes * scale
    how = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    groups = {"group_0": {"format": "int-quantized", "targets": ["Linear"], "weights": how}}
    whole = {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"]}
    change(folder, stored, quantization_config=whole | {"config_groups": groups, "quantization_status": "compressed"})
    return dequantized


NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
FORMATS = {  # needed package, writer, name in the record, ending of a scale, tolerance
    "fp8": ("torch", write_fp8, "fp8", "weight_scale_inv", 1e-4),
    "4bit": (
        "bitsandbytes",
        lambda folder: write_bitsandbytes(folder, BitsAndBytesConfig(**NF4)),
        "4bit",
        "weight.absmax",
        1e-4,
    ),
    "8bit": (  # whose products round the inputs to 8 bits too
        "bitsandbytes",
        lambda folder: write_bitsandbytes(folder, BitsAndBytesConfig(load_in_8bit=True)),
        "8bit",
        "SCB",
        0.3,
    ),
    "compressed": ("compressed_tensors", write_compressed, "compressed-tensors", "weight_scale", 1e-4),
}


@pytest.fixture(params=FORMATS)
def quantized(request, tmp_path):
    package, write, name, scale, tolerance = FORMATS[request.param]
    pytest.importorskip(package)
    folder = save_tiny(tmp_path / "quantized")
    return folder, write(folder), name, scale, tolerance


@pytest.mark.slow
def test_quantized_files_have_the_scores_of_their_dequantized_weights(quantized):
    folder, dequantized, name, _, tolerance = quantized
    loaded = load_model(folder)
    assert loaded.record.dtype == f"{name}, float32"
    assert loaded.record.quantization["quant_method"] in (name, "bitsandbytes")
    assert loaded.record.num_parameters == tiny_model("qwen2").num_parameters()
    found = score(loaded, INSTANCES, ScoringOptions(backend="padded")).scores.values
    np.testing.assert_allclose(found, scores_of(dequantized), atol=tolerance)


def scores_of(dequantized):
    """The scores of the tiny model with these weights."""
    assert len(dequantized) == 14
    model = tiny_model("qwen2")
    with torch.no_grad():
        for weight, value in dequantized.items():
            model.get_parameter(weight).copy_(value)
    return naive_scores(model.double(), [PromptEncoder(byte_bpe()).encode(instance) for instance in INSTANCES])


def test_model_loaded_in_4_bits_has_the_scores_of_its_dequantized_weights(tmp_path):
    pytest.importorskip("bitsandbytes")
    loaded = load_model(save_tiny(tmp_path / "tiny"), quantization_config="4bit")
    assert loaded.record.dtype == "4bit, float32"
    assert loaded.record.num_parameters == tiny_model("qwen2").num_parameters()
    given = as_loaded((loaded.model, loaded.tokenizer)).record
    for part in ("dtype", "num_parameters", "quantization"):
        assert getattr(given, part) == getattr(loaded.record, part)
    found = score(loaded, INSTANCES)
    assert found.settings["backend"] == "packed"
    np.testing.assert_allclose(found.scores.values, scores_of(dequantized_by_bitsandbytes(loaded.model)), atol=1e-4)
    # bitsandbytes would compute in bfloat16 on CPUs that support it.
    assert {getattr(module, "support_avx512bf16_for_cpu", False) for module in loaded.model.modules()} == {False}


def test_quantized_files_are_complete_and_not_quantized_again(quantized):
    folder, _, name, scale, _ = quantized
    other = "8bit" if name == "4bit" else "4bit"
    rejected(folder, "quantized already", "--load-in", code="E-MODEL-DEVICE", quantization_config=other)
    rejected(change(folder, gone=scale), "without the scale", "layers.0")
    rejected(change(folder, quantization_config=None))


def test_integers_without_a_scale_are_not_weights(tmp_path):
    folder = change(save_tiny(tmp_path / "model"), {f"{QUERY}.weight": torch.ones(32, 32, dtype=torch.int8)})
    rejected(folder, "without the scale", f"{QUERY}.weight")


def write_odd(folder, file, key, value):
    """A model one of whose files has this odd value."""
    path = save_tiny(folder / "model") / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | {key: value}))
    return path.parent


ODD_CONFIGS = [
    ("architectures", 5),
    ("architectures", [5]),
    ("architectures", [[[]]]),
    ("dtype", "\ud800"),
    ("quantization_config", "x"),
    ("quantization_config", {"quant_method": 5}),
    ("rope_parameters", [5]),
    ("vocab_size", 2**64),
]
ODD_TOKENIZERS = [
    ("model_max_length", "x"),
    ("model_max_length", []),
    ("padding_side", "\ud800"),
    ("added_tokens_decoder", 5),
    ("chat_template", "{{ messages[0]['content'] }}\ud800"),
    ("chat_template", "{{ '\\ud800' }}"),
    ("chat_template", "{{ raise_exception('\\ud800') }}"),
]
ODD = [
    *(("config.json", *odd) for odd in ODD_CONFIGS),
    *(("tokenizer_config.json", *odd) for odd in ODD_TOKENIZERS),
    ("tokenizer.json", "model", [5]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "key", "value"), ODD)
def test_odd_value_in_a_file_of_the_model_gives_one_line(tmp_path, file, key, value):
    folder = write_odd(tmp_path, file, key, value)
    with pytest.raises(InputError):
        score(load_model(folder), INSTANCES)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("temperature", "\ud800"), ("eos_token_id", {"a": 5})])
def test_odd_value_of_generation_has_no_effect_on_scores(tmp_path, key, value):
    score(load_model(write_odd(tmp_path, "generation_config.json", key, value)), INSTANCES)


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**32 - 1])
def test_token_beyond_the_vocabulary_gives_one_line(tmp_path, number):
    folder = save_tiny(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"][byte_bpe().tokenize(" good")[0]] = number
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=r"^E-MODEL-FILE: [^\n]*$"):
        load_model(folder).encoder().encode(INSTANCES[0])


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


def test_missing_bitsandbytes_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    rejected(
        save_tiny(tmp_path / "tiny"),
        "-m pip install 'bitsandbytes>=",
        code="E-MODEL-DEVICE",
        quantization_config="8bit",
    )


def test_device_map_replaces_device(flip_flop, tmp_path):
    command = ["audit", "-m", "demo", "-t", "demo", "--limit", 5, "--device-map", "auto"]
    assert flip_flop(*command, "--out", tmp_path / "run").code == 0
    found = flip_flop(*command, "--device", "cpu", "--out", tmp_path / "other")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "E-MODEL-DEVICE" in found.err
