"""`flip-flop templates`: fetch, list, show and lint, as a user runs them."""

import json
from dataclasses import replace

import pytest

from flip_flop.prompts import Template
from flip_flop.tasks import Task, load_task, log_findings
from tests.cli.project import TASK, one_line
from tests.refused import refused
from tests.tiny import metaspace, save_tiny


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLIP_FLOP_PROMPTSOURCE", raising=False)
    return tmp_path / "cache" / "flip-flop" / "promptsource-0.2.3"


def test_missing_templates_name_the_fetch_command(flip_flop):
    results = [flip_flop("templates", verb, "rte") for verb in ("list", "show", "lint")]
    assert all(result.err.endswith("Run `flip-flop templates fetch`.\n") for result in results)
    assert [result.code for result in results] == [2, 2, 2]


def test_list_shows_answers_and_held_out_templates(flip_flop, project):
    (project / "tickets.yaml").write_text(TASK + "held_out_templates: [terse]\n")
    result = flip_flop("templates", "list", "tickets.yaml")
    assert result.code == 0
    assert result.out.splitlines() == [
        "tickets: 4 templates kept, 0 dropped",
        "  template            answers, or why not",
        "  plain     kept      No ||| Yes",
        "  truth     kept      False ||| True",
        "  long      kept      Not at all ||| Guaranteed",
        "  terse     held out  Never ||| Yes",
    ]


def test_show_prints_every_prompt_with_its_answers_and_marks_the_gold_one(flip_flop, project):
    result = flip_flop("templates", "show", "tickets.yaml", "--instance", "2")
    assert result.code == 0, result.err
    assert result.out.startswith("tickets, test, instance test-2\n\n--- plain ---\n")
    assert "Ticket: the staff was good, number 1. Is this urgent?\n    1. No\n  * 2. Yes\n" in result.out
    assert result.out.count("---\n") == 4
    assert flip_flop("templates", "show", "tickets.yaml", "--instance", "test-2").out == result.out
    one = flip_flop("templates", "show", "tickets.yaml", "--templates", "terse", "--split", "train").out
    assert "--- terse ---" in one
    assert "plain" not in one
    assert "*" not in one


@pytest.mark.parametrize("instance", ["0", "10", "test-10", "x"])
def test_show_rejects_an_unknown_instance(instance, flip_flop, project):
    result = flip_flop("templates", "show", "tickets.yaml", "--instance", instance)
    one_line(result, "E-TASK-UNKNOWN", f"tickets, test, has no instance '{instance}'. Give a number from 1 to 9, or an")


LEAK = '  - {name: leak, jinja: "{{ text }} {{ urgent }}", answer_choices: "No ||| Yes"}\n'
PREFIX = TASK.replace("Never ||| Yes", "No ||| Not at all")


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [
        (TASK, 0, ["tickets.yaml: 4 templates, 28 rows, 0 errors, 0 warnings\n"]),
        (PREFIX, 0, ["0 errors, 1 warning\n", "  W-TPL-CHOICE-PREFIX  terse     train line 1 and 27 more: the answer"]),
        (TASK + LEAK, 2, ["5 templates, 28 rows, 1 error, 0 warnings\n", "E-TPL-LABEL-LEAK"]),
    ],
)
def test_lint_shows_warnings_and_errors_and_fails_for_errors(flip_flop, project, task, code, words):
    (project / "tickets.yaml").write_text(task)
    result = flip_flop("templates", "lint", "tickets.yaml")
    assert result.code == code
    assert all(word in result.out for word in words)


def test_lint_continues_after_a_broken_file(flip_flop, project):
    (project / "other.yaml").write_text(TASK.replace("{{ text }}", "{{ text"))
    result = flip_flop("templates", "lint", project)
    assert result.code == 2
    assert result.err.startswith("E-TPL-SYNTAX: ")
    assert "tickets.yaml: 4 templates, 28 rows, 0 errors" in result.out
    one_line(flip_flop("templates", "lint", "other.yaml"), "E-TPL-SYNTAX")


