import base64
import gzip
import hashlib
import itertools
import json
import re

import numpy as np
import pytest

from flip_flop.console import DEMO_NOTE, percent
from flip_flop.report import write_report
from tests.report.made_runs import HOSTILE
from tests.report.pages import Page


@pytest.fixture(scope="session")
def demo_page(demo, tmp_path_factory):
    return write_report(demo, tmp_path_factory.mktemp("page") / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def hostile_page(hostile, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    return write_report(hostile, out, title=HOSTILE, note=HOSTILE).read_text(encoding="utf-8")


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text())


def report_of(tmp_path, *runs, **options):
    return Page(write_report(runs, tmp_path / "report.html", **options).read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_loads_nothing_but_its_script(demo_page, hostile_page):
    for text in (demo_page, hostile_page):
        page = Page(text)
        assert page.faults == []
        policies = [attributes for tag, attributes in page.tags if "http-equiv" in attributes]
        kinds, scripts = zip(*re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL), strict=True)
        assert all('type="text/plain"' in kind for kind in kinds[:-1])
        assert all(re.fullmatch("[A-Za-z0-9+/=]+", script) for script in scripts[:-1])
        digest = base64.b64encode(hashlib.sha256(scripts[-1].encode()).digest()).decode()
        assert [policy["content"] for policy in policies] == [
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ]
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?:|fetch\(", scripts[-1])
        assert {tag for tag, _ in page.tags}.isdisjoint({"link", "img", "iframe", "object", "base", "form"})
        for _, attributes in page.tags:
            assert not any(name.startswith("on") or name == "src" for name in attributes)
            assert attributes.get("href", "#").startswith("#")
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
        assert not re.search(r"url\(|@import|https?:|//", style)
        targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
        assert {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"} <= targets


def test_hostile_names_are_escaped(hostile_page):
    assert HOSTILE not in hostile_page
    assert hostile_page.count("</script>") == hostile_page.count("<script") == 2
    assert "<b>bold" not in hostile_page
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", hostile_page)
    shown = "</script><b>bold\\u202e\\x1b[31m</b>&\"'"
    page = Page(hostile_page)
    assert page.text.startswith(f"Consistency report {shown}")
    assert any(shown in (attributes.get("title") or "") for _, attributes in page.tags)


def test_the_verdict_reports_the_recorded_numbers(demo, demo_page):
    before, after = metrics_of(demo[0]), metrics_of(demo[3])

    def change(key):
        return f"{percent(before[key])} to {percent(after[key])}"

    gain = 100 * (after["observed_agreement"] - before["observed_agreement"])
    pattern = (
        rf"Agreement Pₒ rose from {change('observed_agreement')}\. Mean F1 rose from {change('mean_f1')}\. "
        rf"σ of F1 fell from {change('f1_std')}\. Agreement .* \+{gain:.1f}, 95% CI \+([\d.]+) to \+([\d.]+) Mean F1"
    )
    low, high = map(float, re.search(pattern, Page(demo_page).text).groups())
    assert low < gain < high


def test_the_table_reports_the_recorded_numbers(demo, demo_page):
    table = Page(demo_page).table("Run", "Macro-F1")
    assert [row[0].split()[0] for row in table[1:]] == ["base", "swarm", "cce", "f2c"]
    for run, row in zip(demo, table[1:], strict=False):
        metrics = metrics_of(run)
        f1 = metrics["f1_per_template"].values()
        expected = [percent(metrics[key]) for key in ("observed_agreement", "mean_f1", "f1_std")]
        expected += [f"{percent(min(f1))}..{percent(max(f1))}"]
        expected += [percent(metrics[key]) for key in ("macro_f1", "accuracy", "vote_f1", "vote_accuracy")]
        assert [re.match(r"[\d.]+", cell).group() for cell in row[1:]] == expected


def test_templates_are_sorted_by_their_f1_before(demo, demo_page):
    table = Page(demo_page).table("Template", "swarm")
    before = metrics_of(demo[0])["f1_per_template"]
    rows = [row for row in table[1:] if row[0]]
    assert [row[0].split()[1] for row in rows] == sorted(before, key=before.get, reverse=True)
    for row in rows:
        assert row[2:] == [percent(metrics_of(run)["f1_per_template"][row[0].split()[1]]) for run in demo[:4]]


def test_a_mark_is_drawn_at_its_value(make_run, tmp_path):
    run = make_run(num_templates=4)
    values = metrics_of(run)["f1_per_template"].values()
    low = int(10 * min(values)) / 10
    text = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    marks = re.findall(r'<svg x="([\d.]+)%" y="16"', text)
    expected = [100 * (f1 - low) / (1 - low) for f1 in sorted(values, reverse=True)]
    assert np.allclose([float(mark) for mark in marks], expected, atol=0.01)


def test_the_agreement_matrix_counts_equal_answers(make_run, tmp_path):
    run = make_run(num_instances=31, num_templates=3)
    predictions = np.load(run / "scores.npz")["scores"].argmax(axis=2).tolist()
    names = np.load(run / "scores.npz")["template_names"].tolist()
    table = next(table for table in report_of(tmp_path, run).tables if table[0][1:] == ["1", "2", "3"])
    order = [names.index(row[0].split()[1]) for row in table[1:]]
    for i, row in enumerate(table[1:]):
        for j, cell in enumerate(row[1:]):
            equal = sum(answers[order[i]] == answers[order[j]] for answers in predictions) / 31
            assert cell == ("·" if i == j else f"{100 * equal:.0f}")


def test_without_gold_labels_the_report_shows_agreement_only(hostile_page):
    page = Page(hostile_page)
    assert "F1 needs gold labels" in page.text
    assert page.table("Run", "Label shares")[0] == ["Run", "Agreement Pₒ", "No majority", "Label shares"]
    assert "Agreement of each template with the majority" in page.text
    assert "Mean F1" not in page.text


def test_a_single_run_has_no_comparison_and_needs_no_prompts(make_run, tmp_path):
    toy, real = make_run("toy"), make_run("real", is_demo=False)
    (real / "instances.jsonl.gz").unlink()
    page = report_of(tmp_path, real)
    assert "kept no prompt texts" in page.text
    assert DEMO_NOTE not in page.text
    page = report_of(tmp_path, toy)
    assert DEMO_NOTE in page.text
    assert page.faults == []
    assert "→" not in page.text.split("First run")[0]  # where the filters begin
    assert "Majority vote F1" in page.text


def test_one_template_has_no_agreement(make_run, tmp_path):
    page = report_of(tmp_path, make_run(num_templates=1), make_run("f2c", num_templates=1, pull=0.9))
    assert page.faults == []
    assert "Agreement and spread need at least two templates" in page.text
    assert "Agreement between templates" not in page.text
    assert "Mean F1" in page.text


def test_runs_on_held_out_templates_form_a_separate_group(demo_page):
    page = Page(demo_page)
    assert "Held-out templates" in page.text
    assert len([table for table in page.tables if table and "Macro-F1" in table[0]]) == 2
    assert "templates not used in training" in page.text


def test_the_majority_vote_is_the_baseline_and_can_win(make_run, tmp_path):
    base = make_run(num_instances=300)
    weak = make_run("swarm", num_instances=300, pull=0.05, method="swarm")
    text = report_of(tmp_path, base, weak).text
    vote = percent(metrics_of(base)["vote_f1"])
    assert f"Baseline without training: the majority vote of base over 8 templates has F1 {vote}." in text
    assert "swarm is below the vote" in text
    assert "A run below the vote has worse answers" in text


@pytest.mark.parametrize(("cce", "f2c", "place"), [(0.8, 0.8, "matches"), (0.9, 0.2, "is ahead of")])
def test_a_method_that_f2c_does_not_beat_is_named(make_run, tmp_path, cce, f2c, place):
    runs = [make_run(num_instances=300), make_run("cce", num_instances=300, pull=cce, method="cce")]
    runs.append(make_run("f2c", num_instances=300, pull=f2c, method="f2c"))
    assert f"CCE {place} F2C here" in report_of(tmp_path, *runs).text


def test_a_collapsed_run_is_flagged_and_never_best(make_run, tmp_path):
    runs = [make_run(num_instances=60), make_run("f2c", num_instances=60, shift=9.0, pull=0.9)]
    page = report_of(tmp_path, *runs)
    assert metrics_of(runs[1])["collapsed"]
    assert "f2c has collapsed. Agreement" in page.text  # the verdict
    assert "f2c collapsed" in page.text
    assert "f2c has collapsed: 100.0% of its answers are negative" in page.text
    agreement = [row[1] for row in page.table("Run", "Macro-F1")[1:]]
    assert "(best)" in agreement[0]
    assert "(best)" not in agreement[1]


def held_in(text, number=1):
    """The data of the page's script."""
    content = re.search(rf'id="g{number}-data">([^<]*)<', text).group(1)
    return json.loads(gzip.decompress(base64.b64decode(content)))


def test_the_page_embeds_every_instance_with_the_answers_of_every_run(demo, demo_page):
    held = held_in(demo_page)
    assert len(held["ids"]) == len(held["prompts"]) == held["total"] == 300
    assert held["runs"] == ["base", "swarm", "cce", "f2c"]
    for run, answers in zip(demo, held["answers"], strict=False):
        arrays = np.load(run / "scores.npz")
        order = [arrays["template_names"].tolist().index(name) for name in held["templates"]]
        assert answers == arrays["scores"].argmax(axis=2)[:, order].ravel().tolist()
    assert all("kettle of test-0299" in prompt for prompt in held["prompts"][299])


def test_changed_instances_come_first_if_the_page_cannot_hold_all(make_run, tmp_path, monkeypatch):
    runs = [make_run(num_instances=300), make_run("f2c", num_instances=300, pull=0.8)]
    monkeypatch.setattr("flip_flop.report.page.PAGE_SIZE", 9000)
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    held = held_in(text)
    assert 20 <= len(held["ids"]) < 300
    assert len(re.search(r'id="g1-data">([^<]*)<', text).group(1)) <= 9000
    assert f"This file holds {len(held['ids'])} of 300 instances" in text
    before, after = (np.load(run / "scores.npz")["scores"].argmax(axis=2) for run in runs)
    flipped = {f"test-{at:04d}" for at in np.flatnonzero((before != after).any(axis=1))}
    assert set(held["ids"]) <= flipped or flipped <= set(held["ids"])
    everything = write_report(runs, tmp_path / "all.html", everything=True).read_text(encoding="utf-8")
    assert len(held_in(everything)["ids"]) == 300
    assert "This file holds" not in everything


def test_twenty_examples_with_prompts_show_changes_for_better_and_worse(make_run, tmp_path):
    runs = [make_run(num_instances=400, seed=3), make_run("f2c", num_instances=400, seed=3, pull=0.8)]
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<details class="example">') == text.count('<ol class="prompts">') == 20
    assert all(f'<h4 class="{tone}">' in text for tone in ("better", "worse"))


def test_headings_skip_no_level_and_landmarks_have_distinct_names(demo_page):
    tags = Page(demo_page).tags
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later <= former + 1 for former, later in itertools.pairwise(levels))
    regions = [attributes["aria-label"] for _, attributes in tags if attributes.get("role") == "region"]
    assert len(regions) == len(set(regions)) == 6


def test_the_same_runs_give_the_same_bytes(demo, demo_page, tmp_path):
    assert write_report(demo, tmp_path / "again.html").read_text(encoding="utf-8") == demo_page


def test_the_report_shows_commands_digests_and_templates(demo_page):
    text = Page(demo_page).text
    command = "flip-flop audit --model demo/model"
    shown = (command, "c0ffee", "9e9e9e", "4d1f4d1f", "delimiter “ ”", "torch 2.13.0")
    assert all(words in text for words in shown)
    assert "{{ text }}\nVerdict in one word:" in demo_page
