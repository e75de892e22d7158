"""Formats and paraphrases of templates keep question and answers; the sensitivity to formatting."""

import itertools
import re
from collections import Counter

import pytest
import torch
from flip_flop.drafting.formats import apply_format, draw_format, draw_order, format_choices
from flip_flop.drafting.vary import instruction, kept_templates, sampler, vary_templates
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop import load_model, load_task
from flip_flop.files import generator
from flip_flop.prompts import Template
from flip_flop.prompts.lint import LintRow
from flip_flop.tasks import Task
from tests.cases import read_cases
from tests.tiny import save_tiny

ROWS = [{"text": f"the {what} was good", "gold": at % 2} for at, what in enumerate(("room", "food", "wifi", "staff"))]
PLAIN = Template("plain", "Ticket: {{ text }}\nYes or no: is this urgent?", "No ||| Yes")
TERSE = Template("terse", "{{ text }}\nUrgent:", "never ||| always")
TASK = Task("tickets", [PLAIN, TERSE], {"test": ROWS}, labels=(0, 1), label_field="gold")
LINTED = [LintRow(f"row {at}", row, row["gold"]) for at, row in enumerate(ROWS)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(save_tiny(tmp_path_factory.mktemp("models") / "tiny"))


def test_a_paraphrase_needs_all_fields_and_answers_and_must_be_new():
    replies = {
        "Note: {{ text }}\nMust we hurry, yes or no?</template> and more": "",
        "<template>\nTICKET - {{text}}\nyes or no, is this urgent\n</template>": "it repeats 'plain'",
        "Is this urgent, yes or no?</template>": "it lacks {{ text }}",
        "{{ text }} {{ gold }} yes, no</template>": "it adds {{ gold }}",
        "{{ text }} {{ text }} yes, no</template>": "it adds {{ text }}",
        "{{ text }}\nMust we hurry, yes?</template>": "it no longer names the answer 'No'",
        "{{ text }} yes or no {% if</template>": "E-TPL-SYNTAX",
        "{{ text }} yes or no ||| {{ gold }}</template>": "the reply is not one prompt with an end",
        "{{ text }} yes or no": "the reply is not one prompt with an end",
    }

    def generate(prompts, seeds):
        assert list(prompts) == [instruction(PLAIN)] * len(replies)
        assert "{{ text }}\nYes or no: is this urgent?\n</template>" in prompts[0]
        assert len(set(seeds)) == len(replies)
        return list(replies)

    alone = TASK.with_templates(["plain"])
    found = vary_templates(alone, LINTED, number=1, generate=generate, paraphrases=len(replies), by="stub")
    for variant, why in zip(found, replies.values(), strict=True):
        assert variant.rejected.startswith(why), variant
        assert bool(variant.rejected) == bool(why), variant
    (kept,) = kept_templates(found)
    assert (kept.jinja, kept.answer_choices) == ("Note: {{ text }}\nMust we hurry, yes or no?", "No ||| Yes")
    assert found[0].made == {
        **{"from": "plain", "change": "paraphrase", "index": 1, "instruction": 1, "seed": 0, "by": "stub"}
    }


def test_formats_are_reproducible():
    found = vary_templates(TASK, LINTED, number=12, seed=3)
    assert [each.made["from"] for each in found[:4]] == ["plain", "terse", "plain", "terse"]
    assert len(kept_templates(found)) == 10
    assert found == vary_templates(TASK, LINTED, number=12, seed=3)
    assert found != vary_templates(TASK, LINTED, number=12, seed=4)


def test_paraphrases_depend_on_the_seed_only(loaded):
    state, keys = torch.random.get_rng_state(), [(seed, "paraphrase", "plain", 1) for seed in (1, 1, 2)]
    first, second, other = sampler(loaded)(["the food was"] * 3, keys)
    assert first == second != other
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_new_task_file_loads_and_records_the_changes(tmp_path, flip_flop):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.csv").write_text(
        "text,gold\n" + "".join("{text},{gold}\n".format(**row) for row in ROWS)
    )
    (tmp_path / "mine" / "task.yaml").write_text("""\
name: tickets
data: {train: rows.csv, test: {path: rows.csv, encoding: utf-8}}
label_field: gold
labels: [0, 1]
templates:
  - {name: plain, jinja: "Ticket: {{ text }}\\nYes or no: is this urgent?", answer_choices: "No ||| Yes"}
  - {name: terse, jinja: "{{ text }}\\nUrgent:", answer_choices: [never, always]}
held_out_templates: [terse]
""")
    out = tmp_path / "new" / "deep" / "more.yaml"
    result = flip_flop("templates", "vary", tmp_path / "mine" / "task.yaml", "--out", out, "-n", 5)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == f"{out}: 5 templates, 1 of them original; 0 rejected"
    task = load_task(out, templates="all")
    assert task.templates.names == ("plain", "terse", *(f"plain format {at}" for at in (1, 2, 3, 4)))
    assert task.held_out_templates == ("terse",)
    assert len(task.instances("test")) == len(task.instances("train")) == 4
    assert "    from: plain\n    change: format\n    seed: 0\n    index: 1\n" in out.read_text()
    again = flip_flop("templates", "vary", tmp_path / "mine" / "task.yaml", "--out", out)
    assert again.err.startswith("E-OUT-USED: ")
    refused = flip_flop("templates", "vary", "demo", "--out", tmp_path / "demo.yaml")
    assert refused.err.startswith("E-TASK-FILE: ")
    more = tmp_path / "new" / "again.yaml"  # from one of them, with another seed
    result = flip_flop("templates", "vary", out, "--out", more, "-n", 3, "--templates", "plain", "--seed", 1)
    assert result.code == 0, result.err
    again = load_task(more, templates="all")
    assert again.templates.names == (*task.templates.names, "plain format 5", "plain format 6")
    assert again.held_out_templates == ("terse",)
    assert more.read_text().count("metadata:") == 6


# ---- formats ----


NO_YES = "No ||| Yes"
SHOWN = [Template(name, **texts) for name, texts in read_cases("drafting/templates.yaml").items()]
BY_NAME = {template.name: template for template in SHOWN}
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
    three = apply_format(BY_NAME["marks"], {"order": (2, 0, 1), "wrapper": "({})"}, "three")
    assert "(A) world\n(B) sports\n(C) {{ b }}" in three.jinja
    assert three.answer_choices == "B ||| C ||| A"


def test_all_other_orders_of_few_options_are_sampled():
    drawn = {draw_order(BY_NAME["marks"], generator(number, "test")) for number in range(200)}
    assert drawn == set(itertools.permutations(range(3))) - {(0, 1, 2)}


def test_optional_lines_and_times_keep_their_surroundings():
    change = {"space": " || ", "separator": " - ", "casing": "upper"}
    branch = apply_format(BY_NAME["branch"], change, "v")
    assert branch.render({"a": "", "b": "Q?"}, None)[0] == "QUESTION - Q? || ANSWER -"
    assert apply_format(BY_NAME["time"], change, "v").jinja == "Departure 10:30 {{ a }} || NOTE - {{ b }} || Late?"
    acronym = Template("acronym", "US: {{ a }}\nAnother's view: {{ b }}\nSame?", NO_YES)
    assert apply_format(acronym, {"casing": "title"}, "v").jinja == "US: {{ a }}\nAnother's View: {{ b }}\nSame?"
