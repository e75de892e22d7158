"""GGUF files: equal scores, exact identity, and errors for invalid files."""

import importlib.util
import json
import shutil
import threading
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from flip_flop import F2CConfig, audit, load_model, score, train
from flip_flop.files import lock, sha256_file
from flip_flop.paper.plan import Setup
from flip_flop.prompts import RenderedInstance
from flip_flop.record import RunRecord
from flip_flop.scoring.models import load_tokenizer
from flip_flop.scoring.options import ScoringOptions
from flip_flop.training.card import model_card
from tests.refused import refused
from tests.studies.small_studies import plan
from tests.tiny import CHAT_TEMPLATE, byte_bpe, tiny_model, with_chat_template
from tests.training.conftest import make_task

QUANTIZED = gguf.GGMLQuantizationType.Q8_0


def llama_tensors(model):
    """The weights under GGUF's names. Rows of queries and keys have GGML's order for rotary embeddings."""
    names, config = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers), model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = {}
    for name, weights in model.state_dict().items():
        array = weights.float().numpy()
        for projection, number in heads.items():
            if projection in name:
                array = array.reshape(number, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found[f"{names.get_name(name.removesuffix('.weight'))}.weight"] = np.ascontiguousarray(array)
    return found


def write_gguf(path, model=None, *, architecture="llama", chat_template=CHAT_TEMPLATE, layers=None, add=None, more=()):
    """Write ``model`` to ``path``.

    ``layers`` is the number in the header, ``add`` adds metadata to the writer, ``more`` are more tensors. A tensor of
    bytes is quantized.
    """
    model, tokenizer = model or tiny_model("llama"), byte_bpe()
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    metadata = {
        "block_count": config.num_hidden_layers if layers is None else layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": 10000.0,
        "rope_dimension_count": config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
    }
    metadata |= {
        "tokenizer_model": "gpt2",
        "token_list": tokens,
        "token_types": [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(tokens) - 1)],
        "token_merges": [" ".join(merge) for merge in merges],
        "eos_token_id": tokenizer.eos_token_id,
    }
    if chat_template:
        metadata["chat_template"] = chat_template
    for name, value in metadata.items():
        getattr(writer, f"add_{name}")(value)
    if add:
        add(writer)
    for name, array in {**llama_tensors(model), **dict(more)}.items():
        writer.add_tensor(name, array, raw_dtype=QUANTIZED if array.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


INSTANCES = [
    RenderedInstance(
        "1",
        ("The food was good. Yes or no?", "Question: is it dirty? Answer:", "True?"),
        (("No", "Yes"), ("Never", "Maybe"), ("False", "True")),
        None,
    )
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flip-flop" / "gguf"


@pytest.fixture
def file(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf")


def scores(model):
    return score(load_model(model), INSTANCES, ScoringOptions(chat_template="off")).scores.values


def assert_equal_scores(one, other):
    assert np.abs(scores(one) - scores(other)).max() < 1e-5


def rejected(name, *words):
    line = refused("^E-MODEL-FILE: ", load_model, name)
    assert all(word in line for word in words), line
    return line


def save(folder, model=None):
    (model or tiny_model("llama")).save_pretrained(folder)
    with_chat_template(byte_bpe()).save_pretrained(folder)
    return folder


def test_file_has_the_scores_of_the_model_it_was_made_from(file, tmp_path):
    folder = save(tmp_path / "model")
    assert_equal_scores(file, folder)
    theirs, ours = load_model(folder), load_model(file)
    assert ours.tokenizer.chat_template == theirs.tokenizer.chat_template
    assert ours.record.digest == sha256_file(file)
    assert ours.record.name == str(file)
    assert ours.record.num_parameters == theirs.record.num_parameters


def test_folder_with_one_gguf_file_is_loaded_like_the_file(file, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(file, folder)
    assert load_model(folder).record.digest == sha256_file(file)
    write_gguf(folder / "other.gguf")
    rejected(folder, "2 GGUF files", "other.gguf")
    save(folder)
    assert load_model(folder).record.digest != sha256_file(file)  # safetensors come first


def test_quantized_weights_are_dequantized(tmp_path):
    model = tiny_model("llama")
    expected, packed = tiny_model("llama"), {}
    state = expected.state_dict()
    for name, array in llama_tensors(model).items():
        if name in ("token_embd.weight", "output.weight"):
            packed[name] = gguf.quantize(array, QUANTIZED)
            key = "model.embed_tokens.weight" if name.startswith("token") else "lm_head.weight"
            state[key].copy_(torch.from_numpy(gguf.dequantize(packed[name], QUANTIZED)))
    file = write_gguf(tmp_path / "tiny.gguf", model, more=packed)
    assert_equal_scores(file, save(tmp_path / "model", expected))
    with pytest.raises(AssertionError):
        assert_equal_scores(file, save(tmp_path / "exact", model))


def test_output_embedding_that_is_stored_twice_is_tied(tmp_path):
    model = tiny_model("llama")
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight)
    loaded = load_model(write_gguf(tmp_path / "twice.gguf", model))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.record.num_parameters == model.num_parameters() - 400 * 32
    assert_equal_scores(tmp_path / "twice.gguf", save(tmp_path / "model", model))


def test_weights_are_converted_once(file, cache):
    load_model(file)
    (folder,) = cache.glob("*/weights")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    moved = file.rename(file.with_name("moved.gguf"))
    assert load_model(moved).record.name == str(moved)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    write_gguf(moved, tiny_model("llama", seed=1))
    assert load_model(moved).record.digest == sha256_file(moved)
    assert len([*cache.glob("*/weights")]) == 2


@pytest.mark.slow
def test_second_process_waits_for_a_conversion(file, cache):
    expected, found = scores(file), []
    (folder,) = cache.glob("*/weights")
    shutil.rmtree(folder)
    thread = threading.Thread(target=lambda: found.append(scores(file)))
    with lock(folder.with_name(".weights.lock"), folder):
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join()
    assert (found[0] == expected).all()
    assert not [*cache.rglob(".*")]


def test_tokenizer_is_read_without_converting_the_weights(file, cache):
    tokenizer = load_tokenizer(str(file))
    assert tokenizer("Yes or no")["input_ids"] == byte_bpe()("Yes or no")["input_ids"]
    assert not [*cache.glob("*/weights")]


def test_other_files_of_the_folder_are_not_read(file):
    expected = scores(file)
    for name in ("config.json", "tokenizer_config.json", "adapter_config.json", "generation_config.json"):
        (file.parent / name).write_text("{}")
    (file.parent / "chat_template.jinja").write_text("other")
    shutil.rmtree(file.parent / "cache")
    assert (scores(file) == expected).all()
    assert load_model(file).tokenizer.chat_template != "other"


def test_model_object_from_a_gguf_file_finds_its_tokenizer(file):
    task = make_task()
    assert (audit(load_model(file).model, task).scores == audit(file, task).scores).all()


@pytest.mark.slow
def test_adapter_names_the_gguf_file_and_is_audited_on_it(file, tmp_path, caplog):
    task = make_task()
    config = F2CConfig(max_steps=2, learning_rate=1e-2, lora_r=4, use_cpu=True, per_device_train_batch_size=4)
    run = train(file, task, config, tmp_path / "run", quiet=True, keep_worse=True)
    assert f'"base_model_name_or_path": "{file}"' in (run.adapter / "adapter_config.json").read_text()
    card = (run.adapter / "README.md").read_text()
    assert "base_model: tiny.gguf" in card
    assert 'load_classifier("path/to/this/folder")' in card
    assert str(tmp_path) not in card
    record = RunRecord.read(run.out)
    card = model_card(replace(record, model=replace(record.model, name="org/tiny-GGUF/tiny.gguf")))
    assert "base_model: org/tiny-GGUF\n" in card
    assert 'load_model("org/tiny-GGUF/tiny.gguf", adapter=' in card
    assert audit(load_model(file, adapter=run.adapter), task).scores.shape == audit(file, task).scores.shape
    other = write_gguf(tmp_path / "other.gguf", tiny_model("llama", seed=1))
    load_model(other, adapter=run.adapter)
    assert "W-ADAPTER" in caplog.text


def test_name_of_a_repository_and_a_file_is_found_in_the_cache_of_the_hub(file, tmp_path, monkeypatch):
    commit, cached = "1" * 40, tmp_path / "hub" / "models--org--tiny-GGUF"
    (cached / "snapshots" / commit).mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    shutil.copy(file, cached / "snapshots" / commit / "tiny.gguf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    loaded = load_model("org/tiny-GGUF/tiny.gguf")
    assert (loaded.record.name, loaded.record.revision) == ("org/tiny-GGUF/tiny.gguf", commit)
    assert loaded.record.digest == sha256_file(file)
    rejected("org/tiny-GGUF/other.gguf", "cannot download", "org/tiny-GGUF/other.gguf")


def test_missing_file_is_rejected(tmp_path):
    rejected(tmp_path / "missing.gguf", "missing.gguf does not exist")
    rejected("missing.gguf", "missing.gguf does not exist")


def test_missing_package_is_reported(file, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest))
    rejected(file, "-m pip install 'gguf>=0.17' 'transformers>=5.23'")


ONES = np.ones(8, np.float32)


@pytest.fixture
def assert_not_converted(tmp_path, cache):
    """Check that a file with this content is rejected, and that nothing of it is in the cache."""

    def check(words, **content):
        rejected(write_gguf(tmp_path / "other.gguf", **content), "other.gguf", words)
        assert not [*cache.glob("*/weights")]

    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"architecture": "grok"}, "grok"),
        # transformers ignores scaled rotary embeddings, and would give other scores.
        ({"more": {"rope_freqs.weight": ONES}}, "rope_freqs.weight"),
        ({"add": lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)}, "llama.rope.scaling.type"),
    ],
)
def test_file_that_would_give_other_scores_is_rejected(assert_not_converted, content, words):
    assert_not_converted(words, **content)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "words"), [(3, "layers.2"), (0, "blk.0."), (1, "blk.1.")])
