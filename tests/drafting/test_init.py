"""`flip-flop init`: a task file from a data file, that an audit runs on at once."""

import functools
import io
import json
import re
import shlex
import sys
from string import Template

import numpy as np
import pandas as pd
import pytest
import yaml

from flip_flop import audit
from flip_flop.drafting.library import KINDS, library
from flip_flop.metrics import Scores
from flip_flop.record import ModelRecord
from flip_flop.scoring import Scored
from flip_flop.scoring.scorer import Scorer
from flip_flop.tasks import load_task, log_label_counts
from tests.cases import read_cases
from tests.cli.project import one_line

THINGS = ("the room was small", "the food was cold", "the staff was kind", "the wifi worked well")


def text(number):
    return f"On day {number} {THINGS[number % 4]}."


def csv(header, row, *, count=24, **values):
    """A file whose rows fill the template ``row``: each of its names stands for the next of these values in turn.

    ``$n`` is the number of the row and ``$text`` its text, ``$next_n`` and ``$next_text`` are those of the next row.
    """
    lines = [] if header is None else [header]
    for n in range(count):
        cells = {name: each[n % len(each)] for name, each in values.items()}
        cells |= {"n": n, "text": text(n), "next_n": n + 1, "next_text": text(n + 1)}
        lines.append(Template(row).substitute(cells))
    return "\n".join(lines) + "\n"


PLAIN = csv("text,urgent", "$text,$urgent", urgent=[0, 1])


def content_of(case):
    """The file of a case."""
    if "content" in case:
        return case["content"]
    if "row" not in case:
        return PLAIN
    rows = csv(case.get("header"), case["row"], count=case.get("count", 24), **case.get("values", {}))
    return rows + case.get("more", "")


def options_of(case):
    return shlex.split(case.get("options", ""))


FILES = read_cases("drafting/files.yaml")
JUDGES = read_cases("drafting/judges.yaml")
OPEN = read_cases("drafting/open_answers.yaml")
ENDINGS = read_cases("drafting/endings.yaml")
MISTAKES = read_cases("drafting/mistakes.yaml")

