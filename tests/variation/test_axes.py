"""Variants of templates along axes: levels, crossing, stars and held-out levels."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import yaml

from flip_flop import audit, load_task, write_report
from flip_flop.metrics import Scores
from flip_flop.prompts import Template
from flip_flop.record import ModelRecord
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.tasks import Task
from tests.cases import read_cases
from tests.refused import refused

OPTIONS = "A. world\nB. sports\nC. business\nD. science"
LETTERS = "A ||| B ||| C ||| D"
WORDS = "world ||| sports ||| business ||| science"
PLAIN = Template("plain", "Text: {{ text }}\nWhich topic fits?\n" + OPTIONS + "\nLetter:", LETTERS)
FIRST = Template("first", "Choose a topic.\n" + OPTIONS + "\n\nArticle: {{ text }}\nTopic:", LETTERS)
SHORT = Template("short", "{{ text }}\nThe topic is", WORDS)
TEXTS = ["stocks closed lower today", "the keeper saved three penalties", "ministers discussed another treaty"]
ROWS = [{"text": text, "topic": place} for place, text in enumerate(TEXTS)]
TRAIN = [{"text": f"another article {place}", "topic": place} for place in range(4)]
TASK = Task("topics", [PLAIN, FIRST, SHORT], {"train": TRAIN, "test": ROWS}, labels=(0, 1, 2, 3), label_field="topic")


def levels_of(task):
    return {template.name: dict(template.levels) for template in task.templates}


def differing(one, other):
    """The axes on which two templates have different levels."""
    return [axis for axis in one if one[axis] != other[axis]]


class AlwaysA(Scorer):
    """A model that answers with the letter A."""

    record = ModelRecord(name="A")

    def scores(self, instances, options=None, **_):
        choices = np.array([instance.choices for instance in instances])
        table = np.where(choices == "A", -0.1, -3.0).astype(np.float32)
        return Scored(Scores.of(instances, table, np.ones(table.shape, np.int64)))


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A task file of the task."""
    monkeypatch.chdir(tmp_path)
    for split, rows in TASK.data.items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.fields))
    task = {"name": "topics", "data": {"train": "train.jsonl", "test": "test.jsonl"}, "label_field": "topic"}
    task |= {"labels": [0, 1, 2, 3], "templates": [template.entry for template in TASK.templates]}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    return tmp_path / "task.yaml"


def test_position_calibration_equates_the_labels_of_a_model_that_always_says_a(file, flip_flop):
    task = TASK.with_templates(["plain", "first"]).with_axes({"order": 4})
    scores = audit(AlwaysA(), task, quiet=True, calibrate="position").calibrated.scores
    np.testing.assert_allclose(np.ptp(scores, axis=2), 0.0, atol=1e-6)
    refused("E-CALIBRATION: .*'short' lacks", audit, AlwaysA(), TASK.with_axes({"order": 4}), calibrate="position")
    rotated = ("-t", str(file), "--templates", "plain,first", "--axis", "order=4", "--calibrate", "position")
    run = flip_flop("audit", "-m", "demo", *rotated, "--out", "run")
    assert run.code == 0, run.err
    assert "position calibration assumes no label frequencies" in run.out
    assert flip_flop("predict", "--with", "run", "-i", "test.jsonl", "-o", "p.jsonl").code == 0
    assert "class imbalance" not in write_report([file.parent / "run"], file.parent / "report.html").read_text()


def with_axes(file, axes):
    file.write_text(file.read_text() + yaml.safe_dump({"axes": axes}))
    return str(file)


def test_a_model_that_always_says_a_flips_by_order_and_not_by_wording(file, flip_flop):
    varied = flip_flop(
        "templates", "vary", "task.yaml", "--axis", "order=4", "--templates", "plain,first", "-o", "v.yaml"
    )
    assert varied.out.splitlines()[-1] == "v.yaml: 8 templates, 2 of them original; 0 rejected"
    task = load_task("v.yaml")
    run = audit(AlwaysA(), task, quiet=True)
    assert (run.value("wording_flips"), run.value("order_flips")) == (0.0, 1.0)
    assert run.metrics["flip_pairs"] == {"wording_flips": 3 * 4, "order_flips": 3 * 2 * 6}


def test_rotations_give_each_label_each_position_equally_often():
    task = TASK.with_axes({"order": 4})
    instance = task.instances("test")[0]
    counts = Counter()
    for template, prompt, answers in zip(task.templates, instance.prompts, instance.choices, strict=True):
        if template.name.startswith("plain"):
            options = dict(line.split(". ") for line in prompt.splitlines() if line[1:3] == ". ")
            assert [options[answer] for answer in answers] == ["world", "sports", "business", "science"]
            assert " ".join(str(1 + answers.index(mark)) for mark in "ABCD") == template.levels["order"]
            counts.update(enumerate(answers))
    assert set(counts.values()) == {1}
    assert len(counts) == 16


