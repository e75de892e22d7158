"""Audits of tasks with open answers: generation, keys, votes, metrics and run directories."""

import itertools
import json
import re

import numpy as np
import pandas
import pytest
import torch

from flip_flop import audit, compare, load_run, predict
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import write_predictions
from flip_flop.files import generator
from flip_flop.metrics import METRICS, summarise
from flip_flop.open_answers.generation import group_answers
from flip_flop.prompts import OpenAnswers, RenderedInstance, Template
from flip_flop.reading import AnswerFormat
from flip_flop.tasks import Task, labelled_file, prior_from

TEMPLATES = tuple(Template(name, f"{name}: {{{{ question }}}}", None) for name in ("one", "two", "three"))
NUMBER = AnswerFormat("number", max_tokens=6)
ROWS = [
    {"question": "2+2", "answer": 4.0},
    {"question": "one or two", "answer": ["1", "2"]},
    {"question": "unknown", "answer": None},
]
TEXTS = {
    "2+2": ("It is 4.0.", "So 4", "4 or 3,5"),
    "one or two": ("1", "2", "Wait, 3"),
    "unknown": ("<think>7", "no number", "?"),
}


def open_task(**changes):
    return Task("sums", TEMPLATES, {"test": ROWS}, **({"label_field": "answer", "answer": NUMBER} | changes))


def grouped(texts, references=(), form=NUMBER, ends=()):
    instances = [
        RenderedInstance(f"{row}", ("x",) * len(written), (("",) * (len(written) + 1),) * len(written), None,
                         open=OpenAnswers(form, references=tuple(references)))
        for row, written in enumerate(texts)
    ]  # fmt: skip
    ends = ends or [[""] * len(written) for written in texts]
    answers = zip(itertools.chain(*texts), itertools.chain(*ends), strict=True)
    return group_answers(instances, answers, {})


