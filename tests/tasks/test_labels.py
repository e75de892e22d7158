"""A blank label means unlabelled, and a label is the same in every Unicode form, in each kind of data."""

import json
import math
import unicodedata
from dataclasses import replace
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from flip_flop import load_task
from flip_flop.prompts import Template, TemplateSet
from flip_flop.reading import AnswerFormat
from flip_flop.tasks import Task, as_split, holdout, log_label_counts, sources
from tests.refused import refused

TEMPLATES = TemplateSet(
    (Template("plain", "{{ text }} Urgent?", "No ||| Yes"), Template("terse", "{{ text }}:", "0 ||| 1"))
)
TEXTS = ("fire", "tea", "flood", "sugar")
WORDS, NUMBERS = ("yes", "no"), (1, 0)


def rows_with(blank, labels=WORDS):
    """Two labelled rows, and two whose label is this blank."""
    return [{"text": text, "urgent": label} for text, label in zip(TEXTS, (*labels, blank, blank), strict=True)]


def write(path, rows):
    frame = pd.DataFrame(rows)
    if path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    else:
        lines = map(json.dumps, rows)
        path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{','.join(lines)}]")
    return path


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
    write(tmp_path / "a.csv", rows_with("NA", ("None", "NA")))
    assert replace(task, labels=("NA", "None")).with_rows(tmp_path / "a.csv").render("test").gold.tolist() == [
        1,
        0,
        0,
        0,
    ]
    assert parts_of([*rows_of(3, 97), {"text": "x", "urgent": "NA"}], ("text",), "urgent", ("no", "NA"))[-1] == "test"


def test_a_missing_value_is_no_label():
    labels = pd.DataFrame({"urgent": ["yes", "no", None]})["urgent"].unique()
    for missing in (labels, ("yes", "no", math.nan), ("yes", " ", "no")):
        refused("E-LABEL.*missing value", Task, "tickets", TEMPLATES, {"test": []}, labels=missing)


def test_words_for_missing_values_are_right_answers_of_texts_but_not_of_numbers(caplog):
    rows = [
        {"text": text, "answer": answer} for text, answer in zip(TEXTS, ("N/A", ["none", "None"], "7", ""), strict=True)
    ]
    templates = TemplateSet(tuple(Template(name, f"{name}: {{{{ text }}}}") for name in ("one", "two")))
    caplog.set_level("INFO")
    found = {}
    for kind in ("text", "number"):
        numbers = rows if kind == "text" else [rows[0], rows[2], rows[3]]
        task = Task("quiz", templates, {"test": numbers}, label_field="answer", answer=AnswerFormat(kind))
        found[kind] = [instance.open.references for instance in task.instances("test")]
    assert found == {"text": [("na",), ("none",), ("7",), ()], "number": [(), ("7",), ()]}
    assert "'N/A', 'None' in 'answer': right answers" in caplog.text


ERRORS = {"#REF!", "#DIV/0!", "#NAME?", "#VALUE!", "#NUM!", "#NULL!", "#SPILL!", "#CALC!", "#WERT!", "Err:502"}
BLANKS = [*sorted(STR_NA_VALUES | ERRORS | {"NaT", " NaN ", "\u200b", "\xa0", "  "}), None]


@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_or_a_word_of_pandas_for_a_missing_value_means_unlabelled_in_every_format(blank, tmp_path):
    rows = rows_with(blank)
    files = [write(tmp_path / f"a{kind}", rows) for kind in (".csv", ".tsv", ".parquet", ".xlsx", ".json", ".jsonl")]
    frame = pd.DataFrame(rows)
    for given in (*files, frame, rows, datasets.Dataset.from_pandas(frame)):
        task = Task("tickets", TEMPLATES, {"test": given}, labels=("no", "yes"), label_field="urgent")
        assert task.render("test").gold.tolist() == [1, 0, -1, -1], given
    assert task.render_file(files[0]).gold.tolist() == [-1] * 4
    row = {"prompts": ["a", "b"], "choices": [["No", "Yes"]] * 2}
    assert as_split([row | {"label": 1}, row | {"label": blank}]).gold.tolist() == [1, -1]