NAMES = (
    "本文",
    "ｔｅｘｔ",
    "Pru\u0308fung",
    "Text der Bewertung",
    "1st",
    "for",
    "none",
    "a.b-c",
    "it's",
    'say "hi"',
    "a, b",
    "{{x}}",
    " text ",
    "a\\b",
    "row",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_any_name_is_printed(name, flip_flop, folder):
    columns = {name: map(text, range(40)), "urgent": [n % 2 for n in range(40)]}
    pd.DataFrame(columns if name == "row" else {"row": range(40), **columns}).to_csv("a.csv", index=False)
    result = flip_flop("init", "a.csv")
    assert (result.code, result.err) == (0, "")
    task = load_task("task.yaml")
    found = list(task.instances("test"))
    assert sum(all(text(n) in prompt for prompt in each.prompts) for n in range(40) for each in found) == 40
    assert flip_flop("templates", "lint", "task.yaml").out.startswith("task.yaml: 4 templates, 40 rows, 0 errors, 0 w")
    varied = flip_flop("templates", "vary", "task.yaml", "--axis", "format=2", "--out", "more.yaml")
    assert varied.code == 0, varied.err


# Labels of sentiment of two and three values, and of yes or no about a column "urgent"; a text.
LANGUAGES = {
    "German": (("negativ", "positiv"), ("schlecht", "neutral", "gut"), ("Nein", "Ja"), "Das Zimmer war sauber."),
    "French": (("négatif", "positif"), ("mauvais", "neutre", "bon"), ("non", "oui"), "La chambre est propre."),
    "Spanish": (("negativo", "positivo"), ("malo", "neutro", "bueno"), ("no", "si"), "La habitación es limpia."),
    "Italian": (("negativo", "positivo"), ("cattivo", "neutro", "buono"), ("no", "si"), "La camera è pulita."),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_templates_are_in_the_language_of_the_labels(language, flip_flop, folder):
    *kinds, said = LANGUAGES[language]
    for labels, kind in zip(kinds, ("sentiment", "sentiment", "yes_no"), strict=True):
        rows = csv("text,urgent", f"{said} $n,$urgent", urgent=labels)
        (folder / "a.csv").write_text(rows, encoding="utf-8")
        result = flip_flop("init", "a.csv", "--overwrite")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"task.yaml: {kind}, 4 templates in {language}, 0 warnings of lint\n")
        task = load_task("task.yaml")
        assert task.labels == labels
        asked = "".join(template.jinja for template in task.templates)
        assert ("urgent" in asked) == (kind == "yes_no")
        assert not {"the", "this", "or", "answer"} & set(asked.lower().replace("\n", " ").split())


@pytest.mark.parametrize("name", ["Beschwerde", "ist_Beschwerde"])
def test_the_name_of_a_label_column_is_asked_about_in_its_case(name, flip_flop, folder):
    (folder / "a.csv").write_text(csv(f"text,{name}", "$text,$value", value=["ja", "nein"]))
    assert flip_flop("init", "a.csv").code == 0
    assert load_task("task.yaml").templates[0].jinja == '{{ text }}\nTrifft "Beschwerde" hier zu?'


def test_labels_of_another_language_are_reported(flip_flop, folder):
    rows = csv("本文,評価", "部屋 $n,$value", value=["良い", "悪い"])
    (folder / "a.csv").write_text(rows, encoding="utf-8")
    result = flip_flop("init", "a.csv")
    assert "4 templates in English (the language of the labels is unknown), 0 warnings of lint\n" in result.out


# name: (prompt, its Jinja)
PROMPTS = {
    "braces": ('Say {"label": x} for $5.\nText: {text}\nMood: ', 'Say {"label": x} for $5.\nText: {{ text }}\nMood:'),
    "a name with spaces": ("{der Text}\nMood: ", "{{ row['der Text'] }}\nMood:"),
    "two columns": ("From: { from }\nText: {text}", "From: {{ from }}\nText: {{ text }}"),
    "Jinja": ("Text: {{ text|trim }}\n{mood}:", "Text: {{ text|trim }}\n{mood}:"),
}
MOODS = csv("from,text,der Text,label", "guest $n,$text,$text,$label", label=["Yes", "No"])


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_the_first_template_and_the_others_are_its_formats(prompt, expected, flip_flop, folder):
    (folder / "a.csv").write_text(MOODS)
    (folder / "mood.txt").write_text(prompt)
    result = flip_flop("init", "a.csv", "--prompt", "mood.txt")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("task.yaml: prompt mood.txt, 4 templates, 0 warnings of lint\n")
    task = load_task("task.yaml")
    assert task.labels == ("No", "Yes")
    assert (task.templates[0].name, task.templates[0].jinja) == ("mood", expected)
    assert {template.answer_choices for template in task.templates} == {"No ||| Yes"}
    assert task.templates.names == ("mood", *(f"mood · format {number}" for number in (2, 3, 4)))
    assert [template.levels["wording"] for template in task.templates] == ["mood"] * 4
    assert len(set(task.render("test").instances[0].prompts)) == 4


def test_layouts_of_a_prompt_keep_its_punctuation(flip_flop, folder):
    (folder / "a.csv").write_text(MOODS)
    prompts = set()
    for number in range(20):
        (folder / "mood.txt").write_text(f"Reply with yes or no only.\nMoods: yes, no\nText {number}: {{text}}\nMood:")
        assert flip_flop("init", "a.csv", "--prompt", "mood.txt", "--overwrite").code == 0
        prompts |= {template.jinja for template in load_task("task.yaml").templates[1:]}
    assert len(prompts) == 60
    assert {re.sub(r"[\w\s{}]", "", prompt) for prompt in prompts} == {".:,::"}


def test_a_prompt_without_other_formats_says_so(flip_flop, folder):
    (folder / "a.csv").write_text(MOODS)
    (folder / "mood.txt").write_text("{text}")
    shown = flip_flop("init", "a.csv", "--prompt", "mood.txt").out
    assert "prompt mood.txt, 1 template, 0 warnings of lint\n" in shown
    hint = "The other templates are layouts of the prompt, which has no more. For paraphrases, use `flip-flop templates"
    assert f"\n{hint} vary --paraphraser MODEL`.\n" in shown


NUMBERS = range(24)


@pytest.mark.parametrize(
    ("name", "ids", "expected"),
    [
        ("ticket_id", [f"T-{n}" for n in NUMBERS], True),
        ("ticketId", NUMBERS, True),
        ("Ticket Nr.", NUMBERS, True),
        ("番号", NUMBERS, True),
        ("id", [1, *NUMBERS[1:]], False),  # not unique
        ("id", ["", *NUMBERS[1:]], False),  # blank in a row
        ("video", NUMBERS, False),
    ],
)
def test_a_column_that_names_every_row_is_proposed_as_id_field(name, ids, expected, flip_flop, folder):
    (folder / "a.csv").write_text(csv(f"{name},text,urgent", "$id,$text,$urgent", id=ids, urgent=[0, 1]))
    result = flip_flop("init", "a.csv")
    assert f"  ids     {name if expected else 'numbers of the rows'}\n" in result.out
    note = "a.csv: the column 'id' does not name the rows, because '1' occurs again\n"
    assert (note in result.err) == (ids[0] == ids[1])
    task = load_task("task.yaml")
    assert task.id_field == (name if expected else None)
    found = {each.id for each in task.instances("test")}
    assert (found == {str(each) for each in ids}) == expected


def test_options_in_columns_of_any_name_are_answers(flip_flop, folder):
    columns = {"Die Frage?": map(text, range(24)), "A": [f"it rained {n}" for n in range(24)]}
    pd.DataFrame({**columns, "B": [f"it is old {n}" for n in range(24)], "label": [0, 1] * 12}).to_csv(
        "a.csv", index=False
    )
    assert (
        flip_flop("init", "a.csv", "--text", "Die Frage?", "--text", "A", "--kind", "topic", "--labels", "a,b").code
        == 0
    )
    assert "{{ row['Die Frage?'] }}\n{{ A }}" in load_task("task.yaml").templates[0].jinja


@pytest.mark.parametrize("kind", ["choice", "judge"])
def test_spaces_around_options_do_not_tell_the_right_one(kind, flip_flop, folder):
    names = ("choice1", "choice2") if kind == "choice" else ("answer_a", "answer_b")
    options = [[" rain \n", "snow"], ["rain", "\tsnow"]]
    rows = [{"question": f"Why {n}?", names[0]: options[n][0], names[1]: options[n][1]} for n in (0, 1)]
    verdicts = ([0, 1], ["first", "second"])[kind == "judge"]
    labelled = [row | {"verdict": verdict} for row, verdict in zip(rows, verdicts, strict=True)]
    (folder / "a.jsonl").write_text(asked(*labelled))
    result = flip_flop("init", "a.jsonl", "--kind", kind, "--label", "verdict")
    assert (result.code, result.err) == (0, "")
    first, second = load_task("task.yaml").instances("test")
    assert [prompt.replace("Why 0", "Why 1") for prompt in first.prompts] == list(second.prompts)
    assert first.choices == second.choices
    varied = flip_flop("templates", "vary", "task.yaml", "--axis", "order=2", "--out", "more.yaml")
    if kind == "judge":
        assert varied.err.startswith("E-AXIS: task 'a' has templates with levels of 'order'. Leave out")
    else:
        assert "\nlisted · order 2 1" in varied.out


def test_label_names_encoding_and_delimiter_are_written_into_the_task_and_hold_for_predict(flip_flop, folder):
    content = csv("text;topic", "“$text” 5 €;$topic", topic=[0, 1])
    (folder / "a.csv").write_text(content, encoding="cp1252")
    topics = ("--kind", "topic", "--labels", "rooms,food")
    one_line(flip_flop("init", "a.csv", *topics), "E-DATA-ENCODING", "for example cp1252")
    assert flip_flop("init", "a.csv", *topics, "--encoding", "cp1252").code == 0
    written = yaml.safe_load((folder / "task.yaml").read_text())
    file = {"path": "a.csv", "delimiter": ";", "encoding": "cp1252"}
    assert written["data"]["test"] == file
    assert written["label_names"] == ["rooms", "food"]
    predict = ("predict", "--model", "demo", "--task", "task.yaml", "--input", "a.csv", "--out", "b.jsonl")
    assert flip_flop(*predict).code == 0
    assert "“On day 0" in (folder / "b.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("delimiter", ["\t", "|", ";"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_usual_delimiter_is_found(delimiter, encoding, flip_flop, folder):
    content = csv("id,text,label", "$n,$text,$label", label=["negative", "positive"])
    (folder / "a.csv").write_text(content.replace(",", delimiter), encoding=encoding)
    shown = flip_flop("init", "a.csv", "--labels", "negative,positive", "--encoding", encoding).out
    assert "  text    text\n  labels  label: negative, positive\n" in shown
    assert load_task("task.yaml").data["test"].delimiter == delimiter
    one_line(flip_flop("init", "a.csv", "--delimiter", "^", "--encoding", encoding, "--overwrite"), "E-DATA-ENCODING")


def test_a_column_of_the_exact_name_is_preferred_to_one_in_another_case(flip_flop, folder):
    rows = csv("Text,text,label,Label", "$text,$next_text,$label,$other", label=[0, 1], other=[0, 1, 2])
    (folder / "a.csv").write_text(rows)
    shown = flip_flop("init", "a.csv", "--kind", "yes_no").out
    assert "  text    text\n  labels  label: 0, 1\n" in shown


def test_one_fact_about_all_templates_is_one_warning(flip_flop, folder):
    (folder / "tickets.csv").write_text(PLAIN + ",1\n")
    lines = flip_flop("init", "tickets.csv").out.splitlines()
    assert lines[0].endswith(", 1 warning of lint")
    (warning,) = [line for line in lines if "W-TPL-BLANK" in line]
    assert re.search(r"W-TPL-BLANK \w+ and 3 more: every field that it prints is blank in 1 row", warning)


def test_a_sentiment_of_other_words_gives_a_warning(flip_flop, folder):
    (folder / "a.csv").write_text(content_of(FILES["topic"]))
    result = flip_flop("init", "a.csv", "--kind", "sentiment")
    assert result.code == 0
    assert result.err.startswith("W-INIT: the labels 'science', 'sports', 'world' are not words of a sentiment.")
    (folder / "a.csv").write_text(csv("text,label", "$text,$label", label=["very bad", "middling"]))
    assert flip_flop("init", "a.csv", "--kind", "sentiment", "--overwrite").err == ""


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_a_file_becomes_a_task_of_its_kind_with_four_phrasings_that_lint_passes(case, flip_flop, folder):
    file = case.get("file", "a.csv")
    (folder / file).write_text(content_of(case))
    result = flip_flop("init", file, *options_of(case))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"task.yaml: {case['kind']}, 4 templates in English")
    assert result.out.splitlines()[0].endswith(", 0 warnings of lint")
    written = yaml.safe_load((folder / "task.yaml").read_text())
    assert written.get("labels") == case["labels"]
    assert [template["answer_choices"] for template in written["templates"][:2]] == case["answers"]
    task = load_task("task.yaml")
    split = task.render("test")
    assert len(set(split.instances[0].prompts)) == 4
    gold = set(range(len(case["labels"]))) if "label_field" in written else {None}
    assert {each.label for each in split.instances} == gold
    assert flip_flop("templates", "lint", "task.yaml").out.startswith("task.yaml: 4 templates, 24 rows, 0 errors, 0 w")


@pytest.mark.parametrize("case", JUDGES.values(), ids=JUDGES)
def test_a_judge_gets_wordings_and_for_pairs_both_orders(case, flip_flop, folder):
    (folder / "a.csv").write_text(content_of(case))
    options = options_of(case)
    result = flip_flop("init", "a.csv", "--kind", "judge", *options)
    assert (result.code, result.err) == (0, "")
    is_pair = "||| A" in case["answers"][1]
    number = 6 if is_pair else 4
    assert result.out.startswith(f"task.yaml: judge, {number} templates in English")
    assert "no more formats" not in result.out
    written = yaml.safe_load((folder / "task.yaml").read_text())
    assert written["labels"] == case["labels"]
    assert {key: written[key] for key in ("scale", "label_names") if key in written} == case.get("keys", {})
    assert [template["answer_choices"] for template in written["templates"][:2]] == case["answers"]
    task = load_task("task.yaml")
    wordings = [template.levels["wording"] for template in task.templates]
    orders = [template.levels.get("order") for template in task.templates]
    assert orders == (["given", "swapped"] * 3 if is_pair else [None] * 4)
    assert len(set(wordings)) == (3 if is_pair else 4)
    assert all(name.startswith(wording) for name, wording in zip(task.templates.names, wordings, strict=True))
    instance = task.render("test").instances[0]
    assert len(set(instance.prompts)) == number
    assert all("Is it {{ polite }}?" in prompt for prompt in instance.prompts) == ("--question" in options)
    if is_pair:
        for given, swapped in zip(instance.prompts[::2], instance.prompts[1::2], strict=True):
            assert given.index("rain") < given.index("snow")
            assert swapped.index("snow") < swapped.index("rain")
    assert flip_flop("templates", "lint", "task.yaml").out.splitlines()[0].endswith("0 errors, 0 warnings")


RUBRICS = read_cases("drafting/rubrics.yaml")


@pytest.mark.parametrize("case", RUBRICS.values(), ids=RUBRICS)
def test_a_rubric_of_a_judge_is_first_and_gets_both_orders_of_a_pair(case, flip_flop, folder):
    (folder / "a.csv").write_text(content_of(case))
    (folder / "rubric.txt").write_text(case["prompt"])
    result = flip_flop("init", "a.csv", "--kind", "judge", "--prompt", "rubric.txt", *options_of(case))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("task.yaml: judge, 4 templates, 0 warnings of lint\n")
    task = load_task("task.yaml")
    assert list(task.labels) == case["labels"]
    first, second = task.templates[:2]
    assert first.name == "rubric"
    assert [first.answer_choices, second.answer_choices] == case["answers"]
    prompts = task.instances("test")[0].prompts
    assert list(prompts[: len(case["prompts"])]) == case["prompts"]
    is_pair = len(case["prompts"]) == 2
    by_content = audit(Judge(lambda prompt: int(prompt.find("snow") < prompt.find("rain"))), task, quiet=True)
    assert by_content.value("order_flips") == (1.0 if is_pair else None)


@pytest.mark.parametrize("options", ["--text question --text body", "--kind topic", "--question Why?"])
def test_what_a_prompt_says_is_not_given_twice(options, flip_flop, folder):
    (folder / "a.csv").write_text(MOODS)
    (folder / "mood.txt").write_text("{text}")
    one_line(flip_flop("init", "a.csv", "--prompt", "mood.txt", *shlex.split(options)), "E-INIT", "unless it is judge")
    judge = flip_flop("init", "a.csv", "--prompt", "mood.txt", "--kind", "judge", "--text", "from")
    one_line(judge, "E-INIT", "mood.txt does not print 'from'")


def init_judge(name, flip_flop, folder):
    (folder / "a.csv").write_text(content_of(JUDGES[name]))
    assert flip_flop("init", "a.csv", "--kind", "judge", *options_of(JUDGES[name])).code == 0


@pytest.mark.parametrize("name", ["a pair", "a pair with ties", "pass or fail"])
def test_wordings_of_a_judge_have_one_form_of_label(name, flip_flop, folder):
    init_judge(name, flip_flop, folder)
    words = [sorted(choices) for choices in load_task("task.yaml").instances("test")[0].choices]
    assert words == words[:1] * len(words)


class Judge(Scorer):
    """A judge of pairs: it says the first letter, or by ``choose`` a label for each prompt."""

    record = ModelRecord(name="judge")

    def __init__(self, choose=None):
        self.choose = choose

    def scores(self, instances, options=None, **_):
        chosen = [
            [choices.index("A") if self.choose is None else self.choose(prompt)
             for prompt, choices in zip(row.prompts, row.choices, strict=True)]
            for row in instances
        ]  # fmt: skip
        num_labels = len(instances[0].choices[0])
        table = np.where(np.array(chosen)[..., None] == np.arange(num_labels), -0.1, -3.0).astype(np.float32)
        return Scored(Scores.of(instances, table, np.ones(table.shape, np.int64)))


@pytest.mark.parametrize("name", ["a pair", "a pair with ties"])
def test_new_formats_are_no_flips_by_order_or_wording(name, flip_flop, folder):
    init_judge(name, flip_flop, folder)
    assert flip_flop("templates", "vary", "task.yaml", "--axis", "format=2", "--out", "more.yaml").code == 0
    task, more = load_task("task.yaml"), load_task("more.yaml")
    assert len(more.templates) == 12
    before, after = (audit(Judge(), each, quiet=True) for each in (task, more))
    for each in (before, after):
        assert (each.value("wording_flips"), each.value("order_flips")) == (0.0, 1.0)  # A is another answer
    assert before.metrics["flip_pairs"].items() <= after.metrics["flip_pairs"].items()
    own = {prompt for row in task.instances("test") for prompt in row.prompts}
    by_format = audit(Judge(lambda prompt: int(prompt in own)), more, quiet=True)
    assert by_format.value("observed_agreement") < 1
    assert (by_format.value("wording_flips"), by_format.value("order_flips")) == (0.0, 0.0)


def asked(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("case", OPEN.values(), ids=OPEN)
def test_open_answers_get_wordings_without_choices(case, flip_flop, folder):
    (folder / "a.jsonl").write_text(asked(*case["rows"]))
    result = flip_flop("init", "a.jsonl", "--kind", "open", *options_of(case))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("task.yaml: open, 4 templates in English, 0 warnings")
    label, kind = case["label_field"], case["kind"]
    assert f"{label or 'without a column'}: open answers of the kind {kind}" in result.out
    task = load_task("task.yaml")
    assert (task.answer.kind, task.label_field, task.labels) == (kind, label, None)
    for instance, row in zip(task.render("test").instances, case["rows"], strict=True):
        assert len(set(instance.prompts)) == 4
        shown = "\n".join(row[name] for name in case["texts"])
        assert all(shown in prompt for prompt in instance.prompts)
        assert bool(instance.open.references) == (label is not None)
    assert flip_flop("templates", "lint", "task.yaml").out.splitlines()[0].endswith("0 errors, 0 warnings")


@pytest.mark.parametrize("case", ENDINGS.values(), ids=ENDINGS)
def test_the_answer_at_the_end_of_a_reasoning_is_the_right_one(case, flip_flop, folder):
    rows = [{"question": f"How many, {number}?", "answer": answer} for number, answer in enumerate(case["answers"])]
    (folder / "a.jsonl").write_text(asked(*rows))
    result = flip_flop("init", "a.jsonl", "--kind", "open")
    assert (result.code, result.err) == (0, "")
    assert f"answer: open answers of the kind {case['kind']}" in result.out
    task = load_task("task.yaml")
    assert [instance.open.references for instance in task.instances("test")] == [(key,) for key in case["keys"]]
    assert {task.answer.key(text) for text in case["texts"]} == {case["keys"][0]}
    assert (task.answer.stop == ("\n",)) == (case["kind"] == "text" and task.answer.extract is None)


@pytest.mark.parametrize("answer", [{"spans": ["Ebro"]}, [["Ebro"], ["Rhine"]], "?!"])
def test_a_right_answer_that_an_audit_refuses_is_refused_at_once(answer, flip_flop, folder):
    rows = [{"question": "Which river?", "answer": "Ebro"}, {"question": "Which one?", "answer": answer}]
    (folder / "a.jsonl").write_text(asked(*rows))
    one_line(flip_flop("init", "a.jsonl", "--kind", "open"), "E-LABEL", "a.jsonl line 2: 'answer' is ")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_one_label_is_this_label(suffix, flip_flop, folder):
    labels = [["positive"], ["negative"], [], ["positive"], ["negative"]]
    frame = pd.DataFrame({"text": map(text, range(5)), "label": labels})
    if suffix == "parquet":
        frame.to_parquet("a.parquet")
    else:
        frame.to_json("a.jsonl", orient="records", lines=True)
    result = flip_flop("init", f"a.{suffix}")
    assert (result.code, result.err) == (0, "")
    assert "  labels  label: negative, positive\n" in result.out
    task = load_task("task.yaml")
    assert task.labels == ("negative", "positive")
    assert task.render("test").gold.tolist() == [1, 0, -1, 1, 0]


@pytest.mark.parametrize("cell", [["rooms", "food"], {"choices": ["rooms"]}, [0, 2]])
@pytest.mark.parametrize("form", ["JSON", "text of JSON", "text of Python"])
def test_several_labels_in_a_cell_are_refused(cell, form, flip_flop, folder):
    written = {"JSON": cell, "text of JSON": json.dumps(cell), "text of Python": str(cell)}[form]
    labels = [written, "rooms", "food"]
    (folder / "a.jsonl").write_text(asked(*({"text": text(n), "label": labels[n % 3]} for n in range(12))))
    line = f"a.jsonl: the column 'label' holds {str(written)!r}, which is not one label. Write one label in each cell"
    one_line(flip_flop("init", "a.jsonl"), "E-INIT", line)


# Files whose first row is data: columns, and rows.
HEADERLESS = {
    "a label and a text": [(("ham", "spam")[n % 2], text(n)) for n in range(6)],
    "a number, a title and a text": [(n % 2 + 1, f"Title {n}", text(n)) for n in range(6)],
    "a name, a text and a label": [(f"T{n}", text(n), ("ja", "nein")[n % 2]) for n in range(6)],
    "a text in Chinese and a label": [(f"房间 {n} 很干净。", ("好", "坏")[n % 2]) for n in range(6)],
}


def write_table(rows, suffix, header=False):
    frame = pd.DataFrame(rows)
    if suffix == "xlsx":
        frame.to_excel("a.xlsx", index=False, header=header)
    else:
        frame.to_csv(f"a.{suffix}", index=False, header=header, sep="\t" if suffix == "tsv" else ",")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "xlsx"])
