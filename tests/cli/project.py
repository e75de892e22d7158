"""A user's folder: a task file of four templates, a labelled CSV, and unlabelled JSONL to train on."""

import json
import re
from pathlib import Path

CODE = re.compile(r"[A-Z]-[A-Z]+(-[A-Z]+)*: ")

TASK = """\
name: tickets
data: {train: train.jsonl, validation: validation.csv, test: test.csv}
label_field: urgent
labels: [0, 1]
templates:
  - {name: plain, jinja: "Ticket: {{ text }}. Is this urgent?", answer_choices: "No ||| Yes"}
  - {name: truth, jinja: "True or false, it is urgent: {{ text }}", answer_choices: "False ||| True"}
  - {name: long, jinja: "{{ text }}. Must the staff come at once?", answer_choices: "Not at all ||| Guaranteed"}
  - {name: terse, jinja: "{{ text }}", answer_choices: "Never ||| Yes"}
"""
WORDS = ("room", "staff", "food", "hotel", "wifi")


def record(run):
    return json.loads((Path(run) / "run.json").read_text(encoding="utf-8"))


def errors_of(result):
    """Standard error without the warning that random weights cause in every audit."""
    return "".join(line for line in result.err.splitlines(keepends=True) if not line.startswith("W-LABEL-MASS: "))


def one_line(result, code, *words):
    """Check that a mistake prints exactly one line."""
    assert (result.code, result.out) == (2, "")
    error = errors_of(result)
    assert error.count("\n") == 1, error
    assert error.startswith(f"{code}: "), error
    assert len(CODE.findall(error)) == 1, error
    assert error.endswith((".\n", "?\n")), error
    assert all(word in error for word in words), (words, error)


def ticket(number):
    text = f"the {WORDS[number % 5]} was {'not ' * (number % 3 == 0)}good, number {number}"
    return {"text": text, "urgent": number % 2}


def csv_of(numbers):
    return "text,urgent\n" + "".join('"{text}",{urgent}\n'.format(**ticket(number)) for number in numbers)


def make_project(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tickets.yaml").write_text(TASK)
    (folder / "test.csv").write_text(csv_of(range(9)))
    (folder / "validation.csv").write_text(csv_of(range(100, 107)))
    lines = [json.dumps({"text": ticket(number)["text"]}) + "\n" for number in range(200, 212)]
    (folder / "train.jsonl").write_text("".join(lines))
    return folder
