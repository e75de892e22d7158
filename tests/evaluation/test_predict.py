"""Predictions: distributions that sum to one, the majority vote, and no use of labels."""

import csv
import json
import math
from datetime import date

import pandas as pd
import pytest

from flip_flop import PromptEncoder
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import predict, write_predictions
from flip_flop.prompts import Template
from flip_flop.tasks import FileSource, RowsSource
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.metrics import oracle
from tests.refused import refused
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe

LABELS = ("angry", "calm", "glad")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def source(tmp_path):
    (tmp_path / "rows.csv").write_text("text\n" + "".join(f"{row['text']}\n" for row in make_rows()))
    return tmp_path / "rows.csv"


@pytest.fixture
def task():
    return make_task(labels=LABELS)


@pytest.fixture
def predictions(loaded, task, source):
    return predict(loaded, task.render_file(source), quiet=True)


def test_probabilities_match_naive_scores_and_vote_is_majority(loaded, predictions):
    encoder = PromptEncoder(byte_bpe())
    naive = naive_scores(loaded.model, [encoder.encode(row) for row in make_task().instances("test")])
    assert len(predictions) == 5
    for row, scores in zip(predictions, naive, strict=True):
        assert list(row["templates"]) == ["plain", "truth", "long", "terse"]
        for found, own in zip(row["templates"].values(), scores, strict=True):
            total = math.fsum(math.exp(value) for value in own)
            assert found["probs"] == pytest.approx([math.exp(value) / total for value in own], abs=3e-6)
            assert sum(found["probs"]) == pytest.approx(1, abs=3e-6)
            assert found["label"] == LABELS[own.index(max(own))]
        answers = [found["label"] for found in row["templates"].values()]
        assert row["vote"] == LABELS[oracle.majority_vote(scores)]
        assert row["confidence"] == answers.count(row["vote"]) / 4
        assert row["consensus"] == (answers.count(row["vote"]) > 2)


def test_label_column_is_ignored(loaded, task, predictions, tmp_path):
    for labels in (["angry", "calm", "glad", "glad", "calm"], ["wrong", "", "glad", "no label", "7"]):
        rows = [{"text": row["text"], "mood": label} for row, label in zip(make_rows(), labels, strict=True)]
        assert (
            predict(loaded, task.render_file(write_rows(tmp_path / "labelled.jsonl", rows)), quiet=True) == predictions
        )


@pytest.mark.parametrize("labelled", [True, False])
def test_template_with_label_is_rejected(loaded, tmp_path, labelled):
    peeking = Template("peeking", "{{ text }} ({{ mood }})", "No ||| Yes ||| So")
    task = make_task(templates=(*TEMPLATES, peeking), labels=LABELS)
    rows = [row if labelled else {"text": row["text"]} for row in make_rows()]
    with pytest.raises(InputError, match=r"E-TPL-[A-Z-]+: template 'peeking'"):
        predict(loaded, task.render_file(write_rows(tmp_path / "rows.jsonl", rows)), quiet=True)


def test_task_without_labels_predicts_label_numbers(loaded, source):
    found = predict(loaded, make_task(labels=None, label_field=None).render_file(source), quiet=True)
    assert {row["vote"] for row in found} <= {0, 1, 2}


