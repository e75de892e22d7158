"""Rows with a blank label are unlabelled in every format of the data."""

import json
import math
from dataclasses import replace
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from flip_flop import load_task
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import Task, as_split, holdout, log_label_counts, sources

TEMPLATES = TemplateSet(
    (Template("plain", "{{ text }} Urgent?", "No ||| Yes"), Template("terse", "{{ text }}:", "0 ||| 1"))
)
TASK_FILE = """\
name: tickets
data: {{test: {entry}}}
label_field: urgent
labels: {labels}
templates:
  - {{name: plain, jinja: "{{{{ text }}}} Urgent?", answer_choices: "No ||| Yes"}}
  - {{name: terse, jinja: "{{{{ text }}}}:", answer_choices: "0 ||| 1"}}
"""
TEXTS = ("fire", "tea", "flood", "sugar")
WORDS, NUMBERS = ("yes", "no"), (1, 0)


def rows_with(blank, labels=WORDS):
    """Two labelled rows, and two whose label is this blank."""
    return [{"text": text, "urgent": label} for text, label in zip(TEXTS, (*labels, blank, blank), strict=True)]


def separated(by):
    return lambda path, rows: path.write_text(
        "\n".join([f"text{by}urgent", *(f"{row['text']}{by}{row['urgent']}" for row in rows)]) + "\n"
    )


def json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def parquet(path, rows):
    pd.DataFrame(rows).to_parquet(path)


# format: (file's name, its entry in the task file, writer, kinds of blank)
FILES = {
    "CSV": ("a.csv", "a.csv", separated(","), ("", "  ", '""')),
    "CSV with semicolons": ("a.csv", '{path: a.csv, delimiter: ";"}', separated(";"), ("", " ")),
    "TSV": ("a.tsv", "a.tsv", separated("\t"), ("", "  ")),
    "JSON": ("a.json", "a.json", lambda path, rows: path.write_text(json.dumps(rows)), (None, "", "  ")),
    "JSONL": ("a.jsonl", "a.jsonl", json_lines, (None, "", "  ")),
    "Parquet": ("a.parquet", "a.parquet", parquet, (None, "", "  ")),
    "Parquet of floats": ("a.parquet", "a.parquet", parquet, (math.nan,)),
}
FILE_CASES = [(kind, blank) for kind, (*_, blanks) in FILES.items() for blank in blanks]


@pytest.mark.parametrize(("kind", "blank"), FILE_CASES)
def test_a_blank_label_in_a_file_means_unlabelled(kind, blank, tmp_path):
    name, entry, write, _ = FILES[kind]
    labels = NUMBERS if kind == "Parquet of floats" else WORDS
    write(tmp_path / name, rows_with(blank, labels))
    (tmp_path / "task.yaml").write_text(TASK_FILE.format(entry=entry, labels=json.dumps(labels[::-1])))
    split = load_task(tmp_path / "task.yaml").render("test")
    assert split.gold.tolist() == [1, 0, -1, -1]
    assert load_task(tmp_path / "task.yaml").render_file(tmp_path / name).gold.tolist() == [-1] * 4 or entry != name


MEMORY = {
    "None": None,
    "empty": "",
    "white space": " \t",
    "NaN": math.nan,
    "NumPy NaN": np.float32("nan"),
    "decimal NaN": Decimal("NaN"),
    "pandas NA": pd.NA,
    "pandas NaT": pd.NaT,
}


@pytest.mark.parametrize("labels", [WORDS, NUMBERS])
@pytest.mark.parametrize("blank", MEMORY.values(), ids=MEMORY)
def test_a_blank_label_in_memory_means_unlabelled(blank, labels):
    task = Task("tickets", TEMPLATES, {"test": rows_with(blank, labels)}, labels=labels[::-1], label_field="urgent")
    assert task.render("test").gold.tolist() == [1, 0, -1, -1]
    assert as_split(task, need_labels=False).gold.tolist() == [1, 0, -1, -1], "as predict reads it"


def test_a_missing_word_that_labels_declare_is_a_label(tmp_path):
    rows = [{"text": text, "urgent": label} for text, label in zip(TEXTS, ("None", "nan", None, math.nan), strict=True)]
    task = Task("tickets", TEMPLATES, {"test": rows}, labels=("None", "nan"), label_field="urgent")
    assert task.render("test").gold.tolist() == [0, 1, -1, -1]
    separated(",")(tmp_path / "a.csv", rows_with("NA", ("None", "NA")))
    assert replace(task, labels=("NA", "None")).with_rows(tmp_path / "a.csv").render("test").gold.tolist() == [
        1,
        0,
        0,
        0,
    ]
    assert parts_of([*rows_of(3, 97), {"text": "x", "urgent": "NA"}], ("text",), "urgent", ("no", "NA"))[-1] == "test"


