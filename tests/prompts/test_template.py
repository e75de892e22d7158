"""Templates and rendered instances."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.prompts import (
    RenderedInstance,
    Template,
    TemplateSet,
    render_instance,
    templates_differ_in_answer_words,
)
from tests.refused import refused

PLAIN = Template("plain", "{{ text }} Is it? ||| {{ answer_choices[label] }}", "No ||| Yes")
TERSE = Template("terse", "{{ text }}:", "false ||| true")


def instance(fields, *templates, **more):
    settings = {"id": "test-1", "label": None, "num_labels": 2, "label_field": None, "row": "a.csv line 2"} | more
    return render_instance(fields, TemplateSet(templates), **settings)


def test_the_target_behind_the_separator_is_not_rendered_and_may_read_the_label():
    assert PLAIN.render({"text": "Tea.", "label": 1}, "label") == ("Tea. Is it?", ("No", "Yes"))
    assert PLAIN.render({"text": "Tea."}, "label") == ("Tea. Is it?", ("No", "Yes"))


def test_the_prompt_ends_at_the_separator_inside_an_if():
    template = Template("t", "{% if a %}A ||| {{ x }}{% else %}B{% endif %} tail", "No ||| Yes")
    assert template.render({"a": True}, None)[0] == "A"
    assert template.render({"a": False}, None)[0] == "B tail"


def test_the_prompt_ends_where_a_macro_prints_the_separator():
    template = Template("t", "{% macro ask() %}Good? ||| {{ x }}{% endmacro %}{{ x }} {{ ask() }} tail", "No ||| Yes")
    assert template.render({"x": "Tea."}, None)[0] == "Tea. Good?"


def test_a_filter_that_changes_a_separator_is_refused():
    template = Template("t", "{% set t %}{{ x }} ||| A{% endset %}{{ t | replace('|', '!') }}", "No ||| Yes")
    refused("E-TPL-RENDER: template 't', .*a filter changes a separator", template.render, {"x": "Tea."}, None)


@pytest.mark.parametrize(
    "jinja",
    ["{{ label }}", "{% if label == 1 %}a{% endif %}", "{{ label + 1 }} ||| x", "{{ {'a': (1, [label])} }}"],
)
def test_a_prompt_or_answers_that_read_the_gold_label_are_refused(jinja):
    template = Template("t", jinja, "No ||| Yes")
    refused(
        r"E-TPL-LABEL-LEAK: template 't', a.csv line 2: .*'label'",
        template.render,
        {"text": "x", "label": 1},
        "label",
        row="a.csv line 2",
    )
    with pytest.raises(InputError, match=r"E-TPL-LABEL-LEAK: template 't', answer_choices"):
        Template("t", "x", f"{jinja.split('|||')[0]} ||| Yes").render({"text": "x", "label": 1}, "label")


@given(st.text(alphabet="ab|\n \r%#}'", max_size=20))
@settings(max_examples=100)
def test_answers_without_jinja_render_like_jinja(choices):
    plain, rendered = Template("t", "x", f"a{choices}"), Template("t", "x", f"a{choices}{{# #}}")
    assert plain.render({}, None)[1] == rendered.render({}, None)[1]


@given(st.lists(st.text(alphabet="ab|\n ", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=5))
@settings(max_examples=100)
def test_a_separator_in_the_text_of_a_row_never_invents_a_label(endings):
    joined = Template("t", "{{ endings|join(' ||| ') }} ||| x", "{{ endings | join('|||') }}")
    prompt, choices = joined.render({"endings": endings}, None)
    assert list(choices) == endings
    assert prompt == " ||| ".join(endings).strip()
    separate = Template("t", "{{ answer_choices[1] }}?", "{{ a }} ||| {{ b }}")
    rendered = separate.render({"a": endings[0], "b": endings[1]}, None)
    assert rendered == (f"{endings[1]}?", (endings[0], endings[1]))


@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        ("'|||' in x", True),
        ("'|||' is in x", True),
        ("x == 'a ||| b'", True),
        ("x.count('|||') == 1", True),
        ("x is eq '|||'", False),
    ],
)
def test_a_separator_that_is_compared_is_plain_text(condition, is_true):
    template = Template("t", "?", f"{{% if {condition} %}}yes ||| no{{% else %}}a ||| b{{% endif %}}")
    assert template.render({"x": "a ||| b"}, None)[1] == (("yes", "no") if is_true else ("a", "b"))


def test_a_column_is_read_by_its_name_in_the_row():
    fields = {"Text der Bewertung": "gut", "urteil?": "ja", "row": "Zeile"}
    visible = {name: value for name, value in fields.items() if name != "row"}
    named = Template("t", "{{ row['Text der Bewertung'] }}!", "No ||| Yes")
    assert named.render(visible, None)[0] == "gut!"
    with pytest.raises(InputError, match=r"E-TPL-LABEL-LEAK: .* the prompt reads the label field 'urteil\?'"):
        Template("t", "{{ row['urteil?'] }}", "No ||| Yes").render(visible, "urteil?")
    with pytest.raises(
        InputError, match=r"E-TPL-RENDER: .* there is no field 'Text der Bewertun'\. Did you mean 'Text"
    ):
        Template("t", "{{ row['Text der Bewertun'] }}", "No ||| Yes").render(visible, None)
    assert Template("t", "{{ row }}", "No ||| Yes").render(fields, None)[0] == "Zeile"  # a column of this name
    refused(
        r"E-TPL-EMPTY: .* a missing value of 'Text der Bewertung' is printed",
        named.render,
        {"Text der Bewertung": None},
        None,
    )


@pytest.mark.parametrize(
    ("texts", "code", "place"),
    [
        (("t\ud800", "x", "No ||| Yes"), "E-TPL-SYNTAX", "a template's name, line 1, column 2"),
        (("t", "a\n{{ x }}\udc80", "No ||| Yes"), "E-TPL-SYNTAX", "template 't', line 2, column 8"),
        (("t", "{# \ud800 #}", "No ||| Yes"), "E-TPL-SYNTAX", "template 't', line 1, column 4"),
        (("t", "x", "No ||| \udfff"), "E-TPL-SYNTAX", "template 't', answer_choices, line 1, column 8"),
        (
            ("t", "a\n{{ '\\ud83d' ~ '\\ude00' }}", "No ||| Yes"),
            "E-TPL-SYNTAX",
            "template 't', instance '', line 2, column 1",
        ),
    ],
)
def test_a_lone_surrogate_is_rejected_in_a_template(texts, code, place):
    with pytest.raises(InputError, match=rf"^{code}: {place}: '\\u[0-9a-f]{{4}}' is half of a character"):
        Template(*texts).render({"x": "x"}, None)


def test_two_separators_in_one_text_are_refused_and_one_per_branch_is_not():
    refused("E-TPL-SYNTAX: template 't'", Template, "t", "a ||| b ||| c", "No ||| Yes")
    refused("E-TPL-SYNTAX", Template, "t", "{% if a %}a ||| {{ b }} ||| c{% endif %}", "No ||| Yes")
    Template("t", "{% if a %}a ||| b{% else %}c ||| d{% endif %}", "No ||| Yes")


def test_a_random_choice_depends_on_instance_template_and_seed():
    jinja, choices = "{{ range(1000)|list|choice }} {{ choice(range(1000)) }}", "No ||| Yes"
    first = Template("t", jinja, choices)

    def draw(template, instance_id, seed):
        return template.render({}, None, instance_id=instance_id, seed=seed)[0]

    drawn = draw(first, "a", 0), draw(first, "b", 0), draw(first, "a", 1), draw(Template("u", jinja, choices), "a", 0)
    assert drawn[0].split()[0] != drawn[0].split()[1]
    assert len(set(drawn)) == 4
    assert draw(first, "a", 0) == drawn[0]


def test_a_template_without_answer_choices_or_a_field_of_this_name_is_refused():
    with pytest.raises(InputError, match="E-TPL-LABELS: template 't'"):
        Template("t", "x", None).render({}, None)
    refused(r"E-DATA-COLUMN: a.csv line 2.*'answer_choices'", instance, {"answer_choices": "x"}, PLAIN)


def test_the_digest_changes_with_every_part_and_with_the_order():
    changed = [
        Template("other", PLAIN.jinja, PLAIN.answer_choices),
        Template("plain", PLAIN.jinja + "!", PLAIN.answer_choices),
        Template("plain", PLAIN.jinja, "Yes ||| No"),
    ]
    assert len({template.digest() for template in [PLAIN, *changed]}) == 4
    assert TemplateSet((PLAIN, TERSE)).digest() != TemplateSet((TERSE, PLAIN)).digest()
    texts = (PLAIN.name, PLAIN.jinja, PLAIN.answer_choices)
    asked = Template(*texts, levels={"wording": "ask"})
    assert asked.digest() == PLAIN.digest()
    assert len({asked, PLAIN, Template(*texts)}) == 2


def test_lists_and_generators_are_the_same_as_tuples():
    members = (PLAIN, TERSE)
    assert TemplateSet(each for each in members) == TemplateSet([*members]) == TemplateSet(members)
    made = instance({"text": "Tea."}, *members)
    prompts, choices = (text for text in made.prompts), (list(group) for group in made.choices)
    again = RenderedInstance(made.id, prompts, choices, None)
    assert again == RenderedInstance(made.id, [*made.prompts], [*made.choices], None)
    assert {again.texts, hash(again.prompts), hash(again.choices)} == {
        made.texts,
        hash(made.prompts),
        hash(made.choices),
    }
    refused("E-TASK-KEY: a template is of type str", TemplateSet, ["Is it?"])


@pytest.mark.parametrize(
    ("jinja", "choices", "code", "words"),
    [
        ("{% if text == 'y' %}x{% endif %}", "No ||| Yes", "E-TPL-EMPTY", "the prompt is empty"),
        (" {{ text[:0] }} ||| x", "No ||| Yes", "E-TPL-EMPTY", "the prompt is empty"),
        ("x", "No |||  ", "E-TPL-EMPTY", "answer choice 2 is empty"),
        ("x", "No ||| {{ text[:0] }}", "E-TPL-EMPTY", "answer choice 2 is empty"),
        ("x", "No ||| No ", "E-LABEL-DUP", "the same answer 'No'"),
        ("x", "{{ text }} ||| {{ text }}", "E-LABEL-DUP", "the same answer 'Tea'"),
        ("x", "No ||| Yes ||| Maybe", "E-TPL-LABELS", "3 answer choices for 2 labels"),
        ("x", "No", "E-TPL-LABELS", "1 answer choices for 2 labels"),
    ],
)
def test_an_instance_that_cannot_be_scored_names_the_template_and_the_row(jinja, choices, code, words):
    with pytest.raises(InputError) as refusal:
        instance({"text": "Tea"}, PLAIN, Template("odd", jinja, choices))
    assert refusal.value.code == code
    assert f"{code}: template 'odd', a.csv line 2: " in str(refusal.value)
    assert words in str(refusal.value)
    assert refusal.value.hint


def test_templates_with_different_answer_words_are_detected():
    assert templates_differ_in_answer_words([instance({"text": "x"}, PLAIN, TERSE)])
    endings = [Template(name, name, "{{ a }} ||| {{ b }}") for name in ("t", "u", "v")]
    assert not templates_differ_in_answer_words([instance({"a": "x", "b": str(i)}, *endings) for i in range(3)])


def test_a_list_of_answers_is_refused_in_one_line():
    refused("^E-TPL-SYNTAX: template 'plain': answer_choices is a list", Template, "plain", "{{ text }}", ["No", "Yes"])
