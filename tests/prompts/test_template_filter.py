"""One rule selects the templates: those that ask for the dataset's own task and render for every row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flip_flop.errors import InputError
from flip_flop.prompts import Template
from flip_flop.prompts.promptsource import SourceTemplate, filter_templates, read_promptsource

ROWS = [{"x": "tea", "y": 1, "extra": "a"}, {"x": "", "y": 0, "extra": "b"}]


def source(name: str, jinja: str, choices: str | None = "No ||| Yes", *, original: bool = True) -> SourceTemplate:
    return SourceTemplate(name, jinja, choices, original, Template(name, jinja, choices))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (source("t", "{{ x }}?", original=False), "it does not ask for the dataset's own task"),
        (source("t", "{{ x }}?", None), "it has no answer choices"),
        (source("t", "{{ x }}?", "  "), "it has no answer choices"),
        (source("t", "{% if x %}{{ x }}{% endif %}"), "row 2: the prompt is empty (E-TPL-EMPTY)"),
        (source("t", "{{ z }}?"), "row 1: there is no field 'z' (E-TPL-UNDEFINED)"),
        (source("t", "{{ y }}?"), "row 1: the prompt reads the label field 'y' (E-TPL-LABEL-LEAK)"),
        (source("t", "{{ x }}?", "No ||| {{ x }}"), "row 2: answer choice 2 is empty (E-LABEL-EMPTY)"),
        (source("t", "{{ x }}?", "No"), "row 1: 1 answer choices for 2 labels (E-TPL-LABELCOUNT)"),
        (source("t", "{{ x }}?", "a ||| b ||| c"), "row 1: 3 answer choices for 2 labels (E-TPL-LABELCOUNT)"),
    ],
)
def test_a_template_is_dropped_with_its_reason(candidate: SourceTemplate, reason: str) -> None:
    plain = source("plain", "{{ x }}?")
    found = filter_templates([candidate, plain], ROWS, label_field="y", num_labels=2)
    assert found.kept.names == ("plain",)
    assert found.dropped == (("t", reason),)


def test_a_refused_template_is_dropped_with_its_refusal() -> None:
    refusal = InputError("E-TPL-UNSAFE", "template 'odd', line 1: the method 'append' is not allowed.")
    odd = SourceTemplate("odd", "{{ x.append(1) }}", "No ||| Yes", True, refusal)
    dropped = filter_templates([odd], ROWS, label_field="y").dropped
    assert dropped == (("odd", "line 1: the method 'append' is not allowed (E-TPL-UNSAFE)"),)


def test_the_order_of_the_candidates_stays() -> None:
    candidates = [source(name, "{{ x }}?", original=name not in "bd") for name in "cbdae"]
    found = filter_templates(candidates, ROWS, label_field="y")
    assert found.kept.names == ("c", "a", "e")
    assert [name for name, _ in found.dropped] == ["b", "d"]


def test_a_template_that_has_failed_is_not_rendered_again() -> None:
    read = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield {"x": "" if number == 2 else "tea"}

    found = filter_templates([source("t", "{{ x }}")], rows(), label_field=None)
    assert len(found.kept) == 0
    assert read == 3


def test_two_equal_answers_are_the_rows_fault_and_drop_no_template() -> None:
    candidate = source("t", "{{ a }}?", "{{ a }} ||| {{ b }}")
    assert filter_templates([candidate], [{"a": "x", "b": "x"}], label_field=None).kept.names == ("t",)


def test_the_rule_gives_five_templates_on_rows_of_storyclozes_shape(promptsource_folder: Path) -> None:
    rows = [
        {
            "story_id": str(number),
            **{f"input_sentence_{index}": f"Sentence {index} of story {number}." for index in range(1, 5)},
            "sentence_quiz1": f"Ending {number}.",
            "sentence_quiz2": f"Another ending {number}.",
            "answer_right_ending": 1 + number % 2,
        }
        for number in range(20)
    ]
    candidates = read_promptsource(promptsource_folder, "story_cloze/2016")
    kept = filter_templates(candidates, rows, label_field="answer_right_ending", num_labels=2).kept
    assert len(kept) == 5
    assert kept[0].render(rows[3], "answer_right_ending")[1] == ("Ending 3.", "Another ending 3.")
