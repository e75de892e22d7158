"""The whole way on a user's own data: audit, train without labels, audit again, report, predict."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flip_flop.training import TrainingRun
from tests.cli.project import record

CONFIG = """\
num_train_epochs: 1
learning_rate: 1e-2
lora_r: 8
divergence_space: labels
per_device_train_batch_size: 4
stop_on_collapse: false
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@pytest.fixture
def train(flip_flop, model, project):
    (project / "f2c.yaml").write_text(CONFIG)

    def run(*more, out="runs/f2c"):
        common = ("train", "--model", model, "--task", "tickets.yaml", "--config", "f2c.yaml", "--lora-r=4")
        # A random model may become worse in a few steps. These tests need its adapter anyway.
        return flip_flop(*common, "--out", out, "--keep-worse", *more)

    return run


def test_from_a_first_audit_to_predictions(flip_flop, model, project, train):
    audit = ("audit", "--model", model, "--task", "tickets.yaml", "--quiet")
    assert flip_flop(*audit, "--out", "runs/base").code == 0

    trained = train("--seed", "3")
    assert trained.code == 0, trained.err
    assert trained.out.startswith("runs/f2c/adapter: next, flip-flop audit ")
    assert "E-" not in trained.err
    assert "f2c: step 3/3  P_o " in trained.err
    assert {"run.json", "adapter", "checkpoints", "log.jsonl"} <= set(os.listdir("runs/f2c"))
    run = record("runs/f2c")
    assert run["kind"] == "train"
    settings = ("method", "seed", "lora_r", "learning_rate", "num_train_epochs", "divergence_space")
    assert [run["training"][name] for name in settings] == ["f2c", 3, 4, 0.01, 1, "labels"]
    assert run["task"]["has_gold"] is False
    assert load_file("runs/f2c/adapter/adapter_model.safetensors")
    lines = [json.loads(line) for line in read("runs/f2c/log.jsonl").splitlines()]
    assert [line["step"] for line in lines if "eval_observed_agreement" in line] == [0, 1, 2, 3]

    before = os.stat("runs/f2c/run.json").st_mtime_ns
    again = train("--seed", "3", "--resume")
    assert again.code == 0
    assert again.err.endswith("runs/f2c is complete already\n")
    assert os.stat("runs/f2c/run.json").st_mtime_ns == before

    assert flip_flop(*audit, "--adapter", "runs/f2c/adapter", "--out", "runs/after").code == 0
    after = record("runs/after")
    assert (after["name"], after["adapter"]["method"], after["training"]["lora_r"]) == ("f2c", "f2c", 4)
    assert after["model"]["digest"] == record("runs/base")["model"]["digest"]

    for kind in ("html", "md", "csv", "txt"):
        shown = flip_flop("report", "runs/base", "runs/after", "--out", f"report.{kind}", "--title", "Desks & rooms")
        assert (shown.code, shown.out.splitlines()[-1], shown.err) == (0, f"report.{kind}", "")
    assert "Desks &amp; rooms" in read("report.html")
    table = [*filter(None, read("report.md").splitlines())]
    assert [line.split()[1] for line in table[-2:]] == ["base", "f2c"]
    assert [line.split()[0] for line in read("report.txt").splitlines()[-2:]] == ["base", "f2c"]
    rows = list(csv.DictReader(read("report.csv").splitlines()))
    for row, folder in zip(rows, ("runs/base", "runs/after"), strict=True):
        assert float(row["observed_agreement"]) == json.loads(read(f"{folder}/metrics.json"))["observed_agreement"]

    predict = ("predict", "--model", model, "--adapter", "runs/f2c/adapter", "--task", "tickets.yaml", "--quiet")
    shown = flip_flop(*predict, "--input", "train.jsonl", "--out", "answers/votes.csv")
    assert shown.code == 0
    assert shown.out.startswith("answers/votes.csv: 12 rows (0: ")
    votes = list(csv.DictReader(read("answers/votes.csv").splitlines()))
    assert len(votes) == 12
    assert {row["vote"] for row in votes} <= {"0", "1"}


@pytest.mark.slow
def test_a_few_labelled_rows_calibrate_audit_training_and_predictions(flip_flop, model, train):
    # Of test.csv's nine tickets four are urgent: with one added to each count the prior is 6 to 5.
    common = ("--model", model, "--task", "tickets.yaml", "--few-labels", "test.csv", "--quiet")
    shown = flip_flop("audit", *common, "--calibrate", "prior", "--out", "runs/base")
    assert (shown.code, shown.err.count("W-CALIBRATION-ROWS")) == (0, 1)
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:]] == ["base", "base (calibrated)"]
    after = json.loads(read("runs/base/metrics.json"))["calibrated"]
    assert after["label_prior"] == pytest.approx([6 / 11, 5 / 11])
    assert after["label_shares"] == pytest.approx([5 / 9, 4 / 9])
    assert flip_flop("predict", *common, "--calibrate", "contextual", "--input", "test.csv", "--out", "a.csv").code == 0
    calibrated = ("--vote-calibration", "prior", "--few-labels", "test.csv", "--votes", "frozen", "--max-steps", "1")
    assert train(*calibrated, "--quiet").code == 0
    assert record("runs/f2c")["training"]["label_prior"] == pytest.approx([6 / 11, 5 / 11])


@pytest.mark.parametrize(("changes", "code"), [({"stopped_by": signal.SIGTERM}, 143), ({"withheld": True}, 1)])
def test_a_training_without_an_adapter_has_an_exit_code(train, monkeypatch, changes, code):
    monkeypatch.setattr("flip_flop.training.train", lambda *_, **__: TrainingRun(Path("runs"), None, **changes))
    result = train("--quiet")
    assert (result.code, result.out) == (code, "")
