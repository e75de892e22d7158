"""Risk against coverage, calibration and the ranking of templates equal slow loops."""

import logging
import math

import numpy as np
import pytest
from benchmarks.coverage import LABELS, false_differences
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.files import generator
from flip_flop.metrics import (
    METRICS,
    Scores,
    batch_offsets,
    calibrated,
    calibration_error_per_template,
    check_prior,
    find_offsets,
    offsets_that_change,
    rank_templates,
    reliability,
    risk_coverage,
    vote_margin,
    vote_share,
)
from flip_flop.metrics.agreement import label_shares_per_template
from flip_flop.metrics.calibration import prior_offsets
from flip_flop.metrics.certainty import peer_votes
from tests.exact import EXACT
from tests.method.oracle import softmax
from tests.metrics import oracle
from tests.metrics.oracle import data_of, random_data
from tests.refused import refused


def slow_risk_coverage(confidence, wrong):
    points = []
    for threshold in sorted(set(confidence), reverse=True):
        kept = [error for own, error in zip(confidence, wrong, strict=True) if own >= threshold]
        points.append([threshold, len(kept) / len(wrong), sum(kept) / len(kept)])
    return points


def slow_calibration_error(scores, gold, template, num_bins=10):
    bins = [[] for _ in range(num_bins)]
    for rows, label in zip(scores, gold, strict=True):
        probs = softmax(rows[template])
        confidence = max(probs)
        number = next(number for number in range(num_bins) if confidence <= (number + 1) / num_bins)
        bins[number].append((confidence, probs.index(confidence) == label))
    gaps = [abs(math.fsum(c for c, _ in pairs) - sum(right for _, right in pairs)) for pairs in bins]
    return math.fsum(gaps) / len(gold)


@pytest.mark.parametrize("num_labels", [2, 3])
def test_confidence_equals_slow_loops(num_labels):
    data = Scores(*random_data(83, num_labels=num_labels))
    for rows, share, margin in zip(data.values.tolist(), vote_share(data), vote_margin(data), strict=True):
        vote = oracle.majority_vote(rows)
        assert share == sum(row.index(max(row)) == vote for row in rows) / len(rows)
        means = [math.fsum(softmax(row)[label] for row in rows) / len(rows) for label in range(num_labels)]
        assert margin == pytest.approx(means[vote] - max(means[:vote] + means[vote + 1 :]), abs=1e-12)


