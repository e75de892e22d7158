"""Lint: each thing that it looks for is found, named by template and row, and only that."""

import pytest

from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.data.promptsource import filter_templates, read_promptsource
from flip_flop.prompts import Template, TemplateSet
from flip_flop.prompts.lint import LONG, LintRow, lint_templates
from tests.paper.test_promptsource import REAL, official_rows

PLAIN = Template("plain", "Is {{ x }} good? ||| {{ answer_choices[y] }}", "No ||| Yes")


def rows(count=4, **more):
    return [LintRow(f"test line {n + 2}", {"x": f"tea {n}", "y": n % 2, **more}, n % 2) for n in range(count)]


def lint(*templates, on=None, **more):
    settings = {"label_field": "y", "num_labels": 2, **more}
    return lint_templates(TemplateSet(templates), rows() if on is None else on, **settings)


def found(*templates, **more):
    return [(each.code, each.template, each.row, each.num_rows) for each in lint(*templates, **more)]


def test_valid_templates_have_no_findings():
    truth = Template("truth", "{{ x }} is good.", "False ||| True")
    assert found(PLAIN, truth, Template("t", "{{ x }}", "a ||| b")) == []
    assert found(PLAIN, on=[]) == []
    assert found(PLAIN, label_field=None, num_labels=None) == []


@pytest.mark.parametrize(
    ("odd", "code", "row", "count"),
    [
        (Template("odd", "{{ y }}{{ x }}?", "No ||| Yes"), "E-TPL-LABEL-LEAK", "test line 2", 4),
        (Template("odd", "{{ x }}{% if '3' in x %}{{ y }}{% endif %}", "a|||b"), "E-TPL-LABEL-LEAK", "test line 5", 1),
        (Template("odd", "{% if '3' not in x %}{{ x }}{% endif %}", "No ||| Yes"), "E-TPL-EMPTY", "test line 5", 1),
        (Template("odd", "{{ z }}", "No ||| Yes"), "E-TPL-RENDER", "test line 2", 4),
        (Template("odd", "{{ x }}?", "No ||| {{ x[4:] | replace('2', 'No') }}"), "E-LABEL-DUP", "test line 4", 1),
        (Template("odd", "{{ x }}?", "No ||| Yes ||| Maybe"), "E-TPL-LABELS", "test line 2", 4),
        (Template("odd", "{{ x }}?", None), "E-TPL-LABELS", "test line 2", 4),
        (Template("odd", "{{ x }}? ||| {{ answer_choices[1 - y] }}", "a ||| b"), "E-TPL-LABELS", "test line 2", 4),
        (Template("odd", "{{ x }}? ||| {{ answer_choices[0] }}", "No ||| Yes"), "E-TPL-LABELS", "test line 3", 2),
        (Template("odd", "Is {{ x }} good?", "No ||| Yes"), "E-TPL-DUP", "", 1),
        (Template("odd", "{{ x }}? ||| {{ z }}", "No ||| Yes"), "W-TPL-TARGET", "test line 2", 4),
        (Template("odd", "{{ x }}?", "Yes ||| No"), "W-TPL-LABEL-ORDER", "", 1),
        (Template("odd", "{{ x }}?", "True ||| False"), "W-TPL-LABEL-ORDER", "", 1),
        (Template("odd", "{{ x }}?", "no ||| No idea"), "W-TPL-CHOICE-PREFIX", "test line 2", 4),
        (Template("odd", "{{ x }}?", "sure ||| Sure"), "W-TPL-CHOICE-PREFIX", "test line 2", 4),
        (Template("odd", "Is it?", "No ||| Yes"), "W-TPL-CONSTANT", "", 1),
        (Template("odd", "{{ x }} {{ range(1000) | list | choice }}", "No ||| Yes"), "W-TPL-RANDOM", "test line 2", 1),
        (Template("odd", "{{ x }}", "No ||| {{ range(1000) | list | choice }}"), "W-TPL-RANDOM", "test line 2", 1),
        (Template("odd", "{{ x }}" + "a" * LONG, "No ||| Yes"), "W-TPL-LONG", "test line 2", 4),
        (Template("odd", "{x} {{ x }}", "No ||| Yes"), "W-TPL-BRACES", "", 1),
        (Template("odd", "{{ x }}{% if x.items is defined %}!{% endif %}", "a|||b"), "W-TPL-METHOD", "", 1),
    ],
)  # fmt: skip
def test_a_finding_has_its_template_first_row_and_count(odd, code, row, count):
    assert found(PLAIN, odd) == [(code, "odd", row, count)]


@pytest.mark.parametrize("name", [name for name in dir(dict) if not name.startswith("_")])
def test_an_uncalled_method_of_a_dictionary_is_named(name):
    boxes = [LintRow(f"row {n}", {"x": f"tea {n}", "box": {name: "", "n": 1}}, None) for n in range(3)]
    wrong, right = (
        f"{{{{ x }}}}{{% if box.{name} %}}!{{% endif %}}",
        f"{{{{ x }}}}{{% if box['{name}'] %}}!{{% endif %}}",
    )
    findings = {each.code: each.message for each in lint(Template("t", wrong, "No ||| Yes"), on=boxes)}
    assert findings["W-TPL-METHOD"] == f".{name} is a dictionary's method. Write ['{name}'] for an item."
    assert found(Template("t", right, "No ||| Yes"), on=boxes) == []
    called = "{{ x }}{% for key in box.items() %}{{ key[0] }}{% endfor %} See box.items and www.get.org"
    assert found(Template("t", called, "No ||| Yes"), on=boxes) == []