def test_file_with_another_number_of_layers_is_rejected(assert_not_converted, layers, words):
    assert_not_converted(words, layers=layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.1.attn_q_norm.weight", "output.bias"])
def test_file_with_a_tensor_that_transformers_would_drop_is_rejected(assert_not_converted, name):
    assert_not_converted(f"{name}; 1 such tensors", more={name: ONES})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "damage"),
    [*(("weights", damage) for damage in ("bit", "cut", "gone", "undigested")), ("tokenizer", "bit")],
)
def test_damaged_file_of_the_cache_is_converted_again(file, cache, part, damage):
    expected = scores(file)
    (folder,) = cache.glob(f"*/{part}")
    stored = folder / ("model.safetensors" if part == "weights" else "tokenizer.json")
    content = stored.read_bytes()
    damaged = {"bit": content[:-5] + bytes([content[-5] ^ 4]) + content[-4:], "cut": content[:-100]}
    if damage in damaged:
        stored.write_bytes(damaged[damage])
    else:
        (stored if damage == "gone" else folder / "digests.json").unlink()
    assert (scores(file) == expected).all()
    assert stored.read_bytes() == content


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.1, 0.5, 0.99])
def test_truncated_file_is_rejected(file, share, cache):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    rejected(file, "tiny.gguf")
    assert not [*cache.glob("*/weights")]


def test_readonly_cache_is_reported(file, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    refused(r"E-OUT-PATH.*XDG_CACHE_HOME", load_model, file)


def test_study_identifies_a_gguf_file_by_its_content(file):
    keys = [{cell.key for cell in plan(setup=Setup(str(file), device="cpu")).cells}]
    moved = file.rename(file.with_name("moved.gguf"))
    keys.append({cell.key for cell in plan(setup=Setup(str(moved), device="cpu")).cells})
    write_gguf(moved, tiny_model("llama", seed=1))
    keys.append({cell.key for cell in plan(setup=Setup(str(moved), device="cpu")).cells})
    assert keys[0] == keys[1]
    assert not keys[0] & keys[2]