@pytest.mark.parametrize("rows", HEADERLESS.values(), ids=HEADERLESS)
def test_a_file_without_names_of_columns_gives_a_warning(rows, suffix, flip_flop, folder):
    write_table(rows, suffix)
    value = next(str(cell) for place, cell in enumerate(rows[0]) if cell in [row[place] for row in rows[1:]])
    line = f"W-DATA-HEADER: a.{suffix}: the column {value!r} has the name of one of its values"
    assert line in flip_flop("init", f"a.{suffix}", "--kind", "yes_no", "--labels", "no,yes").err
    header = dict(enumerate([f"column{place}" for place in range(len(rows[0]))]))
    write_table(pd.DataFrame(rows).rename(columns=header), suffix, header=True)
    assert "W-DATA-HEADER" not in flip_flop("init", f"a.{suffix}", "--kind", "yes_no", "--labels", "no,yes").err


def test_a_label_may_have_the_name_of_its_column(flip_flop, folder):
    (folder / "a.csv").write_text(csv("text,toxic", "$text,$toxic", toxic=["toxic", "fine"]))
    assert flip_flop("init", "a.csv").err == ""


def test_a_divided_file_of_questions_has_validation_rows_for_a_comparison(flip_flop, folder):
    rows = [{"question": f"{number} + 1?", "answer": number + 1} for number in range(120)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert flip_flop("init", "a.jsonl", "--kind", "open").code == 0
    assert "is held out, on which the adapter is compared with the base.\n" in drafted(folder)


def test_every_entry_of_the_library_is_tried_by_a_file_above():
    tried = {case["kind"] for case in FILES.values()}
    assert tried | {"judge", "open"} == set(KINDS) == {each.kind for each in library()}
    assert all(len(each.phrasings) == (3 if each.needs == "pair" else 4) for each in library())
    for each in library():
        if each.roles:
            assert {len(entry["answers"]) for entry in each.phrasings} == {len(each.roles)}
            different = {tuple(entry["answers"]) for entry in each.phrasings}
            assert each.kind == "judge" or len(different) > 2


def test_training_rows_are_not_audited(flip_flop, folder):
    reviews = functools.partial(csv, "review,verdict", "$text,$verdict", verdict=["positive", "negative"])
    (folder / "a.csv").write_text(reviews(count=100))
    flip_flop("init", "a.csv")
    task = load_task("task.yaml")
    parts = {part: {each.prompts for each in task.instances(part)} for part in ("train", "test")}
    assert not parts["train"] & parts["test"]
    assert len(parts["train"] | parts["test"]) == 100
    assert task.rows("test").provenance["part"] == "test"
    (folder / "a.csv").write_text(reviews(count=120))
    assert {each.prompts for each in load_task("task.yaml").instances("test")} >= parts["test"]
    (folder / "a.csv").write_text(reviews(count=99))
    result = flip_flop("init", "a.csv", "--overwrite")
    assert "  rows    test: all, too few to divide; train needs its own file\n" in result.out
    assert "# All rows are for testing. To train, name a file of other rows" in drafted(folder)
    assert list(load_task("task.yaml").data) == ["test"]
    assert len(load_task("task.yaml").instances("test")) == 99


@pytest.mark.parametrize("arguments", [("--labels", "shipping,refund,login"), ("--labels", "a,b", "--label", "none")])
def test_given_labels_exclude_other_columns(arguments, flip_flop, folder):
    values = {"channel": ["mail", "phone"], "open": [False, True, True]}
    (folder / "a.csv").write_text(csv("channel,text,open", "$channel,$text,$open", **values))
    found = flip_flop("init", "a.csv", *arguments)
    assert f"without a column: {arguments[1].replace(',', ', ')}" in found.out


def test_an_audit_runs_on_the_file_at_once(flip_flop, folder):
    (folder / "data").mkdir()
    (folder / "data/my reviews.csv").write_text(content_of(FILES["sentiment"]))
    result = flip_flop("init", "data/my reviews.csv", "--out", "tasks/my reviews.yaml")
    assert result.out.splitlines()[-1].startswith("next: flip-flop audit --model demo --task 'tasks/my reviews.yaml' ")
    audited = flip_flop("audit", "--model", "demo", "--task", "tasks/my reviews.yaml", "--out", "out", "--quiet")
    assert audited.code == 0, audited.err
    assert "4 templates" in audited.out


def test_a_draft_is_reproducible_and_does_not_overwrite(flip_flop, folder):
    (folder / "a.csv").write_text(content_of(FILES["sentiment"]))
    first = flip_flop("init", "a.csv")
    written = (folder / "task.yaml").read_bytes()
    one_line(flip_flop("init", "a.csv"), "E-OUT-USED", "task.yaml", "--overwrite")
    assert flip_flop("init", "a.csv", "--overwrite") == first
    assert (folder / "task.yaml").read_bytes() == written
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "task.yaml"]


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_ambiguity_is_reported_in_one_line(case, flip_flop, folder):
    (folder / "a.csv").write_text(content_of(case))
    for name, prompt in (("typed", "{txet}?"), ("plain", "Why?"), ("wrong", "{{ text ?")):
        (folder / f"{name}.txt").write_text(prompt)
    one_line(flip_flop("init", "a.csv", *options_of(case)), case["code"], *case["words"])
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".txt"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_asked_for_names_of_columns(flip_flop, folder, monkeypatch):
    write_table(HEADERLESS["a label and a text"], "tsv")
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    result = flip_flop("init", "a.tsv")
    assert "Does the first row name the columns? One of them has the name of one of its values. [y/N]: " in result.err
    assert result.err.endswith("E-INIT: a.tsv has no names of columns. Add them as the first row.\n")
    assert not (folder / "task.yaml").exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n\n\n\n"))
    assert flip_flop("init", "a.tsv").code == 0


