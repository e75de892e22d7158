"""Loading of models and adapters. Invalid folders are rejected, and weights are never random."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertConfig, Qwen2ForSequenceClassification, T5Config

from flip_flop import PromptEncoder, audit, load_model, score
from flip_flop.files import sha256_file, sha256_json
from flip_flop.prompts import RenderedInstance
from flip_flop.record import RunRecord, TaskRecord
from flip_flop.scoring.options import ScoringOptions
from tests.exact import assert_scores
from tests.refused import refused
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe, save_tiny, tiny_model

QUERY = "model.layers.0.self_attn.q_proj.weight"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A run's folder with an adapter that changes the scores."""
    model = load_model(str(base))
    config = LoraConfig(task_type="CAUSAL_LM", r=3, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model.model, config)
    run = tmp_path_factory.mktemp("runs") / "f2c"
    adapted.save_pretrained(run / "adapter")
    task = TaskRecord(name="toy", labels=(0, 1), digest="", split="train", templates=())
    RunRecord(kind="train", task=task, model=model.record, training={"method": "f2c"}).write(run)
    return run


@pytest.fixture
def copy(base, tmp_path):
    return shutil.copytree(base, tmp_path / "copy")


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def change(folder, change_weights, name="*.safetensors"):
    (file,) = folder.glob(name)
    weights = load_file(file)
    change_weights(weights)
    save_file(weights, file, metadata={"format": "pt"})


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def rejected(code, *arguments, **keywords):
    return refused(f"^{code}: ", load_model, *map(str, arguments), **keywords)


def instances():
    prompts = ("The food was good. Yes or no?", "Question: is it dirty? Answer:", "True?")
    return [RenderedInstance("1", prompts, (("No", "Yes"), ("Never", "Maybe"), ("False", "True")), None)]


def test_loaded_model_scores_like_saved_model(base):
    loaded = load_model(str(base))
    expected = naive_scores(tiny_model("qwen2"), [PromptEncoder(byte_bpe()).encode(row) for row in instances()])
    assert_scores(loaded.model, score(loaded, instances()).scores.values, expected)
    assert loaded.record.num_parameters == sum(value.numel() for value in tiny_model("qwen2").parameters())
    assert loaded.record.dtype == "float32"
    assert loaded.adapter is None


def test_digest_depends_only_on_weights(base, copy, tmp_path):
    (copy / "notes.txt").write_text("mine")
    digest = load_model(str(base)).record.digest
    assert load_model(str(copy)).record.digest == digest
    change(copy, lambda weights: weights[QUERY].mul_(1.5))
    assert load_model(str(copy)).record.digest != digest


