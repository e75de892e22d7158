"""Reports and comparisons of open answers, which each run numbers in its own order."""

import re

import numpy as np
import pytest

from flip_flop import compare, load_run, write_report
from flip_flop.cli import gates
from flip_flop.files import generator
from flip_flop.prompts import Template
from flip_flop.report.instances import RowLabels, answer_counts, find_changes
from flip_flop.report.page import report_groups, write_figures
from flip_flop.report.sections import render_latex
from flip_flop.tasks import Task
from tests.refused import refused
from tests.report.made_runs import FORM, NAMES, open_run
from tests.report.pages import Page
from tests.report.test_page import held_in


@pytest.fixture(scope="module")
def rows():
    """Texts of 60 rows before and after a change, and one, two or no right answers."""
    random = generator(0, "tests/open report")
    before = [
        [f"It is {number}" if number else "No idea" for number in row] for row in random.integers(4, size=(60, 4))
    ]
    after = [[str(random.choice([text, "2"])) for text in row][::-1] for row in before]
    return before, after, [[], ["2"], ["1", "2"]] * 20


@pytest.fixture(scope="module")
def runs(rows, tmp_path_factory):
    before, after, references = rows
    folder = tmp_path_factory.mktemp("open")
    return open_run(folder / "a", before, references), open_run(folder / "b", after, references, "f2c")


def keys_of(texts):
    return np.array([[FORM.key(text) or "" for text in row] for row in texts])


def test_a_comparison_has_the_paired_changes_of_agreement_and_accuracy(rows, runs):
    before, after, references = rows
    shares = []
    for texts in (before, after):
        keys = keys_of(texts)
        right = [[key in known for key in row] for row, known in zip(keys, references, strict=True) if known]
        pairs = [(row[i] == row[j]) & (row[i] != "") for row in keys for i in range(4) for j in range(i)]
        shares.append((np.mean(pairs), np.mean(right)))
    comparison = compare(*runs)
    for name, start, end in zip(("observed_agreement", "accuracy"), *shares, strict=True):
        change = comparison.difference(name, comparison.after)
        assert change.value == pytest.approx(end - start)
        assert change.interval[0] < change.value < change.interval[1]
    assert comparison.verdict.startswith("Training helped: a template has on average accuracy ")
    assert "f2c: agreement " in comparison.decision[1]
    assert "The majority vote of base has accuracy " in comparison.decision[2]
    assert "F1" not in " ".join(comparison.decision)


NUMBERS = [[str(row)] * 4 for row in range(60)]


@pytest.mark.parametrize(
    ("texts", "right", "words"),
    [
        ([["7"] * 4] * 60, [["7"]] * 60, "No template is chosen: each gives one answer to all rows."),
        (NUMBERS, [["99"]] * 60, "No template is chosen: the best, plain, has accuracy 0.0."),
        (
            [[row[0], "7", *row[2:]] for row in NUMBERS],
            [["7"]] * 40 + NUMBERS[40:],
            "No template is chosen: the best, plain, has accuracy 35.0, and formal, with one answer to all rows, has ",
        ),
        (NUMBERS[:20], NUMBERS[:20], "It takes 50 rows with right answers to choose a template."),
        (NUMBERS, NUMBERS, "plain has the highest accuracy, 100.0, not clearly better than formal, terse and long. "),
    ],
)
def test_a_template_is_chosen_if_it_is_right_more_often_than_one_answer_to_all_rows(tmp_path, texts, right, words):
    decision = load_run(open_run(tmp_path / "run", texts, right)).decision
    assert decision.text.startswith(words)
    assert (decision.template is None) == ("highest" not in words)


