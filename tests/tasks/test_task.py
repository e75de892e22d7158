"""A task's instances and its file: gold labels by index, ids, samples, held-out splits, strict YAML."""

import re
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
from evidence.demo_reviews import SPLIT_SIZES, make_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.files import sha256_json
from flip_flop.prompts import RenderedInstance, Template, TemplateSet
from flip_flop.reading import AnswerFormat
from flip_flop.record import TaskRecord
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks import (
    FileSource,
    HubSource,
    RowsSource,
    Task,
    deduplicate,
    holdout,
    load_task,
    require_templates_for_training,
)
from flip_flop.tasks.loading import read_task_file
from tests.cases import read_list
from tests.refused import refused

PLAIN, TERSE = (
    Template("plain", "{{ text }} Urgent?", "No ||| Yes"),
    Template("terse", "{{ text }}:", "calm ||| urgent"),
)
TEMPLATES = TemplateSet((PLAIN, TERSE, Template("long", "Is this urgent? {{ text }}", "false ||| true")))


def task(rows, split="test", **more):
    keys = {"labels": (0, 1), "label_field": "urgent", **more}
    return Task("tickets", TEMPLATES, {split: RowsSource(rows, "tickets")}, **keys)


def csv_task(folder, text):
    (folder / "tickets.csv").write_text(text)
    return replace(task([]), data={"test": FileSource(folder / "tickets.csv")})


def some(count):
    return [{"text": f"ticket {index}", "urgent": index % 2} for index in range(count)]


def test_instances_have_all_templates_and_the_label_index(tmp_path):
    instances = csv_task(tmp_path, "text,urgent\nfire,1\ntea,0\n").instances("test")
    assert [instance.id for instance in instances] == ["test-1", "test-2"]
    assert [instance.label for instance in instances] == [1, 0]
    assert instances[0].prompts == ("fire Urgent?", "fire:", "Is this urgent? fire")
    assert instances[0].choices[1] == ("calm", "urgent")


@pytest.mark.parametrize(
    ("labels", "value", "index"),
    [
        ((1, 2), "2", 1),
        (("1", "2"), 2, 1),
        (("b", "a"), "a", 1),
        ((0, 1), 1.0, 1),
        ((0, 1), "1.0", 1),
        (("1.0", "1"), 1.0, 0),
        (("false", "true"), True, 1),
        (("False", "True"), True, 1),
    ],
)
def test_a_label_is_compared_as_it_is_written(labels, value, index):
    assert task([{"text": "x", "urgent": value}], labels=labels).instances("test")[0].label == index


@pytest.mark.parametrize("value", [2, -1, "01", "1.00", "v1.0", 1.5, True, "yes", " 1"])
def test_an_undeclared_label_is_rejected_with_its_row_and_value(value):
    words = f"E-LABEL: tickets row 4: 'urgent' is {value!r}, which is not among the labels. Declared: 0, 1."
    with pytest.raises(InputError, match=re.escape(words)):
        task([*some(3), {"text": "x", "urgent": value}]).instances("test")


def test_only_train_may_lack_the_label_field():
    rows = [{"text": "x"}, {"text": "y"}]
    assert [instance.label for instance in task(rows, "train").instances("train")] == [None, None]
    assert task(rows).instances("test", need_labels=False)[0].label is None
    with pytest.raises(InputError, match=r"E-DATA-COLUMN: tickets has no column 'urgent'"):
        task(rows).instances("test")
    with pytest.raises(InputError, match=r"Did you mean 'urgnt'\?"):
        task([{"text": "x", "urgnt": 1}]).instances("test")


def test_a_missing_column_names_the_template_the_file_and_the_line(tmp_path):
    words = r"E-TPL-RENDER: template 'plain', .*/tickets.csv line 2: there is no field 'text'. Did you mean 'txt'\?"
    with pytest.raises(InputError, match=words):
        csv_task(tmp_path, "txt,urgent\nfire,1\n").instances("test")