@pytest.mark.parametrize("measure", [vote_share, vote_margin])
def test_risk_coverage_equals_slow_loop(measure):
    data = Scores(*random_data(83))
    confidence, wrong = measure(data), data.votes != data.gold
    expected = slow_risk_coverage(confidence.tolist(), wrong.tolist())
    np.testing.assert_allclose(risk_coverage(confidence, wrong), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_labels", [2, 3])
def test_calibration_error_equals_slow_loop(num_labels):
    data = Scores(*random_data(83, num_labels=num_labels))
    scores, gold = data.values.tolist(), data.gold.tolist()
    expected = [slow_calibration_error(scores, gold, template) for template in range(5)]
    assert calibration_error_per_template(data) == pytest.approx(expected, abs=1e-12)
    assert METRICS["ece"].value(data) == pytest.approx(np.mean(expected))
    assert METRICS["ece"].value(Scores(data.values, np.full(83, -1))) is None
    certain = np.where(data.predictions[..., None] == np.arange(num_labels), 0.0, -np.inf)
    assert METRICS["ece"].value(Scores(certain, data.gold)) is None
    assert reliability(data)[..., 0].sum(axis=1).tolist() == [83] * 5


def slow_agreement(scores, peers):
    """Agreement of each template of ``scores`` with the vote of the others in ``peers``, as lists."""
    found = []
    for template in range(len(scores[0])):
        hits = 0
        for own, other in zip(scores, peers, strict=True):
            rest = [row for number, row in enumerate(other) if number != template]
            hits += own[template].index(max(own[template])) == oracle.majority_vote(rest)
        found.append(hits / len(scores))
    return found


def slow_preference(scores):
    templates, labels = range(len(scores[0])), range(len(scores[0][0]))
    means = [[math.fsum(softmax(row[v])[c] for row in scores) / len(scores) for c in labels] for v in templates]
    common = [math.fsum(mean[c] for mean in means) / len(means) for c in labels]
    return [math.fsum(abs(mean[c] - common[c]) for c in labels) / 2 for mean in means]


@pytest.mark.parametrize(("num_templates", "num_labels"), [(2, 2), (5, 2), (4, 3)])
@pytest.mark.parametrize("with_gold", [True, False])
def test_ranking_equals_slow_loops(num_templates, num_labels, with_gold):
    scores, gold = random_data(61, num_templates, num_labels, np.linspace(2.5, 0.2, num_templates))
    shifted = calibrated(scores, np.linspace(-0.4, 0.4, num_templates * num_labels).reshape(num_templates, -1))
    data = Scores(scores, gold if with_gold else np.full_like(gold, -1))
    found = rank_templates(data, Scores(shifted, gold))
    assert found.agreement == pytest.approx(slow_agreement(scores.tolist(), shifted.tolist()), abs=1e-12)
    assert np.abs(found.bias).sum(axis=1) / 2 == pytest.approx(slow_preference(scores.tolist()), abs=1e-12)
    columns = scores.argmax(axis=2).T.tolist()
    shares = [max(column.count(label) for label in range(num_labels)) / len(column) for column in columns]
    assert found.constancy == pytest.approx(shares)
    assert found.by_f1 == with_gold
    values = found.agreement
    if with_gold:
        values = [oracle.f1(column, gold.tolist(), num_labels) for column in columns]
        assert found.f1 == pytest.approx(values)
    assert found.order == sorted(range(num_templates), key=lambda at: (-values[at], at))
    for at in found.order[1:]:
        difference, low, high = found.differences[at]
        assert difference == pytest.approx(values[at] - values[found.order[0]])
        assert low <= difference <= high
    assert found.differences[found.order[0]] is None


def test_the_votes_of_all_other_templates_read_each_score_once(monkeypatch):
    scores, _ = random_data(40, 30, 5)
    exponentials, exp = [], np.exp
    monkeypatch.setattr(np, "exp", lambda values: exponentials.append(values.size) or exp(values))
    votes = peer_votes(scores)
    assert sum(exponentials) == scores.size
    assert votes[:, 7].tolist() == [oracle.majority_vote(rows) for rows in np.delete(scores, 7, axis=1).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("with_gold", [True, False])
def test_equal_templates_rarely_differ_in_the_ranking(with_gold):
    for shares in LABELS.values():
        assert false_differences(shares, 50, with_gold=with_gold) <= 0.1  # 5 of 50


def test_faults_name_constant_biased_and_weak_templates():
    truth = np.arange(120) % 3
    noise = generator(0, "tests/metrics/ranking faults").integers(3, size=120)
    predictions = np.stack([truth, truth, truth, np.zeros(120, int), noise, np.where(truth, truth, 1)], axis=1)
    for gold, weak in ((truth, "low F1"), (np.full(120, -1), "low agreement")):
        found = rank_templates(data_of(predictions, gold))
        assert found.faults == [None, None, None, "constant", weak, "label preference"]
        assert found.order[0] == 0
        assert found.order[-1] == 3


@pytest.mark.parametrize(("first", "fault"), [(0, "constant"), (1, None)])
def test_template_is_constant_if_gold_labels_have_90_percent_of_its_label(first, fault):
    gold = (np.arange(first, 100) % 10 > 0).astype(int)
    assert rank_templates(data_of(np.stack([gold, np.ones_like(gold)], axis=1), gold)).faults == [None, fault]


def test_generated_answers_without_a_label_agree_with_nothing():
    predictions = np.array([[0, 0, -1], [1, 1, -1], [1, -1, -1]])
    certain = np.where(predictions[..., None] == np.arange(2), 0.0, -np.inf)
    found = rank_templates(Scores(certain, np.full(3, -1)))
    assert found.agreement == pytest.approx([2 / 3, 2 / 3, 0])
    assert found.bias is None
    assert found.order == [0, 1, 2]


# ---- calibration ----


@st.composite
def scores_and_prior(draw):
    """Scores of any confidence, a preference per template in them, and a prior that whole instances can have."""
    num_labels, num_templates = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(1, 7), min_size=num_labels, max_size=num_labels))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = random.normal(size=(sum(counts), num_templates, num_labels)) * draw(st.sampled_from((0.01, 1, 30)))
    return scores + 2 * random.normal(size=scores.shape[1:]), [count / sum(counts) for count in counts]


@given(scores_and_prior())
def test_batch_calibration_is_that_of_slow_loops(drawn):
    scores, prior = drawn
    np.testing.assert_allclose(batch_offsets(scores), oracle.batch_offsets(scores.tolist()), atol=1e-9)
    found = batch_offsets(scores[:3], prior)
    np.testing.assert_allclose(found, oracle.batch_offsets(scores[:3].tolist(), prior), atol=1e-9)
    np.testing.assert_allclose(batch_offsets(scores, [1 / len(prior)] * len(prior)), batch_offsets(scores), atol=1e-12)


