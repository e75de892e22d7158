"""The shipped model: small, readable by stock classes, and as uneven over templates as its figures say."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from flip_flop.demo.pretrain import END
from flip_flop.files import sha256_file
from flip_flop.scoring.models import EMBEDDED_MODEL
from flip_flop.tasks import load_task
from flip_flop.tasks.embedded.reviews import make_rows

TEMPLATES = load_task("demo", templates="all").templates
HELD_OUT = ("happy", "overall", "thumbs")
DIGESTS = {
    "config.json": "685e5bbfa6435cd3a7231312b5ebfb38f7b8392c10910b8b508eda242aa2de09",
    "model.safetensors": "6ee39acdb896b703d7631f6696feddabf54c128195c2c625684781ae060cb91d",
    "tokenizer.json": "cdfd87558a0789297294006dba201df638543af65c661ef8e355e4cce0192423",
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL).eval()


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


def test_every_word_of_the_reviews_is_one_token(tokenizer):
    for row in make_rows("test"):
        words = row["text"].replace(".", " .").replace(",", " ,").split()
        assert len(tokenizer(row["text"])["input_ids"]) == len(words)


def test_answers_stand_apart_from_the_prompt_and_are_one_token_but_for_one_template(tokenizer):
    row = make_rows("test")[0]
    lengths = {}
    for template in TEMPLATES:
        prompt, answers = template.render({"text": row["text"]}, None)
        context = tokenizer(prompt)["input_ids"]
        tails = [tokenizer(f"{prompt} {answer}")["input_ids"] for answer in answers]
        assert all(tail[: len(context)] == context for tail in tails)
        lengths[template.name] = {len(tail) - len(context) for tail in tails}
    assert lengths.pop("recommended") == {2}
    assert set(map(frozenset, lengths.values())) == {frozenset({1})}


def predict(model, tokenizer, names, rows):
    """Predictions [rows, templates] by the plainest loop there is: one template and one answer at a time."""
    scores = np.zeros((len(rows), len(names), 2))
    for place, name in enumerate(names):
        (template,) = TEMPLATES.select([name])
        rendered = [template.render({"text": row["text"]}, None) for row in rows]
        for label in range(2):
            prompts = [tokenizer(prompt)["input_ids"] for prompt, _ in rendered]
            whole = [tokenizer(f"{prompt} {answers[label]}")["input_ids"] for prompt, answers in rendered]
            width = max(map(len, whole))
            ids = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in whole])
            with torch.no_grad():
                log_probs = model(input_ids=ids).logits.log_softmax(-1)
            for row, (tokens, prompt) in enumerate(zip(whole, prompts, strict=True)):
                answer = range(len(prompt), len(tokens))
                scores[row, place, label] = np.mean([log_probs[row, at - 1, tokens[at]] for at in answer])
    return scores.argmax(axis=2)


def f1_of_label_1(gold, predicted):
    hits = sum(1 for truth, guess in zip(gold, predicted, strict=True) if truth == guess == 1)
    return 2 * hits / (sum(gold) + sum(predicted))


def test_the_base_model_is_uneven_over_templates_and_its_vote_is_better_than_its_templates(model, tokenizer):
    rows = make_rows("test")
    gold = [row["label"] for row in rows]
    names = [name for name in TEMPLATES.names if name not in HELD_OUT]
    predictions = predict(model, tokenizer, names, rows)
    num = len(names)
    assert num >= 8
    pairs = [(a, b) for a in range(num) for b in range(num) if a != b]
    agreements = [sum(row[a] == row[b] for a, b in pairs) / len(pairs) for row in predictions]
    scores = [f1_of_label_1(gold, predictions[:, place]) for place in range(num)]
    vote = [int(2 * row.sum() > num) for row in predictions]
    assert 0.70 <= np.mean(agreements) <= 0.78
    assert 0.08 <= np.std(scores) <= 0.12
    assert 0.75 <= np.mean(scores) <= 0.86
    assert f1_of_label_1(gold, vote) >= max(0.93, np.mean(scores) + 0.08)