def test_a_task_without_gold_labels_takes_their_number_from_the_templates():
    unlabelled = task(some(3), labels=None, label_field=None)
    assert [instance.label for instance in unlabelled.instances("test")] == [None] * 3
    varying = Template("t", "x", "{{ answers|join('|||') }}")
    rows = RowsSource([{"answers": ["a", "b"]}, {"answers": ["a", "b", "c"]}], "rows")
    with pytest.raises(InputError, match="E-TPL-LABELS: template 't', rows row 2"):
        Task("t", TemplateSet((varying,)), {"test": rows}).instances("test")


def test_an_id_field_names_the_instances_and_must_be_unique():
    rows = [{**row, "key": f"k{index}"} for index, row in enumerate(some(3))]
    assert [instance.id for instance in task(rows, id_field="key").instances("test")] == ["k0", "k1", "k2"]
    with pytest.raises(InputError, match="E-DATA-ROWS: tickets row 4 has the key 'k1' of row 2"):
        task([*rows, {**rows[0], "key": "k1"}], id_field="key").instances("test")
    with pytest.raises(InputError, match=r"E-DATA-COLUMN: tickets row 1 has no 'kee'.*Did you mean 'key'\?"):
        task(rows, id_field="kee").instances("test")
    with pytest.raises(InputError, match="E-DATA-ROWS: tickets row 4: 'key' has a NUL character"):  # numpy drops it
        task([*rows, {**rows[0], "key": "k1\0"}], id_field="key").instances("test")


ROWS = [{"text": "warm", "label": "yes"}, {"text": "cold", "label": None}]
GIVEN_ROWS = {
    "table": lambda: {"test": pd.DataFrame(ROWS)},
    "table with NaN": lambda: pd.DataFrame([ROWS[0], ROWS[1] | {"label": float("nan")}]),
    "dataset": lambda: datasets.Dataset.from_list(ROWS),
    "splits": lambda: datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)),
    "list": lambda: ROWS,
}


@pytest.mark.parametrize("data", GIVEN_ROWS.values(), ids=GIVEN_ROWS)
def test_rows_may_be_a_table_or_a_dataset_with_or_without_splits(data):
    made = Task(
        "t", {"plain": "{{ text }}?", "is": "It is {{ text }}:"}, data(), labels=("no", "yes"), label_field="label"
    )
    assert [(each.prompts, each.label) for each in made.instances("test")] == [
        (("warm?", "It is warm:"), 1),
        (("cold?", "It is cold:"), None),
    ]
    assert made.templates.names == ("plain", "is")
    assert made.instances("test")[0].choices == (("no", "yes"),) * 2
    assert made.with_rows(pd.DataFrame(ROWS)).instances("test") == made.instances("test")


def test_binary_f1_is_of_two_labels():
    choices = Template("t", "x", "a ||| b ||| c")
    refused("E-TASK-KEY: f1 is 'binary', but there are 3 labels", Task, "t", [choices], labels=(0, 1, 2), f1="binary")
    unlabelled = Task("t", [choices], some(1), f1="binary").render("test")
    refused("E-TASK-KEY: f1 is 'binary', but there are 3 labels", lambda: unlabelled.record)


def test_labels_may_be_numbers_of_a_table_but_no_set():
    table = pd.DataFrame({"text": ["fire", "tea"], "urgent": [1, 0], 7: ["a", "b"]})
    made = Task("t", TEMPLATES, table, labels=sorted(table.urgent.unique()), label_field="urgent")
    assert [instance.label for instance in made.instances("test")] == [1, 0]
    assert made.digest() == replace(made, labels=(0, 1)).digest()
    with pytest.raises(InputError, match=r"E-LABEL: .* is a set"):
        replace(made, labels={0, 1})
    assert replace(made, label_names=np.array(["no", "yes"])).label_names == ("no", "yes")
    for names in ({"no", "yes"}, {0: "no", 1: "yes"}, "ny"):
        with pytest.raises(InputError, match=r"E-LABEL: .* label_names is a (set|dict|str)"):
            replace(made, label_names=names)
    with pytest.raises(InputError, match="E-TASK-KEY: templates is a set"):
        replace(made, templates={"{{ text }}", "{{ text }}?"})