def test_rows_share_labels_between_runs_and_keep_the_votes_of_each(rows, runs):
    audits = [load_run(run) for run in runs]
    labels = RowLabels.of(audits)
    keys = [keys_of(texts) for texts in rows[:2]]
    for run in range(2):
        words = [[labels.words[row][at] if at >= 0 else "" for at in labels.predictions[run][row]] for row in range(60)]
        assert (np.array(words) == keys[run]).all()
        votes = [labels.words[row][vote] if vote >= 0 else "unreadable" for row, vote in enumerate(labels.votes[run])]
        assert votes == audits[run].to_pandas("instances")["vote"].tolist()
    for row, right in enumerate(rows[2]):
        assert labels.words[row][labels.gold[row]] in right if right else labels.gold[row] == -1
    changed = {change.instance: change.num_changed for change in find_changes(*audits)}
    assert changed
    assert all(number == (keys[0][row] != keys[1][row]).sum() for row, number in changed.items())
    (_, improved), (broken, _) = answer_counts(*audits)
    gain = audits[1].value("accuracy") - audits[0].value("accuracy")
    assert (improved - broken) / (4 * 40) == pytest.approx(gain)


def test_the_page_shows_texts_and_keys_and_no_section_of_labels(rows, runs, tmp_path):
    text = write_report(runs, tmp_path / "report.html").read_text()
    page, held = Page(text), held_in(text)
    assert page.faults == []
    assert "Accuracy of each template, in percent" in page.text
    for absent in ("Label shares", "Label preference", "Macro-F1", "Majority vote F1", "calibrat", "Cohen", "margin 1"):
        assert absent not in page.text.split("Provenance")[0], absent
    order = [NAMES.index(name) for name in held["templates"]]
    for run, path in enumerate(runs):
        assert held["right"][run] == load_run(path).data.right[:, order].astype(int).ravel().tolist()
    (_, prompt, written), *_ = held["prompts"][3][0]
    assert prompt == f"{held['templates'][0]}: question 3"
    assert written == [["base", rows[0][3][order[0]]], ["f2c", rows[1][3][order[0]]]]
    for title, is_link in {"Accuracy": True, "Unreadable": False, "Distinct answers": False}.items():
        assert f'<td data-title="{title}"' in text
        assert bool(re.search(f'<td data-title="{title}"[^>]*><b data-show', text)) == is_link
    assert "Agreement Pₒ is " in Page(write_report(runs[:1], tmp_path / "one.html").read_text()).text
    groups = report_groups([load_run(run) for run in runs])
    assert "Token" in render_latex(groups)
    assert not [path.name for path in write_figures(groups, tmp_path / "figures").iterdir() if "labels" in path.name]


@pytest.mark.slow
def test_runs_without_right_answers_or_stored_rows_have_a_page(rows, tmp_path):
    run = open_run(tmp_path / "run", rows[1], [[]] * 60)
    assert "Accuracy needs gold labels" in Page(write_report([run], tmp_path / "page.html").read_text()).text
    for name in ("MANIFEST.json", "instances.jsonl.gz"):
        (run / name).unlink()
    assert Page(write_report([run], tmp_path / "page.html").read_text()).faults == []


def test_runs_over_other_right_answers_are_not_compared(rows, runs, tmp_path):
    before, _, references = rows
    fewer = open_run(tmp_path / "fewer", before, [[], *references[1:20], *[[]] * 40])
    other = open_run(tmp_path / "other", before, [right and ["3"] for right in references], sha="cd" * 32)
    for run, words in ((fewer, "gold labels"), (other, "data file")):
        refused(f"differ in their {words}", compare, runs[0], run)


def test_gates_compare_accuracy_and_refuse_metrics_of_labels(rows, runs, tmp_path):
    base, after = (load_run(run) for run in runs)
    assert gates.comparison_gate(base, after, None).passed
    gate = gates.comparison_gate(after, base, None)
    assert not gate.passed
    assert "accuracy " in gate.message
    assert not gates.threshold_gate(base, "accuracy", 0.99).passed
    without = load_run(open_run(tmp_path / "run", rows[0], [[]] * 60))
    assert "P_o" in gates.comparison_gate(without, without, None).message
    templates = [Template("one", "{{ text }}", None), Template("two", "Now: {{ text }}", None)]
    rows = [{"text": "1+1", "right": 2}]
    split = Task("sums", templates, {"test": rows}, label_field="right", answer=FORM).render("test")
    gates.check_threshold("accuracy", split)
    refused("no value here: the answers are open", gates.check_threshold, "macro_f1", split)
