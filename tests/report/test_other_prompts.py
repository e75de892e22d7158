"""Runs with other prompts: paired by row, compared by vote and by template, and shown side by side."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flip_flop import compare, load_run, write_report
from flip_flop.metrics import METRICS
from tests.refused import refused
from tests.report.made_runs import TEMPLATES, make_scores, write_run
from tests.report.pages import Page

CHANGED = ("true_false", "{{ text }}\nThe guest is content. True or false?", "False ||| Right")
AFTER = (CHANGED, *TEMPLATES[2:4], TEMPLATES[6])
NOTE = "mood added, plain removed, true_false changed"


def make(folder, name, templates, *, pull=0.0, rows=60, **options):
    """The audit of these templates. Templates with the texts of the baseline have its scores."""
    scores, gold = make_scores(1, rows, len(TEMPLATES), 2, pull)
    names = [each[0] for each in TEMPLATES]
    kept = [names.index(template[0]) for template in templates]
    scores = scores[:, kept].copy()
    for column, template in enumerate(templates):
        if template not in TEMPLATES:
            scores[::5, column] = scores[::5, column, ::-1]  # a fifth of its answers changes
    return write_run(folder / name, name, scores, gold, templates, labels=("negative", "positive"), **options)


@pytest.fixture
def runs(tmp_path):
    return make(tmp_path, "old", TEMPLATES[:4]), make(tmp_path, "new", AFTER)


def f1(answers, gold, label=1):
    """F1 of a label, by counting."""
    hits = sum(answer == right == label for answer, right in zip(answers, gold, strict=True))
    return 2 * hits / (sum(answer == label for answer in answers) + sum(right == label for right in gold))


def macro(answers, gold):
    return (f1(answers, gold, 0) + f1(answers, gold, 1)) / 2


def numbers_of(folder):
    """F1 of label 1, and macro-F1 of each template, of their mean and of their majority vote, from stored scores."""
    arrays = np.load(folder / "scores.npz")
    gold, names = arrays["gold"].tolist(), arrays["template_names"].tolist()
    answers = []
    for column in range(len(names)):
        of_template = [int(row[column][1] > row[column][0]) for row in arrays["scores"]]
        answers.append(of_template)
    found = {f"macro F1 of {name}": macro(each, gold) for name, each in zip(names, answers, strict=True)}
    found["macro F1"] = sum(found.values()) / len(found)
    found["mean F1"] = sum(f1(each, gold) for each in answers) / len(answers)
    votes = []
    for row, each in enumerate(zip(*answers, strict=True)):
        total = sum(each)
        if 2 * total == len(each):  # the template that is surest of its answer decides
            votes.append(int(load_run(folder).data.votes[row]))
        else:
            votes.append(int(2 * total > len(each)))
    return found | {"macro F1 of majority vote": macro(votes, gold), "vote F1": f1(votes, gold)}


def test_the_mean_the_vote_and_each_template_are_those_of_a_plain_loop(runs, flip_flop):
    before, after = map(numbers_of, runs)
    result = flip_flop("compare", *runs)
    assert result.code == 0
    table = result.out.split("Differences from old")[1]
    templates = ("plain", "true_false", "good_bad", "polarity", "mood")
    for name in ("mean F1", "macro F1", "macro F1 of majority vote", *(f"macro F1 of {each}" for each in templates)):
        (cells,) = re.findall(rf"^{name}  +(\S+)  +(.+)$", table, re.MULTILINE)
        values = [f"{100 * each[name]:.1f}" if name in each else "–" for each in (before, after)]
        assert cells[0] == values[0]
        assert re.match(r"[\d.]+|–", cells[1]).group() == values[1]
        if name in before and name in after:
            difference = 100 * (after[name] - before[name])
            shown = re.search(r"\(([+−±][\d.]+), 95% CI", cells[1]).group(1)
            assert shown == f"{difference:+.1f}".replace("-", "−").replace("+0.0", "±0.0")
        else:
            assert "(" not in cells[1]
    assert "The table has the F1 of the label positive; the decision has macro-F1, of both labels." in result.out
    assert f"new, not calibrated: {NOTE}" in result.out or f"new: {NOTE}" in result.out


def test_intervals_of_different_numbers_of_templates_are_paired(runs):
    """The vote of a run compared with itself has an interval around 0, and both directions mirror each other."""
    old, new = map(load_run, runs)
    for name in ("mean_f1", "vote_f1", "accuracy", "observed_agreement", "fleiss_kappa"):
        low, high = compare(old, new).difference(name, new).interval
        back = compare(new, old).difference(name, old).interval
        np.testing.assert_allclose((low, high), (-back[1], -back[0]), atol=1e-9)
        width = sum(abs(end) for end in METRICS[name].change_interval(old.data, old.data))
        assert high - low > width / 2
    random = np.random.default_rng(0)
    gold, votes = old.gold, [run.data.votes for run in (old, new)]
    changes = []
    for _ in range(2000):
        rows = random.integers(len(gold), size=len(gold))
        changes.append(np.mean(votes[1][rows] == gold[rows]) - np.mean(votes[0][rows] == gold[rows]))
    interval = compare(old, new).difference("vote_accuracy", new).interval
    np.testing.assert_allclose(interval, np.quantile(changes, (0.025, 0.975)), atol=0.03)


def test_rows_are_paired_by_id(runs, tmp_path):
    base, run = map(load_run, runs)
    order = np.random.default_rng(2).permutation(len(run.scores))
    instances = [*run.instances]
    shuffled = replace(run, data=run.data[order], instances=[instances[row] for row in order])
    pair, given = compare(base, shuffled), compare(base, run)
    assert pair.lines == given.lines
    assert pair.runs[1].instance_ids == base.instance_ids
    assert [each.id for each in pair.runs[1].instances] == [*base.instance_ids]
    shuffled = load_run(shuffled.write(tmp_path / "shuffled"))
    pages = [embedded(write_report([runs[0], each], tmp_path / "page.html").read_text()) for each in (run, shuffled)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"rows": 50}, "instances (test-0050, test-0051, test-0052, ...)"),
        ({"sha": "88" * 32}, "data file"),
    ],
)
def test_other_rows_are_refused_by_name(runs, tmp_path, options, difference):
    sha = options.pop("sha", None)
    other = load_run(make(tmp_path, "other", AFTER, **options))
    if sha:
        task = replace(other.record.task, data={"sha256": sha})
        other = replace(other, record=replace(other.record, task=task))
    line = refused("^E-RUN-MISMATCH: ", compare, runs[0], other)
    assert f"they differ in their {difference}." in line


def test_a_changed_system_prompt_is_named(runs):
    old = load_run(runs[0])
    other = replace(old, record=replace(old.record, task=replace(old.record.task, system="Be brief.")))
    assert compare(old, other).note(other) == "system changed"
    assert compare(old, old).note(old) == ""


def test_training_is_judged_on_equal_prompts_only(tmp_path):
    old, new = make(tmp_path, "old", TEMPLATES[:4]), make(tmp_path, "f2c", AFTER, pull=0.9, method="f2c")
    trained = make(tmp_path, "cce", TEMPLATES[:4], pull=0.9, method="cce")
    assert "Training" not in " ".join(compare(old, new).decision)
    assert compare(old, trained, new).verdict.startswith("Training helped")
    assert [run.name for run in compare(old, trained, new).trained] == ["cce"]


def embedded(page):
    return json.loads(gzip.decompress(b64decode(re.search(r'id="g1-data">([^<]+)<', page).group(1))))


def test_the_page_shows_changed_prompts_side_by_side(runs, tmp_path):
    text = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.faults == []
    assert f"new: {NOTE}." in page.text
    data = embedded(text)
    assert set(data["templates"]) == {"true_false", "good_bad", "polarity"}
    place = data["templates"].index("true_false")
    for blocks in data["prompts"]:
        assert [block[0] for block in blocks[place]] == [["old"], ["new"]]
        assert "customer" in blocks[place][0][1]
        assert "guest" in blocks[place][1][1]
        assert all(len(each) == 1 for at, each in enumerate(blocks) if at != place)
    assert ["False", "True"] in [choice[place] for choice in data["choices"]]
    old, new = map(load_run, runs)
    for form, run in zip(data["answers"], (old, new), strict=False):
        columns = [run.template_names.index(name) for name in data["templates"]]
        rows = [run.instance_ids.index(name) for name in data["ids"]]
        assert form == run.predictions[rows][:, columns].ravel().tolist()
    chart = next(table for table in page.tables if table[0][0] == "Template")
    assert {row[0].split()[-1] for row in chart[1:-1]} == {"true_false", "good_bad", "polarity"}
    lines = next(table for table in page.tables if table[0][0] == "Majority vote and templates")
    assert lines[1:] == compare(old, new).template_lines()


def test_runs_without_a_common_template_are_compared_by_their_votes(tmp_path):
    runs = make(tmp_path, "old", TEMPLATES[:3]), make(tmp_path, "new", TEMPLATES[3:4])
    text = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert Page(text).faults == []
    data = embedded(text)
    assert data["templates"] == ["majority vote"]
    votes = [load_run(run).data.votes.tolist() for run in runs]
    assert data["answers"][:2] == votes


def test_the_differences_are_written_as_text_markdown_and_csv(runs, tmp_path, flip_flop):
    shown = flip_flop("compare", *runs, "--out", tmp_path / "new.txt").out
    table, *notes = (tmp_path / "new.txt").read_text().split("\n- ")
    assert table in shown
    assert all(note in shown for note in notes)
    for suffix in ("md", "csv"):
        assert flip_flop("compare", *runs, "--out", tmp_path / f"new.{suffix}").code == 0
    markdown = (tmp_path / "new.md").read_text()
    assert "| macro F1 of plain |" in markdown
    assert "plain removed" in markdown
    table = pd.read_csv(tmp_path / "new.csv").set_index("metric")
    before, after = map(numbers_of, runs)
    for name, title in (("mean_f1", "mean F1"), ("vote_f1", "vote F1")):
        assert table.loc[name, "difference"] == pytest.approx(after[title] - before[title])
    assert flip_flop("compare", *runs, "--out", tmp_path / "new.html").err.startswith("E-OUT-PATH")
    report = flip_flop("report", *runs, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert report.code == 0
    assert NOTE in report.out
    assert "good_bad" in (tmp_path / "figures" / "g1-templates.svg").read_text()