@pytest.mark.parametrize(
    ("templates", "data", "words"),
    [
        ([7], ROWS, "E-TASK-KEY: a template is of type int. Give a text, or Template"),
        (7, ROWS, "E-TASK-KEY: a template is of type int"),
        ("{{ text }}", 7, "E-DATA-ROWS: t, test, is of type int. Give a list of dicts, a datasets.Dataset, a pandas"),
        ("{{ text }}", {"test": {"text": "a"}}, "E-DATA-ROWS: t, test, is of type dict"),
        ("{{ text }}", ["a"], "E-DATA-ROWS: t, test, row 1 is of type str"),
    ],
)
def test_other_types_of_rows_and_templates_are_rejected_in_one_line(templates, data, words):
    with pytest.raises(InputError) as refusal:
        Task("t", templates, data).instances("test")
    assert str(refusal.value).startswith(words)


def test_a_limit_takes_a_sample_that_a_larger_one_contains_in_the_order_of_the_rows():
    everything = task(some(60)).instances("test")
    twenty = task(some(60)).instances("test", limit=20)
    seven = task(some(60)).instances("test", limit=7)
    assert len(twenty) == 20
    assert [item for item in everything if item in twenty] == twenty
    assert [item for item in twenty if item in seven] == seven
    assert task(some(60)).instances("test", limit=20, seed=1) != twenty
    assert task(some(60)).instances("test", limit=600) == everything
    with pytest.raises(InputError, match="E-CONFIG"):
        task(some(6)).instances("test", limit=0)


def test_a_rendered_split_has_its_labels_and_a_record():
    rendered = task([{"text": "a", "urgent": 1}, {"text": "b"}], "train").render("train", seed=3)
    assert rendered.gold.tolist() == [1, -1]
    record = rendered.record
    said = {"name": "tickets", "split": "train", "num_instances": 2, "has_gold": True, "labels": [0, 1], "f1": "binary"}
    assert said.items() <= record.items()
    assert record["data"]["num_rows"] == 2
    assert [template["name"] for template in record["templates"]] == ["plain", "terse", "long"]
    sample = task(some(9)).render("test", limit=4).record
    assert sample["digest"] == record["digest"]
    assert len({each["instances_digest"] for each in (record, sample, task(some(9)).render("test").record)}) == 3


def test_a_file_is_rendered_without_its_labels_and_an_unknown_split_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("text,urgent\nfire,nonsense\ntea,1\n")
    rendered = task(some(2)).render_file(tmp_path / "rows.csv")
    assert [(each.id, each.label) for each in rendered.instances] == [("input-1", None), ("input-2", None)]
    assert rendered.instances[0].prompts[0] == "fire Urgent?"
    with pytest.raises(InputError, match=r"E-TASK-UNKNOWN: task 'tickets' has no split 'tset'. Did you mean 'test'\?"):
        task(some(2)).rows("tset")


def test_the_digest_is_that_of_the_question_and_not_of_the_data():
    same = [task(some(2)), task(some(3))]
    other = [task(some(2), labels=(1, 0)), task(some(2), f1="macro"), task(some(2)).with_templates(["plain", "long"])]
    assert len({item.digest() for item in same}) == 1
    assert len({item.digest() for item in [same[0], *other]}) == 4