def test_jsonl_has_a_row_per_instance_and_csv_a_column_per_template_and_label(predictions, tmp_path):
    write_predictions(predictions, LABELS, tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == predictions
    write_predictions(predictions, LABELS, tmp_path / "deep" / "out.csv")
    rows = read_rows(tmp_path / "deep" / "out.csv")
    assert list(rows[0])[:6] == ["id", "vote", "confidence", "consensus", "plain: p(angry)", "plain: p(calm)"]
    assert len(rows[0]) == 4 + 4 * 3
    for row, found in zip(rows, predictions, strict=True):
        assert (row["id"], row["vote"]) == (found["id"], found["vote"])
        assert float(row["long: p(glad)"]) == found["templates"]["long"]["probs"][2]


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
def test_input_columns_follow_the_vote_and_taken_names_are_renamed(loaded, task, tmp_path, suffix):
    more = {"vote": "theirs", "mood": "?", "tags": ["a", 1]}
    rows = [{"text": row["text"], **more} for row in make_rows()]
    answered = task.render_file(write_rows(tmp_path / "rows.jsonl", rows))
    found = predict(loaded, answered, quiet=True)
    out = tmp_path / f"out.{suffix}"
    write_predictions(found, LABELS, out, answered.rows)
    table = read_rows(out) if suffix == "csv" else [row.fields for row in FileSource(out).load().rows]
    first = ["id", "vote", "confidence", "text", "input: vote", "mood", "tags", "consensus", "plain: p(angry)"]
    assert list(table[0])[:9] == first
    assert {type(row["long: p(glad)"]) for row in table} == {str if suffix == "csv" else float}
    for line, row, prediction in zip(table, rows, found, strict=True):
        assert (line["text"], line["input: vote"], line["mood"]) == (row["text"], "theirs", "?")
        assert (line["vote"], json.loads(line["tags"])) == (prediction["vote"], row["tags"])
    write_predictions(found, LABELS, tmp_path / "out.jsonl", answered.rows)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [{**prediction, "input": row} for prediction, row in zip(found, rows, strict=True)]


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
def test_predictions_of_predictions_have_different_columns(predictions, tmp_path, suffix):
    rows = RowsSource([{"id": 1, "input: vote": "a", "vote": "b", "day": date(2024, 1, 1)}] * 2, "rows").load()
    for number in range(3):
        out = tmp_path / f"{number}.{suffix}"
        write_predictions(predictions[:2], LABELS, out, rows)
        rows = FileSource(out).load()
        columns = rows.columns()
        assert len({*columns}) == len(columns)
        assert {"b", "2024-01-01"} <= {*map(str, rows.rows[0].fields.values())}


def test_a_spreadsheet_has_what_its_cells_can_hold(predictions, tmp_path):
    fields = ({"text": "a\x0bb", "size": math.nan}, {"text": "x" * 40_000}, {"text": "=1+1"}, {"text": "x" * 32_767})
    rows = RowsSource([*fields, {"text": "NA", "size": 1234567890123456789}], "rows").load()
    write_predictions(predictions, LABELS, tmp_path / "out.xlsx", rows)
    found = [row.fields for row in FileSource(tmp_path / "out.xlsx").load().rows]
    assert [row["text"] for row in found] == ["a\\x0bb", "x" * 32_766 + "…", "'=1+1", "x" * 32_767, "NA"]
    assert [row["size"] for row in found] == ["", "", "", "", "1234567890123456789"]


def test_cells_are_not_formulas(loaded, tmp_path):
    bad = "=HYPERLINK(1)"
    rows = [{"text": row["text"], "number": bad + str(number)} for number, row in enumerate(make_rows())]
    templates = (Template(bad, "{{ text }}?", "No ||| Yes ||| So"), *TEMPLATES[1:])
    task = make_task(templates=templates, labels=(bad, "calm", "glad"), id_field="number")
    found = predict(loaded, task.render_file(write_rows(tmp_path / "rows.jsonl", rows)), quiet=True)
    found[0]["vote"] = bad
    write_predictions(found, task.labels, tmp_path / "out.csv")
    rows = read_rows(tmp_path / "out.csv")
    cells = [*rows[0], *(cell for row in rows for cell in row.values())]
    assert not [cell for cell in cells if cell.startswith("=")]
    assert cells.count(f"'{bad}") >= 1
    write_predictions(found, task.labels, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["vote"] == bad


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
@pytest.mark.parametrize("labels", [LABELS[:2], (*LABELS, "sad"), (), None])
def test_a_table_needs_all_labels(predictions, tmp_path, labels, suffix):
    out = tmp_path / f"out.{suffix}"
    refused("E-DATA-ROWS: Prediction 'input-1' has 12 values", write_predictions, predictions, labels, out)
    assert not out.exists()


def test_a_table_needs_predictions_under_the_same_templates(predictions, tmp_path):
    *first, last = predictions
    renamed = {f"new {name}": answer for name, answer in last["templates"].items()}
    fewer = {"plain": last["templates"]["plain"]}
    for templates in (renamed, fewer):
        rows = [*first, last | {"templates": templates}]
        words = f"E-DATA-ROWS: Prediction 'input-5' .* under {', '.join(templates)}, for 12 columns of plain, truth"
        refused(words, write_predictions, rows, LABELS, tmp_path / "out.csv")


@pytest.mark.parametrize("kind", [list, pd.DataFrame, str, iter], ids=["list", "table", "path", "iterator"])
def test_rows_are_given_as_those_of_a_task(predictions, source, tmp_path, kind):
    given = kind(source if kind is str else [{"text": row["text"]} for row in make_rows()])
    write_predictions(predictions, LABELS, tmp_path / "out.csv", given)
    assert [row["text"] for row in read_rows(tmp_path / "out.csv")] == [row["text"] for row in make_rows()]


def test_rows_of_another_number_or_type_are_refused(untyped, predictions, tmp_path):
    for rows, words in ((make_rows(4), "5 predictions and 4 rows"), (7, "rows is of type int"), ([1], "row 1 is of")):
        refused(f"E-DATA-ROWS: .*{words}", write_predictions, predictions, LABELS, tmp_path / "out.csv", rows)


@pytest.mark.parametrize("share", [".8", None, -0.1, 1.5, math.nan])
def test_the_smallest_confidence_is_a_share(untyped, loaded, task, share):
    refused(f"E-CONFIG: abstain_below is {share!r}. Use a share", predict, loaded, task, abstain_below=share)
