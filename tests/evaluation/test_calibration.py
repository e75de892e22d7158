"""Audits add calibrated metrics to raw metrics. Predictions are calibrated alike, and by an adapter's offsets."""

import json
import logging

import numpy as np
import pytest

from flip_flop import audit, load_run, predict, score, write_report
from flip_flop.metrics import summarise
from flip_flop.metrics.agreement import label_shares_per_template
from flip_flop.prompts import Template
from flip_flop.report.audit_tables import render_csv, render_text
from flip_flop.report.compare import comparison_blocks
from flip_flop.tasks import prior_from
from tests.evaluation.conftest import TEMPLATES, change_metrics, make_rows, make_task
from tests.exact import EXACT
from tests.metrics import oracle
from tests.refused import refused
from tests.report.pages import Page

TASK = make_task(make_rows(60))
PRIOR = (0.2, 0.3, 0.5)


@pytest.fixture(scope="module")
def raw(loaded):
    return audit(loaded, TASK, quiet=True, calibrate="none")


@pytest.fixture(scope="module")
def found(loaded):
    return audit(loaded, TASK, quiet=True, calibrate="prior", label_prior=PRIOR)


def test_batch_calibration_matches_slow_loops_and_keeps_raw_metrics(loaded, raw):
    metrics = audit(loaded, TASK, quiet=True, calibrate="batch").metrics
    assert {name: value for name, value in metrics.items() if name != "calibrated"} == raw.metrics
    after = metrics["calibrated"]
    assert (after["method"], after["label_prior"]) == ("batch", [1 / 3] * 3)
    offsets = oracle.batch_offsets(raw.scores.astype(float).tolist())
    assert list(after["offsets"]) == list(raw.template_names)
    np.testing.assert_allclose(list(after["offsets"].values()), offsets, atol=1e-9)
    calibrated = (raw.scores + np.array(offsets)).astype(np.float32)
    assert after.items() >= summarise(calibrated, raw.gold, raw.template_names).items()
    assert 0 < after["votes_changed"] < 1


@pytest.mark.slow
def test_audit_adds_batch_calibration_by_default_if_it_changes_a_prediction(loaded, raw):
    found = audit(loaded, TASK, quiet=True)
    assert {name: value for name, value in found.metrics.items() if name != "calibrated"} == raw.metrics
    assert found.metrics == audit(loaded, TASK, quiet=True, calibrate="batch").metrics
    assert "calibrated" not in raw.metrics
    assert "calibrated" not in audit(loaded, make_task(make_rows(49)), quiet=True).metrics
    one_row = audit(loaded, make_task([{"text": "The same.", "mood": 0}] * 60), quiet=True)
    assert len(set(one_row.scores[:, 0].argmax(axis=1))) == 1
    assert "calibrated" in audit(loaded, TASK, quiet=True, label_prior=PRIOR).metrics


def test_contextual_calibration_uses_first_row_without_content(loaded, raw):
    rows = [{"text": text, "mood": 0} for text in ("N/A", "[MASK]")]  # the fourth template needs a text
    content_free = score(loaded, make_task(rows).instances("test")).scores.values
    after = audit(loaded, TASK, quiet=True, calibrate="contextual").metrics["calibrated"]
    offsets = oracle.batch_offsets(content_free.astype(float).tolist())
    np.testing.assert_allclose(list(after["offsets"].values()), offsets, atol=1e-5)
    own = Template("own", "{{ text }}", "{{ text }} ||| Good ||| Neither")
    refused(
        r"E-CALIBRATION: .* each row's own",
        audit,
        loaded,
        make_task(templates=(own, *TEMPLATES)),
        quiet=True,
        calibrate="contextual",
    )


def test_loaded_calibrated_scores_have_shares_of_prior(found, tmp_path):
    run = load_run(found.write(tmp_path / "run"))
    assert run.calibrated.name == "base (calibrated)"
    shares = label_shares_per_template(run.calibrated.predictions, 3)
    np.testing.assert_allclose(shares, [PRIOR] * 4, atol=1e-9)
    assert run.calibrated.metrics["label_shares"] == pytest.approx(PRIOR)


@pytest.mark.slow
def test_tables_and_report_have_raw_and_calibrated_metrics(found, raw, tmp_path):
    runs = [load_run(found.write(tmp_path / "run")), load_run(raw.write(tmp_path / "raw"))]
    lines = render_text(comparison_blocks(runs[:1])).splitlines()[3:]
    assert [line.split("  ")[0] for line in lines] == ["base", "base (calibrated)"]
    assert len(render_csv(comparison_blocks(runs[:1])).splitlines()) == 3
    for folders in (["run"], ["raw", "run"]):
        text = write_report([tmp_path / name for name in folders], tmp_path / "report.html").read_text()
        assert Page(text).faults == []
        assert text.count("After calibration") == 1
        assert "a shared label bias cannot be distinguished from class imbalance" in text
        changed = f"{100 * found.metrics['calibrated']['votes_changed']:.1f}% of the majority votes"
        assert changed in text
    assert "After calibration" not in write_report([tmp_path / "raw"], tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": {"plain": [0, 0, 0]}}, "other templates"),
        ({"offsets": [1]}, "offsets"),
        ({"label_prior": [1.0]}, "other labels"),
        ({"votes_changed": "many"}, "changed"),
        ({"label_shares": None}, "share"),
    ],
)
def test_invalid_calibration_is_rejected(found, tmp_path, change, words):
    change_metrics(found.write(tmp_path / "run"), calibrated=found.metrics["calibrated"] | change)
    refused(f"E-RUN-BROKEN: .*{words}", load_run, tmp_path / "run")


def test_recorded_prior_sums_to_1(loaded):
    run = audit(loaded, make_task(), quiet=True, calibrate="prior", label_prior=[0.2, 0.3, 0.49])
    assert sum(run.metrics["calibrated"]["label_prior"]) == pytest.approx(1, rel=EXACT)


def test_predictions_are_calibrated_like_audit(loaded, found, tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in make_rows(60)))
    rows = predict(loaded, TASK.render_file(path), quiet=True, calibrate="prior", label_prior=PRIOR)
    assert [row["vote"] for row in rows] == found.calibrated.data.votes.tolist()
    answers = [answer for row in rows for answer in row["templates"].values()]
    assert [answer["label"] for answer in answers] == found.calibrated.predictions.ravel().tolist()
    assert all(answer["probs"][answer["label"]] == max(answer["probs"]) for answer in answers)
    caplog.set_level(logging.WARNING)
    predict(loaded, make_task().render("test"), quiet=True, calibrate="batch")
    assert "W-CALIBRATION-ROWS: batch calibration reads 5 instances" in caplog.text


def test_few_labels_estimate_prior(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("text,mood\n" + "good,1\n" * 5 + "bad,0\n" * 2)
    assert prior_from(TASK, path) == (0.3, 0.6, 0.1)
    refused(r"E-LABEL-PRIOR: .* no label_field", prior_from, make_task(labels=None, label_field=None), path)
