"""Untrusted models, adapters and chat templates have limits of size and time."""

import itertools
import json
import shutil
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import PromptEncoder, load_model
from flip_flop.training import F2CConfig
from flip_flop.training.adapter import prepare_model
from tests.tiny import byte_bpe, save_tiny, tiny_model

SLOW = "(([a-z_.0-9]+)+)+X"
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "head_dim")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    lora = LoraConfig(task_type="CAUSAL_LM", r=3, target_modules="all-linear")
    get_peft_model(load_model(str(base)).model, lora).save_pretrained(folder)
    return folder


def changed(folder, to, file, values):
    config = json.loads((shutil.copytree(folder, to) / file).read_text())
    (to / file).write_text(json.dumps(config | values))
    return to


def refused_within_two_seconds(action):
    started = time.process_time()
    with pytest.raises(InputError) as error:
        action()
    assert time.process_time() - started < 2
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("key", "value"), [*itertools.product(SIZES, (10**9, 1000_001, -1, "many", [3], 0.5))])
def test_config_with_wrong_size_is_rejected(base, tmp_path, key, value):
    folder = changed(base, tmp_path / "model", "config.json", {key: value, "layer_types": None})
    assert refused_within_two_seconds(lambda: load_model(str(folder))).startswith("E-MODEL-FILE: ")


@pytest.mark.parametrize(
    "values",
    [
        {"r": 10**6},
        {"r": -1},
        {"r": "large"},
        {"rank_pattern": {"q_proj": 10**7}},
        {"rank_pattern": "q_proj"},
        {"rank_pattern": {SLOW: 3}},
        {"alpha_pattern": {SLOW: 3}},
        {"target_modules": SLOW},
        {"target_modules": "(" * 500},
        {"exclude_modules": SLOW},
        {"layers_to_transform": [0], "layers_pattern": SLOW},
    ],
    ids=lambda values: json.dumps(values)[:40],
)
def test_adapter_config_with_wrong_rank_or_slow_pattern_is_rejected(base, adapter, tmp_path, values):
    folder = changed(adapter, tmp_path / "adapter", "adapter_config.json", values)
    line = refused_within_two_seconds(lambda: load_model(str(base), adapter=folder))
    assert line.startswith("E-ADAPTER-KEYS: ")


LOOPS = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcde") + "{% endfor %}" * 5


@pytest.mark.parametrize(
    ("chat_template", "reason"),
    [
        (LOOPS, "more than 0.5 seconds"),
        ("{% set x = 10 ** (10 ** 8) %}", "a power"),
        ("{{ 9 ** 9 ** 9 }}", "a power"),
        ("{{ 'a'.center(20000000) }}", "it writes 20,000,000 characters; 10,000,000 are allowed"),
    ],
    ids=["loops", "power", "constant", "length"],
)
def test_slow_chat_template_is_rejected(chat_template, reason):
    tokenizer = byte_bpe().__class__(tokenizer_object=byte_bpe().backend_tokenizer, eos_token="<|end|>")
    tokenizer.chat_template = chat_template
    row = RenderedInstance("7", ("Good?",), (("No", "Yes"),), None)
    line = refused_within_two_seconds(lambda: PromptEncoder(tokenizer).encode(row))
    assert line.startswith(f"E-CHAT-TEMPLATE: The tokenizer's chat template fails on a user's turn: {reason}")


def test_size_check_runs_no_remote_code(base, tmp_path):
    code = {"model_type": "vit", "auto_map": {"AutoModelForCausalLM": "own.Model"}}
    folder = changed(base, tmp_path / "model", "config.json", code)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: ...\n")
    refused_within_two_seconds(lambda: load_model(str(folder)))
    assert not (tmp_path / "ran").exists()


def test_lora_rank_above_all_projections_is_rejected():
    config = F2CConfig(output_dir="out", lora_r=100_000, lora_dropout=0.0)
    line = refused_within_two_seconds(lambda: prepare_model(tiny_model("llama"), config))
    assert line.startswith("E-CONFIG-VALUE: lora_r is 100,000, but the widest projection of LlamaForCausalLM")


def test_weights_of_exact_file_size_are_accepted(tmp_path):
    for architecture in ("gpt2", "qwen2"):  # of tied and of untied embeddings
        folder = save_tiny(tmp_path / architecture, architecture=architecture)
        with torch.random.fork_rng(devices=[]):
            assert load_model(str(folder)).record.num_parameters > 0
