"""Demonstrations: drawn from another split, balanced, never the row itself, and never read as Jinja."""

from collections import Counter
from dataclasses import replace

import pytest

from flip_flop.prompts import INSTRUCTIONS, Template
from flip_flop.tasks import Task
from tests.refused import refused

PLAIN = Template("plain", "Text: {{ text }}\nGood or bad?", "bad ||| good")
COURT = Template("court", "{{ text }}\nVerdict ||| {{ answer_choices[gold] }}", "guilty ||| free")
HOSTILE = "{{ 1/0 }} {% raw %} \"quoted\" \\n ||| {# gone #} <end> 'it''s' \r\n é 😀 {{ text }}"


def row(text, gold, **more):
    return {"text": text, "gold": gold, **more}


TRAIN = [row(f"text {place}", place % 2) for place in range(12)]
TEST = [row("new 1", 0), row("new 2", 1)]


def task_of(train=TRAIN, test=TEST, templates=(PLAIN, COURT), **keys):
    return Task("t", list(templates), {"train": train, "test": test}, labels=(0, 1), label_field="gold", **keys)


def prompts_of(task, split="test", row=0):
    instance = task.instances(split, need_labels=False)[row]
    return dict(zip(task.templates.names, instance.prompts, strict=True))


def shown(prompt):
    """The demonstrations of a prompt of PLAIN, and the row's own text."""
    *examples, own = prompt.split("\n\n")
    return [example.removeprefix("Text: ").split("\nGood or bad? ") for example in examples], own


def test_sets_are_balanced_and_orders_have_the_same_rows():
    task = task_of().with_axes({"examples": {"number": 4, "sets": 3, "orders": 2}})
    prompts = {name: prompt for name, prompt in prompts_of(task).items() if name.startswith("plain · ")}
    assert len(prompts) == 6
    found = {name: shown(prompt) for name, prompt in prompts.items()}
    gold_of = {each["text"]: ("bad", "good")[each["gold"]] for each in TRAIN}
    for examples, own in found.values():
        assert own == "Text: new 1\nGood or bad?"
        assert Counter(answer for _, answer in examples) == {"bad": 2, "good": 2}
        assert all(gold_of[text] == answer for text, answer in examples)
    sets = {frozenset(dict(examples)) for examples, _ in found.values()}
    assert len(sets) == 3
    for name, (examples, _) in found.items():
        order = [int(place) - 1 for place in task.templates.select([name])[0].levels["example_order"].split()]
        drawn, _ = found[name.partition(" · example order")[0]]
        assert examples == [drawn[place] for place in order]


def test_all_rows_begin_alike_and_none_is_its_own_demonstration():
    task = task_of().with_axes({"examples": {"number": 3, "sets": 1, "orders": 1}})
    name = "plain · examples set 1"
    (first, _), (second, _) = (shown(prompts_of(task, row=row)[name]) for row in (0, 1))
    assert first == second
    replaced = 0
    for place, each in enumerate(TRAIN):
        examples, own = shown(prompts_of(task, "train", place)[name])
        assert own == f"Text: {each['text']}\nGood or bad?"
        assert each["text"] not in [text for text, _ in examples]
        assert len(examples) == 3
        replaced += examples != first
        assert sum(example not in first for example in examples) <= 1
    assert replaced == 3


def test_no_demonstration_is_in_another_split():
    copies = [row(" new 1 ", 0, source="web"), row("Ne\u0301w", 1), row("seen", 0), row("spare", 1), row("third", 0)]
    task = task_of(copies, [*TEST, row("N\u00e9w", None)])
    what = "split 'train' has 3 labelled rows for examples that no other split has. 4 are needed"
    refused(what, task.with_axes, {"examples": 3})
    validated = replace(task, data={**task.data, "validation": [row("third", 0)]})
    refused("split 'train' has 2 labelled rows", validated.with_axes, {"examples": 2})
    examples, _ = shown(prompts_of(task.with_axes({"examples": {"number": 2, "sets": 1}}))["plain · examples set 1"])
    assert {text for text, _ in examples} < {"seen", "spare", "third"}
    same = task_of([*copies[2:], row("spare", 1, source="web")], TEST)
    refused("has 3 labelled rows", same.with_axes, {"examples": 3})
    refused("has no split 'train'. Add train: FILE", Task("t", [PLAIN], {"test": TEST}).with_axes, {"examples": 2})


