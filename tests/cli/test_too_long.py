"""Rows that are longer than the model's context: all are found before anything is scored, then refused or skipped."""

import csv
import json
import os
import pickle
from pathlib import Path

import pytest

from flip_flop import load_run, write_report
from flip_flop.scoring.too_long import TooLong, TooLongError
from tests.cli.project import csv_of, one_line, record, ticket

LONG = "good " * 300
HALF = "good " * 237  # too long under one template of the four


def with_long(numbers):
    """A CSV whose second row is too long under every template, and whose fifth is under one."""
    lines = csv_of(numbers).splitlines()
    lines.insert(2, f'"{LONG}",1')
    lines.insert(5, f'"{HALF}",0')
    return "\n".join(lines) + "\n"


@pytest.fixture
def audit(flip_flop, model, project):
    (project / "test.csv").write_text(with_long(range(9)))
    return lambda *more: flip_flop("audit", "-m", model, "-t", "tickets.yaml", "--out", "runs/out", "-q", *more)


@pytest.fixture
def train(flip_flop, model, project):
    (project / "validation.csv").write_text(with_long(range(100, 107)))
    texts = ("bad " * 300, *(ticket(number)["text"] for number in range(200, 212)))
    (project / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = ("--max-steps", "2", "--per-device-train-batch-size", "4", "--lora-r", "2", "--keep-worse", "--quiet")
    return lambda *more: flip_flop("train", "-m", model, "-t", "tickets.yaml", "--out", "out", *settings, *more)


def table(path):
    return list(csv.DictReader(Path(path).read_text().splitlines()))


@pytest.mark.slow
def test_an_audit_lists_all_beside_out_or_leaves_them_out_of_every_template(audit, tmp_path):
    result = audit()
    one_line(result, "E-TOO-LONG", "2 of 11 instances", "256 tokens", "'test-2'", "'test-5'", "runs/out.too_long.csv")
    assert os.listdir("runs") == ["out.too_long.csv"]
    rows = table("runs/out.too_long.csv")
    too_long = [("test-2", name) for name in ("plain", "truth", "long", "terse")]
    assert [(row["id"], row["template"]) for row in rows[:4]] == too_long
    assert {row["id"] for row in rows[4:]} == {"test-5"}
    assert len(rows[4:]) < 4
    assert {row["limit"] for row in rows} == {"256"}
    assert all(int(row["tokens"]) > 256 for row in rows)

    result = audit("--too-long", "skip")
    assert result.code == 0
    assert result.err.startswith("W-TOO-LONG: skipped: 2 of 11 instances")
    run, task = load_run("runs/out"), record("runs/out")["task"]
    assert (task["num_too_long"], task["num_instances"]) == (2, 9)
    assert {row["id"] for row in table("runs/out/too_long.csv")} == {"test-2", "test-5"}
    assert run.scores.shape == (9, 4, 2)
    assert run.instance_ids == tuple(f"test-{number}" for number in (1, 3, 4, 6, 7, 8, 9, 10, 11))
    page = write_report([run.write(tmp_path / "skipped")], tmp_path / "report.html").read_text()
    assert "leaves out 2 instances: longer than the model" in page
    Path("test.csv").write_text(csv_of(range(9)))
    assert audit("--overwrite").code == 0
    assert (load_run("runs/out").scores == run.scores).all()
    assert record("runs/out")["task"]["num_too_long"] == 0
    assert not os.path.exists("runs/out/too_long.csv")


@pytest.mark.slow
def test_a_training_finds_those_of_both_splits_before_it_begins_or_skips_them(train):
    result = train()
    last = result.err.splitlines()[-1]
    assert (result.code, last.split(":")[0]) == (2, "E-TOO-LONG")
    assert all(word in last for word in ("3 of 22 instances", "'train-1'", "'validation-2'", " out.too_long.csv."))
    assert {row["id"] for row in table("out.too_long.csv")} == {"train-1", "validation-2", "validation-5"}
    assert not os.path.exists("out")

    result = train("--too-long", "skip")
    assert result.code == 0, result.err
    run = record("out")
    counts = [run["task"][name] for name in ("num_too_long", "num_instances", "num_validation")]
    assert (counts, run["training"]["too_long"]) == ([3, 12, 7], "skip")
    assert {row["id"] for row in table("out/too_long.csv")} == {"train-1", "validation-2", "validation-5"}


@pytest.fixture
def predict(flip_flop, model, project):
    lines = with_long(range(9)).splitlines()
    lines[1], lines[2] = lines[2], lines[1]  # the first row is the long one
    (project / "rows.csv").write_text("\n".join(lines) + "\n")
    words = ("predict", "-m", model, "-t", "tickets.yaml", "--input", "rows.csv", "-q")
    return lambda *more: flip_flop(*words, *more)


def test_predictions_keep_a_row_for_each_row_with_a_note_in_place_of_an_answer(predict):
    one_line(predict("--out", "answers.csv"), "E-TOO-LONG", "2 of 11", "answers.too_long.csv")
    assert not os.path.exists("answers.csv")
    result = predict("--out", "answers.csv", "--too-long", "skip")
    assert "11 rows (" in result.out
    assert result.out.endswith("; 2 too long)\n")
    rows = table("answers.csv")
    assert [row["id"] for row in rows] == [f"input-{number}" for number in range(1, 12)]
    assert [row["id"] for row in rows if row["note"]] == ["input-1", "input-5"]
    assert rows[0]["note"].startswith("too long: ")
    assert rows[0]["note"].endswith("the model's context is 256")
    assert {value for name, value in rows[0].items() if name not in ("id", "note", "text", "urgent")} == {""}
    assert all(row["vote"] in ("0", "1") and row["terse: p(1)"] for row in rows if not row["note"])
    predict("--out", "answers.jsonl", "--too-long", "skip")
    first, second, *_ = map(json.loads, Path("answers.jsonl").read_text().splitlines())
    assert (first["vote"], first["templates"], second["note"]) == (None, {}, "")
    assert second["vote"] in (0, 1)


def test_processes_can_send_the_error_to_each_other():
    error = TooLongError([TooLong("7", template=0, tokens=9, limit=8)], 2, ("plain",))
    received = pickle.loads(pickle.dumps(error))
    assert (str(received), received.found, received.names) == (str(error), error.found, error.names)