WORDS_OF_PANDAS = sorted(STR_NA_VALUES | {"NaT", " NaN ", "\u200b", "\xa0"})


@pytest.mark.parametrize("word", WORDS_OF_PANDAS)
def test_a_word_of_pandas_for_a_missing_value_means_unlabelled_in_every_format(word, tmp_path):
    rows, frame = rows_with(word), pd.DataFrame(rows_with(word))
    frame.assign(urgent=frame.urgent.where(frame.urgent != word)).to_csv(tmp_path / "a.csv", na_rep=word, index=False)
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    json_lines(tmp_path / "a.jsonl", rows)
    files = [tmp_path / f"a{kind}" for kind in (".csv", ".tsv", ".parquet", ".xlsx", ".jsonl")]
    for given in (*files, frame, rows, datasets.Dataset.from_pandas(frame)):
        task = Task("tickets", TEMPLATES, {"test": given}, labels=("no", "yes"), label_field="urgent")
        assert task.render("test").gold.tolist() == [1, 0, -1, -1], given
    row = {"prompts": ["a", "b"], "choices": [["No", "Yes"]] * 2}
    assert as_split([row | {"label": 1}, row | {"label": word}]).gold.tolist() == [1, -1]


def parts_of(*given):
    return [part for part, _ in sources.parts_of(*given)]


def rows_of(labelled, unlabelled, label="urgent"):
    return [{"text": f"ticket {at}", label: "no" if at < labelled else ""} for at in range(labelled + unlabelled)]


def test_a_fully_labelled_or_unlabelled_file_is_divided_by_its_texts():
    rows = rows_of(60, 0)
    parts = parts_of(rows, ("text",))
    assert "".join(part[1] for part in parts[:20]) == "rreerrrreeeerreeerre", "the parts of version 0.1"
    assert parts_of(rows, ("text",), "urgent") == parts
    assert parts_of(rows_of(0, 60), ("text",), "urgent") == parts
    assert parts_of(rows, ("text",), "no such column") == parts


def test_unlabelled_rows_are_for_training_and_labelled_ones_are_divided_if_there_are_more_of_them():
    rows = rows_of(45, 15)
    parts = parts_of(rows, ("text",), "urgent")
    assert parts[45:] == ["train"] * 15
    assert parts[:45] == parts_of(rows, ("text",))[:45]
    assert set(parts[:45]) == {"train", "test"}


def test_all_labelled_rows_are_for_testing_if_half_of_the_rows_have_no_label():
    assert parts_of(rows_of(30, 30), ("text",), "urgent") == ["test"] * 30 + ["train"] * 30
    assert parts_of(rows_of(3, 97), ("text",), "urgent") == ["test"] * 3 + ["train"] * 97


def test_an_unlabelled_copy_of_a_labelled_text_is_not_trained_on():
    rows = [*rows_of(10, 30), *({"text": f"ticket {at}", "urgent": None} for at in range(10))]
    parts = parts_of(rows, ("text",), "urgent")
    assert parts[40:] == parts[:10] == ["test"] * 10


def test_validation_is_drawn_from_labelled_rows_if_there_are_enough():
    def instances(labelled, total):
        rows = [
            {"text": f"ticket {at}", "urgent": ("no", "yes")[at % 2] if at < labelled else None} for at in range(total)
        ]
        task = Task("tickets", TEMPLATES, {"train": rows}, labels=("no", "yes"), label_field="urgent")
        return task.instances("train")

    train, validation = holdout(instances(10, 100), seed=0)
    assert [each.label is None for each in validation] == [False] * 10
    assert len(train) == 90
    _, validation = holdout(instances(9, 100), seed=0)
    assert len(validation) == 10
    assert sum(each.label is None for each in validation) == 9
    _, blind = holdout(instances(10, 100), seed=0, stratify=False)
    assert any(each.label is None for each in blind)


def logged(split, caplog):
    caplog.clear()
    with caplog.at_level("INFO", "flip_flop"):
        log_label_counts(split)
    return caplog.messages
