"""Served models have the scores and commands of local models; run.json marks scores that are not exact."""

import base64
import gzip
import json
import re
import signal
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from flip_flop import ScoringOptions, audit, load_run, predict, write_predictions, write_report
from flip_flop.evaluation.audit import ask_again
from flip_flop.metrics import Scores
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.scores import CausalLMScorer
from flip_flop.served.scorer import EndpointScorer
from tests.evaluation.conftest import make_rows, make_task
from tests.refused import refused
from tests.served import serving
from tests.tiny import metaspace, tiny_model, with_chat_template

pytest.importorskip("openai", reason="the package openai is not installed")
GENERATION = ScoringOptions(by="generation")
FEW = make_task(make_rows(2))
CHAT, OFF = ScoringOptions(chat_template="on"), ScoringOptions(chat_template="off")
# SentencePiece's kind writes a prompt's last space into the answer's token, adds a BOS, and knows few words.
STRANGE = [
    {"id": prompt, "prompts": [prompt], "choices": [choices], "label": None}
    for prompt, *choices in (
        ("ends in a space ", "Yes", "Yesterday"), ("is Über-hot\n", "é", "Nein"), ("a ba", "d", "dly"),
    )
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", ["", "in the vocabulary", "without usage"])
@pytest.mark.parametrize(
    ("kind", "options", "api", "tokenizer", "data"),
    [
        ("completions", OFF, "echo", "byte_bpe", FEW),
        ("completions", OFF, "echo", "metaspace", STRANGE),
        ("vllm", ScoringOptions(), "prompt_logprobs", "byte_bpe", FEW),
    ],
)
def test_exact_api_matches_local_scores(loaded, tmp_path, monkeypatch, kind, options, api, tokenizer, data, change):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pair = loaded.model, with_chat_template(loaded.tokenizer)
    if tokenizer == "metaspace":  # a token may span prompt and answer
        pair = tiny_model("llama", vocab_size=len(metaspace())), with_chat_template(metaspace())
    local = replace(options, chat_template="off" if options == OFF else "on")
    ours = audit(pair, data, quiet=True, scoring=local)
    with serving(*pair) as (server, name):
        server.kind = kind
        if change == "in the vocabulary":
            server.shows = pair[1].convert_ids_to_tokens
        elif change == "without usage":
            server.changes = lambda content: json.dumps({**json.loads(content), "usage": None})
        theirs = audit(name, data, quiet=True, scoring=options)
        num_echoes = sum("echo" in request for request in server.requests)
        assert api == "echo" or num_echoes <= 1  # an API is probed once
        votes = [row["vote"] for row in predict(name, data, quiet=True, scoring=options)]
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert (theirs.token_counts == ours.token_counts).all()
    assert theirs.metrics["observed_agreement"] == ours.metrics["observed_agreement"]
    assert votes == [row["vote"] for row in predict(pair, data, quiet=True, scoring=local)]
    how = theirs.record.scoring
    assert (how["api"], how["exact"], how["chat_template"]) == (api, True, options != OFF)
    assert (theirs.record.model.name, how["num_asked"]) == ("tiny", theirs.scores.size)
    assert how["boundary_merged"] == ours.record.scoring["boundary_merged"]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"system": "Be brief.", "assistant_prefix": "My answer:"}])
def test_chat_template_of_given_tokenizer_is_used(served, loaded, task, keys):
    task, tokenizer = replace(task, **keys), served[0].tokenizer
    ours, theirs = audit(loaded, tokenizer, task, quiet=True), audit(served[1], tokenizer, task, quiet=True)
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert [row.prompts for row in theirs.instances] == [row.prompts for row in ours.instances]


def first_tokens(model, tokenizer, instances, num_top):
    """The sum, and the largest, of the probabilities of the listed tokens that begin each answer and no other."""
    shape = (len(instances), len(instances[0].prompts), len(instances[0].choices[0]))
    sums, largest = np.zeros(shape), np.zeros(shape)
    for row, column in np.ndindex(shape[:2]):
        turns = [{"role": "user", "content": instances[row].prompts[column]}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].double()
        top = logits.softmax(-1).topk(num_top)
        for token, probability in zip(top.indices.tolist(), top.values.tolist(), strict=True):
            begin = tokenizer.decode([token]).strip()
            labels = [label for label, choice in enumerate(instances[row].choices[column]) if choice.startswith(begin)]
            if begin and len(labels) == 1:
                place = row, column, labels[0]
                sums[place] += probability
                largest[place] = max(largest[place], probability)
    with np.errstate(divide="ignore"):
        return np.log(sums), np.log(largest)


