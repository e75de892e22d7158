"""Formats and paraphrases of templates keep question and answers; the sensitivity to formatting."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop import audit, load_model, load_run, load_task
from flip_flop.drafting.formats import apply_format, draw_format, draw_order, format_choices
from flip_flop.drafting.spread import format_spread, render_formats
from flip_flop.drafting.vary import instruction, kept_templates, sampler, vary_templates
from flip_flop.files import generator
from flip_flop.metrics import Scores
from flip_flop.prompts import Template
from flip_flop.prompts.lint import LintRow
from flip_flop.record import ModelRecord
from flip_flop.scoring import Scorer
from flip_flop.scoring.too_long import TooLong
from flip_flop.tasks import Task
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


@pytest.mark.slow
def test_the_spread_equals_that_of_separate_audits(loaded):
    found = format_spread(loaded, TASK, 3, quiet=True)
    spreads, agreements = [], []
    for name, each in found["per_template"].items():
        template = TASK.with_templates([name]).templates[0]
        runs = [_audit(loaded, apply_format(template, change, "one")) for change in each["formats"]]
        f1 = [run.metrics["mean_f1"] for run in runs]
        pairs = [(one, two) for at, one in enumerate(runs) for two in runs[:at]]
        same = np.mean([np.mean(one.predictions == two.predictions) for one, two in pairs])
        assert each["f1_min"] == pytest.approx(min(f1))
        assert each["observed_agreement"] == pytest.approx(same)
        spreads.append(max(f1) - min(f1))
        agreements.append(same)
        if name == "plain":
            swapped = [_audit(loaded, apply_format(template, c | {"order": (1, 0)}, "one")) for c in each["formats"]]
            order = np.mean([np.mean(a.predictions != b.predictions) for a, b in zip(runs, swapped, strict=True)])
            assert found["order"]["templates"] == ["plain"]
            assert found["order"]["order"] == pytest.approx(order)
            share = order / (order + 1 - same) if order + 1 - same else None
            assert found["order"]["share"] == pytest.approx(share)
    assert found["f1_spread"] == pytest.approx(np.mean(spreads))
    assert found["observed_agreement"] == pytest.approx(np.mean(agreements))
    assert set(found["intervals"].values()) == {None}  # three formats are too few


class Stub(Scorer):
    """Returns the answer of a function of the prompt; None is not a label."""

    record = ModelRecord(name="stub")

    def __init__(self, answer, too_long=()):
        self.answer, self.too_long = answer, too_long

    def scores(self, instances, options=None, **_):
        left = [each for each in instances if each.id not in {one.id for one in self.too_long}]
        answers = [[self.answer(prompt) for prompt in each.prompts] for each in left]
        scores = [[[0.0 if at == each else -np.inf for at in (0, 1)] for each in row] for row in answers]
        table = np.array(scores, np.float32)
        return Scores.of(left, table, np.ones(table.shape, np.int64), too_long=self.too_long)


@pytest.mark.slow
def test_invalid_answers_disagree_without_flips_and_random_choices_stay():
    found = format_spread(Stub(lambda prompt: None), TASK, 3, quiet=True)
    assert (found["observed_agreement"], found["order"]["order"], found["order"]["format"]) == (0, None, None)
    assert found["order"]["flip_pairs"] == {"order": 0, "format": 0}
    assert "another order change – % of 0 pairs of answers, another format – % of 0 pairs;" in render_formats(found)
    drawing = Template("draw", "{{ ['alpha', 'beta'] | choice }}\nText: {{ text }}\nYes or no?", "no ||| yes")
    task = Task("draws", [drawing], {"test": [*ROWS, *ROWS]}, labels=(0, 1), label_field="gold")
    found = format_spread(Stub(lambda prompt: int("alpha" in prompt.casefold())), task, 6, quiet=True)
    assert (found["f1_spread"], found["order"]["order"], found["order"]["format"]) == (0, 0, 0)


def test_intervals_need_five_formats():
    stub = Stub(lambda prompt: len(prompt) % 2)
    low, high = format_spread(stub, TASK, 5, quiet=True)["intervals"]["f1_spread"]
    assert 0 <= low < high
    assert set(format_spread(stub, TASK, 4, quiet=True)["intervals"].values()) == {None}


def test_a_long_instance_is_skipped_under_all_formats():
    stub = Stub(lambda prompt: int("food" in prompt or "staff" in prompt), (TooLong("test-1", 3, 300, 256),))
    found = format_spread(stub, TASK, 2, quiet=True)
    assert (found["num_instances"], found["num_too_long"], found["f1_min"]) == (3, 1, 1)
    assert "skipped under all formats, too long under some: 1 instance" in render_formats(found)


def _audit(loaded, template):
    return audit(loaded, Task("one", [template], {"test": ROWS}, labels=(0, 1), label_field="gold"), quiet=True)


def test_the_new_task_file_loads_and_records_the_changes(tmp_path, flip_flop, loaded):
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
    model = loaded.record.name
    result = flip_flop("templates", "vary", tmp_path / "mine" / "task.yaml", "--out", out, "-n", 5, "--model", model)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == f"{out}: 5 templates, 1 of them original; 0 rejected"
    assert "agrees with vote  label mass" in result.out
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
    run = flip_flop("audit", "-m", model, "-t", out, "--out", tmp_path / "run", "--templates", "plain", "--vary", 3)
    assert run.code == 0, run.err
    assert "3 formats of each template" in run.out
    assert "options in another order change" in run.out


def test_an_audit_is_written_if_a_format_is_too_long(tmp_path, flip_flop, loaded):
    def longest(words):
        (tmp_path / "rows.csv").write_text(f"text,gold\n{'good ' * words},0\nbad,1\n")
        (tmp_path / "task.yaml").write_text("""\
data: {test: rows.csv}
label_field: gold
labels: [0, 1]
templates: [{name: plain, jinja: "Ticket: {{ text }}\\nUrgent?", answer_choices: "No ||| Yes"}]
""")
        found = load_task(tmp_path / "task.yaml").instances("test")
        return max(loaded.encoder().encode(each).longest for each in found)

    short, long = longest(20), longest(40)
    longest(20 + 20 * (255 - short) // (long - short))
    where = ("-t", tmp_path / "task.yaml", "--out", tmp_path / "run", "--vary", 6)
    run = flip_flop("audit", "-m", loaded.record.name, *where)
    assert (run.code, run.err.count("E-TOO-LONG: 1 of 2")) == (2, 1), run.err
    assert "under 'plain, format " in run.err
    assert "plain, format" in (tmp_path / "run.too_long.csv").read_text()
    assert load_run(tmp_path / "run").scores.shape == (2, 1, 2)


# ---- formats ----


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