def test_unread_answers_are_left_out_of_the_offsets_and_stay_unread():
    random = np.random.default_rng(0)
    scores = random.normal(scale=3.0, size=(70, 4, 3))
    scores[random.random((70, 4)) < 0.3] = -np.inf
    scores[:, 3] = -np.inf
    prior = [0.2, 0.5, 0.3]
    by_batch, by_prior = batch_offsets(scores, prior), prior_offsets(scores, prior)
    for template in range(3):
        read = scores[scores[:, template, 0] > -np.inf, template, None]
        assert 40 < len(read) < 60
        np.testing.assert_allclose(by_batch[[template]], oracle.batch_offsets(read.tolist(), prior), atol=EXACT)
        np.testing.assert_array_equal(by_prior[[template]], prior_offsets(read, prior))
    np.testing.assert_array_equal(batch_offsets(scores)[3], np.zeros(3))
    np.testing.assert_array_equal(by_prior[3], np.zeros(3))
    np.testing.assert_array_equal(offsets_that_change(scores), batch_offsets(scores))
    np.testing.assert_array_equal(np.isneginf(scores + by_batch), np.isneginf(scores))


@settings(max_examples=10)
@given(scores_and_prior())
def test_offsets_have_mean_0_and_answers_follow_labels_and_instances(drawn):
    scores, prior = drawn
    order, labels = np.random.default_rng(1).permutation(len(scores)), np.arange(len(prior))[::-1]
    for find in (batch_offsets, prior_offsets):
        offsets = find(scores, prior)
        np.testing.assert_allclose(offsets.mean(axis=1), 0, atol=1e-9)
        answers = (scores + offsets).argmax(2)
        assert np.array_equal((scores + find(scores[order], prior)).argmax(2), answers)
        turned = scores[..., labels]
        assert np.array_equal(labels[(turned + find(turned, prior[::-1])).argmax(2)], answers)


@given(scores_and_prior())
def test_after_calibration_to_the_prior_each_templates_answers_have_its_shares(drawn):
    scores, prior = drawn
    once = scores + prior_offsets(scores, prior)
    np.testing.assert_allclose(label_shares_per_template(once.argmax(2), len(prior)), [prior] * scores.shape[1])
    assert not prior_offsets(once, prior).any(), "calibrating twice changes nothing"


@pytest.mark.slow
@given(scores_and_prior().filter(lambda drawn: len(drawn[1]) == 2))
def test_of_two_labels_it_is_the_cut_at_a_quantile(drawn):
    scores, prior = drawn
    answers = (scores + prior_offsets(scores, prior)).argmax(2)
    for template in range(scores.shape[1]):
        assert set(np.flatnonzero(answers[:, template])) == oracle.quantile_cut(scores.tolist(), template, prior[1])


@pytest.mark.parametrize("prior", ["", "1", "0.5,x", "0.5,0.6", "0,1", "-0.5,1.5", "nan,1", [0.5], [0.2, 0.2]])
def test_what_is_no_prior_is_refused(prior):
    refused(r"E-LABEL-PRIOR: .* such as 0\.3,0\.7", check_prior, prior)


@pytest.mark.parametrize(("method", "prior", "words"), [("batch", [0.5, 0.5], "not of 3"), ("prior", None, "needs a")])
def test_a_prior_is_of_as_many_labels_and_needed_where_answers_get_its_shares(method, prior, words):
    scores = np.zeros((60, 1, 3))
    refused(rf"E-LABEL-PRIOR: .* {words}", find_offsets, method, scores, prior, lambda: scores)


def test_few_instances_are_said_to_be_few(caplog):
    caplog.set_level(logging.WARNING)
    scores = np.random.default_rng(0).normal(size=(50, 2, 2))
    find_offsets("contextual", scores[:2], None, lambda: scores[:3])
    find_offsets("batch", scores, None, lambda: scores)
    assert not caplog.records
    find_offsets("batch", scores[:49], None, lambda: scores)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["W-CALIBRATION-ROWS"]


def test_default_offsets_need_50_instances_probabilities_and_a_prediction_that_changes():
    random = np.random.default_rng(0)
    scores = random.normal(size=(50, 2, 2)) + np.array([[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(offsets_that_change(scores), batch_offsets(scores))
    assert offsets_that_change(scores[:49]) is None
    assert offsets_that_change(np.where(scores == scores.max(axis=2, keepdims=True), 0.0, -np.inf)) is None
    assert offsets_that_change(np.tile([[[-0.1, -3.0]], [[-3.0, -0.1]]], (25, 2, 1))) is None