@pytest.mark.slow
@pytest.mark.parametrize("num_top", [400, 20])
def test_first_tokens_have_their_score_or_an_upper_bound_or_no_label(served, loaded, task, num_top):
    server, name = served
    server.kind, server.num_top = "chat", num_top
    theirs = audit(name, task, quiet=True)
    expected, _ = first_tokens(loaded.model, server.tokenizer, [*theirs.instances], num_top)
    _, largest = first_tokens(loaded.model, server.tokenizer, [*theirs.instances], 400)
    is_listed = np.isfinite(expected)
    has_label = is_listed.any(axis=2)
    is_bounded = ~is_listed & has_label[:, :, None]
    assert np.abs(theirs.scores[is_listed] - expected[is_listed]).max() < 1e-5
    assert ((theirs.predictions < 0) == ~has_label).all()
    assert (theirs.scores[is_bounded] >= largest[is_bounded] - 1e-6).all()
    assert (theirs.value("unmapped_share") or 0.0) == pytest.approx(1 - has_label.mean())
    assert (theirs.record.scoring["api"], theirs.record.scoring["exact"]) == ("top_logprobs", False)
    assert theirs.record.scoring["num_asked"] == theirs.predictions.size  # one request for all labels
    if num_top == 400:
        assert is_listed.all()
        mass = theirs.metrics["own_label_mass_per_template"]
        assert list(mass.values()) == pytest.approx(np.exp(expected).sum(axis=2).mean(axis=0))
    else:
        assert 0 < has_label.mean() < 1


def test_server_that_ignores_echo_is_asked_for_its_top_logprobs(served):
    server, name = served
    server.kind = "llama"
    assert audit(name, FEW, quiet=True).record.scoring["api"] == "top_logprobs"
    refused("E-ENDPOINT-LOGPROBS: .*no echoed tokens.* --by generation", audit, name, FEW, quiet=True, scoring=OFF)


def test_other_text_of_the_chat_template_is_not_scored_as_answer(served, task):
    """As Qwen3's template, which writes an empty thought before an answer that is in the chat already."""
    server, name = served
    server.kind, rendered = "vllm", server.rendered
    server.rendered = lambda turns: rendered(turns).replace(
        "<|assistant|>\n", "<|assistant|>\n" + "()" * (len(turns) - 1)
    )
    assert audit(name, task, quiet=True).record.scoring["api"] == "top_logprobs"


@pytest.mark.parametrize(
    ("model", "chat_template", "warns"),
    [
        ("tiny", "auto", False),
        ("Tiny-1B-Instruct", "auto", True),
        ("gemma-2-2b-it", "auto", True),
        ("gemma-2-2b-it", "off", False),  # a choice
    ],
)
def test_instruct_model_without_chat_template_is_warned_about(served, caplog, model, chat_template, warns):
    name, scoring = served[1].replace("#tiny", f"#{model}"), ScoringOptions(chat_template=chat_template)
    audit(name, make_task(make_rows(1)), scoring=scoring, quiet=True)
    assert ("W-CHAT" in caplog.text) == warns


