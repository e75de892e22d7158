"""Averages over the orders of the options: of the command line, of a classifier, of an export and of a server."""

import csv
import json
import math

import numpy as np
import pytest
from fastapi.testclient import TestClient

from flip_flop import audit, load_classifier, load_model, load_run, predict
from flip_flop.classifier.export import export
from flip_flop.classifier.stream import predict_file
from flip_flop.metrics import Scores
from flip_flop.prompts import Template
from flip_flop.record import ModelRecord
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.too_long import TooLong, TooLongError
from flip_flop.serving.app import create_app
from flip_flop.serving.engine import Engine
from tests.evaluation.conftest import make_rows, make_task
from tests.refused import refused

OPTIONS = "A. bad\nB. good\nC. neither"
TEMPLATES = (
    Template("ask", "{{ text }}\nHow was it?\n" + OPTIONS + "\nLetter:", "A ||| B ||| C"),
    Template("say", "Review: {{ text }}\nIs it bad, good or neither?", "bad ||| good ||| neither"),
    Template("free", "{{ text }} It was", "bad ||| good ||| so"),
)
NUM_ROWS = 60


@pytest.fixture(scope="module")
def task():
    return make_task(make_rows(NUM_ROWS), TEMPLATES).with_axes({"order": 3, "typos": 0.5})


@pytest.fixture(scope="module")
def run(folder, task, tmp_path_factory):
    """An audit of three orders of two templates, of one without options, and of variants with typos."""
    return load_run(audit(load_model(folder), task, quiet=True).write(tmp_path_factory.mktemp("runs") / "audit"))


def slow_mean(scores):
    """The mean over templates of the softmax over labels."""
    tables = []
    for row in scores:
        odds = [math.exp(score) for score in row]
        tables.append([each / math.fsum(odds) for each in odds])
    return [math.fsum(column) / len(tables) for column in zip(*tables, strict=True)]


def means_of(run, base):
    """The slow mean of each row over the orders of a template."""
    columns = [run.template_names.index(f"{base}{order}") for order in ("", " · order 2 3 1", " · order 3 1 2")]
    return [slow_mean(row) for row in run.scores[:, columns].astype(float).tolist()]


def assert_equal_means(predictions, run, base):
    for row, mean in zip(predictions, means_of(run, base), strict=True):
        assert row["templates"][base]["probs"] == pytest.approx(mean, abs=2e-6)
        assert row["templates"][base]["label"] == mean.index(max(mean))


def test_a_template_answers_by_the_mean_over_its_orders_on_all_rows(run, folder, task):
    classify = load_classifier(run.path, templates=["say"], average="order")
    predictions = classify(make_rows(NUM_ROWS))
    assert_equal_means(predictions, run, "say")
    for row in predictions:
        answer = row["templates"]["say"]
        assert (row["vote"], row["confidence"]) == (answer["label"], max(answer["probs"]))
    orders = task.with_templates(classify.task.templates.names)
    assert_equal_means(predict(load_model(folder), orders, average="order", quiet=True), run, "say")


def test_several_templates_vote_with_their_means(run):
    predictions = load_classifier(run.path, templates=["all"], average="order")(make_rows(NUM_ROWS))
    assert_equal_means(predictions, run, "ask")
    assert_equal_means(predictions, run, "say")
    typos = [name for name in run.template_names if "typos" in name]
    assert [*predictions[0]["templates"]] == ["ask", "say", "free", *typos]
    for row in predictions:
        answers = [answer["label"] for answer in row["templates"].values()]
        assert row["confidence"] == answers.count(row["vote"]) / len(answers)


