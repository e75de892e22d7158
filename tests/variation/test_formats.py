"""Formats and orders of templates keep question and answers."""

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.prompts import Template
from flip_flop.variation.axes import format_axis, order_axis, typos_axis
from flip_flop.variation.formats import TemplateParts, apply_format, format_choices
from tests.cases import read_cases

NO_YES = "No ||| Yes"
SHOWN = [
    Template(name, **texts, levels={"wording": name}) for name, texts in read_cases("variation/templates.yaml").items()
]
BY_NAME = {template.name: template for template in SHOWN}
MOVED = [
    "row",
    "marks",
    "dashes",
    "join",
    "items",
    "question",
    "constants",
]  # the options are the answers, or the answers the marks


def variants_of(template, seed):
    """Orders, formats and typos, and formats of orders."""
    orders = order_axis("all").variants(template)
    formats = [format for order in orders for format in format_axis(4, seed).variants(order)]
    return [*formats, *typos_axis(0.0, seed).variants(template)]


@pytest.mark.slow
@pytest.mark.parametrize("template", SHOWN, ids=lambda template: template.name)
@given(seed=st.integers(0, 10**6), texts=st.tuples(st.text(max_size=5), st.text(max_size=5)))
@settings(max_examples=10)
def test_a_variant_keeps_fields_answers_and_meanings(template, seed, texts):
    row = {"a": f"§1{texts[0]}1§", "b": f"§2{texts[1]}2§"}
    before, answers = template.render(row, None)
    for variant in variants_of(template, seed):
        after, others = variant.render(row, None)
        for value in row.values():
            assert after.count(value) == before.count(value)
        for answer, other in zip(answers, others, strict=True):
            shown = [
                re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text, re.I)
                for each, text in ((answer, before), (other, after))
            ]
            assert (shown[0] is None) == (shown[1] is None)
        assert variant.jinja.partition("|||")[2] == template.jinja.partition("|||")[2]
        if template.name == "marks":  # each answer is the mark of the same option as before
            for word, answer, other in zip(("sports", row["b"], "world"), answers, others, strict=True):
                assert re.search(rf"\b{answer}\W*{re.escape(word)}", before)
                assert re.search(rf"\b{other}\W*{re.escape(word)}", after)
        else:
            assert others == answers
        if template.name not in MOVED:
            assert re.findall("§[12]|[12]§", after) == re.findall("§[12]|[12]§", before)


def test_changes_of_meaning_are_not_offered():
    choices = {template.name: set(format_choices(template)) for template in SHOWN}
    assert choices["plain"] == {"separator", "casing", "space"}
    assert choices["row"] == {"separator", "casing", "space"}
    assert choices["marks"] == {"separator", "casing", "space", "wrapper"}
    assert choices["bare"] == set()
    assert choices["rule"] == choices["steps"] == choices["spoken"] == {"space", "wrapper"}
    assert [template.name for template in SHOWN if TemplateParts(template).listed] == MOVED
    three = apply_format(BY_NAME["marks"], {"order": (2, 0, 1), "wrapper": "({})"})
    assert "(A) world\n(B) sports\n(C) {{ b }}" in three.jinja
    assert three.answer_choices == "B ||| C ||| A"
    capital = apply_format(BY_NAME["row"], {"order": (0, 1)})
    assert "False or true: {{ b|trim }}" in capital.jinja


def test_an_order_has_the_labels_as_the_prompt_lists_them():
    own = {template.name: order_axis("all").levels(template)[0] for template in SHOWN if template.name in MOVED}
    assert own == {
        **{"row": "2 1", "marks": "1 2 3", "dashes": "1 2", "join": "1 2", "items": "2 1", "question": "2 1"},
        "constants": "1 2",
    }
    row = {"a": "§1", "b": "§2"}
    for name, first in own.items():
        variants = order_axis("all").variants(BY_NAME[name])
        orders = {variant.levels["order"] for variant in variants}
        assert orders == {" ".join(order) for order in itertools.permutations(first.split())}
        for variant in variants:
            prompt, answers = variant.render(row, None)
            option_of = dict(re.findall(r"(?m)^([ABC])\. (.+)$", prompt))
            listed = prompt.casefold().partition(":")[0] if name == "question" else prompt.casefold()
            places = [listed.rindex(option_of.get(answer, answer).casefold()) for answer in answers]
            assert variant.levels["order"] == " ".join(str(1 + places.index(place)) for place in sorted(places))


def test_formats_are_drawn_by_seed_and_wording_without_repetition():
    plain = BY_NAME["plain"]
    levels = format_axis(6, 3).levels(plain)
    assert levels[0] == "original"
    assert len({apply_format(plain, json.loads(level)).jinja for level in levels[1:]} | {plain.jinja}) == 7
    assert format_axis(3, 3).levels(plain) == levels[:4]
    assert format_axis(6, 4).levels(plain) != levels
    assert format_axis(3, 3).levels(Template("other", plain.jinja, NO_YES, {"wording": "plain"})) == levels[:4]


def test_optional_lines_and_times_keep_their_surroundings():
    change = {"space": " || ", "separator": " - ", "casing": "upper"}
    branch = apply_format(BY_NAME["branch"], change)
    assert branch.render({"a": "", "b": "Q?"}, None)[0] == "QUESTION - Q? || ANSWER -"
    assert apply_format(BY_NAME["time"], change).jinja == "Departure 10:30 {{ a }} || NOTE - {{ b }} || Late?"
    acronym = Template("acronym", "US: {{ a }}\nAnother's view: {{ b }}\nSame?", NO_YES)
    assert apply_format(acronym, {"casing": "title"}).jinja == "US: {{ a }}\nAnother's View: {{ b }}\nSame?"