def test_held_out_templates_are_a_list_of_names():
    held_out = task(some(2), held_out_templates=["long"])
    again = replace(held_out, held_out_templates=(name for name in ["long"]))
    assert (again, again.digest()) == (held_out, held_out.digest())
    assert again.training_templates.names == ("plain", "terse")


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"name": " "}, "E-TASK-KEY"),
        ({"held_out_templates": "plain"}, "E-TASK-KEY: task 't': held_out_templates is a str. Give a list of names"),
        ({"held_out_templates": {"plain"}}, "E-TASK-KEY: .* is a set"),
        ({"templates": TemplateSet(())}, "E-TASK-KEY"),
        ({"f1": "micro"}, "E-TASK-KEY"),
        ({"label_field": "urgent", "labels": None}, "E-TASK-KEY"),
        ({"labels": (1,)}, "E-TASK-KEY"),
        ({"labels": (1, "1")}, "E-LABEL-DUP"),
        ({"labels": ("no", " \u200b")}, "E-LABEL: .*without a visible character"),
    ],
)
def test_invalid_tasks_are_rejected(keys, code):
    refused(code, Task, **{"name": "t", "templates": TEMPLATES, **keys})


def rendered(labels):
    return [RenderedInstance(f"train-{i}", (f"p{i}",), (("a", "b"),), label) for i, label in enumerate(labels)]


def test_a_tenth_is_held_out_stratified_at_most_a_thousand_and_at_least_one():
    validation = holdout(rendered([0] * 150 + [1] * 50), seed=0)
    assert sorted(instance.label or 0 for instance in validation) == [0] * 15 + [1] * 5
    assert len(holdout(rendered([None] * 20_000), seed=0)) == 1000
    assert len(holdout(rendered([None] * 3), seed=0)) == 1
    assert holdout(rendered([None] * 100), seed=0) != holdout(rendered([None] * 100), seed=1)


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=2, max_size=60), st.integers(0, 5), st.randoms())
@settings(max_examples=100)
def test_holdout_depends_on_ids_and_not_on_their_order(labels, seed, shuffler):
    instances = rendered(labels)
    validation = holdout(instances, seed=seed)
    assert [item for item in instances if item in validation] == validation
    assert 1 <= len(validation) < len(instances)
    shuffler.shuffle(instances)
    assert {item.id for item in holdout(instances, seed=seed)} == {item.id for item in validation}
    for label in set(labels):
        held = sum(item.label == label for item in validation)
        assert abs(held - len(validation) * labels.count(label) / len(labels)) < 1


@pytest.mark.parametrize("count", [0, 1])
def test_holdout_needs_two_instances(count):
    refused("E-DATA-ROWS", holdout, rendered([None] * count), seed=0)


def test_deduplicate_keeps_the_first_of_equal_instances():
    rows = [*some(3), {"text": "ticket 1", "urgent": 0}, {"text": "ticket 1 ", "urgent": 1}]
    kept, dropped = deduplicate(task(rows).instances("test"))
    assert [instance.id for instance in kept] == ["test-1", "test-2", "test-3", "test-5"]
    assert dropped == 1
    assert deduplicate(kept, against=kept[:1]) == (kept[1:], 1)


def test_deduplicate_prefers_a_copy_with_a_gold_label():
    rows = [{"text": "fire", "urgent": None}, {"text": "tea", "urgent": 0}, {"text": "fire", "urgent": 1}]
    unlabelled = [{"text": text, "urgent": None} for text in ("fire", "tea", "fire")]
    assert [item.id for item in deduplicate(task(unlabelled).instances("test"))[0]] == ["test-1", "test-2"]
    for order in (rows, rows[::-1]):
        kept, _ = deduplicate(task(order).instances("test"))
        assert {instance.prompts[1]: instance.label for instance in kept} == {"fire:": 1, "tea:": 0}


def test_equal_instances_have_their_most_frequent_label_and_none_in_a_tie(caplog):
    labels = {"fire": (1, 0, 1), "tea": (0, 1, None), "smoke": (1, None, 1)}
    rows = [{"text": text, "urgent": label} for text, given in labels.items() for label in given]
    kept, dropped = deduplicate(task(rows).instances("test"))
    assert {instance.prompts[1]: instance.label for instance in kept} == {"fire:": 1, "tea:": None, "smoke:": 1}
    assert dropped == 6
    assert "2 texts with different labels: test-1, test-2, test-3; test-4, test-5, test-6." in caplog.text