@pytest.mark.slow
def test_dry_run_estimates_and_writes_nothing(served, flip_flop, tmp_path):
    before = {*tmp_path.rglob("*")}
    common = ["--task", "demo", "--limit", "10", "--out", tmp_path / "out", "--dry-run"]
    result = flip_flop("audit", "--model", served[1], *common)
    assert result.code == 0, result.err
    assert all(f"{word}: " in result.out for word in ("requests", "tokens", "time"))
    assert "naive" in flip_flop("audit", "--model", "demo", *common).out
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_interrupted_audit_continues_with_stored_answers(served, task, capsys):
    server, name = served
    server.dies_after = 17
    refused(
        r"E-ENDPOINT-ANSWER: .* 17 of 60 answers are stored",
        audit,
        EndpointScorer(name, retries=0),
        task,
        quiet=True,
        scoring=ScoringOptions(concurrency=1),
    )
    server.dies_after = None
    assert audit(name, task, quiet=True).record.scoring["num_asked"] == 43 + 10  # ten stored answers again
    assert len({request["prompt"] for request in server.requests}) == 60
    num_requests = len(server.requests)
    again = audit(name, task).record.scoring
    assert len(server.requests) - num_requests == again["num_asked"] == 10
    assert f"10 answers asked, {again['tokens_read']} tokens read, 10 written; 60 kept" in capsys.readouterr().err
    assert again["tokens_read"] > 10
    model = server.model
    server.model = lambda ids: type("Output", (), {"logits": model(ids).logits * 1.5})
    refused(r"E-ENDPOINT-ANSWER: .*Remove .*\.jsonl", audit, name, make_task(make_rows(6)), quiet=True)
    assert len(server.requests) - num_requests <= 20


def test_interrupt_does_not_wait_for_replies(served, task, capsys):
    """As by Ctrl-C: what interrupts the reading of answers ends it, while the server still thinks."""
    audit(served[1], make_task(make_rows(1)), quiet=True)
    served[0].waits.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of the tests' ignores it
    interrupt = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    answer = threading.Timer(10, served[0].waits.set)
    interrupt.start()
    answer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            audit(served[1], task, quiet=True)
        assert not served[0].waits.is_set()
        assert "12 of 60 answers are stored. Run the command again to continue." in capsys.readouterr().err
    finally:
        signal.signal(signal.SIGINT, before)
        answer.cancel()
        served[0].waits.set()


def test_generated_answers_have_no_probability_metrics(served, task, tmp_path):
    server, name = served
    texts = {"Good, bad": "  good. It was", "false": "I do not know", "Verdict": "It is guaranteed!", "": "no\nyes"}
    server.writes = lambda prompt: next(text for words, text in texts.items() if words in prompt)
    theirs = audit(name, task, quiet=True, scoring=GENERATION)
    assert theirs.predictions.tolist() == [[1, -1, 1, 0]] * 5
    names = ("plain", "truth", "long", "terse")
    expected = {
        "unmapped_share_per_template": dict(zip(names, (0.0, 1.0, 0.0, 0.0), strict=True)),
        "unmapped_share": 0.25,
        "label_inside_share": 0.25,
        "label_shares": [0.25, 0.5, 0.0],
        "accuracy_per_template": {
            name: np.mean(theirs.gold == answer) for name, answer in zip(names, (1, -1, 1, 0), strict=True)
        },
        "posix": None,
        "ensemble_f1": None,
    }
    assert {name: theirs.metrics[name] for name in expected} == expected
    assert theirs.metrics["observed_agreement"] == pytest.approx(2 * 1 / (4 * 3))
    assert "no probabilities" in theirs.metrics["absent"]["posix"]
    stored = load_run(theirs.write(tmp_path / "run"))
    assert (stored.predictions == theirs.predictions).all()
    written = ("good. It was", "I do not know", "It is guaranteed!", "no\nyes")
    assert [row.written for row in stored.instances] == [written] * 5
    assert stored.unparsed == "truth 5 x 'I do not know'"
    assert set(theirs.to_pandas("flips")["label"]) == {"0"}  # unread answers are not flips
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    assert "25.0% of its generated answers match no label" in page
    assert "Most frequent: truth 5 x" in page
    instances = gzip.decompress(base64.b64decode(re.search(r'>\s*"?(H4sI[A-Za-z0-9+/=]+)', page)[1])).decode()
    assert '["the model","I do not know"]' in instances
    rows = predict(name, task, quiet=True, scoring=GENERATION)
    assert (rows[0]["vote"], rows[0]["templates"]["truth"]) == (1, {"label": None, "probs": None})
    write_predictions(rows, (0, 1, 2), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0].count(": label") == 4
    refused(r"E-ENDPOINT: --calibrate batch", audit, name, task, quiet=True, scoring=GENERATION, calibrate="batch")


