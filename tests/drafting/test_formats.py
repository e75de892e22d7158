"""Formatting variants keep the question and the answers."""

import itertools
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.drafting.formats import apply_format, draw_format, draw_order, format_choices
from flip_flop.files import generator
from flip_flop.prompts import Template

NO_YES = "No ||| Yes"
TEMPLATES = [
    Template("plain", "Review: {{ a }}\nWas the guest satisfied?", NO_YES),
    Template("row", "{{ a }}\nTrue or false: {{ b|trim }}.\nAnswer: ||| {{ answer_choices[1] }}", "False ||| True"),
    Template("marks", "Text: {{ a }}\nWhich fits?\nA. sports\nB. {{ b }}\nC. world\nLetter:", "A ||| B ||| C"),
    Template("dashes", "{{ a }}\nChoose:\n- {{ b }}\n- {{ a }} again\nOne is", "{{ b }} ||| {{a}} again"),
    Template("join", "{%- if a -%}\n Q: {{ a }}\n{%- endif %}\nOne of {{ answer_choices | join(', ') }}?", "x ||| y"),
    Template("raw", "{% raw %}{{ a }}\n{% endraw %}{# note #}Say:\n{{- a -}}\nhttp://x.org \U000f0000", NO_YES),
    Template("bare", "{{ a }}", NO_YES),
]


SHOWN = [
    *TEMPLATES,
    Template("first", "Which?\n1. {{ a }}\n2. {{ b }}\nAnswer:", "the first ||| the second"),
    Template("wrapped", "Which?\n[A] {{ a }}\n[B] {{ b }}\nAnswer:", "[A] ||| [B]"),
    Template("option", "Which?\nA. {{ a }}\nB. {{ b }}\nAnswer:", "Option A ||| Option B"),
    Template("small", "Which?\nA. {{ a }}\nB. {{ b }}\nAnswer:", "a ||| b"),
    Template("rule", "1. {{ a }}\n2. {{ b }}\nDoes 1 entail 2?", NO_YES),
    Template("steps", "1. Read: {{ a }}\n2. Decide.\n3. Answer yes or no.", NO_YES),
    Template("items", "Text: {{ a }}\n1. tea\n2. {{ b }}\nIt is", "{{b}} ||| Tea"),
    Template("above", "{{ a }}\nA. {{ b }}\nB. None of the above\nLetter:", "A ||| B"),
    Template("spoken", "{{ a }}\n1) tea\n2) milk\nSay 1 if you like {{ b }}.", "1 ||| 2"),
    Template("question", "Good or bad: {{ a }}\nIs it {{ b }}:", "bad ||| good"),
    Template("ending", "Ending 1: {{ a }}\nEnding 2: {{ b }}\nAnswer:", "Ending 1 ||| Ending 2"),
    Template("twice", "Yes or no: {{ a }} and {{ b }}? Answer yes or no.", NO_YES),
    Template("time", "Departure 10:30 {{ a }}\nNote: {{ b }}\nLate?", NO_YES),
    Template("branch", "{% if a %}{{ a }}{% endif %}\nQuestion: {{ b }}\nAnswer:", NO_YES),
    Template("rows", "{{ a }} {{ answer_choices | join(', ') }}", "{% if b %}x ||| y{% else %}y ||| z{% endif %}"),
]
MOVED = ["row", "marks", "dashes", "join", "items", "question"]  # the options are the answers, or the answers the marks


@pytest.mark.slow
@pytest.mark.parametrize("template", SHOWN, ids=lambda template: template.name)
@given(seed=st.integers(0, 10**6), texts=st.tuples(st.text(max_size=5), st.text(max_size=5)), typos=st.booleans())
@settings(max_examples=10)
def test_a_variant_keeps_fields_answers_and_meanings(template, seed, texts, typos):
    variant = apply_format(template, draw_format(template, generator(seed, "test"), typos=0.5 * typos), "variant")
    row = {"a": f"§1{texts[0]}1§", "b": f"§2{texts[1]}2§"}
    (before, answers), (after, others) = template.render(row, None), variant.render(row, None)
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


def words(text):
    return Counter(re.findall(r"\w+", text.casefold()))


def test_changes_of_meaning_are_not_offered():
    choices = {template.name: set(format_choices(template)) for template in SHOWN}
    assert choices["plain"] == {"separator", "casing", "space"}
    assert choices["row"] == {"separator", "casing", "space"}
    assert choices["marks"] == {"separator", "casing", "space", "wrapper"}
    assert choices["bare"] == set()
    assert choices["rule"] == choices["steps"] == choices["spoken"] == {"space", "wrapper"}
    assert [template.name for template in SHOWN if draw_order(template, generator(0, "test"))] == MOVED
    three = apply_format(TEMPLATES[2], {"order": (2, 0, 1), "wrapper": "({})"}, "three")
    assert "(A) world\n(B) sports\n(C) {{ b }}" in three.jinja
    assert three.answer_choices == "B ||| C ||| A"


def test_all_other_orders_of_few_options_are_sampled():
    drawn = {draw_order(TEMPLATES[2], generator(number, "test")) for number in range(200)}
    assert drawn == set(itertools.permutations(range(3))) - {(0, 1, 2)}


def test_optional_lines_and_times_keep_their_surroundings():
    branch, time = (next(each for each in SHOWN if each.name == name) for name in ("branch", "time"))
    change = {"space": " || ", "separator": " - ", "casing": "upper"}
    assert apply_format(branch, change, "v").render({"a": "", "b": "Q?"}, None)[0] == "QUESTION - Q? || ANSWER -"
    assert apply_format(time, change, "v").jinja == "Departure 10:30 {{ a }} || NOTE - {{ b }} || Late?"
    acronym = Template("acronym", "US: {{ a }}\nAnother's view: {{ b }}\nSame?", NO_YES)
    assert apply_format(acronym, {"casing": "title"}, "v").jinja == "US: {{ a }}\nAnother's View: {{ b }}\nSame?"
