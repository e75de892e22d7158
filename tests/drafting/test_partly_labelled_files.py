"""`flip-flop init` on files in which some rows have no label."""

import json
import math

import pandas as pd
import pytest

from flip_flop.tasks import load_task
from tests.drafting.files import csv, text


def write_parquet(path, header, rows):
    names = header.split(",")
    pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows]).to_parquet(path)


def write_excel(path, header, rows):
    pd.DataFrame(rows, columns=header.split(",")).to_excel(path, index=False)


def write_json(path, header, rows):
    names = header.split(",")
    path.write_text(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))


def write_separated(path, header, rows):
    by = {".csv": ",", ".tsv": "\t"}.get(path.suffix, ",")
    by = ";" if path.stem == "semicolons" else by
    path.write_text("\n".join([header.replace(",", by), *(by.join(map(str, row)) for row in rows)]) + "\n")


PARTLY_LABELLED = {
    "CSV": ("a.csv", write_separated, ""),
    "CSV of spaces": ("a.csv", write_separated, "  "),
    "semicolons": ("semicolons.csv", write_separated, ""),
    "TSV": ("a.tsv", write_separated, ""),
    "JSON": ("a.json", write_json, None),
    "JSON of empty texts": ("a.json", write_json, ""),
    "Parquet": ("a.parquet", write_parquet, None),
    "Parquet of NaN": ("a.parquet", write_parquet, math.nan),
    "Excel": ("a.xlsx", write_excel, None),
    "CSV of NaN": ("a.csv", write_separated, "NaN"),
    "TSV of NULL": ("a.tsv", write_separated, "NULL"),
    "JSON of N/A": ("a.json", write_json, "N/A"),
    "Parquet of None": ("a.parquet", write_parquet, "None"),
    "Excel of #N/A": ("a.xlsx", write_excel, "#N/A"),
}


@pytest.mark.parametrize("values", [("no", "yes"), (0, 1)])
@pytest.mark.parametrize(("file", "write", "blank"), PARTLY_LABELLED.values(), ids=PARTLY_LABELLED)
def test_unlabelled_rows_of_a_file_are_for_training(file, write, blank, values, flip_flop, folder):
    if values == (0, 1) and write is write_separated:
        values = ("0.0", "1.0")  # as pandas writes a column of integers with missing values
    if values == (0, 1) and write is write_parquet and isinstance(blank, str):
        values = ("0", "1")  # a column of texts
    rows = [(text(n), blank if n % 8 == 7 else values[n % 2]) for n in range(120)]
    write(folder / file, "text,urgent", rows)
    result = flip_flop("init", file, "--kind", "yes_no")
    assert (result.code, result.err) == (0, "")
    task = load_task("task.yaml")
    assert list(task.labels) == ([0, 1] if values[0] in (0, "0", "0.0") else ["no", "yes"])
    train, test = task.render("train").gold.tolist(), task.render("test").gold.tolist()
    assert train.count(-1) == 15
    assert -1 not in test
    assert f"  rows    train {len(train)} (15 unlabelled), test {len(test)}\n" in result.out
    assert "# A file without splits is divided into half of the labelled rows for testing and all" in drafted(folder)
    assert "whose labels choose the checkpoint" in drafted(folder)


def test_a_missing_word_is_a_label_if_it_is_named(flip_flop, folder):
    words = ("None", "Mild", "NaN")
    (folder / "a.csv").write_text(csv("text,pain", lambda n: f"{text(n)},{words[n % 3]}", 60))
    assert flip_flop("init", "a.csv", "--kind", "topic").code == 2  # one label is not enough
    result = flip_flop("init", "a.csv", "--kind", "topic", "--labels", "None,Mild")
    assert (result.code, result.err) == (0, "")
    assert "(20 unlabelled)" in result.out
    task = load_task("task.yaml")
    assert task.labels == ("None", "Mild")
    gold = [*task.render("train").gold.tolist(), *task.render("test").gold.tolist()]
    assert [gold.count(label) for label in (0, 1, -1)] == [20, 20, 20]
    audit = flip_flop("audit", "--model", "demo", "--task", "task.yaml", "--out", "out")
    assert audit.code == 0, audit.err


def drafted(folder):
    return (folder / "task.yaml").read_text()


def test_all_labelled_rows_are_for_testing_if_most_rows_have_no_label(flip_flop, folder):
    (folder / "a.csv").write_text(csv("text,urgent", lambda n: f"{text(n)},{n % 2 if n < 10 else ''}", 60))
    result = flip_flop("init", "a.csv")
    assert "  rows    train 50 (50 unlabelled), test 10\n" in result.out
    assert "is divided into the labelled rows for testing and all others for training. Training rows are" in drafted(
        folder
    )
    assert "a tenth of the training rows is held out, on which the checkpoint is chosen." in drafted(folder)
    assert len(load_task("task.yaml").instances("test")) == 10
