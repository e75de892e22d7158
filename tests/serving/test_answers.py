"""Answers over HTTP: of the classifier, and of other questions in zero-shot form."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from fastapi.testclient import TestClient

from flip_flop import load_classifier, load_run
from flip_flop.serving.app import create_app
from flip_flop.serving.engine import Engine

CRITERIA = {"rude": "The staff is rude.", "kind": None, "absent": {"seen": False}}
QUESTIONS = {
    "good": {"type": "noul", "instructions": "Is the staff good?", "criteria": {"true": "It is kind."}},
    "staff": {"type": "choice", "instructions": "How is the staff?", "criteria": CRITERIA},
    "stars": {"type": "score", "instructions": ["How", "good?"], "criteria": ["bad", "fair", "good"]},
}


def ask(client, state, questions, path="/v1/systemone"):
    name = "state" if path == "/v1/systemone" else "input"
    reply = client.post(path, json={"model": "moods", name: state, "questions": questions})
    assert reply.status_code == 200, reply.text
    return reply.json()


def softmax(scores):
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def test_the_classifier_answers_all_rows_as_the_audit_with_calibration(client, decided, rows):
    run = load_run(decided)
    place = run.template_names.index("truth")
    offsets = run.metrics["calibrated"]["offsets"]["truth"]

    def served(row):
        state = {"text": row["text"], "other": None}
        return ask(client, state, {"moods": {"type": "choice", "instructions": "?"}})["answers"]["moods"]

    with ThreadPoolExecutor(16) as threads:
        answers = [*threads.map(served, rows)]
    for row, answer, scores in zip(rows, answers, run.data.values[:, place].tolist(), strict=True):
        probs = softmax([score + offset for score, offset in zip(scores, offsets, strict=True)])
        assert [*answer["probabilities"].values()] == pytest.approx(probs, abs=2e-6)
        assert [*answer["probabilities"]] == ["0", "1", "2"]
        assert answer["choice"] == str(row["mood"])
        assert answer["confidence"] == pytest.approx((3 * max(probs) - 1) / 2, abs=4e-6)


def test_several_templates_vote_and_the_probabilities_are_their_mean(decided, rows):
    classify = load_classifier(decided, templates=["all"])
    expected = classify(rows[:20])
    with TestClient(create_app(Engine(classify))) as client:
        answers = [ask(client, row["text"], {"moods": {"type": "choice"}})["answers"]["moods"] for row in rows[:20]]
    for answer, row in zip(answers, expected, strict=True):
        assert answer["choice"] == str(row["vote"])
        probs = [template["probs"] for template in row["templates"].values()]
        means = [sum(of_label) / 4 for of_label in zip(*probs, strict=True)]
        assert [*answer["probabilities"].values()] == pytest.approx(means, abs=5e-6)


def test_a_score_of_the_classifier_has_its_labels_as_legend(client):
    answers = ask(client, "The food was good.", {"moods": {"type": "score"}})["answers"]
    probs = [*answers["moods"]["probabilities"].values()]
    assert answers["moods"]["legend"] == {"0": "0", "1": "1", "2": "2"}
    assert answers["moods"]["score"] == pytest.approx(probs[1] + 2 * probs[2])


def test_an_abstaining_classifier_gives_no_answer(decided):
    engine = Engine(load_classifier(decided))
    engine.classifier.abstain_below = 1.0
    with TestClient(create_app(engine)) as client:
        assert ask(client, "It was good.", {"moods": {"type": "choice"}})["answers"] == {}
        (refusal,) = ask(client, "It was good.", [{"type": "choice", "name": "moods"}], "/v1/decisions")["answers"]
    assert refusal == {"type": "refusal", "name": "moods"}


@torch.no_grad()
def log_prob(engine, prompt, answer):
    """The mean log-probability of an answer's tokens, from one forward pass."""
    loaded = engine.classifier.scorer.loaded
    before = loaded.tokenizer(prompt)["input_ids"]
    ids = loaded.tokenizer(f"{prompt} {answer}")["input_ids"]
    assert ids[: len(before)] == before
    log_probs = loaded.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    values = [float(log_probs[place - 1, ids[place]]) for place in range(len(before), len(ids))]
    return sum(values) / len(values), len(before)


PROMPTS = {
    "good": "Is the staff good?\nOptions:\n- No\n- Yes: It is kind.\nAnswer:",
    "staff": 'How is the staff?\nOptions:\n- rude: The staff is rude.\n- kind\n- absent: {"seen": false}\nAnswer:',
    "stars": '["How", "good?"]\nOptions:\n- 0: bad\n- 1: fair\n- 2: good\nAnswer:',
}
WORDS = {"good": ["No", "Yes"], "staff": ["rude", "kind", "absent"], "stars": ["0", "1", "2"]}