@pytest.mark.slow
def test_all_templates_have_levels_and_differ_from_a_template_in_one():
    axes = {"order": 3, "format": 2, "examples": {"number": 2, "sets": 2}, "typos": 0.5}
    task = TASK.with_axes(axes)
    levels = levels_of(task)
    assert levels["plain"] == {
        **{"wording": "plain", "order": "1 2 3 4", "format": "original", "examples": "none"},
        **{"example_order": "1 2", "typos": "original"},
    }
    assert list(levels)[:3] == ["plain", "plain · order 2 3 4 1", "plain · order 3 4 1 2"]
    for name, own in levels.items():
        base, divider, change = name.rpartition(" · ")
        if divider:
            (axis,) = differing(levels[base], own)
            assert change.startswith(axis.replace("_", " "))
    # An order is crossed: 2 x 3 and one that lists no options. Others are around three of these, of different wordings.
    found = Counter(name.rpartition(" · ")[2].rpartition(" ")[0] for name in levels)
    assert found == {
        "": 3,
        "order 2 3 4": 2,
        "order 3 4 1": 2,
        "format": 6,
        "examples set": 6,
        "example order 2": 6,
        "typos": 3,
    }
    for axis in ("format", "examples", "typos"):
        unchanged = levels["plain"][axis]
        assert {each["wording"] for each in levels.values() if each[axis] != unchanged} == {"plain", "first", "short"}
    assert levels_of(TASK.with_axes(axes)) == levels
    assert levels_of(TASK.with_axes({**axes, "seed": 1})) != levels
    # The variants along an axis do not depend on the other axes, except the orders around which they are.
    alone = TASK.with_axes({"order": 3, "format": 2}).templates.names
    assert alone == tuple(name for name in levels if "examples" not in name and "typos" not in name)


def test_axes_that_are_crossed_vary_around_all_templates():
    levels = levels_of(TASK.with_axes({"order": 2, "format": 2, "cross": ["order", "format"]}))
    assert len(levels) == (2 + 2 + 1) * 3
    for one, other in itertools.combinations(levels.values(), 2):
        if one["wording"] == other["wording"] == "plain" and one["format"] == other["format"]:
            assert differing(one, other) == ["order"]


def test_held_out_levels_and_templates_hold_out_their_variants():
    axes = {"order": 4, "format": 1, "held_out": {"order": [3, "4 1 2 3"], "format": [2]}}
    task = TASK.with_axes(axes)
    held_out = [
        name
        for name, levels in levels_of(task).items()
        if levels["order"] in ("3 4 1 2", "4 1 2 3") or levels["format"] != "original"
    ]
    assert list(task.held_out_templates) == held_out
    assert not any("order 3" in name or "order 4" in name for name in task.templates.names if "format" in name)
    one = Task("topics", [PLAIN, FIRST], {"test": ROWS}, held_out_templates=("first",)).with_axes(
        {"order": 2, "typos": 1.0}
    )
    assert one.training_templates.names[:2] == ("plain", "plain · order 2 3 4 1")
    assert {name.partition(" · ")[0] for name in one.held_out_templates} == {"first"}
    assert (
        sum("typos" in name for name in one.held_out_templates)
        == sum("typos" in name for name in one.training_templates.names)
        == 2
    )


def test_typos_are_in_the_row_only_and_the_same_under_all_templates():
    said = Template(
        "said",
        "{{ text | upper }} Is {{ text }} by {{ answer_choices | join(' or ') }}, {{ name }}? {{ 'sure' ~ text }}",
        "{{ name }} ||| nobody",
    )
    rows = [{"text": "whatever remains yesterday", "name": "somebody"}]
    task = Task("t", [said, Template("plain", "{{ text }}", "yes ||| no")], {"test": rows}).with_axes({"typos": 1.0})
    (instance,) = task.instances("test")
    prompts = dict(zip(task.templates.names, instance.prompts, strict=True))
    changed = prompts["plain · typos 1.0"]
    assert [Counter(word) for word in changed.split()] == [Counter(word) for word in rows[0]["text"].split()]
    assert all(one != other for one, other in zip(changed.split(), rows[0]["text"].split(), strict=True))
    own = prompts["said"]
    assert changed in prompts["said · typos 1.0"]
    assert prompts["said · typos 1.0"].endswith("by somebody or nobody, somebody? surewhatever remains yesterday")
    assert own.endswith("by somebody or nobody, somebody? surewhatever remains yesterday")
    few = Task(
        "t", [Template("plain", "{{ text }}", "yes ||| no")], {"test": [{"text": "word " * 4000}, {"text": "word"}]}
    )
    (prompt, *_), again = (
        few.with_axes({"typos": 0.25}).instances("test")[0].prompts[1:],
        few.with_axes({"typos": 0.25, "seed": 1}),
    )
    assert 900 < prompt.count("wrod") < 1100
    assert again.instances("test")[0].prompts[1] != prompt
    assert few.with_axes({"typos": 0.25}).instances("test", seed=5)[0].prompts[1] == prompt


