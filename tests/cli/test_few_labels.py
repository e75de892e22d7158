"""Few labels from the command line: label frequencies and the supervised term."""

import json

import pytest

from tests.cli.project import csv_of, errors_of, one_line, ticket

TEXTS = ["@staff =1+1", "- a dash", 'two\nlines, "quoted"', "'tis good", "+1", "\u202ered", "=SUM(A1)", "room\rservice"]


@pytest.fixture
def commands(flip_flop, model, project):
    """The commands of this page on training rows with difficult texts."""
    texts = [*TEXTS, *(ticket(number)["text"] for number in range(200, 206))]
    (project / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = ("--model", model, "--task", "tickets.yaml", "--quiet")
    return lambda verb, *more: flip_flop(verb, *common, *more)


def test_only_the_few_labels_are_read_in_training(commands, project):
    rows = [{**ticket(number), "urgent": 1} for number in range(200, 212)]
    (project / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project / "few.csv").write_text(csv_of(range(203, 206)))
    more = ("--supervised-weight", "1", "--max-steps", "1", "--keep-worse", "--method", "f2c")
    done = commands("train", *more, "--few-labels", "few.csv", "--out", "few")
    assert done.code == 0
    assert "3 training instances are labelled, by 3 rows of few.csv." in done.err
    log = [json.loads(line) for line in (project / "few/log.jsonl").read_text().splitlines()]
    assert [entry["no_gold"] for entry in log if "no_gold" in entry] == [0.75]
    assert commands("train", *more, "--out", "all").code == 0
    log = [json.loads(line) for line in (project / "all/log.jsonl").read_text().splitlines()]
    assert [entry["no_gold"] for entry in log if "no_gold" in entry] == [0.0]


PREDICT = ("predict", "--calibrate", "prior", "--input", "test.csv", "--out", "o.csv", "--few-labels")
MISTAKES = {
    "unknown label": ((*PREDICT, "unknown.csv"), "E-LABEL", "unknown.csv line 3"),
    "missing column": ((*PREDICT, "missing.csv"), "E-DATA-COLUMN", "'urgent'"),
    "no label": ((*PREDICT, "blank.csv"), "E-LABEL-PRIOR", "blank.csv has no labels"),
    "no file": ((*PREDICT, "fw.csv"), "E-DATA-FILE", "fw.csv"),
    "missing text": (
        ("train", "--supervised-weight", "0.5", "--out", "o", "--few-labels", "textless.csv"), "E-TPL-RENDER",
        "textless.csv line 2",
    ),
    "no match": (
        ("train", "--supervised-weight", "0.5", "--few-labels", "other.csv", "--out", "o"), "E-DATA-ROWS",
        "other.csv line 2 is not a row of the training data",
    ),
    "weight": (("train", "--supervised-weight", "-1", "--out", "o"), "E-CONFIG", "--supervised-weight is -1"),
    "weight without labels": (("train", "--supervised-weight", "1", "--out", "o"), "E-NO-GOLD", "none of the 14"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(commands, project, mistake):
    command, code, words = MISTAKES[mistake]
    files = {
        "unknown": "text,urgent\nroom,1\nfood,2\n",
        "missing": "text,label\nroom,1\n",
        "textless": "txt,urgent\nroom,1\n",
        "blank": "text,urgent\nroom,\n",
        "other": "text,urgent\nroom,1\n",
    }
    for name, text in files.items():
        (project / f"{name}.csv").write_text(text)
    shown = commands(*command)
    if mistake == "weight without labels":
        assert errors_of(shown).splitlines()[-1].startswith(f"{code}: ")
        assert words in shown.err
    else:
        one_line(shown, code, words)
    assert not (project / "o" / "run.json").exists()
    assert not (project / "o.csv").exists()