@pytest.mark.slow
def test_the_command_averages_a_task_or_an_audit(run, folder, tmp_path, monkeypatch, flip_flop):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows(NUM_ROWS)))
    entries = [template.entry for template in TEMPLATES]
    content = {"name": "moods", "data": {"test": "rows.jsonl"}, "label_field": "mood", "labels": [0, 1, 2]}
    (tmp_path / "task.yaml").write_text(json.dumps({**content, "templates": entries}))
    files = ("--average", "order", "--input", "rows.jsonl", "--out", "out.csv", "--quiet")
    given = ("--model", folder, "--task", "task.yaml", "--templates", "ask", "--axis", "order=3")
    for options in (given, ("--with", run.path, "--templates", "ask")):
        done = flip_flop("predict", *options, *files)
        assert done.code == 0, done.err
        with (tmp_path / "out.csv").open(newline="") as file:
            table = [*csv.DictReader(file)]
        for row, mean in zip(table, means_of(run, "ask"), strict=True):
            assert [float(row[f"ask: p({label})"]) for label in range(3)] == pytest.approx(mean, abs=2e-6)
            assert int(row["vote"]) == mean.index(max(mean))
        assert not [name for name in table[0] if "order" in name]
    assert flip_flop("export", run.path, "--template", "ask", "--average", "order", "--out", "release").code == 0
    assert_equal_means(load_classifier("release")(make_rows(NUM_ROWS)), run, "ask")
    assert "average" in json.loads((tmp_path / "release" / "classifier.json").read_text())


def test_a_server_answers_with_the_mean(run):
    engine = Engine(load_classifier(run.path, templates=["ask"], average="order"))
    rows = make_rows(3)
    with TestClient(create_app(engine)) as client:
        for row, mean in zip(rows, means_of(run, "ask"), strict=False):
            asked = {"model": "moods", "state": row, "questions": {"moods": {"type": "choice"}}}
            answer = client.post("/v1/systemone", json=asked).json()["answers"]["moods"]
            assert [*answer["probabilities"].values()] == pytest.approx(mean, abs=2e-6)


class Refusing(Scorer):
    """A model that answers no row of a room, and gives all others the first label."""

    record = ModelRecord(name="refusing")

    def scores(self, instances, options=None, **_):
        values = np.log(np.tile([0.7, 0.2, 0.1], (len(instances), len(instances[0].prompts), 1)))
        values[["room" in instance.prompts[0] for instance in instances]] = -np.inf
        return Scored(Scores.of(instances, values.astype(np.float32), np.ones(values.shape, np.int64)))


@pytest.mark.parametrize("average", [None, "order"])
def test_a_server_gives_no_label_for_a_row_that_the_model_refuses(task, tmp_path, average):
    path = audit(Refusing(), task, quiet=True).write(tmp_path / "audit")
    engine = Engine(load_classifier(path, Refusing(), templates=["ask"], average=average))
    question = {"type": "choice", "name": "moods"}
    with TestClient(create_app(engine)) as client:
        answers = [
            client.post("/v1/decisions", json={"model": "moods", "input": row["text"], "questions": [question]}).json()
            for row in make_rows(5)
        ]
    kinds = [(answer["type"], answer.get("choice")) for reply in answers for answer in reply["answers"]]
    assert kinds == [("refusal", None)] + [("choice", "0")] * 4


def test_templates_without_orders_are_refused(run, folder, tmp_path):
    words = "E-AXIS: task 'moods': no template has several orders of its options. Add --axis order=4."
    refused(words, load_classifier, run.path, templates=["free"], average="order")
    refused(words, predict, load_model(folder), make_task(), average="order")
    load_classifier(run.path, templates=["ask"]).classifier.write(tmp_path)
    refused("E-CLASSIFIER: .* is decided", load_classifier, tmp_path, average="order")