@pytest.mark.slow
def test_a_task_file_and_the_command_line_vary_alike(file, flip_flop):
    path = with_axes(file, {"order": 4})
    own = load_task(path, templates="all")
    assert levels_of(own) == levels_of(TASK.with_axes({"order": 4}))
    assert (
        load_task(path, axes={"format": 2}).templates.names == TASK.with_axes({"order": 4, "format": 2}).templates.names
    )
    assert load_task(path, axes={"order": 2}).templates.names == TASK.with_axes({"order": 2}).templates.names
    assert load_task(path, templates="plain,short").templates.names == (*own.templates.names[:4], "short")
    assert load_task(path, templates="plain · order 2 3 4 1").templates.names == ("plain · order 2 3 4 1",)
    chosen = load_task(path, templates="plain", axes={"typos": 0.5, "held_out": {"order": [2]}})
    orders = ["1 2 3 4", "3 4 1 2", "4 1 2 3"]
    assert [template.levels["order"] for template in chosen.templates[:3]] == orders
    assert len(chosen.templates) == 6  # three with typos, none of the held-out order
    assert load_task(path, templates="short", axes={"held_out": {"order": [2]}}).templates.names == ("short",)
    assert len({own.digest(), TASK.digest(), load_task(path, axes={"order": 2}).digest()}) == 3
    shown = flip_flop("templates", "show", path, "--axis", "typos=0.5", "--templates", "short").out
    assert "--- short · typos 0.5 ---" in shown
    predicted = flip_flop("predict", "-m", "demo", "-t", path, "--axis", "order=2", "-i", "test.jsonl", "-o", "p.csv")
    assert predicted.code == 0, predicted.err
    run = flip_flop("audit", "-m", "demo", "-t", path, "--axis", "format=1", "--out", "run")
    assert run.code == 0, run.err
    record = json.loads((file.parent / "run" / "run.json").read_text())["task"]
    varied = TASK.with_axes({"order": 4, "format": 1})
    assert {each["name"]: each["levels"] for each in record["templates"]} == levels_of(varied)


@pytest.mark.parametrize("case", read_cases("variation/axis_mistakes.yaml"), ids=lambda case: str(case["axes"]))
def test_wrong_axes_are_refused_in_one_line(case):
    line = refused("E-AXIS", TASK.with_axes, case["axes"])
    assert line.startswith(f"E-AXIS: {case['line']}")


def test_templates_that_cannot_change_are_named(flip_flop, file, caplog):
    TASK.with_axes({"order": 2})
    assert "W-AXIS: topics: no variants by order of short: their options cannot be moved" in caplog.text
    shown = flip_flop("templates", "show", str(with_axes(file, {"order": 2})), "--axis", "oder=2")
    assert (shown.code, shown.err) == (
        2,
        "E-AXIS: task 'topics', axes has an unknown key 'oder'. Did you mean 'order'?\n",
    )
    options = "\n".join(f"{mark}. {mark * 3}" for mark in "ABCDE")
    many = Task("t", [Template("many", "{{ text }}\n" + options, "A ||| B ||| C ||| D ||| E")])
    refused("'many' has 5 options, which have more than 24 orders. Write order: 5", many.with_axes, {"order": "all"})
    short = TASK.with_templates(["short"])
    refused("task 'topics': no template has variants by order: their options", short.with_axes, {"order": 2})
    twice = TASK.with_axes({"order": 2})
    refused("'topics' has templates with levels of 'order'. Leave out this axis", twice.with_axes, {"order": 2})


def test_variants_of_a_wording_draw_the_same_at_random():
    drawing = Template("greet", "{{ ['Hi', 'Hey', 'Yo'] | choice }} {{ text }}: good or bad?", "bad ||| good")
    rows = [{"text": f"row {number}"} for number in range(9)]
    task = Task("t", [drawing], {"test": rows}).with_axes({"order": 2})
    prompts = [instance.prompts for instance in task.instances("test")]
    assert len({first.split()[0] for first, _ in prompts}) > 1
    assert all(first.replace("good or bad", "bad or good") == second for first, second in prompts)
