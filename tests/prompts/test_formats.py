"""FormatSpread (Sclar et al. 2024): the format of a prompt changes, what it asks does not."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.prompts import Template
from flip_flop.prompts.formats import apply_format, draw_format, format_choices
from flip_flop.randomness import generator

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


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
@given(seed=st.integers(0, 10**6), texts=st.tuples(st.text(max_size=5), st.text(max_size=5)), typos=st.booleans())
@settings(max_examples=20)
def test_every_variant_renders_the_same_fields_and_answers_for_any_row(template, seed, texts, typos):
    change = draw_format(template, generator(seed, "test"), typos=0.5 * typos)
    variant = apply_format(template, change, "variant")
    row = {"a": f"§1{texts[0]}1§", "b": f"§2{texts[1]}2§"}
    (before, answers), (after, others) = template.render(row, None), variant.render(row, None)
    for value in row.values():
        assert after.count(value) == before.count(value)
    assert variant.jinja.partition("|||")[2] == template.jinja.partition("|||")[2]
    if template.name == "marks":  # the answers are marks: each is the mark of the same option as before
        for word, answer, other in zip(("sports", row["b"], "world"), answers, others, strict=True):
            assert re.search(rf"\b{answer}\W*{re.escape(word)}", before)
            assert re.search(rf"\b{other}\W*{re.escape(word)}", after)
    else:
        assert others == answers


def words(text):
    return Counter(re.findall(r"\w+", text.casefold()))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_without_names_marks_and_typos_every_word_stays(template):
    for number in range(20):
        change = draw_format(template, generator(number, "test"))
        kept = {name: value for name, value in change.items() if name not in ("names", "marks")}
        found = words(apply_format(template, kept, "variant").jinja)
        assert not words(template.jinja) - found
        assert set(found - words(template.jinja)) <= {"sep", *(("answer_choices", "0", "1") if "order" in kept else ())}


def test_what_cannot_be_changed_is_not_offered():
    choices = [set(format_choices(template)) for template in TEMPLATES]
    assert choices[0] == {"separator", "casing", "space", "names"}
    assert choices[1] == {"separator", "casing", "space", "names", "order"}
    assert choices[2] == {"separator", "casing", "space", "names", "wrapper", "marks", "order"}
    assert choices[6] == {"names"}
    spoken = Template("spoken", "{{ a }}\n1) tea\n2) milk\nSay 1 or 2.", "1 ||| 2")
    assert {"wrapper", "order"} <= set(format_choices(spoken))
    assert "marks" not in format_choices(spoken)
    swapped = apply_format(spoken, {"order": (1, 0)}, "swapped")
    assert (swapped.jinja, swapped.answer_choices) == ("{{ a }}\n1) milk\n2) tea\nSay 1 or 2.", "2 ||| 1")


def test_typos_leave_answers_and_fields_alone():
    template = Template("true", "Statement: {{ statement }}\nTrue or false?", "False ||| True")
    variant = apply_format(template, {"typos": 1.0, "typo_seed": 3}, "typos")
    assert re.fullmatch(r"S\w{8}: \{\{ statement \}\}\nTrue or false\?", variant.jinja)
    assert variant.jinja != template.jinja
