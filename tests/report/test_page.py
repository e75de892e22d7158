"""The HTML report: its numbers, changes of instances, several models, and untrusted names."""

import base64
import gzip
import hashlib
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from flip_flop import load_run, write_report
from flip_flop.console import percent, points
from flip_flop.metrics import batch_offsets, calibrated, f1_per_template, summarise, vote_changes
from flip_flop.metrics.agreement import observed_agreement
from flip_flop.report.instances import answer_counts, find_changes, state_counts, transition_counts
from tests.report.made_runs import HOSTILE, wide_run, write_run
from tests.report.pages import Page


@pytest.fixture(scope="session")
def demo_page(demo_report):
    return demo_report.read_text(encoding="utf-8")


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

    gain = 100 * (after["observed_agreement"] - before["observed_agreement"])
    pattern = (
        rf"f2c: agreement {percent(before['observed_agreement'])} to {percent(after['observed_agreement'])} "
        rf"\(\+{gain:.1f}, .* Agreement Pₒ [\d. →]+ \+{gain:.1f}, 95% CI \+([\d.]+) to \+([\d.]+) "
        rf"Mean F1 {percent(before['mean_f1'])} → {percent(after['mean_f1'])} "
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
    assert all("kettle of test-0299" in prompt for ((_, prompt, _),) in held["prompts"][299])


@pytest.mark.slow
def test_rows_show_calibrated_answers_where_the_decision_advises_them(tmp_path):
    random, names = np.random.default_rng(0), ("plain", "formal")
    gold = random.integers(2, size=200)
    scores = random.normal(size=(200, 2, 2)) + 2.5 * np.eye(2)[gold][:, None] + [6.0, 0.0]  # the first label, always
    made = write_run(
        tmp_path / "raw",
        "base",
        scores,
        gold,
        [(name, "{{ text }}", "no ||| yes") for name in names],
        labels=("no", "yes"),
    )
    run = load_run(made)
    offsets = batch_offsets(scores)
    after = calibrated(scores, offsets)
    method = {"method": "batch", "label_prior": [0.5, 0.5], **vote_changes(scores, after)}
    method["offsets"] = dict(zip(names, offsets.tolist(), strict=True))
    replace(run, metrics={**run.metrics, "calibrated": summarise(after, gold, names) | method}).write(made)
    text = write_report([made], tmp_path / "report.html").read_text(encoding="utf-8")
    held = held_in(text)
    assert (held["runs"], held["first"], held["last"]) == (["base", "base (calibrated)"], 1, 1)
    order = [names.index(name) for name in held["templates"]]
    assert held["answers"][1] == after.argmax(axis=2)[:, order].ravel().tolist() != held["answers"][0]
    assert "calibrated answers" in Page(text).text
    assert "uncalibrated answers" not in text
    assert text.count('class="interval ') == 4


@pytest.mark.parametrize("num_labels", [20, 21])
def test_of_more_than_20_labels_there_is_no_legend_and_a_row_lists_its_answers_only(tmp_path, num_labels):
    run = wide_run(tmp_path / "run", num_templates=2, num_labels=num_labels)
    page = Page(write_report([run], tmp_path / "report.html").read_text(encoding="utf-8"))
    swatches = [attributes for _, attributes in page.tags if "swatch" in (attributes.get("class") or "")]
    examples = [attributes for _, attributes in page.tags if attributes.get("class") == "example"]
    # The gold label of a row, and for each template the choices.
    choices, legends = (20, 3 * 20) if num_labels == 20 else (2, 0)
    assert len(swatches) <= len(examples) * (1 + 2 * choices) + legends
    assert (len(swatches) > len(examples) * 2 * 20) == (num_labels == 20)


@pytest.mark.slow
def test_changed_instances_come_first_if_the_page_cannot_hold_all(make_run, tmp_path, monkeypatch):
    runs = [make_run(num_instances=300), make_run("f2c", num_instances=300, pull=0.8)]
    monkeypatch.setattr("flip_flop.report.instances.PAGE_SIZE", 9000)
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    held = held_in(text)
    assert 20 <= len(held["ids"]) < 300
    assert len(re.search(r'id="g1-data">([^<]*)<', text).group(1)) <= 9000
    assert f"This file holds {len(held['ids'])} of 300 rows" in text
    before, after = (np.load(run / "scores.npz")["scores"].argmax(axis=2) for run in runs)
    flipped = {f"test-{at:04d}" for at in np.flatnonzero((before != after).any(axis=1))}
    assert set(held["ids"]) <= flipped or flipped <= set(held["ids"])
    everything = write_report(runs, tmp_path / "all.html", everything=True).read_text(encoding="utf-8")
    assert len(held_in(everything)["ids"]) == 300
    assert "This file holds" not in everything


def test_the_report_shows_commands_digests_and_templates(demo_page):
    text = Page(demo_page).text
    command = "flip-flop audit --model demo/model"
    shown = (command, "c0ffee", "9e9e9e", "4d1f4d1f", "delimiter “ ”", "torch 2.13.0")
    assert all(words in text for words in shown)
    assert "{{ text }}\nVerdict in one word:" in demo_page


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(hostile, hostile_page, tmp_path):
    again = write_report(hostile, tmp_path / "again.html", title=HOSTILE, note=HOSTILE)
    assert again.read_text(encoding="utf-8") == hostile_page


def pair(make_run):
    return load_run(make_run(num_instances=90)), load_run(make_run("f2c", num_instances=90, pull=0.7))


def test_every_instance_has_one_state_before_and_one_after(make_run, hostile):
    for before, after in (pair(make_run), map(load_run, hostile)):
        table = np.array(transition_counts(before, after))
        assert table.sum() == 90
        assert table.sum(axis=1).tolist() == state_counts(before)
        assert table.sum(axis=0).tolist() == state_counts(after)
        assert {change.kind.tone for change in find_changes(before, after)} <= {"better", "worse", "other"}


def test_corrected_minus_broken_answers_equal_the_gain_in_accuracy(make_run):
    before, after = pair(make_run)
    (_, turned_right), (turned_wrong, _) = counts = answer_counts(before, after)
    gain = (turned_right - turned_wrong) / (90 * 8)
    assert np.isclose(gain, after.metrics["accuracy"] - before.metrics["accuracy"])
    assert np.sum(counts) == 90 * 8


@pytest.fixture
def models(make_run):
    """Two models, and the toy."""

    def make(folder, model, digest, **options):
        return make_run(folder=folder, model=model, model_digest=digest * 64, num_instances=120, **options)

    return [
        make("first", "org/Alpha-1B", "a", is_demo=False),
        make("second", "/models/Beta-2B/", "b", is_demo=False, pull=0.5),
        make("third", "demo", "c", pull=0.2),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_models_are_compared_by_name_and_never_as_before_and_after(models, tmp_path, number):
    page = report_of(tmp_path, *models[:number])
    assert page.faults == []
    title = "demo_reviews: Alpha-1B against Beta-2B" + " and demo" * (number == 3)
    assert page.text.startswith(f"Consistency report {title} Models org/Alpha-1B, /models/Beta-2B/")
    report = page.text.split("Provenance the command")[0]
    above_rows = report.split("Rows Clear filters")[0]
    numbers = re.sub(r"Ties go to the first template|\S+/(first|second|third)\b", "", above_rows)
    assert not re.search(r"\b(before|after|base|first|second|third)\b", numbers)
    assert "Baseline without training" not in report
    assert [row[0].split()[0] for row in page.table("Run", "Macro-F1")[1:]] == ["Alpha-1B", "Beta-2B", "demo"][:number]


@pytest.mark.slow
def test_each_pair_has_its_difference_and_paired_interval(models, tmp_path):
    page = report_of(tmp_path, *models)
    runs = [load_run(run) for run in models]
    rows = np.random.default_rng(0).integers(120, size=(200, 120))
    tables = [table for table in page.tables if table[0] == ["Row minus column", "Alpha-1B", "Beta-2B", "demo"]]
    assert "Agreement Pₒ Row minus column" in page.text
    assert "Macro-F1 Row minus column" in page.text
    for metric, table in zip((agreement, macro_f1), tables, strict=True):
        assert [table[1 + i][1 + i] for i in range(3)] == ["·"] * 3
        resampled = np.array([[metric(run, sample) for sample in rows] for run in runs])
        for i, j in itertools.permutations(range(3), 2):
            gain, low, high = re.findall(r"[+−±][\d.]+", table[1 + i][1 + j])
            assert points(metric(runs[i]) - metric(runs[j])) == gain
            ends = 100 * np.quantile(resampled[i] - resampled[j], [0.025, 0.975])
            assert [float(end.replace("−", "-")) for end in (low, high)] == pytest.approx(ends, abs=2)


def macro_f1(run, rows=slice(None)):
    return f1_per_template(run.predictions[rows], run.gold[rows], num_labels=2, average="macro").mean()


def agreement(run, rows=slice(None)):
    return observed_agreement(run.predictions[rows])
