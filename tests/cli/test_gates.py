"""The gates of ``audit`` for CI: a stored run, thresholds and Markdown."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flip_flop import audit as flip_flop_audit
from flip_flop import load_run
from flip_flop.cli import gates
from flip_flop.console import markdown_cell
from flip_flop.evaluation.result import Audit
from flip_flop.metrics import METRICS, Metric, Scores, mean_statistic, summarise
from flip_flop.record import ModelRecord, RunRecord, TaskRecord, TemplateRecord
from tests.cli.project import TASK, csv_of, errors_of, make_project, one_line
from tests.report.made_runs import HOSTILE, TEMPLATES, write_run


@pytest.fixture(scope="module")
def stored(model, tmp_path_factory):
    """A project with the audit of 60 rows, and the same run with the gold label as every answer."""
    folder = make_project(tmp_path_factory.mktemp("gates") / "work")
    (folder / "test.csv").write_text(csv_of(range(60)))
    found = flip_flop_audit(str(model), folder / "tickets.yaml", quiet=True)
    found.write(folder / "stored")
    scores = np.where(np.arange(2) == found.gold[:, None, None], -0.1, -2.0) + 0.0 * found.scores
    metrics = summarise(scores, found.gold, found.template_names)
    replace(found, data=replace(found.data, values=scores.astype(np.float32)), metrics=metrics).write(
        folder / "perfect"
    )
    return folder


@pytest.fixture
def audit(flip_flop, model, stored, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(stored, tmp_path / "work"))
    return lambda *more, out="out": flip_flop("audit", "-m", model, "-t", "tickets.yaml", "-o", out, *more)


@pytest.mark.slow
def test_a_run_clearly_worse_than_a_stored_one_exits_with_1(audit):
    change = r"100.0 to ([\d.]+) \(−[\d.]+, 95% CI −[\d.]+ to −[\d.]+\)"
    for metric, title, name in (("", "macro F1", "macro_f1"), (":agreement", "P_o", "observed_agreement")):
        result = audit("--quiet", "--overwrite", "--fail-if-worse-than", f"perfect{metric}")
        assert result.code == 1
        (shown,) = re.fullmatch(
            rf"worse than perfect: {title} {change}(?:; constant now: .*)?\n", errors_of(result)
        ).groups()
        assert shown == f"{100 * load_run('out').value(name):.1f}"
    one_line(audit("--overwrite", "--fail-if-worse-than", "perfect:f1_std"), "E-FAIL-UNDER", "takes no metric 'f1_std'")
    one_line(
        audit("--overwrite", "--fail-under", "answer_length=0.5"), "E-FAIL-UNDER", "takes no metric 'answer_length'"
    )


def made_run(answers, gold=None):
    """A run with these answers, of 0 and 1, ``[rows, templates]``."""
    names = ("plain", "terse", "long")
    scores = np.where(np.arange(2) == answers[..., None], -0.1, -2.0).astype(np.float32)
    gold = np.full(len(answers), -1) if gold is None else gold
    templates = tuple(TemplateRecord(name=name) for name in names)
    task = TaskRecord(name="made", labels=(0, 1), digest="ab", split="test", templates=templates)
    record = RunRecord(kind="audit", task=task, model=ModelRecord())
    return Audit(record, summarise(scores, gold, names), Scores(scores, gold), names)


def test_a_run_is_worse_if_a_template_has_clearly_become_constant():
    """One answer of 900 is not clear, even if it changes from wrong to right. 40 are, though agreement rises."""
    gold = np.repeat([0, 1], [700, 200])
    found = made_run(np.zeros((900, 3), int), gold)
    assert found.constant_templates.keys() == {"plain", "terse", "long"}
    for number, passed in ((1, True), (40, False)):
        answers = np.zeros((900, 3), int)
        answers[:number, 1] = 1
        before = made_run(answers, gold)
        assert "terse" not in before.constant_templates
        gate = gates.comparison_gate(before, found, "observed_agreement")
        assert gate.passed is passed
        assert ("; constant now: terse" in gate.message) is not passed
        assert gates.comparison_gate(before, before, "observed_agreement").passed
    assert gates.comparison_gate(found, found, "observed_agreement").passed  # as it was


@pytest.mark.slow
def test_two_draws_of_a_model_with_a_rare_label_seldom_fail_the_gate():
    """A template without the label in 100 rows is constant. One of twenty cases may fail by chance."""
    failed = constant = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        before, after = (made_run((random.random((100, 3)) < 0.02).astype(int)) for _ in range(2))
        constant += any(name not in before.constant_templates for name in after.constant_templates)
        failed += not gates.comparison_gate(before, after, "observed_agreement").passed
    assert constant >= 8
    assert failed <= 3


def test_a_run_with_one_answer_to_every_row_does_not_reach_a_threshold():
    gold = np.arange(60) % 2
    answers = np.repeat(gold[:, None], 3, axis=1)
    for number, passed in ((0, True), (2, True), (3, False)):  # constant templates
        one = np.where(np.arange(3) < number, 0, answers)
        gate = gates.threshold_gate(made_run(one), "agreement", 0.5)
        assert gate.passed is passed
        assert ("; constant: plain, terse" in gate.message) is (number > 1)
    assert gates.threshold_gate(made_run(np.zeros((60, 3), int), 0 * gold), "agreement", 0.9).passed  # all rows are 0


def test_a_gate_whose_metric_cannot_be_judged_is_an_error_and_not_passed(stored, monkeypatch):
    before, found = load_run(stored / "stored"), load_run(stored / "stored")
    for run in (before, found):
        run.metrics["constant_templates"] = []
    found.metrics["fleiss_kappa"] = None
    gate = gates.comparison_gate(before, found, "fleiss_kappa")
    assert gate.passed is None
    assert gate.message.startswith("E-FAIL-UNDER: --fail-if-worse-than: fleiss_kappa of this run has no value")
    metric = Metric("first", "first", lambda data: float(data.predictions[0, 0] == 0), has_interval=False)
    monkeypatch.setitem(METRICS.data, "first", metric)
    before.metrics["first"], found.metrics["first"] = 1.0, 0.0
    assert gates.comparison_gate(found, before, "first").passed
    assert gates.comparison_gate(before, before, "first").passed
    assert "first of this run has no interval" in gates.comparison_gate(before, found, "first").message


@pytest.mark.slow
def test_a_run_equal_to_the_stored_one_or_better_passes_and_shows_the_numbers(audit):
    result = audit("--fail-if-worse-than", "stored")
    assert result.code == 0
    pattern = r"not clearly worse than stored: macro F1 .* \(±0.0, 95% CI −([\d.]+) to \+([\d.]+)\)\n"
    below, above = map(float, re.search(pattern, result.out).groups())
    assert below == pytest.approx(above, abs=0.15)  # which side is the best one is random
    assert audit("--quiet", "--overwrite", "--fail-if-worse-than", "out").code == 0  # the run that it replaces


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--limit", "30"), "instances"),
        (("--split", "validation"), "split and instances"),
    ],
)
def test_a_stored_run_of_other_data_is_refused_before_scoring(audit, more, words):
    result = audit("--quiet", "--fail-if-worse-than", "stored", *more)
    one_line(result, "E-RUN-MISMATCH", "--fail-if-worse-than stored", words)
    assert not os.path.exists("out")


def test_a_changed_prompt_is_compared_with_the_stored_run_and_named(audit):
    """The usual pull request: one template has other words, and another one is added."""
    changed = TASK.replace("Is this urgent?", "Is it urgent?")
    extra = '  - {name: short, jinja: "{{ text }} Urgent?", answer_choices: "No ||| Yes"}\n'
    Path("tickets.yaml").write_text(changed + extra)
    assert audit("--quiet", "--fail-if-worse-than", "stored").code in (0, 1)
    before, after = load_run("stored"), load_run("out")
    result = audit("--overwrite", "--fail-if-worse-than", "stored", "--markdown", "ci.md")
    line = next(line for line in (result.out + result.err).splitlines() if "worse than stored: " in line)
    values = " to ".join(f"{100 * run.value('macro_f1'):.1f}" for run in (before, after))
    assert f"macro F1 {values} (" in line
    votes = " to ".join(f"{100 * METRICS['macro_f1'].value(run.data.voted):.1f}" for run in (before, after))
    assert f"; plain changed, short added; macro F1 of majority vote {votes} (" in line
    for name in ("truth", "long", "terse"):  # deterministic, so the same
        value = METRICS["macro_f1"].value(before.data.single(before.template_names.index(name)))
        assert re.search(rf"; macro F1 of {name} {100 * value:.1f} to {100 * value:.1f} \(±0\.0, 95% CI ", line)
    assert markdown_cell(line) in Path("ci.md").read_text()


def test_an_added_constant_template_fails_the_gate():
    """It is compared with the votes that it joins."""
    answers = np.arange(120)[:, None] % 2 * np.ones(3, int)
    before = made_run(answers)
    after = made_run(np.where(np.arange(3) == 2, 0, answers))
    task = replace(before.record.task, templates=before.record.task.templates[:2])
    fewer = replace(before, data=before.data.select([0, 1]), template_names=("plain", "terse"))
    fewer = replace(fewer, record=replace(before.record, task=task))
    gate = gates.comparison_gate(fewer, after, "observed_agreement")
    assert gate.passed is False
    assert "constant now: long; long added" in gate.message


def test_a_stored_run_without_a_metric_to_compare_is_refused(audit):
    Path("tickets.yaml").write_text(TASK.replace("label_field: urgent\n", "").replace("labels: [0, 1]\n", ""))
    assert audit("--quiet", "--templates", "plain", out="one").code == 0
    result = audit("--quiet", "--templates", "plain", "--fail-if-worse-than", "one")
    one_line(result, "E-RUN-MISMATCH", "the stored run has no observed_agreement")
    one_line(audit("--quiet", "--fail-if-worse-than", "none"), "E-RUN-MISSING", "none")


def test_markdown_has_the_table_and_a_row_for_each_gate(audit):
    limits = ("--fail-under", "agreement=0", "--fail-under", "macro_f1=1")
    runs = ("perfect", "perfect:agreement", "stored")
    stored = (word for run in runs for word in ("--fail-if-worse-than", run))
    result = audit(*limits, *stored, "--markdown", "ci/summary.md")
    assert result.code == 1
    assert os.listdir("ci") == ["summary.md"]  # no temporary file
    _, table, *_, results = (block.splitlines() for block in Path("ci/summary.md").read_text().split("\n\n"))
    assert table[0].startswith("| run | P_o |")
    assert results[0] == "| gate | result | numbers | run |"
    for block in (table, results):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
    rows = [line.strip("| ").split(" | ") for line in results[2:]]
    assert [row[1] for row in rows] == ["passed", *["**failed**"] * 3, "passed"]
    assert [row[0] for row in rows[2:]] == [
        "not worse than perfect",
        "not worse than perfect in observed\\_agreement",
        "not worse than stored",
    ]
    messages = errors_of(result).splitlines()[-3:]
    assert [row[2] for row in rows[1:4]] == list(map(markdown_cell, messages))
    assert {row[3] for row in rows} == {"out"}


def test_a_metric_at_its_threshold_passes(tmp_path):
    right = np.arange(20)[:, None] < [9, 9, 15]  # 33 of 60, which is less than 0.55 in floating point
    gold = np.arange(20) % 2
    answers = np.where(right, gold[:, None], 1 - gold[:, None])
    scores = np.log(np.where(answers[..., None] == np.arange(2), 0.9, 0.1)).astype(np.float32)
    run = load_run(write_run(tmp_path / "run", "base", scores, gold, TEMPLATES[:3], labels=("no", "yes")))
    assert run.value("accuracy") < 0.55
    assert gates.threshold_gate(run, "accuracy", 0.55).passed
    assert not gates.threshold_gate(run, "accuracy", 0.5501).passed


@pytest.mark.parametrize(("limit", "words"), [(0.95, "0.94996, under 0.95"), (0.94994, "0.9500, at least 0.94994")])
def test_a_value_is_printed_on_the_side_of_its_threshold(stored, limit, words):
    run = load_run(stored / "stored")
    run.metrics["observed_agreement"] = 0.94996
    assert f"agreement is {words}; constant" in gates.threshold_gate(run, "agreement", limit).message


def test_a_metric_that_is_no_fraction_is_not_printed_in_percent(stored, monkeypatch):
    number = mean_statistic(lambda data: 2.0 * (data.predictions[:, 0] == data.gold), bounds=(0.0, 2.0))
    monkeypatch.setitem(METRICS.data, "gap", Metric("gap", "gap", number, in_percent=False))
    run = load_run(stored / "perfect")
    run.metrics["gap"] = 2.0
    message = gates.comparison_gate(run, run, "gap").message
    assert re.search(r": gap 2\.00 to 2\.00 \(±0\.00, 95% CI −0\.\d\d to \+0\.\d\d\)", message)


def test_hostile_names_are_escaped_in_markdown():
    name = f"{HOSTILE}|\x00\n"
    gate = gates.Gate(run=name, condition=name, passed=False, message=name)
    last = gates.markdown([gate], "table").splitlines()[-1]
    assert "<" not in last
    assert len(re.findall(r"(?<!\\)\|", last)) == 5


def test_a_gate_without_a_value_names_the_reason_after_which_the_others_are_checked(flip_flop, project):
    (project / "test.csv").write_text(
        "text,urgent\n" + "".join(f"guest {n} said it was fine,{n % 2}\n" for n in range(12))
    )
    limits = ("--quiet", "--markdown", "ci.md", "--fail-under", "fleiss_kappa=0.1", "--fail-under", "agreement=0.5")
    limits += ("--fail-under", "macro_f1=0.9")
    result = flip_flop("audit", "-m", "demo", "-t", "tickets.yaml", "--templates", "plain,terse", "-o", "out", *limits)
    assert result.code == 2
    results = [line.split(" | ")[1] for line in (project / "ci.md").read_text().splitlines()[-3:]]
    assert results == ["**no value**", "**failed**", "**failed**"]
    reason = "fleiss_kappa has no value here: all answers are one label. Choose another metric, such as agreement."
    assert f"E-FAIL-UNDER: --fail-under: {reason}" in result.err.splitlines()
    assert len(np.unique(load_run("out").predictions)) == 1