@pytest.mark.parametrize("limit", [None, 16])
def test_demonstrations_are_printed_as_they_are(limit):
    task = task_of([row(f"{place} {HOSTILE}", place % 2) for place in range(4)])
    task = replace(task, templates=replace(task.templates, value_limit=limit)).with_axes({"examples": 3, "order": 2})
    for name, prompt in prompts_of(task).items():
        whole = HOSTILE.strip() if limit is None else "..."
        assert prompt.count(whole) == 3 * ("examples" in name)
    own = prompts_of(task, "train")["plain · examples set 1"]
    assert own.count("Text: 0 ") == 1
    court = next(template for template in task.templates if template.name == "court · examples set 1")
    assert court.target(TEST[1], ["guilty", "free"]) == "free"


def test_answers_are_those_of_the_variant():
    marks = Template("marks", "{{ text }}\nA. bad\nB. good\nLetter:", "A ||| B")
    task = task_of(templates=[marks]).with_axes({"order": 2, "examples": {"number": 2, "sets": 1, "orders": 1}})
    for name, prompt in prompts_of(task).items():
        *examples, _ = prompt.split("\n\n")
        for example in examples:
            text, first, second, answer = example.splitlines()
            options = dict(line.split(". ") for line in (first, second))
            assert options[answer.removeprefix("Letter: ")] == ("bad", "good")[int(text.split()[1]) % 2], name


def test_votes_of_a_model_can_be_the_labels():
    voted = [{"vote": 1 - each["gold"], **each} for each in TRAIN] + [{"vote": None, **row("unsure", 1)}]
    axes = {"examples": {"number": 4, "sets": 1, "labels": "votes"}}
    examples, _ = shown(prompts_of(task_of(voted).with_axes(axes))["plain · examples set 1"])
    gold_of = {each["text"]: each["gold"] for each in TRAIN}
    assert all(answer == ("bad", "good")[1 - gold_of[text]] for text, answer in examples)
    unlabelled = Task(
        "t", [PLAIN], {"train": [{"vote": place % 2, "text": f"text {place}"} for place in range(9)], "test": TEST}
    )
    assert "good" in prompts_of(unlabelled.with_axes(axes))["plain · examples set 1"]
    refused("no column 'vote', which `flip-flop predict` writes", task_of().with_axes, axes)


def test_typos_and_demonstrations_do_not_meet():
    task = task_of().with_axes({"examples": 2, "typos": 0.5, "cross": ["examples"]})
    assert sum("typos" in name for name in task.templates.names) == 2
    assert not any("typos" in name and "examples" in name for name in task.templates.names)


def test_a_marked_row_is_not_its_own_demonstration():
    """A server of decision models gets the prompt with marks in place of comments."""
    marked = Template("marked", "Text: {{ text }}{# instructions #}\nGood or bad?", "bad ||| good")
    task = task_of(templates=[marked]).with_axes({"examples": {"number": 3, "sets": 1, "orders": 1}})
    template = task.templates[1]
    divided = replace(template, jinja=template.jinja.replace(*INSTRUCTIONS))
    for each in TRAIN:
        prompt, _ = divided.render({"text": each["text"]}, "gold")
        assert prompt.count(f"Text: {each['text']}\n") == 0
        assert prompt.endswith(f"Text: {each['text']}{INSTRUCTIONS[1]}\nGood or bad?")


def test_a_template_that_draws_at_random_has_no_demonstrations():
    drawing = Template("greet", "{{ ['Hi', 'Hey'] | choice }} {{ text }}\nGood or bad?", "bad ||| good")
    refused("^E-AXIS: .*draw at random", task_of(templates=[drawing]).with_axes, {"examples": 2})