def test_lint_compares_answers_in_a_models_tokens(flip_flop, project, tmp_path):
    model = save_tiny(tmp_path / "model", tokenizer=metaspace())
    assert flip_flop("templates", "lint", "tickets.yaml", "--model", model).code == 0
    # The tokenizer knows neither letter: both are the unknown token.
    (project / "tickets.yaml").write_text(TASK.replace("No ||| Yes", "No α ||| No β"))
    assert flip_flop("templates", "lint", "tickets.yaml").code == 0
    result = flip_flop("templates", "lint", "tickets.yaml", "--model", model)
    assert result.code == 2
    assert "train line 1 and 27 more: the answers 'No α' and 'No β' are the same tokens." in result.out


WARNINGS = (
    "W-TPL-BLANK: tickets, template plain and 3 more: every field that it prints is blank in 2 rows, first {} line 3, "
    "{} line 4.",
    "W-TPL-BRACES: tickets, template plain and 3 more: {text} is only text. Write {{ text }}.",
)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["audit", "predict", "train"])
def test_warnings_of_lint_are_printed_once_with_a_run(verb, flip_flop, project):
    blank = TASK.replace('"{{ text }}"', '"Text: {{ text }}"')
    (project / "tickets.yaml").write_text(blank.replace("{{ text }}", "{{ text }}{text}"))
    (project / "test.csv").write_text("text,urgent\nthe room was good,1\n  ,0\n\u200b,1\nthe food was cold,0\n")
    texts = ["the room was good", " ", "\u200b", *(f"the staff was late, number {n}" for n in range(9))]
    (project / "train.jsonl").write_text("\n" + "".join(json.dumps({"text": each}) + "\n" for each in texts))
    arguments = {
        "audit": ("audit", "--quiet"),
        "predict": ("predict", "--input", "test.csv", "--quiet"),
        "train": ("train", "--quiet", "--max-steps", "1", "--device", "cpu", "--keep-worse"),
    }
    out = "out.csv" if verb == "predict" else "out"
    result = flip_flop(*arguments[verb], "--model", "demo", "--task", "tickets.yaml", "--out", out)
    assert result.code == 0, result.err
    place = "train.jsonl" if verb == "train" else "test.csv"
    for line in WARNINGS:
        assert result.err.splitlines().count(line.replace("{}", place)) == 1, result.err


def test_a_finding_is_logged_once_for_each_task(project, caplog):
    (project / "tickets.yaml").write_text(TASK.replace("{{ text }}", "{{ text }}{text}"))
    task = load_task("tickets.yaml")
    for name in ("first", "second", "first"):
        log_findings(replace(task, name=name).render("test"))
    assert [line.partition(", ")[0] for line in caplog.messages] == ["W-TPL-BRACES: first", "W-TPL-BRACES: second"]


def test_the_findings_of_a_sample_are_about_its_rows_and_labels():
    rows = [{"text": f"Tea {number}", "urgent": number % 2} for number in range(9)]
    wrong = Template("wrong", "{{ text }}? ||| {{ answer_choices[1 - urgent] }}", "No ||| Yes")
    split = Task("drinks", [wrong], {"test": rows}, labels=(0, 1), label_field="urgent").render("test", limit=1, seed=1)
    number = split.instances[0].id.removeprefix("test-")
    assert number != "1"
    refused(
        f"E-TPL-LABELS: drinks, template wrong: drinks, test, row {number}: its target is answer", log_findings, split
    )


def test_lint_rejects_repeated_ids_as_an_audit_does(flip_flop, project):
    (project / "tickets.yaml").write_text(TASK.replace("labels: [0, 1]", "labels: [0, 1]\nid_field: text"))
    (project / "test.csv").write_text("text,urgent\n" + 2 * "the room was good,1\n")
    result = flip_flop("templates", "lint", "tickets.yaml")
    one_line(result, "E-DATA-ROWS", "test.csv line 3 has the text 'the room was good' of line 2")
    assert flip_flop("audit", "--model", "demo", "--task", "tickets.yaml", "--out", "out").err == result.err


def test_lint_rejects_a_missing_label_column_as_an_audit_does(flip_flop, project):
    (project / "test.csv").write_text("text, urgent\nthe room was good, 1\n")
    result = flip_flop("templates", "lint", "tickets.yaml")
    one_line(result, "E-DATA-COLUMN", "test.csv has no column 'urgent', the task's label_field", "' urgent'")
    assert flip_flop("audit", "--model", "demo", "--task", "tickets.yaml", "--out", "out").err == result.err