def test_equal_open_instances_have_the_references_of_all():
    rows = [{"text": "half of 6", "urgent": value} for value in ("3", "3.0", "4")]
    templates = TemplateSet((Template("plain", "What is {{ text }}?"),))
    halves = Task("halves", templates, {"test": rows}, label_field="urgent", answer=AnswerFormat("number"))
    kept, _ = deduplicate(halves.instances("test"))
    assert [instance.open.references for instance in kept] == [("3", "4")]


def test_the_columns_of_a_table_can_be_numbers():
    table = pd.DataFrame([["ticket", "fire", 1], ["joke", "tea", 0]])
    task = Task("tickets", (Template("plain", "{{ row['1'] }}?", "No ||| Yes"),), table, (0, 1), 2, id_field=0)
    assert [(item.id, item.prompts, item.label) for item in task.instances("test")] == [
        ("ticket", ("fire?",), 1),
        ("joke", ("tea?",), 0),
    ]


# ---- the embedded tasks ----

DIGESTS = {
    "train": "fde8a9c9aa7bbd4f42372ea44819e8bb449444d946af556f1f4f346a35a2c338",
    "validation": "51db3047538ab7ba7cd179f9319dd5320beabc98f8935905b5beaf89a1ce5f18",
    "test": "29f43c0dbffaecaf37733d0b27a4172cdf16f63676a34da3ba84c3cec405165e",
}


# The arguments of the generator: seed, number of remarks, and the least sum of their strengths.
MADE = {"demo": (0, 3, 0.5), "demo_remarks": (1000, 1, 0.5), "demo_clear": (2000, 3, 1.5)}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("split", sorted(SPLIT_SIZES))
def test_the_stored_rows_are_those_of_the_generator(name, split):
    made = make_rows(split, *MADE[name])
    assert [row.fields for row in load_task(name).rows(split).rows] == made
    if name == "demo":
        assert sha256_json(made) == DIGESTS[split]


def test_the_embedded_task_has_eight_templates_and_three_held_out():
    demo = load_task("demo", templates="all")
    assert len(demo.training_templates) >= 8
    assert len(demo.held_out_templates) == 3
    instances = demo.instances("test")
    assert [instance.label for instance in instances] == [row["label"] for row in make_rows("test")]
    assert [instance.id for instance in instances] == [row["id"] for row in make_rows("test")]


# ---- the file of a task ----


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
  - {name: long, jinja: "{{ text }} Is it?", answer_choices: "No ||| Yes", reference: "",
     metadata: {original_task: true}}
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


