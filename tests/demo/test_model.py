"""The shipped model: small, readable by stock classes, and as uneven over templates as its figures say."""

import logging

import pytest
import torch
from evidence.demo_model import END
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from flip_flop.evaluation.audit import audit
from flip_flop.files import sha256_file
from flip_flop.scoring import load_model
from flip_flop.scoring.models import EMBEDDED_MODEL
from flip_flop.tasks import load_task

DIGESTS = {
    "config.json": "685e5bbfa6435cd3a7231312b5ebfb38f7b8392c10910b8b508eda242aa2de09",
    "model.safetensors": "6ee39acdb896b703d7631f6696feddabf54c128195c2c625684781ae060cb91d",
    "tokenizer.json": "cdfd87558a0789297294006dba201df638543af65c661ef8e355e4cce0192423",
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def test_the_shipped_bytes_are_those_whose_figures_are_reported():
    assert {name: sha256_file(EMBEDDED_MODEL / name) for name in DIGESTS} == DIGESTS


def test_stock_classes_load_the_model_without_a_warning():
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("transformers"), "handlers", [handler])
        model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
        tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    assert messages == []
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings >= 512
    assert 100_000 < sum(parameter.numel() for parameter in model.parameters()) < 200_000
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.chat_template is tokenizer.bos_token is None
    assert tokenizer.eos_token == tokenizer.pad_token == END


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_reads_any_text_and_gives_it_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_the_base_model_is_uneven_over_templates_and_its_vote_is_better_than_its_templates():
    task = load_task("demo")
    assert len(task.templates) >= 8
    found = audit(load_model("demo"), task, quiet=True).metrics
    assert 0.70 <= found["observed_agreement"] <= 0.78
    assert 0.08 <= found["f1_std"] <= 0.12
    assert 0.75 <= found["mean_f1"] <= 0.86
    assert found["vote_f1"] >= max(0.93, found["mean_f1"] + 0.08)
