"""The sandbox rejects hostile templates and renders the others like Jinja."""

import datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from flip_flop.errors import InputError
from flip_flop.prompts import Template
from tests.refused import refused

HOSTILE = {
    "class attribute": "{{ ''.__class__ }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by subscript": "{{ ''['__class__'] }}",
    "class by a joined subscript": "{{ ''['__cla' ~ 'ss__'] }}",
    "class by an added subscript": "{{ text['__cla' + 'ss__']['__mro__'] }}",
    "class by attr": "{{ ''|attr('__class__') }}",
    "class by map": "{{ [text]|map(attribute='__class__')|list }}",
    "class by map, joined": "{{ [text]|map(attribute='__cla' ~ 'ss__')|join }}",
    "class by selectattr": "{{ [text]|selectattr('__class__.__name__')|list|length }}{{ ''.__class__ }}",
    "class by sort": "{{ [text, text]|sort(attribute='__class__')|join }}",
    "class by join": "{{ [text]|join(' ', attribute='__class__') }}",
    "namespace's globals": "{{ namespace.__init__.__globals__ }}",
    "range's self": "{{ range.__self__ }}",
    "loop's globals": "{% for i in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "self's name": "{{ self.__init__ }}",
    "frame of a generator": "{{ ([1]|map('string')).gi_frame.f_globals }}",
    "code of a function": "{{ zip.__code__ }}",
    "str.format through a name": "{% set f = '{0.__class__}'.format %}{{ f(text) }}",
    "str.format under a known name": "{% set range = '{0.__class__}'.format %}{{ range(text) }}",
    "map of attr": "{{ [text]|map('attr', '__class__')|list }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from import": "{% from 'os' import path %}",
    "extends": "{% extends '/etc/passwd' %}",
    "append": "{% set x = [] %}{{ x.append(1) }}",
    "change of the row": "{{ items.append('x') }}",
    "environment": "{{ environment.globals }}",
}


ROW = {"text": "What a long line of words this is.", "items": ["a", "b"], "number": 99, "width": "%10000000000d"}
REFUSALS = {"E-TPL-RENDER"}


def render(jinja, fields=ROW, **more):
    return Template("t", jinja, "No ||| Yes").render(fields, None, **more)[0]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("texts", [("{}", "No ||| Yes"), ("x", "{} ||| No")], ids=["prompt", "answer choices"])
def test_a_template_reaches_no_code_attribute_or_file(name, texts):
    jinja, choices = (text.replace("{}", HOSTILE[name]) for text in texts)
    with pytest.raises(InputError, match=r"^[^\n]*'t'[^\n]*\Z") as refusal:
        Template("t", jinja, choices).render(ROW, None)
    assert refusal.value.code in REFUSALS, str(refusal.value)


@given(st.text(alphabet="{}%|'\"()[]._*+~ -=:,0123456789abtextringclsforniduqv\n", max_size=80))
@settings(max_examples=100)
def test_any_text_renders_or_is_rejected_with_a_code(source):
    code = "E-TPL-"
    try:
        render(source)
    except InputError as refusal:
        code = refusal.code
    assert code.startswith("E-TPL-")


@given(st.text(), st.text())
@settings(max_examples=100)
def test_rendering_never_evaluates_the_text_of_a_row(before, after):
    text = f"{before}{{{{ 7 * 191 }}}}{{% for x in y %}}{after}"
    assert render("<{{ text }}>", {"text": text}) == f"<{text}>"


