"""Few labels from the command line: the rows to label next, the weighted vote, and the supervised term."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.evaluation.predict import most_disputed
from tests.cli.project import csv_of, errors_of, one_line, record, ticket

TEXTS = ["@staff =1+1", "- a dash", 'two\nlines, "quoted"', "'tis good", "+1", "\u202ered", "=SUM(A1)", "room\rservice"]


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def commands(flip_flop, model, project):
    """The commands of this page on training rows with difficult texts."""
    texts = [*TEXTS, *(ticket(number)["text"] for number in range(200, 206))]
    (project / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = ("--model", model, "--task", "tickets.yaml", "--quiet")
    return lambda verb, *more: flip_flop(verb, *common, *more)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_most_disputed_rows_are_labelled_and_read_back(commands, project, suffix):
    shown = commands("predict", "--input", "train.jsonl", "--out", f"votes.{suffix}", "--label-next", "14")
    to_label = project / f"votes-to-label.{suffix}"
    assert shown.code == 0
    assert shown.out.splitlines()[-1].startswith(f"votes-to-label.{suffix}: fill in 'urgent' of 14 rows")
    assert commands("predict", "--input", "train.jsonl", "--out", "votes.jsonl").code == 0
    votes = [json.loads(line) for line in (project / "votes.jsonl").read_text().splitlines()]
    shares = {row["input"]["text"]: row["confidence"] for row in votes}
    if suffix == "csv":
        rows = read_csv(to_label)
        assert all(not cell.startswith(tuple("=+-@")) for row in rows for cell in row.values())
        rows = [row | {"text": row["text"][1:] if row["text"] not in shares else row["text"]} for row in rows]
    else:
        rows = [json.loads(line) for line in to_label.read_text().splitlines()]
    assert [list(row) for row in rows] == [["urgent", "text"]] * 14
    assert [row["urgent"] for row in rows] == ["" if suffix == "csv" else None] * 14
    found = [shares[row["text"]] for row in rows]
    assert found == sorted(found)
    assert sorted(shares) == sorted(row["text"] for row in rows)

    filled = [
        row | {"urgent": number % 2} for number, row in enumerate(read_csv(to_label) if suffix == "csv" else rows)
    ]
    if suffix == "csv":
        write_csv(to_label, filled)
    else:
        to_label.write_text("".join(json.dumps(row) + "\n" for row in filled))
    more = ("--few-labels", to_label.name)
    shown = commands("train", *more, "--supervised-weight", "0.5", "--max-steps", "1", "--out", "run", "--keep-worse")
    assert shown.code == 0, shown.err
    assert "14 training instances are labelled" in shown.err
    assert record("run")["training"]["uses_labels"] is True
    assert record("run")["training"]["label_prior"] is None
    assert record("run")["task"]["has_gold"] is True
    assert commands("predict", *more, "--weighted-vote", "--input", "test.csv", "--out", "w.csv").code == 0


def test_labelled_rows_are_not_labelled_again_and_a_labelled_file_is_kept(commands, project):
    lines = csv_of(range(9)).splitlines()
    lines[1:4] = [line[:-1] for line in lines[1:4]]
    (project / "test.csv").write_text("\n".join(lines) + "\n")
    command = ("predict", "--input", "test.csv", "--out", "a.csv", "--label-next", "2")
    assert commands(*command[:-1], "20").code == 0
    rows = read_csv("a-to-label.csv")
    assert {row["text"] for row in rows} == {ticket(number)["text"] for number in range(3)}
    before = (project / "a-to-label.csv").read_bytes()
    one_line(commands(*command), "E-OUT-USED", "a-to-label.csv exists and may have labels")
    assert (project / "a-to-label.csv").read_bytes() == before
    (project / "a-to-label.csv").unlink()
    assert commands(*command).code == 0
    assert read_csv("a-to-label.csv") == rows[:2]


@pytest.mark.parametrize("calibrate", ["none", "batch"])
def test_audit_compares_the_weighted_vote_on_the_other_rows(commands, project, calibrate):
    (project / "few.csv").write_text(csv_of(range(4)))
    shown = commands("audit", "--calibrate", calibrate, "--few-labels", "few.csv", "--weighted-vote", "--out", "run")
    assert shown.code == 0
    metrics = json.loads((project / "run/metrics.json").read_text())
    found = [metrics, *([metrics["calibrated"]] if calibrate == "batch" else [])]
    for each in found:
        vote = each["weighted_vote"]
        assert (vote["num_few_labels"], vote["num_instances"]) == (4, 5)
        assert set(vote["weights"]) == {"plain", "truth", "long", "terse"}
        assert all(0 <= value <= 1 for name in ("majority", "weighted") for value in vote[name].values())
    table = shown.out.split("\n\n")[-1].splitlines()
    assert table[0] == "5 labelled instances other than the 4 labelled rows of --few-labels"
    assert table[1].split() == ["vote", "accuracy", "F1", "macro-F1"]
    names = [line.split("  ")[0] for line in table[3 : 3 + 2 * len(found)]]
    assert names[:2] == ["base: majority vote", "base: weighted vote"]
    assert names[2:] == (["base (calibrated): majority vote", "base (calibrated): weighted vote"] if found[1:] else [])
    raw = metrics["weighted_vote"]["weighted"]["accuracy"]
    assert float(table[4].split()[-3]) == pytest.approx(100 * raw, abs=0.051)
    commands("report", "run", "--out", "report.html")


def test_confidence_counts_weights(commands, project):
    (project / "few.csv").write_text(csv_of(range(9)))
    more = ("--input", "test.csv", "--few-labels", "few.csv", "--weighted-vote")
    assert commands("audit", "--few-labels", "few.csv", "--weighted-vote", "--out", "run").code == 0
    weights = json.loads((project / "run/metrics.json").read_text())["weighted_vote"]["weights"]
    assert commands("predict", *more, "--out", "w.jsonl").code == 0
    for line in (project / "w.jsonl").read_text().splitlines():
        row, shares = json.loads(line), {}
        for name, each in row["templates"].items():
            shares[each["label"]] = shares.get(each["label"], 0) + weights[name] / sum(weights.values())
        assert row["confidence"] == pytest.approx(max(shares.values()))
        assert shares[row["vote"]] == pytest.approx(max(shares.values()))
        assert row["consensus"] == (row["confidence"] > 0.5)


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


MISTAKES = {
    "no few labels": (
        ("predict", "--weighted-vote", "--input", "test.csv", "--out", "o.csv"), "E-LABEL-PRIOR", "Add --few-labels",
    ),
    "unknown label": (
        ("audit", "--weighted-vote", "--few-labels", "unknown.csv", "--out", "o"), "E-LABEL-UNDECLARED",
        "unknown.csv line 3",
    ),
    "missing column": (
        ("audit", "--weighted-vote", "--few-labels", "missing.csv", "--out", "o"), "E-DATA-COLUMN", "'urgent'",
    ),
    "missing text": (
        ("predict", "--weighted-vote", "--few-labels", "textless.csv", "--input", "test.csv", "--out", "o.csv"),
        "E-TPL-UNDEFINED", "textless.csv line 2",
    ),
    "no label": (
        ("audit", "--weighted-vote", "--few-labels", "blank.csv", "--out", "o"), "E-LABEL-PRIOR",
        "blank.csv has no labels",
    ),
    "no file": (("audit", "--weighted-vote", "--few-labels", "fw.csv", "--out", "o"), "E-DATA-FILE", "fw.csv"),
    "no match": (
        ("train", "--supervised-weight", "0.5", "--few-labels", "other.csv", "--out", "o"), "E-DATA-UNMATCHED",
        "other.csv line 2 is not a row of the training data",
    ),
    "every row is labelled": (
        ("predict", "--label-next", "3", "--input", "test.csv", "--out", "o.csv"), "E-DATA-EMPTY",
        "test.csv has no row without",
    ),
    "weight": (("train", "--supervised-weight", "-1", "--out", "o"), "E-CONFIG-VALUE", "--supervised-weight is -1"),
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


def test_a_task_without_labels_has_no_rows_to_label(commands, project):
    text = (project / "tickets.yaml").read_text().replace("label_field: urgent\nlabels: [0, 1]\n", "")
    (project / "tickets.yaml").write_text(text)
    command = ("predict", "--label-next", "3", "--input", "test.csv", "--out", "o.csv")
    one_line(commands(*command), "E-TASK-KEY", "task 'tickets' has no label_field")


PREDICTION = st.builds(
    lambda share, probs: {
        "confidence": share,
        "templates": {at: {"probs": [one, 1 - one]} for at, one in enumerate(probs)},
    },
    st.sampled_from([0.5, 0.75, 1.0]),
    st.lists(st.sampled_from([0.125, 0.25, 0.5, 0.75]), min_size=3, max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(PREDICTION, max_size=8), number=st.integers(1, 9))
def test_most_disputed_orders_by_share_then_margin_then_position(rows, number):
    def key(at):
        probs = [each["probs"][0] for each in rows[at]["templates"].values()]
        mean = sum(probs) / len(probs)
        return rows[at]["confidence"], round(abs(mean - (1 - mean)), 9), at

    rows.append({"confidence": None, "templates": {}})  # too long for the model
    assert most_disputed(rows, number) == sorted(range(len(rows) - 1), key=key)[:number]
    for row in rows:
        row["templates"] = dict(reversed(row["templates"].items()))
    assert most_disputed(rows, number) == sorted(range(len(rows) - 1), key=key)[:number]