class Biased(Scorer):
    """A model that knows the label of a row, more or less clearly, and prefers the first option.

    ``asked`` counts its prompts.
    """

    record = ModelRecord(name="biased")
    asked = 0

    def scores(self, instances, options=None, **_):
        values = np.zeros((len(instances), len(instances[0].prompts), 3), np.float32)
        for place, instance in enumerate(instances):
            number = int(instance.prompts[0].split(".")[0].split()[-1])
            values[place] += np.eye(3)[number % 3] * (number * 37 % 100) / 20
            values[place] += np.array(instance.choices) == "A"
        values -= np.log(np.exp(values).sum(axis=2, keepdims=True))
        self.asked += values.shape[0] * values.shape[1]
        return Scored(Scores.of(instances, values, np.ones(values.shape, np.int64)))


@pytest.fixture(scope="module")
def biased(task, tmp_path_factory):
    """An audit of a model with clear answers to most rows."""
    rows = task.with_templates([name for name in task.templates.names if "typos" not in name]).with_rows(make_rows(600))
    return audit(Biased(), rows, quiet=True).write(tmp_path_factory.mktemp("runs") / "biased")


@pytest.mark.slow
def test_certified_averages_stop_early_with_the_same_answers(biased, tmp_path):
    export(biased, tmp_path / "release", templates=["ask"], certify=0.99)
    rows = make_rows(1200)[600:]
    model = Biased()
    early = load_classifier(tmp_path / "release", model)(rows)
    every = load_classifier(biased, Biased(), templates=["ask"], average="order")(rows)
    assert np.mean([one["vote"] == other["vote"] for one, other in zip(early, every, strict=True)]) >= 0.99
    passes = [row["passes"] for row in early]
    assert {*passes} == {1, 2, 3}
    assert sum(passes) == model.asked < 2.5 * len(rows)
    for one, other in zip(early, every, strict=True):
        if one["passes"] == 3:
            assert one["templates"]["ask"]["probs"] == other["templates"]["ask"]["probs"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classify = load_classifier(tmp_path / "release", Biased())
    tally = predict_file(classify, tmp_path / "rows.jsonl", tmp_path / "out.csv", quiet=True)
    assert tally.endswith(f"mean passes {sum(passes) / len(rows):.1f} of 3)")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [int(row["passes"]) for row in csv.DictReader(file)] == passes


class Short(Biased):
    """A model whose context is too short for some rows, and for others only in another order of the options."""

    def scores(self, instances, options=None, **how):
        long = []
        for instance in instances:
            (prompt,) = instance.prompts
            if " long " in prompt or ("lengthy" in prompt and "A. good" in prompt):
                long.append(TooLong(instance.id, 0, 9, 8))
        if long:
            raise TooLongError(long, len(instances))
        return super().scores(instances, options, **how)


def test_rows_that_are_too_long_under_any_order_get_notes(biased, tmp_path):
    classify = load_classifier(biased, Short(), templates=["ask"], certify=0.99)
    texts = ["The room was long 601.", "The room was good 602.", "The room was wide and lengthy 700."]
    found = classify([{"text": text} for text in texts])
    assert [bool(row["note"]) for row in found] == [True, False, True]
    assert [row["vote"] is None for row in found] == [True, False, True]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": texts[0]}))
    tally = predict_file(classify, tmp_path / "rows.jsonl", tmp_path / "out.csv", quiet=True)
    assert tally == "1 rows (0: 0, 1: 0, 2: 0; 1 too long)"


def test_few_rows_certify_nothing_in_one_line(run, tmp_path, flip_flop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows(5)))
    words = ("predict", "--input", "rows.jsonl", "--out", "out.csv", "--quiet", "--certify", "0.99")
    done = flip_flop(*words, "--with", run.path, "--templates", "ask")
    line = "W-CERTIFY: no early stop is certified on 60 rows: all passes are done."
    assert (done.code, line in done.err, "mean passes" in done.out) == (0, True, False)
    for templates in ("all", "free"):
        refused = flip_flop(*words, "--with", run.path, "--templates", templates).err
        assert "E-CLASSIFIER: --certify needs one template in several orders of its options." in refused
    assert "--certify needs --with" in flip_flop(*words, "--model", "demo", "--task", "demo").err