ORDINARY = [
    "{{ text }}",
    "{{ text.split(' ')[0].lower() }} and {{ text|upper }}",
    "{% for item in items %}{{ loop.index }}. {{ item }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for a, b in zip(items, items) %}{{ a }}{{ b }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for i in items if i != 'a' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ items|join(', ') }} {{ items|map('upper')|list }} {{ items|length }} {{ items|first }}",
    "{{ {'a': [text, 1], 'b': 2}['a'][0] }} {{ (number, 2)[0] }} {{ ['x', 'y'][number % 2] }}",
    "{{ 'many' if number > 3 else 'few' }} {{ 'x' if false }}{{ text ~ ' ' ~ number }} {{ number / 2 }}",
    "{{ text[:4] }} {{ text|replace('a', 'o') }} {{ '-' * 5 }} {{ number // 2 * 3 - 1 }} {{ 2.345|round(2) }}",
    "{{ range(3)|list }} {{ items|select('equalto', 'a')|list }} {{ missing|default('none') }} {{ [3, 1]|sort }}",
    "{{ text.index('l') }} {{ ', '.join(items) }} {{ text.startswith('What') }} {{ items[-1] }} {{ text.title() }}",
    "{{ [items, items] }} {% for x in items|unique %}{{ x }}{% endfor %}",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_an_ordinary_template_renders_as_plain_jinja_does(source):
    plain = Environment()
    plain.globals["zip"] = zip
    assert render(source) == plain.from_string(source).render(**ROW).strip()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("one\ntwo\n{% if %}", r"^E-TPL-SYNTAX: template 't', line 3: [^\n]*Fix[^\n]*\Z"),
        ("{{ txt }}", r"^E-TPL-RENDER: template 't', a.csv line 4: .* no field 'txt'. Did you mean 'text'\?\Z"),
        ("{{ {'text': 1}.txt }}", r"E-TPL-RENDER.*'txt'. Did you mean 'text'\?"),
        ("{{ items[5] }}", "E-TPL-RENDER"),
        ("{{ [typo] }}", "E-TPL-RENDER: template 't', a.csv line 4: there is no field 'typo'"),
        ("{{ {'a': typo} }}", "E-TPL-RENDER: template 't', a.csv line 4: there is no field 'typo'"),
        ("{{ [{'a': 1}]|map(attribute='b')|list }}", "E-TPL-RENDER: .*: there is no field 'b'"),
        ("{{ ｔｅｘｔ }} {{ text }}", r"E-TPL-SYNTAX: template 't': .* both 'text' after .*Write row\['ｔｅｘｔ'\]"),
        ("{{ text|uper }}", "E-TPL-SYNTAX: template 't', line 1: No filter named 'uper'"),
        ("{{ 1 / 0 }}", "E-TPL-RENDER: template 't', a.csv line 4: ZeroDivisionError"),
        ("{{ text + 1 }}", r"E-TPL-RENDER.*TypeError"),
    ],
)
def test_an_error_names_the_template_the_line_or_row_and_the_nearest_name(source, message):
    refused(message, render, source, row="a.csv line 4")


@pytest.mark.parametrize(
    "source",
    [
        *("{{ items[1] }}", "{{ [none] }}", "{{ {'a': (1, none)} }}", "{{ {none: 1} }}", "{{ items }}"),
        *("{{ items[1]|capitalize }}", "{{ items[1]|lower }}"),
        *("{{ items[1]|string }}", "{{ items[1]|title }}", "{{ items[1]|trim }}", "{{ items[1]|upper }}"),
        *("{{ items[1] ~ '' }}", "{{ items|map('upper')|list }}", "{{ items|join }}"),
        *("{{ 'a'|replace('a', items[1]) }}", "{{ ['a', 'b']|join(items[1]) }}"),
        *("{{ items[1] is lower }}", "{{ items[1] is upper }}"),
    ],
)
@pytest.mark.parametrize("value", [None, float("nan"), [None], {"a": [float("nan")]}])
def test_a_missing_value_never_becomes_a_text_or_a_number(source, value):
    field = " of 'items'" if "items" in source else ""
    refused(
        f"E-TPL-EMPTY: template 't', instance '': a missing value{field} is printed",
        render,
        source,
        {"items": ["a", value], "unread": None},
    )
    assert render("{{ 'none' if text is none }} {{ text|default('x', true)|upper }}", {"text": None}) == "none X"


def test_a_row_never_has_the_text_between_answers():
    with pytest.raises(InputError, match="divides answer choices"):
        Template("t", "{{ options }}?", "{{ options }} ||| No").render({"options": "a\ufdd0|||\ufdd1b"}, None)