@pytest.mark.parametrize("state", ["The staff was loud.", {"staff": "loud", "guests": 3}])
def test_other_questions_are_answered_by_the_probabilities_of_their_options(client, engine, state):
    reply = ask(client, state, QUESTIONS)
    answers, tokens, probs = reply["answers"], 0, {}
    text = state if isinstance(state, str) else json.dumps(state)
    for name, end in PROMPTS.items():
        scores = [log_prob(engine, f"{text}\n\n{end}", word) for word in WORDS[name]]
        probs[name] = softmax([score for score, _ in scores])
        tokens += scores[0][1]
    assert reply["model"] == "moods"
    assert reply["usage"]["input_tokens"] == tokens
    assert answers["good"] == {"type": "noul", "noul": pytest.approx(probs["good"][1], abs=1e-5)}
    largest = max(probs["staff"])
    assert answers["staff"]["choice"] == WORDS["staff"][probs["staff"].index(largest)]
    assert answers["staff"]["confidence"] == pytest.approx((3 * largest - 1) / 2, abs=1e-5)
    assert [*answers["staff"]["probabilities"].values()] == pytest.approx(probs["staff"], abs=1e-5)
    assert answers["stars"]["score"] == pytest.approx(probs["stars"][1] + 2 * probs["stars"][2], abs=1e-5)
    assert answers["stars"]["legend"] == {"0": "bad", "1": "fair", "2": "good"}


def test_both_protocols_give_the_same_answers(client):
    values = [{"value": "rude", "description": "The staff is rude."}, {"value": "kind"}]
    levels = [{"label": "bad"}, {"label": "fair", "description": "so-so"}]
    listed = [
        {"type": "predicate", "name": "good", "instructions": "Is the staff good?"},
        {"type": "choice", "name": "staff", "instructions": "How is the staff?", "choices": values},
        {"type": "score", "instructions": "How good?", "levels": levels},
        {"type": "choice", "name": "moods"},
    ]
    asked = {
        "good": {"type": "noul", "instructions": "Is the staff good?"},
        "staff": {
            "type": "choice",
            "instructions": "How is the staff?",
            "criteria": {"rude": "The staff is rude.", "kind": ""},
        },
        "stars": {"type": "score", "instructions": "How good?", "criteria": ["bad", "fair: so-so"]},
        "moods": {"type": "choice"},
    }
    named = ask(client, "The staff was loud.", asked)["answers"]
    good, staff, stars, moods = ask(client, "The staff was loud.", listed, "/v1/decisions")["answers"]
    assert (good["name"], good["probability"]) == ("good", pytest.approx(named["good"]["noul"], abs=1e-6))
    assert {row["value"]: row["probability"] for row in staff["probabilities"]} == pytest.approx(
        named["staff"]["probabilities"], abs=1e-6
    )
    assert (stars["name"], stars["score"]) == (None, pytest.approx(named["stars"]["score"], abs=1e-6))
    assert [(row["value"], row["label"]) for row in stars["probabilities"]] == [(0, "bad"), (1, "fair")]
    assert moods["choice"] == named["moods"]["choice"]
    assert moods["confidence"] == pytest.approx(named["moods"]["confidence"], abs=1e-5)


def test_confidence_and_score_have_the_digits_of_the_probabilities(client):
    asked = {"moods": {"type": "score"}}
    answer = ask(client, "The staff was loud.", asked)["answers"]["moods"]
    for value in (answer["confidence"], answer["score"], *answer["probabilities"].values()):
        assert value == round(value, 6)


def test_a_classifier_of_several_fields_takes_json_as_text(client, engine, monkeypatch):
    expected = ask(client, "The staff was loud.", {"moods": {"type": "choice"}})["answers"]
    monkeypatch.setattr(engine, "field", None)
    assert ask(client, '{"text": "The staff was loud."}', {"moods": {"type": "choice"}})["answers"] == expected
    body = {"model": "moods", "state": "The staff was loud.", "questions": {"moods": {"type": "choice"}}}
    assert "The state is not a row" in client.post("/v1/systemone", json=body).json()["detail"]


def test_a_question_that_fails_does_not_fail_others_of_its_batch(engine):
    bad = {"x": {"type": "choice", "instructions": "?", "criteria": {"a": "", "b": ""}}}
    states = ["word " * 5000 if number == 3 else f"{number}" for number in range(8)]
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(8) as threads:
        body = {"model": "moods", "questions": bad}
        replies = [*threads.map(lambda state: client.post("/v1/systemone", json=body | {"state": state}), states)]
    assert [reply.status_code for reply in replies] == [422 if number == 3 else 200 for number in range(8)]
    assert "E-TOO-LONG" in replies[3].json()["detail"]


def test_generated_answers_are_refused_at_the_start(decided):
    classify = load_classifier(decided)
    classify.scoring = replace(classify.scoring, by="generation")
    with pytest.raises(ValueError, match="E-SERVE: 'moods' has generated answers"):
        Engine(classify)
