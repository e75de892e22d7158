"""Task files: their content, their mistakes, and loading by file or name."""

import pytest

from flip_flop.errors import InputError
from flip_flop.record import TaskRecord
from flip_flop.tasks import FileSource, HubSource, load_task, require_templates_for_training
from flip_flop.tasks.loading import read_task_file

# ruff: noqa: E501 - one case per line

GOOD = """\
name: support_tickets
description: Is a ticket urgent?
data: {train: unlabelled.jsonl, test: labelled.csv}
label_field: urgent
labels: [0, 1]
templates:
  - {name: plain, jinja: "Ticket: {{ text }}\\nIs this urgent?", answer_choices: "No ||| Yes"}
  - name: terse
    jinja: |
      {{ text }}
      Urgent:
    answer_choices: ["calm", "urgent"]
  - {name: long, jinja: "{{ text }} Is it?", answer_choices: "No ||| Yes", reference: "", metadata: {original_task: true}}
held_out_templates: [terse]
"""


def write(folder, text, name="task.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def refusal(path):
    with pytest.raises(InputError, match=r"\A[^\n]*\Z") as caught:
        read_task_file(path)
    return caught.value


def test_read_task_file(tmp_path):
    (tmp_path / "labelled.csv").write_text("text,urgent\nfire,1\n")
    task = read_task_file(write(tmp_path, GOOD))
    assert (task.name, task.labels, task.label_field) == ("support_tickets", (0, 1), "urgent")
    assert task.data["train"] == FileSource(tmp_path / "unlabelled.jsonl")
    assert task.templates.names == ("plain", "terse", "long")
    assert task.templates[1].answer_choices == "calm ||| urgent"
    assert task.held_out_templates == ("terse",)
    (instance,) = task.instances("test")
    assert instance.prompts[:2] == ("Ticket: fire\nIs this urgent?", "fire\nUrgent:")
    assert instance.label == 1
    assert read_task_file(write(tmp_path, GOOD.replace("name: support_tickets\n", ""), "mine.yaml")).name == "mine"


def test_wording_order_and_scale_are_in_the_record_and_not_in_the_digests(tmp_path):
    (tmp_path / "labelled.csv").write_text("text,urgent\nfire,1\n")
    keys = GOOD.replace('"No ||| Yes"}', '"No ||| Yes", wording: plain, order: first}') + "scale: true\n"
    plain, marked = (read_task_file(write(tmp_path, text)).render("test") for text in (GOOD, keys))
    assert (marked.task.templates[0].wording, marked.task.templates[0].order) == ("plain", "first")
    assert marked.task.digest() == plain.task.digest()
    first, second, _ = TaskRecord(**marked.record).to_json()["templates"]
    assert (first.pop("wording"), first.pop("order"), marked.record["scale"]) == ("plain", "first", True)
    assert [first, second] == TaskRecord(**plain.record).to_json()["templates"][:2]
    assert "scale" not in TaskRecord(**plain.record).to_json()
    assert TaskRecord(**marked.record).design(["terse", "plain"]) == {
        "factors": {"wording": (None, "plain"), "order": (None, "first")},
        "is_scale": True,
    }


def test_data_entries_for_encodings_and_the_hub(tmp_path):
    data = (
        "data: {train: {path: a.csv, encoding: latin-1}, test: {repo: a/b, config: c, split: d, revision: e}, "
        "validation: {repo: a/b}}"
    )
    path = write(tmp_path, GOOD.replace("data: {train: unlabelled.jsonl, test: labelled.csv}", data))
    assert read_task_file(path, hub_mirror=tmp_path).data == {
        "train": FileSource(tmp_path / "a.csv", "latin-1"),
        "test": HubSource("a/b", "c", "d", "e", tmp_path),
        "validation": HubSource("a/b", None, "validation", None, tmp_path),
    }


DATA = "data: {train: unlabelled.jsonl, test: labelled.csv}"
MISTAKES = [
    # The YAML itself.
    ("labels: [0, 1]", "labels: [0, 1", "E-TASK-FILE", "task.yaml line 6: "),
    ("name: support", "\tname: support", "E-TASK-FILE", "line 1"),
    # Keys.
    (GOOD, "- a\n- b\n", "E-TASK-KEY", "does not hold keys and values"),
    (GOOD, "", "E-TASK-KEY", "does not hold keys and values"),
    ("labels:", "lables:", "E-TASK-KEY", "unknown key 'lables'. Did you mean 'labels'?"),
    ("reference:", "referense:", "E-TASK-KEY", "template 3 ('long') has an unknown key 'referense'. Did you mean 'reference'?"),
    (GOOD[GOOD.index("templates:") :], "", "E-TASK-KEY", "has no templates"),
    (GOOD[GOOD.index("templates:") :], "templates: []", "E-TASK-KEY", "templates is []"),
    (GOOD[GOOD.index("templates:") :], "templates: {}", "E-TASK-KEY", "templates is {}. Write templates: a list such as [{name: "),
    (GOOD[GOOD.index("templates:") :], 'templates: [{name: a, jinja: "{{ text }}"}]', "E-TPL-LABELS", "task.yaml, template 1: template 'a' has no answer_choices"),
    (GOOD[GOOD.index("templates:") :], "templates: {a: b}", "E-TASK-KEY", "templates is {'a': 'b'}. Write a list of templates, or {promptsource: SET}"),
    (GOOD[GOOD.index("templates:") :], "templates: [x]", "E-TASK-KEY", "template 1 does not hold keys and values"),
    (DATA, "data: {}", "E-TASK-KEY", "data is {}. Write data: {test: reviews.csv}."),
    (DATA, "data: tickets.csv", "E-TASK-KEY", "data is 'tickets.csv'. Write data: {test: reviews.csv}."),
    (DATA, "data: {test: 7}", "E-TASK-KEY", "data, test does not hold keys and values"),
    (DATA, "data: {test: {path: a.csv, part: tst}}", "E-TASK-KEY", "data, test: part is 'tst'. It should be 'train' or 'test'."),
    (DATA, "data: {test: {encoding: x}}", "E-TASK-KEY", "data, test has no path"),
    (DATA, "data: {test: {repo: a/b, confg: c}}", "E-TASK-KEY", "unknown key 'confg'. Did you mean 'config'?"),
    (DATA, "data: {test: {path: a.csv, split: c}}", "E-TASK-KEY", "unknown key 'split'"),
    (DATA, "data: {test: {repo: ../b}}", "E-DATA-HUB", "is not the name of a dataset"),
    ("name: support_tickets", "name: 7", "E-TASK-KEY", "name is 7. It should be a valid string"),
    ("name: terse\n", "name: no\n", "E-TASK-KEY", "template 2: name is False. It should be a valid string"),
    ("name: terse\n", "reference: x\n", "E-TASK-KEY", "template 2 has no name"),
    ("label_field: urgent", "label_field: [urgent]", "E-TASK-KEY", "label_field is ['urgent']. It should be a valid string"),
    ("labels: [0, 1]\n", "", "E-TASK-KEY", "has a label_field but no labels"),
    ("labels: [0, 1]\n", "labels: [0, 1]\nf1: mikro\n", "E-TASK-KEY", "f1 is 'mikro'. Choose one of auto, binary, macro"),
    ("[terse]", "terse", "E-TASK-KEY", "held_out_templates is 'terse'. Write held_out_templates: [plain, formal]."),
    ("[terse]", "[tersely]", "E-TASK-UNKNOWN", "no template 'tersely'. Did you mean 'terse'?"),
    ("name: terse\n", "name: terse\n    order: swapped\n", "E-TASK-KEY", "template 'terse' has an order but no wording. Give the same wording"),
    ("name: terse\n", "name: terse\n    wording: 7\n", "E-TASK-KEY", "template 2 ('terse'): wording is 7. It should be a valid string"),
    ("labels: [0, 1]\n", "labels: [0, 1]\nscale: 5\n", "E-TASK-KEY", "scale is 5. It should be"),
    # Labels and answers that YAML reads as something else.
    ("labels: [0, 1]", "labels: [no, yes]", "E-LABEL", "label 1 was read as False"),
    ("labels: [0, 1]", "labels: [0.5, 1]", "E-LABEL", "label 1 was read as 0.5"),
    ("labels: [0, 1]", "labels: [a, 2020-01-01]", "E-LABEL", "label 2 was read as datetime.date"),
    ("labels: [0, 1]", "labels: [a, ]\nf1: [~]", "E-TASK-KEY", "f1 is [None]"),
    ("labels: [0, 1]", "labels: [a, ~]", "E-LABEL", "label 2 was read as None"),
    ("labels: [0, 1]", "labels: 2", "E-LABEL", "labels is 2, not a list"),
    ("labels: [0, 1]", "labels: [0, 0]", "E-LABEL-DUP", "lists the label '0' twice"),
    ('["calm", "urgent"]', "[no, yes]", "E-LABEL", "template 2 ('terse'): an answer choice was read as False"),
    ('["calm", "urgent"]', "No", "E-LABEL", "an answer choice was read as False"),
    ('["calm", "urgent"]', "[1, 2]", "E-LABEL", "an answer choice was read as 1"),
    ('["calm", "urgent"]', '["a ||| b", "c"]', "E-LABEL", "holds |||"),
    # Templates.
    ("name: terse\n", "name: plain\n", "E-TPL-DUP", "two templates are named 'plain'"),
    ("Urgent:", "{% if %}", "E-TPL-SYNTAX", "template 'terse', line 2"),
    ("Urgent:", "{{ text|uper }}", "E-TPL-SYNTAX", "template 'terse', line 2: No filter named 'uper'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "words"), MISTAKES)
def test_a_mistake_in_a_task_file_is_rejected_with_its_place(tmp_path, old, new, code, words):
    assert old in GOOD
    error = refusal(write(tmp_path, GOOD.replace(old, new)))
    assert error.code == code, str(error)
    assert words in str(error)


def test_an_unreadable_task_file_is_rejected(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_bytes("name: ä".encode("latin-1"))
    assert "is not UTF-8 at byte 6" in str(refusal(path))
    assert str(refusal(tmp_path / "tsk.yaml")).endswith("tsk.yaml. Did you mean 'task.yaml'?")
    assert refusal(tmp_path / "tsk.yaml").code == "E-TASK-FILE"
    assert refusal(tmp_path).code == "E-TASK-FILE"
    assert refusal(tmp_path / "no" / "such.yaml").code == "E-TASK-FILE"


def test_training_needs_two_templates_that_are_not_held_out(tmp_path):
    require_templates_for_training(read_task_file(write(tmp_path, GOOD)))
    short = read_task_file(write(tmp_path, GOOD.replace("[terse]", "[terse, long]")))
    with pytest.raises(InputError, match=r"E-NO-CONSENSUS: .* 1 template to train on \(2 held out\)"):
        require_templates_for_training(short)
    with pytest.raises(InputError, match="E-NO-CONSENSUS"):
        require_templates_for_training(short.with_templates(["plain"]))


@pytest.mark.parametrize(
    ("templates", "names", "held_out"),
    [
        (None, ["plain", "long"], ()),
        ("all", ["plain", "terse", "long"], ("terse",)),
        ("held_out", ["terse"], ("terse",)),
        ("long, terse", ["long", "terse"], ()),
    ],
)
def test_held_out_templates_are_excluded_by_default(tmp_path, templates, names, held_out):
    task = load_task(write(tmp_path, GOOD), templates=templates)
    assert task.templates.names == tuple(names)
    assert task.held_out_templates == held_out


def test_an_unknown_task_lists_the_known_tasks():
    words = r"E-TASK-UNKNOWN: .*'rtee'.*Did you mean 'rte'\? Known: anli_r1.*demo, .*winogrande, wsc\."
    with pytest.raises(InputError, match=words):
        load_task("rtee")
    with pytest.raises(InputError, match=r"E-TASK-FILE: there is no task file rtee\.yaml"):
        load_task("rtee.yaml")