@pytest.mark.slow
def test_questions_asked_again_give_the_share_of_other_answers(served, flip_flop, tmp_path):
    server, name = served
    asked = Counter()
    texts = {"Good, bad": ("good", "bad"), "false": ("true", "what"), "Verdict": ("guaranteed",) * 2, "": ("no",) * 2}

    def write(prompt):
        asked[prompt] += 1
        first, second = next(answers for words, answers in texts.items() if words in prompt)
        return first if asked[prompt] == 1 else second

    server.writes = write
    run = audit(name, FEW, quiet=True, scoring=GENERATION)
    again = ask_again(EndpointScorer(name), FEW.render("test"), run, GENERATION, quiet=True)
    # "what" cannot be read: of one of three templates
    assert (again.value("repeat_flips"), again.metrics["flip_pairs"]["repeat_flips"]) == (pytest.approx(1 / 3), 6)
    low, high = again.interval("repeat_flips")
    assert low < 1 / 3 < high
    assert set(asked.values()) == {2}
    assert load_run(again.write(tmp_path / "run")).value("repeat_flips") == pytest.approx(1 / 3)
    assert run.value("repeat_flips") is None
    server.writes, out = lambda prompt: "Yes", str(tmp_path / "out")
    common = ("--task", "demo", "--limit", "2", "--by", "generation", "--quiet", "--out", out)
    assert flip_flop("audit", "--model", name, "--ask-again", *common).code == 0
    assert load_run(out).value("repeat_flips") == 0.0


class Constant(Scorer):
    """A custom scorer."""

    def __init__(self, record):
        self.record = record

    def scores(self, instances, options=None, **_):
        shape = (len(instances), len(instances[0].choices), len(instances[0].choices[0]))
        scores = np.log(np.full(shape, 1 / shape[2], np.float32))
        return Scored(Scores.of(instances, scores, np.ones(shape, np.int64)))


class PartlyImpossible(Constant):
    """A label of the first prompt has no probability, as of a server that lists few tokens."""

    def scores(self, instances, options=None, **_):
        scored = super().scores(instances)
        scored.scores.values[0, 0, 0] = -np.inf
        return scored


def test_an_answer_without_probability_has_no_posix_and_can_be_calibrated(loaded, task, tmp_path):
    run = audit(PartlyImpossible(loaded.record), task, quiet=True)
    assert run.value("posix") is None
    assert run.value("accuracy") is not None
    run.write(tmp_path / "run")
    assert load_run(tmp_path / "run").decision == run.decision
    after = audit(PartlyImpossible(loaded.record), task, quiet=True, calibrate="batch").calibrated
    assert np.argwhere(after.scores == -np.inf).tolist() == [[0, 0, 0]]
    means = [1 / 3 - 1 / 15, 1 / 3 + 1 / 30, 1 / 3 + 1 / 30]  # over five rows
    assert np.ptp(after.metrics["offsets"]["plain"] + np.log(means)) == pytest.approx(0.0, abs=1e-6)


class Certain(Constant):
    """A scorer that generates the first label."""

    def scores(self, instances, options=None, **_):
        scored = super().scores(instances)
        scored.scores.values[..., 0] = 0.0
        scored.scores.values[..., 1:] = -np.inf
        return scored


def test_generated_answers_of_a_scorer_cannot_be_calibrated(loaded, task):
    for call in (audit, predict):
        refused("E-ENDPOINT: .*probabilities of all labels", call, Certain(loaded.record), task, calibrate="batch")
    assert audit(Certain(loaded.record), make_task(make_rows(50)), quiet=True).calibrated is None


class PartlySilent(Constant):
    """No label of the first prompt has a probability."""

    def scores(self, instances, options=None, **_):
        scored = super().scores(instances)
        scored.scores.values[0, 0] = -np.inf
        return scored


def test_a_prompt_without_any_probability_has_no_distribution(loaded, task, tmp_path):
    rows = predict(PartlySilent(loaded.record), task, quiet=True)
    first, second, *_ = rows[0]["templates"].values()
    assert first == {"label": None, "probs": None}
    assert second["probs"] == pytest.approx([1 / 3] * 3, abs=1e-6)
    write_predictions(rows, ("a", "b", "c"), tmp_path / "rows.csv")
    table = pd.read_csv(tmp_path / "rows.csv")
    assert table.filter(like="plain: p(").isna().sum().tolist() == [1, 1, 1]
    assert table.filter(like="truth: p(").isna().sum().tolist() == [0, 0, 0]


