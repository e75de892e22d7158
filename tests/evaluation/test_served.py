"""Served models have the scores and commands of local models."""

import base64
import gzip
import re
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from flip_flop import ScoringOptions, audit, load_run, predict, write_predictions, write_report
from flip_flop.errors import InputError
from flip_flop.metrics import Scores
from flip_flop.scoring import CausalLMScorer, EndpointScorer, Scorer
from tests.evaluation.conftest import make_rows, make_task
from tests.served import serving
from tests.tiny import metaspace, tiny_model, with_chat_template

pytest.importorskip("openai", reason="the package openai is not installed")
GENERATION = ScoringOptions(by="generation")


@pytest.fixture
def served(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    with serving(loaded.model, loaded.tokenizer) as found:
        yield found


@pytest.fixture
def task():
    return make_task()


def test_served_scores_match_local_scores(served, loaded, task):
    ours, theirs = audit(loaded, task, quiet=True), audit(served[1], task, quiet=True)
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert (theirs.token_counts == ours.token_counts).all()
    assert theirs.metrics["observed_agreement"] == ours.metrics["observed_agreement"]
    assert theirs.record.model.name == "tiny"
    assert theirs.record.scoring["num_asked"] == len(served[0].requests) == theirs.scores.size
    assert [row["vote"] for row in predict(served[1], task, quiet=True)] == [
        row["vote"] for row in predict(loaded, task, quiet=True)
    ]


def test_merged_tokens_are_cut_like_local_tokens(tmp_path, monkeypatch):
    """Sentencepiece's kind writes a prompt's last space into the answer's token, adds a BOS, and knows few words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, tokenizer = tiny_model("llama", vocab_size=len(metaspace())), metaspace()
    strange = (("ends in a space ", "Yes", "Yesterday"), ("is Über-hot\n", "é", "Nein"), ("a ba", "d", "dly"))
    rows = [
        {"id": f"{number}", "prompts": [prompt], "choices": [choices], "label": None}
        for number, (prompt, *choices) in enumerate(strange)
    ]
    with serving(model, tokenizer) as (_, name):
        ours, theirs = audit((model, tokenizer), rows, quiet=True), audit(name, rows, quiet=True)
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert (theirs.token_counts == ours.token_counts).all()
    assert theirs.record.scoring["boundary_merged"] == ours.record.scoring["boundary_merged"]


@pytest.mark.parametrize("keys", [{}, {"system": "Be brief.", "assistant_prefix": "My answer:"}])
def test_chat_template_of_given_tokenizer_is_used(served, loaded, task, keys):
    task = replace(task, **keys)
    tokenizer = with_chat_template(loaded.tokenizer)
    ours, theirs = audit(loaded, tokenizer, task, quiet=True), audit(served[1], tokenizer, task, quiet=True)
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert [each.prompts for each in theirs.instances] == [each.prompts for each in ours.instances]
    with pytest.raises(InputError, match=r"E-CHAT-TEMPLATE: .* --tokenizer"):
        audit(served[1], task, quiet=True, scoring=ScoringOptions(chat_template="on", api="echo"))


def test_requests_are_retried_and_key_is_hidden(served, task, tmp_path):
    server, name = served
    server.fails = [429, 503, 500]
    found = audit(name, task, quiet=True)
    assert found.record.scoring["num_asked"] == found.scores.size == len(server.requests) - 3
    assert set(server.keys) == {"Bearer a-secret"}
    found.write(tmp_path / "out")
    server.fails = [401]
    with pytest.raises(
        InputError, match=r"E-ENDPOINT-ANSWER: .* tiny at http.* answers 401: .*no: Bearer \*\*\*"
    ) as told:
        audit(name, make_task(make_rows(7)), quiet=True)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [each for each in [*files, str(told.value).encode()] if b"a-secret" in each]


def test_interrupted_audit_continues_with_stored_answers(served, task):
    server, name = served
    server.dies_after = 17
    one_by_one = ScoringOptions(concurrency=1)
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .* 17 of 60 answers are stored"):
        audit(EndpointScorer(name, retries=0), task, quiet=True, scoring=one_by_one)
    server.dies_after = None
    found = audit(name, task, quiet=True)
    assert found.record.scoring["num_asked"] == 43
    texts = [request["prompt"] for request in server.requests]
    assert len({*texts}) == 60
    server.model = tiny_model(seed=8)
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .*Remove .*\.jsonl"):
        audit(name, task, quiet=True)


def test_rejected_prompt_is_named_without_hint_to_continue(served, task):
    served[0].fails = [400] * 3
    with pytest.raises(
        InputError, match=r"E-ENDPOINT-ANSWER: Instance 'test-1', template 'plain': .*answers 400"
    ) as told:
        audit(served[1], task, quiet=True, scoring=ScoringOptions(concurrency=1))
    assert "are stored" not in str(told.value)


def test_interrupt_does_not_wait_for_replies(served, task, monkeypatch):
    """As by Ctrl-C: what interrupts the reading of answers ends it, while the server still thinks."""
    served[0].waits.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of the tests' ignores it
    interrupt = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    answer = threading.Timer(10, served[0].waits.set)
    for timer in (interrupt, answer):
        timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            audit(served[1], task, quiet=True)
        assert not served[0].waits.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
        answer.cancel()
        served[0].waits.set()


def test_indistinguishable_answers_are_rejected(served):
    rows = [{"id": "a", "prompts": ["Is it?"], "choices": [["Yes", "yes"]], "label": None}]
    with pytest.raises(InputError, match=r"E-ENDPOINT: Generated texts cannot distinguish the answers 'Yes', 'yes'"):
        audit(served[1], rows, quiet=True, scoring=GENERATION)


def test_missing_log_probabilities_suggest_generation(served, task):
    served[0].log_probs = False
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: .* Add --by generation"):
        audit(served[1], task, quiet=True)


def test_generated_answers_have_no_probability_metrics(served, task, tmp_path):
    server, name = served
    server.writes = lambda prompt: (
        "  good. It was" if "Good, bad" in prompt else "I do not know" if "false" in prompt
        else "Guaranteed!" if "Verdict" in prompt else "no\nyes"
    )  # fmt: skip
    found = audit(name, task, quiet=True, scoring=GENERATION)
    assert found.predictions.tolist() == [[1, -1, 1, 0]] * 5
    assert found.metrics["unmapped_share_per_template"] == {"plain": 0.0, "truth": 1.0, "long": 0.0, "terse": 0.0}
    assert found.metrics["unmapped_share"] == 0.25
    assert found.metrics["observed_agreement"] == pytest.approx(2 * 1 / (4 * 3))
    assert found.metrics["label_shares"] == [0.25, 0.5, 0.0]
    accuracy = [np.mean(found.gold == answer) for answer in (1, -1, 1, 0)]
    assert list(found.metrics["accuracy_per_template"].values()) == accuracy
    for metric in ("posix", "ensemble_f1"):
        assert found.metrics[metric] is None
    assert "no probabilities" in found.metrics["absent"]["posix"]
    stored = load_run(found.write(tmp_path / "run"))
    assert (stored.predictions == found.predictions).all()
    assert [each.written for each in stored.instances] == [
        ("good. It was", "I do not know", "Guaranteed!", "no\nyes")
    ] * 5
    assert stored.unparsed == "truth 5 x 'I do not know'"
    assert set(found.to_pandas("flips")["label"]) == {"no label", "0"}
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "25.0% of its generated answers match no label" in page
    assert "Most frequent: truth 5 x" in page
    instances = gzip.decompress(base64.b64decode(re.search(r'>\s*"?(H4sI[A-Za-z0-9+/=]+)', page)[1])).decode()
    assert "[the model wrote] I do not know" in instances
    rows = predict(name, task, quiet=True, scoring=GENERATION)
    assert (rows[0]["vote"], rows[0]["templates"]["truth"]) == (1, {"label": None, "probs": None})
    write_predictions(rows, (0, 1, 2), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0].count(": label") == 4
    with pytest.raises(InputError, match=r"E-ENDPOINT: --calibrate batch"):
        audit(name, task, quiet=True, scoring=GENERATION, calibrate="batch")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "--model", "openai:http://HOST:PORT/v1#x"], "E-ENDPOINT: .* is not an endpoint and model"),
        (["audit", "--model", "openai:http://[::1/v1#x"], "E-ENDPOINT: .* is not an endpoint and model"),
        (["audit", "--model", "openai:localhost#x"], "E-ENDPOINT: .* is not an endpoint and model. Write openai:http"),
        (["audit", "--model", "openai:http://me:pw@h/v1#x"], "E-ENDPOINT: A key does not belong .*OPENAI_API_KEY"),
        (
            ["audit", "--model", "openai:http://h/v1#x", "--dtype", "float32"],
            "E-ENDPOINT: --dtype applies",
        ),
        (
            ["train", "--model", "openai:http://h/v1#x"],
            "E-ENDPOINT: openai:http://h/v1#x is a served model: .* audit or predict",
        ),
        (
            ["audit", "--model", "demo", "--by", "generation"],
            "E-ENDPOINT: --by generation applies only to served",
        ),
    ],
)
def test_options_of_other_models_are_rejected(flip_flop, tmp_path, arguments, words):
    found = flip_flop(*arguments, "--task", "demo", "--out", tmp_path / "out")
    assert found.code == 2
    assert len(found.err.splitlines()) == 1
    assert re.search(words, found.err)


class Constant(Scorer):
    """A custom scorer."""

    def __init__(self, record):
        self.record = record

    def scores(self, instances, options=None, **_):
        shape = (len(instances), len(instances[0].choices), len(instances[0].choices[0]))
        return Scores.of(instances, np.log(np.full(shape, 1 / shape[2], np.float32)), np.ones(shape, np.int64))


def test_audit_accepts_custom_scorer(loaded, task):
    assert audit(Constant(loaded.record), task, quiet=True).metrics["label_shares"] == [1.0, 0.0, 0.0]
    assert (audit(CausalLMScorer(loaded), task, quiet=True).scores == audit(loaded, task, quiet=True).scores).all()