@pytest.fixture
def served_name(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server, name = served
    order = [template.name for template in TEMPLATES]
    server.writes = lambda prompt: TEXTS[prompt.split(": ")[1]][order.index(prompt.split(": ")[0])]
    return name


@pytest.fixture
def served_audit(served_name):
    return audit(served_name, open_task(), quiet=True)


def test_served_answers_are_read_grouped_and_voted_on(served_audit, tmp_path):
    run = served_audit
    assert run.predictions.tolist() == [[0, 0, -1], [0, 1, 2], [-1, -1, -1]]
    assert (run.gold.tolist(), run.data.votes.tolist()) == ([0, 0, -1], [0, 0, -1])
    expected = {
        "observed_agreement": (1 / 3 + 0 + 0) / 3,
        "accuracy": (2 / 3 + 2 / 3) / 2,
        "token_f1": (2 / 3 + 2 / 3) / 2,
        "vote_accuracy": 1.0,
        "unmapped_share": 4 / 9,
        "distinct_answers": (1 + 3 + 0) / 3,
        "answer_length": np.mean([len(text) for texts in TEXTS.values() for text in texts]),
    }
    for name, value in expected.items():
        assert run.value(name) == pytest.approx(value), name
    assert run.interval("unmapped_share")[0] < 4 / 9 < run.interval("unmapped_share")[1]
    assert run.metrics["accuracy_per_template"] == {"one": 1.0, "two": 1.0, "three": 0.0}
    labels = ("mean_f1", "macro_f1", "f1_std", "vote_f1", "fleiss_kappa", "cohen_kappa", "posix")
    assert all(run.value(name) is None and name in run.metrics["absent"] for name in labels)
    again = load_run(run.write(tmp_path / "run"))
    assert again.metrics == json.loads(json.dumps(run.metrics))
    assert again.data.right.tolist() == run.data.right.tolist()
    flips = again.to_pandas("flips")
    assert flips["label"].tolist() == ["2", "3"]  # unread answers are not flips
    assert set(flips["gold"]) == {"1"}
    assert again.to_pandas("instances")["vote"].tolist() == ["4", "1", "unreadable"]
    assert [row.written for row in again.instances] == [*TEXTS.values()]


def test_predictions_have_texts_keys_and_the_shortest_text_of_the_vote(served_name, tmp_path):
    task = open_task()
    rows = task.rows("test")
    found = predict(served_name, task, quiet=True)
    assert [row["vote"] for row in found] == ["So 4", "1", None]
    assert [row["confidence"] for row in found] == pytest.approx([2 / 3, 1 / 3, 0])
    assert [row["consensus"] for row in found] == [True, False, False]
    assert [answer["label"] for row in found for answer in row["templates"].values()] == [
        "4", "4", None, "1", "2", "3", None, None, None,
    ]  # fmt: skip
    assert [answer["text"] for answer in found[0]["templates"].values()] == [*TEXTS["2+2"]]
    assert all(answer["probs"] is None for row in found for answer in row["templates"].values())
    write_predictions(found, task.label_values(4), tmp_path / "out.csv", rows)
    table = pandas.read_csv(tmp_path / "out.csv")
    assert table[["one: label", "one: text"]].iloc[0].tolist() == [4, "It is 4.0."]
    assert [row["vote"] for row in predict(served_name, task, quiet=True, abstain_below=0.5)] == ["So 4", None, None]


def test_a_served_answer_ends_at_a_stop_text_everywhere(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server, name = served
    server.writes = lambda prompt: " <answer>Paris</answer>\nQuestion: and Rome?"
    form = AnswerFormat("text", "<answer>(.*)</answer>", stop=("\nQ",))
    task = open_task(answer=form, label_field=None)
    run = audit(name, task, quiet=True)
    text = "<answer>Paris</answer>"
    assert [row.written for row in run.instances] == [(text,) * 3] * 3
    assert (run.value("answer_length"), run.value("observed_agreement")) == (len(text), 1.0)
    assert [row["vote"] for row in predict(name, task, quiet=True)] == [text] * 3


@pytest.mark.parametrize(("reason", "num_cut"), [("length", 6), ("stop", 0), (None, 0), (7, 0)])
def test_served_answers_that_end_at_max_tokens_are_counted(served, tmp_path, monkeypatch, caplog, reason, num_cut):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server, name = served
    server.writes = lambda prompt: "It is\n4" if prompt.startswith("two") else "It is"
    server.changes = lambda content: content.replace('reason": "length"', f'reason": {json.dumps(reason)}')
    task = open_task(answer=AnswerFormat("text", stop=("\n",)), label_field=None)  # three answers end at the stop text
    for _ in range(2):  # also from the stored answers
        caplog.clear()
        run = audit(name, task, quiet=True)
        assert run.record.scoring["num_cut"] == num_cut
        warning = f"W-ANSWER-CUT: {num_cut} of 9 answers end at max_tokens"
        assert (warning in caplog.text) == ("W-ANSWER-CUT" in caplog.text) == (num_cut > 0)


def test_a_served_answer_with_half_of_a_character_is_read_and_stored(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server, name = served
    server.writes = lambda prompt: "Paris \ud83d"
    run = audit(name, open_task(answer=AnswerFormat("text"), label_field=None), quiet=True)
    run.write(tmp_path / "run")
    assert [row.written for row in load_run(tmp_path / "run").instances] == [("Paris ?",) * 3] * 3


def test_other_answers_to_the_same_prompts_are_compared_without_a_warning(served, served_audit, tmp_path, monkeypatch):
    server, name = served
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # without stored answers
    server.writes = lambda prompt: "4"
    other = audit(name, open_task(), quiet=True, name="other")
    assert other.value("observed_agreement") == 1.0
    comparison = compare(served_audit, other)
    assert comparison.other_prompts == []
    accuracy = comparison.difference("accuracy", other)
    assert accuracy.value == pytest.approx(other.value("accuracy") - served_audit.value("accuracy"))


def test_agreement_is_the_consistency_of_pararel():
    random, words = generator(0, "tests/open"), ["Paris", "the paris", "Rome", "?!", ""]
    texts = [[words[index] for index in row] for row in random.integers(len(words), size=(60, 5)).tolist()]
    data = grouped(texts, form=AnswerFormat("text")).scores
    same, pairs = 0, 0
    for written in texts:
        for left, right in itertools.combinations(written, 2):
            keys = [text.lower().removeprefix("the ").strip("?!") for text in (left, right)]
            same, pairs = same + (keys[0] == keys[1] != ""), pairs + 1
    agreement = audit_value(data, "observed_agreement")
    assert agreement == pytest.approx(same / pairs)


def audit_value(data, name):
    return METRICS[name].value(data)


def test_unreadable_answers_never_agree_and_references_do_not_decide_ties():
    unreadable = grouped([["?", "?", "no"]] * 3, ["4"]).scores
    assert audit_value(unreadable, "observed_agreement") == audit_value(unreadable, "vote_accuracy") == 0.0
    assert audit_value(unreadable, "unmapped_share") == 1.0
    tie = [["3", "4"]]
    for references in (["4"], ["3"], ()):
        assert grouped(tie, references).scores.votes.tolist() == [0]


@pytest.mark.parametrize(("answers", "is_constant"), [(["7", "7"], True), (["{row}", "{row}"], False)])
def test_constant_answers_are_collapsed_although_they_agree(answers, is_constant):
    data = grouped([[answer.format(row=row) for answer in answers] for row in range(60)], ["3"]).scores
    found = summarise(data.values, data.gold, ["one", "two"], answered=data.answered)
    assert found["observed_agreement"] == 1.0
    assert found["collapsed"] == is_constant
    assert bool(found["constant_templates"]) == is_constant


def test_local_answers_are_greedy_and_independent_of_the_batch(loaded):
    task = open_task(answer=AnswerFormat("text", max_tokens=6))
    run = audit(loaded, task, quiet=True)
    model, tokenizer = loaded.model, loaded.tokenizer
    for row in run.instances:
        for prompt, written in zip(row.prompts, row.written, strict=True):
            ids = tokenizer(prompt)["input_ids"]
            start = len(ids)
            while len(ids) < start + 6 and (len(ids) == start or ids[-1] != tokenizer.eos_token_id):
                with torch.no_grad():
                    ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            text = tokenizer.decode(ids[start:], skip_special_tokens=True)
            is_cut = ids[-1] != tokenizer.eos_token_id
            assert written == (text.rstrip("\ufffd") if is_cut else text).strip()
    assert run.record.scoring["by"] == "generation"
    assert len(run.metrics["prompt_tokens_per_template"]) == 3


def test_stop_texts_end_local_answers(loaded):
    first = audit(loaded, open_task(answer=AnswerFormat("text", max_tokens=6)), quiet=True)
    written = next(iter(first.instances)).written[0]
    stop = written[len(written) // 2]
    short = audit(loaded, open_task(answer=AnswerFormat("text", stop=(stop,), max_tokens=6)), quiet=True)
    assert next(iter(short.instances)).written[0] == written.partition(stop)[0].strip()


@pytest.mark.parametrize(
    ("prompt", "text", "written"),
    [
        ("Where?", "<think>\nIn. France\n</think>\n\nParis\nQ", "<think>\nIn. France\n</think>\n\nParis"),
        ("Where? <think>\n", "In. France\n</think>\nParis\nQ", "In. France\n</think>\nParis"),
        ("Where?", "\n\nParis\nQ", "Paris"),
        ("Where?", "\nQ: Rome?", ""),
    ],
)
def test_stop_text_ends_a_local_answer_but_neither_its_reasoning_nor_line_breaks_before_it(
    loaded, prompt, text, written
):
    tokens = iter([*loaded.tokenizer(text)["input_ids"], *[loaded.tokenizer.eos_token_id] * 60])

    def write_next(head, given, logits):
        logits[..., next(tokens)] = 1e6
        return logits

    form = AnswerFormat("text", stop=("\n", "\nQ"), max_tokens=60)
    task = Task("places", (Template("one", prompt, None),), {"test": [{"question": "x"}]}, answer=form)
    hook = loaded.model.lm_head.register_forward_hook(write_next)
    try:
        run = audit(loaded, task, quiet=True)
    finally:
        hook.remove()
    assert next(iter(run.instances)).written == (written,)
    assert run.value("unmapped_share") == (0.0 if written else 1.0)


def test_what_does_not_support_open_answers_is_refused_in_one_line(tmp_path):
    task = open_task()
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for use in (
        lambda: predict("demo", task, quiet=True, calibrate="batch"),
        lambda: audit("demo", task, quiet=True, calibrate="contextual"),
        lambda: prior_from(task, few),
        lambda: labelled_file(task, few),
    ):
        with pytest.raises(InputError, match=r"does not support tasks with open answers") as error:
            use()
        assert error.value.code == "E-OPEN-ANSWER"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": ("1", "2")}, "open answers and labels"),
        ({"templates": (Template("one", "{{ question }}", "No ||| Yes"),)}, "answer_choices in template 'one'"),
        ({"data": {"test": [{"question": "x", "answer": "many"}]}}, "'many', which is not a number"),
        *(
            ({"data": {"test": [{"question": "x", "answer": answer}]}, "answer": AnswerFormat("text")}, "not a text")
            for answer in ({"texts": ["1"]}, [["1"], ["2"]], [np.array(["1"])])
        ),
    ],
)
def test_contradictory_task_is_refused(changes, words):
    arguments = {"templates": TEMPLATES, "data": {"test": ROWS}, "label_field": "answer", "answer": NUMBER} | changes
    with pytest.raises(InputError, match=words):
        Task("sums", **arguments).render("test")


def test_commands_read_open_answers_from_a_task_file(tmp_path, flip_flop):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    text = "name: sums\ndata: {test: rows.jsonl}\nlabel_field: answer\nanswer: {kind: number, max_tokens: 4}\n"
    text += 'templates:\n  - {name: one, jinja: "{{ question }}="}\n  - {name: two, jinja: "What is {{ question }}?"}\n'
    task = tmp_path / "task.yaml"
    task.write_text(text)
    command = ("audit", "--model", "demo", "--task", str(task), "--out", str(tmp_path / "run"))
    code, out, _ = flip_flop(*command)
    assert "most frequent texts, unreadable: " in out
    assert (code, "unreadable" in out, "vote accuracy" in out, "F1:" in out) == (0, True, True, False)
    predicting = ("--input", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out.jsonl"))
    code, out, _ = flip_flop("predict", "--model", "demo", "--task", str(task), *predicting, "--quiet")
    assert (code, len((tmp_path / "out.jsonl").read_text().splitlines())) == (0, 3)
    assert re.search(r"3 rows \(\d different votes?; \d without a strict majority", out)
    task.write_text(text.replace("max_tokens: 4", "extract: ^$"))  # no answer is a number
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"question": word * 2000}) + "\n" for word in ("", "x ")))
    code, out, _ = flip_flop("predict", "--model", "demo", "--task", str(task), *predicting, "--too-long", "skip", "-q")
    assert (code, out.endswith("; 1 too long; 1 without a readable answer)\n")) == (0, True)
    code, _, err = flip_flop(*command, "--overwrite", "--dry-run")
    assert (code, err.startswith("E-OPEN-ANSWER: --dry-run does not support")) == (2, True)