def test_a_list_that_repeats_itself_is_read_once():
    nested = "{% set x = [[]] %}" + "{% set x = [x, x] %}" * 19
    assert render(nested + "{{ x }}").startswith("[[")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ options|replace('|||', ';') }} ||| No", "a;b"),
        ("{{ 'many' if '|||' in options else 'one' }} ||| No", "many"),
        ("{{ options.split('|||')|length }} ||| No", "2"),
        ("{{ options }} ||| No", "a|||b"),
        ("{{ ['x', options]|join(' ||| ') }}", "x"),
        ("{{ 'x ||| ' ~ options }}", "x"),
        ("{% if options == 'a|||b' %}same{% endif %} ||| No", "same"),
    ],
)
def test_between_answers_only_text_that_the_template_prints_or_joins_separates(source, expected):
    choices = Template("t", "{{ options }}?", source).render({"options": "a|||b"}, None)[1]
    assert choices[0] == expected
    assert len(choices) == 2


@pytest.mark.parametrize(
    "value",
    [1, 2.5, True, -(10**12), "x", [], (), {}, (1,), [1, 2.5, True, "it's"], {"a": [("b", {"c": 1})], 2: []}],
)
def test_numbers_texts_and_containers_of_them_print_as_pythons_str(value):
    assert render("{{ items }}", {"items": value}) == str(value)


def test_a_date_prints_as_a_text_and_not_inside_a_list():
    day = datetime.date(2024, 2, 29)
    assert render("{{ day }}", {"day": day}) == "2024-02-29"
    refused(r"E-TPL-RENDER.*a date is printed", render, "{{ [day] }}", {"day": day})


def test_a_decimal_prints_as_a_number_and_not_inside_a_list():
    assert render("{{ price }}", {"price": Decimal("1.50")}) == "1.50"
    refused(r"E-TPL-RENDER.*a Decimal is printed", render, "{{ [price] }}", {"price": Decimal("1.50")})


PRINTED_OBJECTS = [
    "{{ text.upper }}",
    "{{ text.upper ~ '' }}",
    "{{ items|map('upper') }}",
    "{{ items|map('upper') ~ '' }}",
    "{{ zip(items, items) }}",
    "{{ [text.upper] }}",
    "{{ {'a': [text.upper]} }}",
    "{{ [items|map('upper')] }}",
    "{{ namespace(a=1) }}",
    "{{ range }}",
    "{% for x in items %}{{ loop }}{% endfor %}",
]


@pytest.mark.parametrize("source", PRINTED_OBJECTS)
def test_a_function_or_a_generator_is_never_printed(source):
    kind = r"method \.upper" if "text.upper" in source else r"\w+"
    refused(rf"E-TPL-RENDER: template 't', instance '': a {kind} is printed", render, source)


def test_a_prompt_of_more_than_ten_million_characters_is_too_big():
    fields = {"text": "a" * 10_000_001}
    refused(r"E-TPL-RENDER: template 't', instance ''", render, "{{ text }}", fields)
    assert len(render("{{ text[1:] }}", fields)) == 10_000_000


def test_a_template_never_changes_the_row():
    fields = {"items": ["b", "a"], "map": {"k": 1}}
    render("{{ items|sort }}{% for x in items %}{{ x }}{% endfor %}{{ map.items()|list }}", fields)
    assert fields == {"items": ["b", "a"], "map": {"k": 1}}


def test_a_column_may_have_the_name_of_a_function():
    assert render("{{ choice }} {{ range }}", {"choice": "a", "range": "b"}) == "a b"
    refused("E-TPL-RENDER", render, "{{ choice([1, 2]) }}", {"choice": "a"})


@pytest.mark.parametrize("name", ["float", "int"])
@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_missing_value_never_becomes_zero(name, value):
    refused(
        "E-TPL-EMPTY: template 't', instance '': a missing value of 'text' is printed",
        render,
        f"{{{{ text|{name} }}}}",
        {"text": value},
    )