def shard(folder, names, content=None):
    """Move each tensor of a folder to the next of these files in turn, listed in an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    keys = {key: names[at % len(names)] for at, key in enumerate(weights)}
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        save = save_file if path.suffix == ".safetensors" else torch.save
        save({key: value for key, value in weights.items() if keys[key] == name}, path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": keys} if content is None else content))


def test_digest_covers_exactly_the_loaded_shards(copy):
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    weights = load_file(copy / "model.safetensors")
    shard(copy, names)
    digest = load_model(str(copy)).record.digest
    assert digest == sha256_json({name: sha256_file(copy / name) for name in names})
    save_file(weights, copy / "consolidated.safetensors")
    assert load_model(str(copy)).record.digest == digest
    (copy / names[1]).unlink()
    assert names[1] in rejected("E-MODEL-FILE", copy)


def test_digest_covers_the_weights_that_config_json_names(copy):
    change_config(copy, transformers_weights="other.safetensors")
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    save_file(load_file(copy / "other.safetensors"), copy / "model.safetensors")
    digest = load_model(str(copy)).record.digest
    change(copy, lambda weights: weights[QUERY].mul_(1.5), "other.safetensors")
    assert load_model(str(copy)).record.digest != digest


def test_embedded_model_is_loaded_by_name():
    loaded = load_model("demo")
    assert (loaded.record.name, loaded.record.is_demo) == ("demo", True)
    assert score(loaded, instances(), ScoringOptions("off", "padded", 50)).settings["backend"] == "padded"


def test_missing_folder_is_rejected():
    assert "./models/tiny does not exist" in rejected("E-MODEL-FILE", "./models/tiny")
    rejected("E-MODEL-FILE", "/no/such/folder")
    rejected("E-MODEL-FILE", "no-such-name-on-the-hub")


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_folder_without_tokenizer_is_rejected(tmp_path, architecture):
    folder = save_tiny(tmp_path / architecture, architecture=architecture)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    rejected("E-MODEL-FILE", folder)


def _pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _cut_short(file):
    file.write_bytes(file.read_bytes()[:-100])


def _write_bert(folder):
    BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2).save_pretrained(folder)


def _write_classifier(folder):
    """Whose embeddings are tied, so that no weight of a language model is missing."""
    Qwen2ForSequenceClassification.from_pretrained(folder).save_pretrained(folder)


def _move_weights(folder, name):
    """To a file that config.json names."""
    (folder / "model.safetensors").rename(folder / name)
    change_config(folder, transformers_weights=name)


def _add_adapter(folder):
    config = LoraConfig(task_type="CAUSAL_LM", r=3, target_modules="all-linear")
    get_peft_model(load_model(str(folder)).model, config).save_pretrained(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../outside.safetensors", "sub/inside.safetensors"])
def test_index_of_other_files_is_rejected(copy, name):
    shard(copy, [name])
    assert repr(name) in rejected("E-MODEL-FILE", copy)


@pytest.mark.parametrize(
    "content", [[], {}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": [["b"]]}}]
)
def test_index_without_names_of_files_is_rejected(copy, content):
    shard(copy, ["a.safetensors"], content)
    assert "weights" in rejected("E-MODEL-FILE", copy)


def _unlink(name):
    return lambda folder: (folder / name).unlink()


def _write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def _copy_weights(name):
    return lambda folder: shutil.copy(folder / WEIGHTS, folder / name)


def _make_pipe(folder):
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def _link_to_device(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def _drop_query(folder):
    change(folder, lambda weights: weights.pop(QUERY))


def _update(key, *shape):
    return lambda folder: change(folder, lambda weights: weights.update({key: torch.zeros(shape)}))


OUTSIDE = "../outside.safetensors"
SHARD = "shard-1-model-1.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\n"
# name: (damage, words of the error)
FILES = {
    "weights outside": (lambda folder: _move_weights(folder, OUTSIDE), repr(OUTSIDE)),
    "a pipe": (_make_pipe, "model.safetensors is a pipe or a device"),
    "a device": (_link_to_device, "config.json is a pipe or a device"),
    "a distributed checkpoint": (_copy_weights(SHARD), SHARD),
    "an adapter": (_add_adapter, "--adapter"),
    "no config": (_unlink("config.json"), "copy"),
    "no weights": (_unlink(WEIGHTS), "copy"),
    "pickled weights": (_pickle, "weights"),
}
CONTENTS = {
    "a pointer": (_write(WEIGHTS, POINTER), "weights"),
    "an empty file": (_write(WEIGHTS, b""), "weights"),
    "weights cut short": (lambda folder: _cut_short(folder / WEIGHTS), "weights"),
    "a missing tensor": (_drop_query, QUERY),
    "a tensor of another shape": (_update(QUERY, 8, 9), QUERY),
    "no causal LM": (_write_bert, "weights"),
    "a broken config": (_write("config.json", b"{"), "model"),
}
DAMAGES = FILES | CONTENTS


@pytest.mark.parametrize("name", DAMAGES)
def test_folder_without_model_files_is_rejected(copy, name):
    damage, words = DAMAGES[name]
    damage(copy)
    assert words in rejected("E-MODEL-FILE", copy)


KINDS = {
    "an encoder-decoder": (lambda folder: T5Config().save_pretrained(folder), "encoder-decoder"),
    "a classifier by its config": (_write_classifier, "Qwen2ForSequenceClassification"),
    "a classifier by its weights": (_update("score.weight", 2, 32), "score.weight"),
}


@pytest.mark.parametrize("name", KINDS)
def test_folder_without_causal_lm_is_rejected(copy, name):
    write, words = KINDS[name]
    write(copy)
    assert words in rejected("E-MODEL-KIND", copy)


def test_remote_code_is_not_run(copy):
    code = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    change_config(copy, model_type="mine", auto_map=code)
    (copy / "mine.py").write_text(f"open({str(copy / 'ran')!r}, 'w')\n")
    rejected("E-MODEL-FILE", copy)
    assert not (copy / "ran").exists()


def test_unknown_dtype_and_device_are_rejected(base):
    assert "auto, bfloat16, float16, float32" in rejected("E-MODEL-DEVICE", base, dtype="int8")
    rejected("E-MODEL-DEVICE", base, device="abacus")
    if not torch.cuda.is_available():
        rejected("E-MODEL-DEVICE", base, device="cuda")


def test_adapter_changes_scores_and_has_method_of_its_run(base, trained):
    loaded = load_model(str(base), adapter=trained / "adapter")
    assert loaded.adapter.method == "f2c"
    untrained = score(load_model(str(base)), instances()).scores.values
    assert not np.allclose(score(loaded, instances()).scores.values, untrained)
    assert loaded.record == load_model(str(base)).record


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_folder_without_adapter_files_is_rejected(base, run, missing):
    (run / "adapter" / missing).unlink()
    assert missing in rejected("E-ADAPTER", base, adapter=run / "adapter")
    rejected("E-ADAPTER", base, adapter=run)


def test_adapter_of_another_base_is_a_warning(tmp_path, run, caplog):
    load_model(str(save_tiny(tmp_path / "other", seed=7)), adapter=run / "adapter")
    assert "W-ADAPTER" in caplog.text


def _change_query(change_one):
    """Damage one tensor of an adapter."""

    def damage(weights):
        change_one(weights, next(key for key in weights if "layers.1.self_attn.q_proj.lora_A" in key))

    return lambda adapter: change(adapter, damage)


def _add_tensor(key):
    return lambda adapter: change(adapter, lambda weights: weights.update({key: torch.ones(4)}))


def _write_config(content):
    return lambda adapter: (adapter / "adapter_config.json").write_text(content)


@pytest.fixture
def assert_adapter_rejected(base, run):
    """Check that the damaged adapter is rejected with these words."""

    def check(damage, words):
        damage(run / "adapter")
        (run / "run.json").unlink()
        assert words in rejected("E-ADAPTER", base, adapter=run / "adapter")

    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    "change_one",
    [
        lambda weights, key: weights.pop(key),
        lambda weights, key: weights[key].fill_(float("nan")),
        lambda weights, key: weights.update({key: torch.zeros(3, 5)}),
        lambda weights, key: weights.update({key.replace("rs.1", "rs.9"): weights[key] + 1}),
    ],
)
def test_adapter_with_a_damaged_tensor_is_rejected(assert_adapter_rejected, change_one):
    assert_adapter_rejected(_change_query(change_one), "lora_")


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    ["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight", f"{QUERY[:-7]}.base_layer.weight", "other"],
)
def test_adapter_with_another_tensor_is_rejected(assert_adapter_rejected, key):
    assert_adapter_rejected(_add_tensor(f"base_model.model.{key}"), key)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "key"), [("XLORA", "adapters"), ("SHADOW", "shadow_model"), ("MAGIC", "folder")])
def test_adapter_of_a_kind_that_reads_other_files_is_rejected(assert_adapter_rejected, kind, key):
    content = {"peft_type": kind, "task_type": "CAUSAL_LM", key: "../outside"}
    assert_adapter_rejected(_write_config(json.dumps(content)), kind)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_adapter_with_a_broken_configuration_is_rejected(assert_adapter_rejected, content):
    assert_adapter_rejected(_write_config(content), "adapter")


@pytest.mark.slow
def test_adapter_that_is_cut_short_is_rejected(assert_adapter_rejected):
    assert_adapter_rejected(lambda adapter: _cut_short(adapter / "adapter_model.safetensors"), "adapter")


@pytest.mark.parametrize(
    "more",
    [
        {"modules_to_save": ["norm"]},
        {"modules_to_save": ["embed_tokens"], "use_dora": True},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"trainable_token_indices": [1, 2]},
        {"bias": "all"},
    ],
    ids=json.dumps,
)
def test_adapter_may_change_what_its_configuration_names(base, tmp_path, more):
    lora = LoraConfig(**{"task_type": "CAUSAL_LM", "r": 3, "target_modules": ["q_proj"]} | more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PEFT, for tied embeddings
        get_peft_model(load_model(str(base)).model, lora).save_pretrained(tmp_path / "adapter")
        load_model(str(base), adapter=tmp_path / "adapter")


def test_adapter_of_a_relative_path_keeps_its_training_in_another_folder(base, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(trained)
    loaded = load_model(base, adapter="adapter")
    monkeypatch.chdir(tmp_path)
    instance = RenderedInstance("1", ("Good?", "Fine?"), (("No", "Yes"),) * 2, 0)
    record = audit(loaded, [instance], quiet=True).record
    assert record.training["method"] == "f2c"
    assert record.to_json()["adapter"]["path"] == "adapter"
    assert "folder" not in record.to_json()["adapter"]


def test_types_of_torch_name_a_data_type_and_a_device(base):
    loaded = load_model(base, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (loaded.record.dtype, loaded.model.dtype) == ("bfloat16", torch.bfloat16)