def parts_of(*given):
    return [part for part, _ in sources.parts_of(*given)]


def rows_of(labelled, unlabelled, label="urgent"):
    return [
        {"text": f"ticket {number}", label: "no" if number < labelled else ""}
        for number in range(labelled + unlabelled)
    ]


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
    rows = [*rows_of(10, 30), *({"text": f"ticket {number}", "urgent": None} for number in range(10))]
    parts = parts_of(rows, ("text",), "urgent")
    assert parts[40:] == parts[:10] == ["test"] * 10


def test_validation_is_drawn_from_labelled_rows_if_there_are_enough():
    def instances(labelled, total):
        labels = [*(["no", "yes"] * labelled)[:labelled], *[None] * (total - labelled)]
        rows = [{"text": f"ticket {number}", "urgent": label} for number, label in enumerate(labels)]
        task = Task("tickets", TEMPLATES, {"train": rows}, labels=("no", "yes"), label_field="urgent")
        return task.instances("train")

    validation = holdout(instances(10, 100), seed=0)
    assert [instance.label is None for instance in validation] == [False] * 10
    validation = holdout(instances(9, 100), seed=0)
    assert len(validation) == 10
    assert sum(instance.label is None for instance in validation) == 9
    blind = holdout(instances(10, 100), seed=0, stratify=False)
    assert any(instance.label is None for instance in blind)


def test_numbers_of_labelled_and_unlabelled_rows_are_logged(caplog):
    task = Task("tickets", TEMPLATES, {"test": rows_with(None)}, labels=WORDS[::-1], label_field="urgent")
    with caplog.at_level("INFO", "flip_flop"):
        log_label_counts(task.render("test"))
    assert caplog.messages == ["tickets, test: 2 labelled rows for testing, 2 unlabelled rows for agreement only"]


# ---- Unicode forms ----

LABELS = ("Đúng", "예", "Sí")
OF_THREE = [Template("plain", "{{ text }}?", "a ||| b ||| c"), Template("terse", "{{ text }}", "a ||| b ||| c")]


def in_form(form, *texts):
    return [unicodedata.normalize(form, text) for text in texts]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
@pytest.mark.parametrize(("declared", "stored"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_label_is_found_in_any_unicode_form(tmp_path, suffix, declared, stored):
    rows = [{"text": f"row {number}", "label": label} for number, label in enumerate(in_form(stored, *LABELS[::-1]))]
    path = write(tmp_path / f"rows{suffix}", rows)
    task = Task("t", OF_THREE, {"test": path}, labels=in_form(declared, *LABELS), label_field="label")
    assert [instance.label for instance in task.instances("test")] == [2, 1, 0]
    assert [instance.label for instance in Task("t", OF_THREE, rows, task.labels, "label").instances("test")] == [
        2,
        1,
        0,
    ]


def test_labels_that_differ_in_their_unicode_form_only_are_equal():
    refused("E-LABEL-DUP", Task, "t", OF_THREE, [], labels=["Sí", *in_form("NFD", "Sí")], label_field="label")


def test_init_counts_a_label_once_in_all_its_unicode_forms(tmp_path, flip_flop):
    forms = [*LABELS[1:], *in_form("NFD", *LABELS[1:])]
    rows = [{"text": f"the room {number} was fine and clean", "label": label} for number, label in enumerate(forms * 5)]
    words = ",".join(in_form("NFD", *LABELS[1:]))
    path, out = write(tmp_path / "rows.csv", rows), tmp_path / "task.yaml"
    found = flip_flop("init", path, "--out", out, "--kind", "sentiment", "--labels", words)
    assert found.code == 0, found.err
    assert load_task(out).labels == LABELS[1:]
