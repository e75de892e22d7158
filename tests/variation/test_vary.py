"""``templates vary``: task files of variants, and paraphrases that keep question and answers."""

import pytest

from flip_flop import load_task
from flip_flop.open_answers.generation import group_answers
from flip_flop.prompts import LintRow, Template
from flip_flop.record import ModelRecord
from flip_flop.scoring.scorer import Scorer
from flip_flop.tasks import Task
from flip_flop.variation.paraphrases import add_paraphrases, instruction
from tests.served import serving

ROWS = [{"text": f"the {what} was good", "gold": at % 2} for at, what in enumerate(("room", "food", "wifi", "staff"))]
PLAIN = Template("plain", "Ticket: {{ text }}\nYes or no: is this urgent?", "No ||| Yes")
TERSE = Template("terse", "{{ text }}\nUrgent:", "never ||| always")
TASK = Task("tickets", [PLAIN, TERSE], {"test": ROWS}, labels=(0, 1), label_field="gold")
LINTED = [LintRow(f"row {at}", row, row["gold"]) for at, row in enumerate(ROWS)]


class Writer(Scorer):
    """A model that writes these replies."""

    record = ModelRecord(name="writer")

    def __init__(self, replies):
        self.replies = replies
        self.prompts = []

    def scores(self, instances, options=None, **_):
        self.prompts = [prompt for instance in instances for prompt in instance.prompts]
        return group_answers(instances, ((reply, None) for reply in self.replies), {})


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A task file of the task, with a held-out template."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    lines = [f"{row['text']},{row['gold']}" for row in ROWS]
    (tmp_path / "mine" / "rows.csv").write_text("\n".join(["text,gold", *lines]))
    (tmp_path / "mine" / "task.yaml").write_text("""\
name: tickets
data: {train: rows.csv, test: {path: rows.csv, encoding: utf-8}}
label_field: gold
labels: [0, 1]
templates:
  - {name: plain, jinja: "Ticket: {{ text }}\\nYes or no: is this urgent?", answer_choices: "No ||| Yes", id: 7}
  - {name: terse, jinja: "{{ text }}\\nUrgent:", answer_choices: [never, always]}
held_out_templates: [terse]
""")
    return tmp_path / "mine" / "task.yaml"


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
    writer = Writer(list(replies))
    task, found = add_paraphrases(TASK.with_templates(["plain"]), LINTED, writer, len(replies), by="stub")
    assert writer.prompts == [instruction(PLAIN, str(number)) for number in range(1, len(replies) + 1)]
    assert "{{ text }}\nYes or no: is this urgent?\n</template>" in writer.prompts[0]
    for variant, why in zip(found, replies.values(), strict=True):
        assert variant.rejected.startswith(why), variant
        assert bool(variant.rejected) == bool(why), variant
    plain, kept = task.templates
    assert plain == PLAIN
    assert (kept.jinja, kept.answer_choices) == ("Note: {{ text }}\nMust we hurry, yes or no?", "No ||| Yes")
    assert kept.levels == {"wording": "plain paraphrase 1", "source": "paraphrase"}
    assert found[0].made == {"from": "plain", "instruction": 2, "by": "stub"}


def test_the_new_task_file_loads_and_has_levels(file, tmp_path, flip_flop):
    out = tmp_path / "new" / "deep" / "more.yaml"
    words = ("templates", "vary", file, "--axis", "format=2", "--axis", "typos=0.5", "--axis", "order=2")
    result = flip_flop(*words, "--out", out)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == f"{out}: 12 templates, 2 of them original; 0 rejected"
    task = load_task(out, templates="all")
    whole = load_task(file, templates="all", axes={"format": 2, "typos": 0.5, "order": 2})
    assert [template.entry for template in task.templates] == [template.entry for template in whole.templates]
    assert task.held_out_templates == whole.held_out_templates
    assert task.templates[0].levels == {"wording": "plain", "order": "2 1", "format": "original", "typos": "original"}
    assert len(task.instances("test")) == len(task.instances("train")) == 4
    assert "  id: 7\n" in out.read_text()
    again = flip_flop(*words, "--out", out)
    assert again.err.startswith("E-OUT-USED: ")
    for arguments, error in {
        ("demo", "--axis", "order=2"): "E-TASK-FILE: demo is not a task file.",
        (file,): "E-AXIS: --axis and --paraphraser are missing.",
        (out, "--axis", "order=2"): "E-AXIS: task 'tickets' has templates with levels of 'order'.",
    }.items():
        refused = flip_flop("templates", "vary", *arguments, "--out", tmp_path / "other.yaml")
        assert refused.err.splitlines()[-1].startswith(error)


def test_axes_of_the_file_become_templates_and_lint_rejects(file, flip_flop):
    file.write_text(file.read_text().replace("held_out_templates: [terse]", "axes: {typos: 0.0001}"))
    result = flip_flop("templates", "vary", file, "--axis", "order=2", "--templates", "plain", "--out", "v.yaml")
    assert result.code == 0, result.err
    rejected = [line for line in result.out.splitlines() if "rejected: E-TPL-DUP" in line]
    assert len(rejected) == 2  # no word of four rows has a typo
    assert load_task("v.yaml", templates="all").templates.names == ("plain", "plain · order 1 2")


@pytest.mark.slow
def test_a_served_model_paraphrases_and_paraphrases_vary(file, flip_flop):
    with serving(None, None) as (served, name):
        served.writes = lambda prompt: "Note: {{ text }}\nMust we hurry, yes or no?\n</template>\n"
        words = ("--paraphraser", name, "--paraphrases", "2", "--axis", "order=2")
        result = flip_flop("templates", "vary", file, *words, "--out", "v.yaml")
    assert result.code == 0, result.err
    assert "rejected: it repeats 'plain paraphrase 1'" in result.out
    task = load_task("v.yaml", templates="all")
    new = "plain paraphrase 1"
    assert task.templates.names == ("plain", "plain · order 1 2", new, f"{new} · order 1 2", "terse")
    assert task.templates[3].jinja == "Note: {{ text }}\nMust we hurry, no or yes?"
    levels = {"wording": new, "source": "paraphrase", "order": "1 2"}
    assert task.templates[3].levels == levels
    entry = (file.parent.parent / "v.yaml").read_text()
    assert f"    from: plain\n    instruction: 2\n    by: {name}\n" in entry


@pytest.mark.slow
def test_a_local_model_paraphrases(file, flip_flop):
    result = flip_flop("templates", "vary", file, "--paraphraser", "demo", "--paraphrases", "1", "--out", "v.yaml")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "v.yaml: 2 templates, 2 of them original; 1 rejected"