def test_audit_accepts_custom_scorer(loaded, task):
    assert audit(Constant(loaded.record), task, quiet=True).metrics["label_shares"] == [1.0, 0.0, 0.0]
    assert (audit(CausalLMScorer(loaded), task, quiet=True).scores == audit(loaded, task, quiet=True).scores).all()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda found: found.values.tolist(), "an object of type list, not Scored"),
        (lambda found: None, "an object of type NoneType"),
        (lambda found: replace(found, values=np.exp(found.values)), "the score 0.333333, which"),
        (lambda found: replace(found, token_counts=None), "not numpy arrays"),
        (lambda found: with_fields(found, token_counts=found.values), "not numpy arrays"),
        (lambda found: with_fields(found, values=torch.tensor(found.values)), "not numpy arrays"),
        (lambda found: with_fields(found, values=np.nan * found.values), "the score nan"),
        (lambda found: with_fields(found, values=found.values[:, 1:]), r"\(6, 3, 3\) and \(6, 4, 3\), not \(6, 4, 3\)"),
        (lambda found: with_fields(found, token_counts=found.token_counts[..., 1:]), "shapes"),
        (lambda found: found[1:], "5 ids, which differ from the ids of the 6 instances"),
        (lambda found: found[::-1], "ids"),
        (lambda found: replace(found, ids=tuple("abcdef")), "ids"),
        (lambda found: replace(found, gold=1 - found.gold), "gold labels"),
    ],
)
def test_scores_that_break_the_contract_are_refused_before_they_are_summarised(loaded, change, fault):
    class Broken(Constant):
        def scores(self, *data, **how):
            changed = change(super().scores(*data, **how).scores)
            return Scored(changed) if isinstance(changed, Scores) else changed

    task = make_task(make_rows(6))
    for ask in (audit, predict):
        refused(f"E-SCORER: Broken.scores returned .*{fault}", ask, Broken(loaded.record), task, quiet=True)


def with_fields(found, **fields):
    """Change fields without the type checks of tests."""
    vars(found).update(fields)
    return found


def test_a_scorer_may_round_up_give_no_probability_and_know_no_tokens(loaded, task):
    class Rough(Constant):
        def scores(self, *data, **how):
            found = super().scores(*data, **how).scores
            values = np.where(np.arange(3) == 1, np.float32(1e-4), np.float32(-np.inf)) + 0 * found.values
            return Scored(replace(found, values=values, token_counts=0 * found.token_counts))

    found = audit(Rough(loaded.record), task, quiet=True)
    assert (found.predictions == 1).all()
    assert "own_label_mass_per_template" not in found.metrics


@pytest.mark.parametrize(
    ("rows", "value", "words"),
    [
        (slice(None), np.nan, "A score of instance 'test-1' is NaN"),
        (slice(None), np.inf, "A score of instance 'test-1' is NaN or"),
        (slice(2), -1.0, "Scores are of 6 instances, gold labels of 2"),
    ],
)
def test_scores_that_cannot_be_made_are_a_fault_of_the_scorer(untyped, loaded, rows, value, words):
    class Broken(Constant):
        def scores(self, instances, options=None, **_):
            scores = np.full((6, 4, 3), value, np.float32)
            return Scored(Scores.of(instances[rows], scores, np.ones(scores.shape, np.int64)))

    refused(
        f"E-SCORER: {words}.*Return `Scored.Scores.of",
        audit,
        Broken(loaded.record),
        make_task(make_rows(6)),
        quiet=True,
    )


@pytest.mark.parametrize("ask", [audit, predict])
@pytest.mark.parametrize("fields", [{}, {"record": None}, {"record": {"name": "mine"}}])
def test_a_scorer_without_a_record_is_refused_before_it_scores(task, ask, fields):
    def scores(*_, **__):
        pytest.fail("it scored")

    mine = type("Mine", (Scorer,), {"scores": scores, **fields})()
    refused("E-SCORER: Mine has no record", ask, mine, task, quiet=True)