BLANK = ["", "  ", "\t\n", "\xa0", "\u200b", "\u200b \ufeff\u2060", "\u3164", "\u2800", None]


@pytest.mark.parametrize("blank", BLANK)
def test_rows_whose_printed_fields_are_all_blank_are_counted_and_named(blank):
    on = [
        LintRow(f"line {n}", {"a": blank if n > 1 else "tea", "b": blank if n != 5 else "x", "n": n}, None)
        for n in range(7)
    ]
    options = "Options: {{ answer_choices | join(', ') }}"
    text = "{% if a %}{{ a }}{% endif %}{% if n > 2 %}: {% endif %}{{ b or '' }} " + options
    (finding,) = [each for each in lint(Template("t", text, "No ||| Yes"), on=on) if each.code == "W-TPL-BLANK"]
    assert finding.message == "every field that it prints is blank in 4 rows, first line 2, line 3, line 4."
    nested = [row._replace(fields={"box": {"text": row.fields["a"], "turns": [row.fields["a"]]}}) for row in on]
    (finding,) = lint(Template("t", "Is it? {{ box.text or box['turns'][0] or '-' }}", "No ||| Yes"), on=nested)
    assert finding.message == "every field that it prints is blank in 5 rows, first line 2, line 3, line 4."
    texts = ("{% for c in [a] %}{{ c or '-' }}{% endfor %}", "{% set c = a %}{{ c or '-' }}", "{{ row['a'] or '-' }}")
    for other in texts:
        codes = [each.message for each in lint(Template("t", f"Is it? {other}", "No ||| Yes"), on=on)]
        assert "every field that it prints is blank in 5 rows, first line 2, line 3, line 4." in codes
    with_number = Template("t", "{{ n }} {{ a or '' }}", "No ||| Yes")
    assert "W-TPL-BLANK" not in [each.code for each in lint(with_number, on=on)]


@pytest.mark.parametrize("text", ["?", "☺", "0", "None", "\u0e01", "\U0001f44d\u200d", "\ue000"])
def test_a_short_text_is_not_blank(text):
    on = [LintRow(f"line {n}", {"a": text * (n + 1)}, None) for n in range(3)]
    assert found(Template("t", "{{ a }}", "No ||| Yes"), on=on) == []


@pytest.mark.parametrize(
    ("choices", "swapped", "is_noted"),
    [
        ("A ||| B", "A ||| B", True),
        ("the first ||| the second", "the first ||| the second", True),
        ("A ||| B", "B ||| A", False),
        ("no ||| yes", "no ||| yes", False),
    ],
)
def test_answers_that_name_positions_are_exchanged_with_the_order(choices, swapped, is_noted):
    in_order = Template("ab", "A: {{ x }} B: a film", choices, {"wording": "plain", "order": "a_b"})
    in_other = Template("ba", "A: a film B: {{ x }}", swapped, {"wording": "plain", "order": "b_a"})
    assert found(in_order, in_other) == [("W-TPL-LABEL-ORDER", "ba", "", 1)] * is_noted


def test_open_answers_have_no_order_of_answers():
    in_order = Template("given", "{{ x }} or a film?", levels={"wording": "ask", "order": "given"})
    in_other = Template("swapped", "A film or {{ x }}?", levels={"wording": "ask", "order": "swapped"})
    templates = TemplateSet((in_order, in_other), has_choices=False)
    assert lint_templates(templates, rows(), label_field="y", num_labels=None) == []


def test_a_reversed_question_is_valid_if_targets_confirm_it():
    reversed_question = Template("odd", "Is {{ x }} bad? ||| {{ answer_choices[y] }}", "Yes ||| No")
    assert found(PLAIN, reversed_question) == []
    assert found(PLAIN, reversed_question, on=rows(1)) == [("W-TPL-LABEL-ORDER", "odd", "", 1)]


def test_a_field_that_determines_the_label_is_a_leak():
    told = [row._replace(fields={**row.fields, "mood": "good" if row.gold else "bad"}) for row in rows(20)]
    leaky = Template("leaky", "{{ x }} was {{ mood }}?", "No ||| Yes")
    assert found(PLAIN, leaky, on=told) == [("W-TPL-LABEL-TWIN", "leaky", "", 1)]
    assert found(PLAIN, leaky, on=told[:10]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_papers_templates_have_no_errors_on_real_rows(name, promptsource_folder, hub_mirror):
    entry, table = catalog_entry(name), official_rows(name, hub_mirror)[1][:60]
    labels = {str(label): index for index, label in enumerate(entry.labels)}
    settings = {"label_field": entry.label_field, "num_labels": len(labels)}
    on = [LintRow(f"row {n}", row, labels[str(row[entry.label_field])]) for n, row in enumerate(table, start=1)]
    kept = filter_templates(read_promptsource(promptsource_folder, entry.templates), table, **settings).kept
    findings = lint_templates(kept, on, **settings)
    assert not [finding for finding in findings if finding.is_error]
    expected = {"W-TPL-RANDOM"} if name == "hellaswag" else set()
    assert {finding.code for finding in findings} - {"W-TPL-CHOICE-PREFIX"} == expected