def test_a_terminal_is_asked_with_proposed_answers(flip_flop, folder, monkeypatch):
    (folder / "a.csv").write_text(csv("text,new,label", "$text,$new,$label", new=[0, 1], label=[0, 1, 2]))
    # Which column holds the labels, which the text; what do 0, 1, 2 mean; which kind is it.
    monkeypatch.setattr(sys, "stdin", Terminal("\n\nrooms,food,staff\ntopic\n"))
    result = flip_flop("init", "a.csv")
    assert result.code == 0, result.err
    assert "What do 0, 1, 2 mean" in result.err
    assert "  labels  label: 0 (rooms), 1 (food), 2 (staff)\n" in result.out


# ---- files in which some rows have no label ----


@pytest.mark.parametrize(("values", "labels"), [(("no", "yes"), ["no", "yes"]), (("0.0", "1.0"), [0, 1])])
def test_unlabelled_rows_of_a_file_are_for_training(values, labels, flip_flop, folder, caplog):
    rows = csv("text,urgent", "$text,$urgent", count=120, urgent=[*values, *values, *values, values[0], ""])
    (folder / "a.csv").write_text(rows)  # pandas writes integers with missing values as 0.0 and 1.0
    result = flip_flop("init", "a.csv", "--kind", "yes_no")
    assert (result.code, result.err) == (0, "")
    task = load_task("task.yaml")
    assert list(task.labels) == labels
    train, test = task.render("train").gold.tolist(), task.render("test").gold.tolist()
    assert train.count(-1) == 15
    assert -1 not in test
    assert f"  rows    train {len(train)} (15 unlabelled), test {len(test)}\n" in result.out
    with caplog.at_level("INFO", "flip_flop"):
        log_label_counts(task.render("test", limit=20))
    training = f"{len(train)} rows for training (15 of them unlabelled)"
    assert caplog.messages[-1].endswith(f"a.csv: 20 labelled rows for testing, {training}")
    assert "# A file without splits is divided into half of the labelled rows for testing and all" in drafted(folder)
    assert "whose labels choose the checkpoint" in drafted(folder)


