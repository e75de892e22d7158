"""The whole way on a user's own data: audit, train without labels, audit again, report, predict."""

import csv
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.project import csv_of, one_line, record, ticket
from tests.training.conftest import signal_in

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

    leftover = Path("runs/f2c/.plan.json.6f18ab50.tmp")  # of a process that was killed while writing
    leftover.parent.mkdir(parents=True)
    leftover.write_text("{")
    trained = train("--seed", "3")
    assert trained.code == 0, trained.err
    assert not leftover.exists()
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
    other = train("--seed", "4", "--resume")
    assert other.code == 2
    assert other.err.splitlines()[-1].startswith("E-RESUME-CHANGED: ")
    assert "settings.seed (3, now 4)" in other.err

    assert flip_flop(*audit, "--adapter", "runs/f2c/adapter", "--out", "runs/after").code == 0
    after = record("runs/after")
    assert (after["name"], after["adapter"]["method"], after["training"]["lora_r"]) == ("f2c", "f2c", 4)
    assert after["model"]["digest"] == record("runs/base")["model"]["digest"]

    for kind in ("html", "md", "csv", "txt"):
        shown = flip_flop("report", "runs/base", "runs/after", "--out", f"report.{kind}")
        assert (shown.code, shown.out.splitlines()[-1], shown.err) == (0, f"report.{kind}", "")
    assert "base → f2c" in read("report.html")
    assert flip_flop("report", "runs/base", "--out", "titled.html", "--title", "Desks & rooms").code == 0
    assert "Desks &amp; rooms" in read("titled.html")
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
    assert flip_flop(*predict, "--input", "train.jsonl", "--out", "votes.jsonl").code == 0
    lines = [json.loads(line) for line in read("votes.jsonl").splitlines()]
    assert [str(line["vote"]) for line in lines] == [row["vote"] for row in votes]


@pytest.mark.slow
def test_a_few_labelled_rows_calibrate_audit_training_and_predictions(flip_flop, model, train):
    """Of test.csv's nine tickets four are urgent: with one added to each count the prior is 6 to 5."""
    common = ("--model", model, "--task", "tickets.yaml", "--few-labels", "test.csv", "--quiet")
    shown = flip_flop("audit", *common, "--calibrate", "prior", "--out", "runs/base")
    assert (shown.code, shown.err.count("W-CALIBRATION-ROWS")) == (0, 1)
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:]] == ["base", "base (calibrated)"]
    after = json.loads(read("runs/base/metrics.json"))["calibrated"]
    assert after["label_prior"] == pytest.approx([6 / 11, 5 / 11])
    assert after["label_shares"] == pytest.approx([5 / 9, 4 / 9])
    assert flip_flop("predict", *common, "--calibrate", "contextual", "--input", "test.csv", "--out", "a.csv").code == 0
    calibrated = ("--vote-calibration", "batch", "--few-labels", "test.csv", "--votes", "frozen", "--max-steps", "1")
    assert train(*calibrated, "--quiet").code == 0
    assert record("runs/f2c")["training"]["label_prior"] == pytest.approx([6 / 11, 5 / 11])
    for file in ("html", "csv"):
        assert flip_flop("report", "runs/base", "--out", f"report.{file}").code == 0


TEXTS = ["@staff =1+1", "- a dash", 'two\nlines, "quoted"', "'tis good", "+1", "\u202ered", "=SUM(A1)", "room\rservice"]


@pytest.mark.slow
def test_only_the_few_labels_are_read_in_training(train, project):
    rows = [{**ticket(number), "urgent": 1} for number in range(200, 212)]
    (project / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project / "few.csv").write_text(csv_of(range(203, 206)))
    more = ("--supervised-weight", "1", "--max-steps", "1", "--quiet")
    for out, few_labels, share in (("few", ["--few-labels", "few.csv"], 0.75), ("all", [], 0.0)):
        done = train(*more, *few_labels, out=out)
        assert done.code == 0
        assert ("3 training instances are labelled, by 3 rows of few.csv." in done.err) == (out == "few")
        log = [json.loads(line) for line in read(f"{out}/log.jsonl").splitlines()]
        assert [entry["no_gold"] for entry in log if "no_gold" in entry] == [share]
    (project / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    refused = train(*more, out="none")
    last = refused.err.splitlines()[-1]
    assert last.startswith(
        "E-NO-GOLD: supervised_weight uses gold labels, but none of the 8 training instances has one."
    )
    assert not os.path.exists("none/run.json")


@pytest.mark.slow
def test_changed_rows_are_one_warning_and_a_changed_adapter_is_refused(flip_flop, model, project, train):
    assert train("--quiet").code == 0
    os.rename("runs/f2c/run.json", "run.json")
    rows = read("validation.csv")
    (project / "validation.csv").write_text(rows[:-2] + ("1\n" if rows[-2] == "0" else "0\n"))
    shown = train("--quiet", "--resume")
    assert (shown.code, shown.err.count("W-RESUME-CHANGED")) == (0, 1)
    assert record("runs/f2c")["allowed_changes"] == ["rows"]

    config = project / "runs/f2c/adapter/adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": ', '"lora_alpha": 1'))
    adapted = ("--model", model, "--adapter", "runs/f2c/adapter", "--task", "tickets.yaml", "--quiet")
    audit, predict = ("audit", *adapted, "--out", "out"), ("predict", *adapted, "--input", "test.csv", "--out", "o.csv")
    for command in (audit, predict):
        one_line(flip_flop(*command), "E-ADAPTER", "adapter_config.json")


@pytest.mark.slow
def test_a_signal_stops_with_143_and_names_the_option_to_continue(train, project, monkeypatch):
    signal_in(monkeypatch, 2)
    stopped = train("--seed", "3", "--quiet")
    assert stopped.code == 143
    assert "stopped by a signal at step 2. Continue with --resume." in stopped.err
    assert not os.path.exists("runs/f2c/run.json")


@pytest.mark.slow
def test_an_adapter_that_is_worse_than_its_base_takes_a_word(flip_flop, model, project):
    (project / "f2c.yaml").write_text(CONFIG)
    common = ("train", "--model", model, "--task", "tickets.yaml", "--config", "f2c.yaml", "--out", "out", "--quiet")
    settings = "--select-by vote_agreement --max-share-drift 0 --protocol paper --method swarm"
    refused = (*common, *settings.split())
    result = flip_flop(*refused)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1].startswith(("W-COLLAPSE: the predictions", "W-WORSE: the selected checkpoint's"))
    assert not os.path.exists("out/adapter")
    assert flip_flop(*refused, "--resume", "--keep-worse").code == 0
    assert os.path.exists("out/adapter")
