"""One reader for every answer: replies as models and judges write them, references, and texts that take long."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from flip_flop import Task, Template
from flip_flop.reading import AnswerFormat, Reader, limits
from tests.cases import read_cases, read_groups
from tests.refused import refused

YES = ("No", "Yes")
CASES = Path(__file__).parents[3] / "shared" / "cases" / "readings.jsonl"


def label(text, choices):
    answer = Reader("label", choices=choices).read(text).answer
    return None if answer is None else choices[answer]


@pytest.mark.parametrize("case", read_groups("reading/answers.yaml"))
def test_answer_of_a_text(case):
    assert label(case["text"], tuple(case["choices"])) == case["answer"]


@pytest.mark.parametrize(("text", "number"), read_cases("reading/numbers.yaml").items())
def test_number_that_is_a_piece_of_something_else_is_unread(text, number):
    assert Reader("number").read(text).answer == number


@pytest.mark.parametrize("extract", ["after ####", r"#### (.+)", "json: final"])
def test_extract_finds_labels_numbers_and_references(extract):
    written = '{"steps": "No 3", "final": "%s"}' if extract.startswith("json") else "No 3.\n#### %s"
    judge, number = Reader("label", extract, YES), Reader("number", extract)
    assert judge.read(written % "yes").answer == 1
    assert judge.read(written % "yes").how == "extracted"
    assert number.read(written % "1,200").answer == number.reference(written % "1,200").answer == "1200"
    assert number.reference("1,200").answer == "1200"
    assert number.read("1,200").unread == f"extract {extract!r} finds nothing"


def test_labels_of_a_task_are_extracted_from_generated_texts_and_from_the_file():
    template = Template("plain", "{{ question }}", "No ||| Yes")
    rows = [{"question": "Is ice cold?", "label": "It is frozen.\n#### yes"}, {"question": "Is tea?", "label": "no"}]
    task = Task("q", [template], rows, labels=("no", "yes"), label_field="label", extract="after ####")
    assert [instance.label for instance in task.instances("test")] == [1, 0]
    assert Reader.of(task).read("No ice.\n#### Yes").answer == 1
    refused("E-TASK-KEY: extract is '[(]'", Task, "q", [template], rows, extract="(")


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"So \boxed{3, 5, 7}.", "3, 5, 7", "7"),
        (r"\boxed{1331, 1728}", "1331 and 1728", "1728"),
        (r"\boxed{\{0, 1\}}", "0,1", "1/10"),
        (r"\boxed{5>x}", "x<5", "x>5"),
        (r"\boxed{\emptyset}", r"\varnothing", "0"),
        (r"$9{,}500$", "9,500", "9.5"),
    ],
)
def test_references_are_read_whole_as_answers_are(answer, right, wrong):
    reader = Reader("latex")
    assert reader.read(answer).answer == reader.reference(right).answer is not None
    assert reader.reference(wrong).answer not in (None, reader.read(answer).answer)


@pytest.mark.parametrize("text", ["3.5 million", r"$3^{3^{2}} \bmod 7$", "between 3 and 5", "k, m", "xy+1 apples"])
def test_expression_that_cannot_be_read_whole_is_unread(text):
    assert Reader("latex").reference(text).answer is None


def test_reference_that_cannot_be_read_is_an_error_with_its_row():
    rows = [{"q": "one", "a": "3, 5"}, {"q": "two", "a": "3.5 million"}]
    task = Task("t", [Template("a", "{{ q }}")], rows, answer=AnswerFormat("latex"), label_field="a")
    refused("E-LABEL: t, test, row 2: 'a' is '3.5 million', which is not a latex", task.instances, "test")


@pytest.mark.parametrize("reader", [Reader("label", choices=YES), Reader("number"), Reader("text"), Reader("latex")])
def test_white_space_of_a_megabyte_costs_little(reader):
    reader.read("7")
    started = time.process_time()
    assert reader.read("7" + " " * 10**6 + "x").unread != "reading takes more than 5 s"
    assert time.process_time() - started < 0.25  # 0.03 on an idle machine


def test_five_slow_expressions_end_reading_in_one_line(monkeypatch, caplog):
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(limits, "_num_slow", Counter())
    reader = Reader("latex")
    for base in range(1, 5):
        assert reader.read(rf"\boxed{{(x+{base})^{{100000}}}}").unread == "reading takes more than 0.3 s"
    assert caplog.text.count("W-ANSWER-SLOW") == 4
    refused("E-TASK-KEY: .* 5 texts", reader.read, r"\boxed{(x+9)^{100000}}")


@pytest.mark.skipif(not CASES.exists(), reason="the table of readings is not here")
def test_table_of_readings():
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    wrong = [row["text"] for row in rows if _read(row) != row["read"]]
    assert wrong == ["The answer is 12 (i.e. 3 * 4)."]  # docs/decisions.md


def _read(row):
    if row["kind"] == "label":
        return label(row["text"], tuple(row["choices"]))
    answer = Reader(row["kind"]).read(row["text"]).answer
    if row["kind"] == "number":
        return answer
    return "equal" if answer == Reader("latex").reference(row["reference"]).answer is not None else "different"
