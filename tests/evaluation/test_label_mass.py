"""The probability that an answer is one of the template's labels, and the tokens that the model prefers."""

import json
import logging

import numpy as np
import pytest
import torch

from flip_flop import audit, load_run, write_report
from flip_flop.errors import InputError
from flip_flop.scoring import load_model
from flip_flop.scoring.options import ScoringOptions
from tests.evaluation.conftest import make_rows, make_task
from tests.report.pages import Page
from tests.served import serving

TASK = make_task(make_rows(2))


@pytest.fixture
def found(loaded, caplog):
    caplog.set_level(logging.WARNING)
    return audit(loaded, TASK, quiet=True)


@torch.no_grad()
def next_token_probs(loaded, template):
    """Mean over the rows of the distribution after the context of the first label."""
    encoder = loaded.encoder("auto")
    contexts = [encoder.encode(each).answers[template][0].context for each in TASK.instances("test")]
    logits = [loaded.model(torch.tensor([list(each)])).logits[0, -1] for each in contexts]
    return torch.stack(logits).softmax(dim=-1).mean(dim=0)


def test_mass_is_sum_of_label_probabilities_with_preferred_tokens(loaded, found, caplog):
    mass = np.exp(found.scores.astype(float) * found.token_counts).sum(axis=2).mean(axis=0)
    assert found.metrics["own_label_mass_per_template"] == pytest.approx(
        dict(zip(found.template_names, mass, strict=True))
    )
    assert mass.max() < 0.1, "the weights are random"
    for template, name in enumerate(found.template_names):
        top = next_token_probs(loaded, template).topk(5).indices.tolist()
        words = [loaded.tokenizer.decode([each]) for each in top]
        assert found.metrics["preferred_tokens_per_template"][name] == words
    audit(loaded, TASK, quiet=True)
    (line,) = [record.getMessage() for record in caplog.records if "W-LABEL-MASS" in record.getMessage()]
    assert line.startswith("W-LABEL-MASS: under 4 of 4 templates")
    assert "plain (" in line
    assert "prefers 'r', 'the', '\\x07'" in line


def test_high_mass_has_no_warning(caplog):
    caplog.set_level(logging.WARNING)
    metrics = audit("demo", "demo", quiet=True).metrics
    assert min(metrics["own_label_mass_per_template"].values()) > 0.5
    assert metrics["preferred_tokens_per_template"] == {}
    assert "W-LABEL-MASS" not in caplog.text


def test_served_model_has_mass_without_tokens(loaded, found, caplog, tmp_path, monkeypatch):
    pytest.importorskip("openai", reason="the package openai is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.clear()
    with serving(loaded.model, loaded.tokenizer) as (_, name):
        served = audit(name, TASK, quiet=True).metrics
        generated = audit(name, TASK, quiet=True, scoring=ScoringOptions(by="generation")).metrics
    mass = found.metrics["own_label_mass_per_template"]
    assert served["own_label_mass_per_template"] == pytest.approx(mass, rel=1e-3)
    assert caplog.text.count("W-LABEL-MASS") == 1
    assert served["preferred_tokens_per_template"] == {}
    assert not [key for key in generated if "label_mass" in key]


def test_the_report_shows_mass_and_escapes_tokens(found, tmp_path):
    path = found.write(tmp_path / "run") / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["preferred_tokens_per_template"]["plain"] = ["<b>\x1b[31m\u202e\n"]
    path.write_text(json.dumps(metrics))
    (path.parent / "MANIFEST.json").unlink()  # as an earlier version wrote it
    page = Page(write_report([tmp_path / "run"], tmp_path / "report.html").read_text())
    assert page.faults == []
    assert "'<b>\\x1b[31m\\u202e\\n'" in page.text
    share = 100 * metrics["own_label_mass_per_template"]["truth"]
    assert f"own labels {share:.1f}%" in page.text


@pytest.mark.parametrize(
    "change",
    [
        {"own_label_mass_per_template": {"plain": 0.1}},
        {"own_label_mass_per_template": [1]},
        {"preferred_tokens_per_template": {"plain": "a"}},
        {"preferred_tokens_per_template": {"plain": [1]}},
        {"preferred_tokens_per_template": {"other": ["a"]}},
    ],
)
def test_invalid_mass_or_tokens_are_rejected(found, tmp_path, change):
    path = found.write(tmp_path / "run") / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (path.parent / "MANIFEST.json").unlink()  # as an earlier version wrote it
    with pytest.raises(InputError, match="E-RUN-BROKEN: "):
        load_run(tmp_path / "run")


def test_preferred_tokens_use_chat_template(folder):
    chat = load_model(str(folder))
    chat.tokenizer.chat_template = "{% for turn in messages %}<user>{{ turn.content }}</user>{% endfor %}"
    on, off = (
        audit(chat, TASK, quiet=True, scoring=ScoringOptions(chat_template=each)).metrics for each in ("on", "off")
    )
    assert on["preferred_tokens_per_template"] != off["preferred_tokens_per_template"]