def test_levels_and_scale_are_in_the_record_and_not_in_the_digests(tmp_path):
    (tmp_path / "labelled.csv").write_text("text,urgent\nfire,1\n")
    keys = GOOD.replace('"No ||| Yes"}', '"No ||| Yes", levels: {wording: plain, order: first}}') + "scale: true\n"
    plain, marked = (read_task_file(write(tmp_path, text)).render("test") for text in (GOOD, keys))
    levels = {"wording": "plain", "order": "first"}
    assert marked.task.templates[0].levels == levels
    assert marked.task.digest() == plain.task.digest()
    first, second, _ = TaskRecord(**marked.record).to_json()["templates"]
    assert (first.pop("levels"), marked.record["scale"]) == (levels, True)
    assert [first, second] == TaskRecord(**plain.record).to_json()["templates"][:2]
    assert "scale" not in TaskRecord(**plain.record).to_json()
    assert TaskRecord(**marked.record).design(["terse", "plain"]) == {
        "average": "binary",
        "levels": ({}, levels),
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


PARTS = {
    "FILE": GOOD,
    "DATA": "data: {train: unlabelled.jsonl, test: labelled.csv}",
    "TEMPLATES": GOOD[GOOD.index("templates:") :],
}


@pytest.mark.parametrize("case", read_list("tasks/task_mistakes.yaml", "words"))
def test_a_mistake_in_a_task_file_is_rejected_with_its_place(tmp_path, case):
    old = PARTS.get(case["old"], case["old"])
    assert old in GOOD
    error = refusal(write(tmp_path, GOOD.replace(old, case["new"])))
    assert error.code == case["code"], str(error)
    assert case["words"] in str(error)


def test_a_number_that_is_too_long_is_rejected(tmp_path):
    error = refusal(write(tmp_path, GOOD.replace("labels: [0, 1]", f"labels: [0, 0x{'f' * 3600}]")))
    assert error.code == "E-TASK-FILE"
    assert "task.yaml: Exceeds the limit" in str(error)


def test_an_unreadable_task_file_is_rejected(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_bytes("name: ä".encode("latin-1"))
    assert "byte 0xe4 in position 6: unexpected end of data. Save it as UTF-8" in str(refusal(path))
    assert str(refusal(tmp_path / "tsk.yaml")).endswith(f"tsk.yaml. Did you mean '{path}'?")
    assert refusal(tmp_path / "tsk.yaml").code == "E-TASK-FILE"
    assert refusal(tmp_path).code == "E-TASK-FILE"
    assert refusal(tmp_path / "no" / "such.yaml").code == "E-TASK-FILE"
    for suffix in (".csv", ".json", ".xlsx"):
        (tmp_path / f"rows{suffix}").touch()
        assert refusal(tmp_path / f"rows{suffix}").hint.startswith("Run `flip-flop init ")


def test_training_needs_two_templates_that_are_not_held_out(tmp_path):
    require_templates_for_training(read_task_file(write(tmp_path, GOOD)))
    short = read_task_file(write(tmp_path, GOOD.replace("[terse]", "[terse, long]")))
    refused(r"E-NO-CONSENSUS: .* 1 template to train on \(2 held out\)", require_templates_for_training, short)
    refused("E-NO-CONSENSUS", require_templates_for_training, short.with_templates(["plain"]))


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
    refused(words, load_task, "rtee")
    refused(r"E-TASK-FILE: there is no task file rtee\.yaml", load_task, "rtee.yaml")


# ---- strict YAML ----


TAGGED = [
    "!!bool foo", '!!int ""', '!!float ""', "!!timestamp foo", "!!python/name:os.system",
    "!!python/object/apply:os.system [ls]", "!!str x", "!!binary x", "!!set {a}", "!!omap [a: 1]", "!!map {a: 1}",
    "! x", "!Template {name: x}", "!<tag:yaml.org,2002:int> x", "[a, !!int b]",
]  # fmt: skip


INVALID = ["[" * 1000 + "]" * 1000, "2024-99-99", "0x_", "1" + ":00" * 200 + ".5"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "task.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"name: x\nlabels: {value}\n", "line 2: ") for value in TAGGED),
        *((f"name: {value}\n", "") for value in INVALID),
        ("a: &x [0]\nb: *x\n", "line 2: an alias"),
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", "line 2: duplicate key 'c'"),
        ("1: 2\n", "line 1: the key 1 is not a text"),
        ("a: 1\nno: 2\n", "line 2: the key False is not a text"),
        ("!!bool foo: 1\n", "line 1: the tag tag:yaml.org,2002:bool is not allowed"),
    ],
)
def test_tags_aliases_duplicate_keys_and_invalid_values_are_rejected(text, words, path):
    path.write_text(text)
    refused(rf"^E-TASK-FILE: .*task.yaml.*{words}", read_yaml, path)


def test_plain_values(path):
    path.write_text("a: [1, 2.5, yes, x, '1', ~]\nb: {c: d}\n")
    assert read_yaml(path) == {"a": [1, 2.5, True, "x", "1", None], "b": {"c": "d"}}