def test_a_missing_word_is_a_label_if_it_is_named(flip_flop, folder):
    words = ("None", "Mild", "Severe", "NA")
    (folder / "a.csv").write_text(csv("text,pain", "$text,$pain", count=200, pain=words))
    shown = flip_flop("init", "a.csv").out
    assert "  labels  pain: Mild, Severe (NA, None: unlabelled unless --labels has them)\n" in shown
    shown = flip_flop("init", "a.csv", "--labels", "None,Mild,Severe", "--overwrite").out
    assert "  labels  pain: None, Mild, Severe (NA: unlabelled unless --labels has them)\n" in shown
    assert "(50 unlabelled)" in shown
    task = load_task("task.yaml")
    assert task.labels == words[:3]
    gold = [*task.render("train").gold.tolist(), *task.render("test").gold.tolist()]
    assert [gold.count(label) for label in (0, 1, 2, -1)] == [50] * 4


def drafted(folder):
    return (folder / "task.yaml").read_text()


def test_all_labelled_rows_are_for_testing_if_most_rows_have_no_label(flip_flop, folder):
    (folder / "a.csv").write_text(csv("text,urgent", "$text,$urgent", count=60, urgent=[0, 1] * 5 + [""] * 50))
    result = flip_flop("init", "a.csv")
    assert "  rows    train 50 (50 unlabelled), test 10\n" in result.out
    assert "is divided into the labelled rows for testing and all others for training. Training rows are" in drafted(
        folder
    )
    assert "a tenth of the training rows is held out, on which the checkpoint is chosen." in drafted(folder)
    assert len(load_task("task.yaml").instances("test")) == 10
