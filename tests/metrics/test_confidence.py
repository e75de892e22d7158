"""Risk against coverage and calibration error equal slow loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.files import generator
from flip_flop.metrics import (
    METRICS,
    Scores,
    calibration_error_per_template,
    reliability,
    risk_coverage,
    vote_margin,
    vote_share,
)
from tests.method.oracle import softmax
from tests.metrics import oracle


def made(num_instances=83, num_templates=5, num_labels=3):
    random = generator(0, "tests/metrics/confidence", num_labels)
    gold = random.integers(num_labels, size=num_instances)
    scores = random.normal(size=(num_instances, num_templates, num_labels)) - 3
    scores[np.arange(num_instances), :, gold] += 0.8
    return Scores(scores, gold)


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
        at = next(number for number in range(num_bins) if confidence <= (number + 1) / num_bins)
        bins[at].append((confidence, probs.index(confidence) == label))
    gaps = [abs(math.fsum(c for c, _ in each) - sum(right for _, right in each)) for each in bins]
    return math.fsum(gaps) / len(gold)


@pytest.mark.parametrize("num_labels", [2, 3])
def test_confidence_equals_slow_loops(num_labels):
    data = made(num_labels=num_labels)
    for rows, share, margin in zip(data.scores.tolist(), vote_share(data), vote_margin(data), strict=True):
        vote = oracle.majority_vote(rows)
        assert share == sum(row.index(max(row)) == vote for row in rows) / len(rows)
        means = [math.fsum(softmax(row)[label] for row in rows) / len(rows) for label in range(num_labels)]
        assert margin == pytest.approx(means[vote] - max(means[:vote] + means[vote + 1 :]), abs=1e-12)


@pytest.mark.parametrize("measure", [vote_share, vote_margin])
def test_risk_coverage_equals_slow_loop(measure):
    data = made()
    confidence, wrong = measure(data), data.votes != data.gold
    expected = slow_risk_coverage(confidence.tolist(), wrong.tolist())
    np.testing.assert_allclose(risk_coverage(confidence, wrong), expected, rtol=0, atol=1e-12)


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.4, 0.5, 1.0]), st.booleans()), min_size=1), st.randoms())
@settings(max_examples=60, deadline=None)
def test_full_coverage_has_the_error_rate_as_risk_and_order_has_no_influence(pairs, random):
    confidence, wrong = (np.array(each) for each in zip(*pairs, strict=True))
    found = risk_coverage(confidence, wrong)
    assert found[-1, 1] == 1
    assert found[-1, 2] == pytest.approx(1 - (~wrong).mean())
    assert (np.diff(found[:, 1]) > 0).all()
    random.shuffle(pairs)
    assert risk_coverage(*(np.array(each) for each in zip(*pairs, strict=True))).tolist() == found.tolist()


@pytest.mark.parametrize("num_labels", [2, 3])
def test_calibration_error_equals_slow_loop(num_labels):
    data = made(num_labels=num_labels)
    scores, gold = data.scores.tolist(), data.gold.tolist()
    expected = [slow_calibration_error(scores, gold, template) for template in range(5)]
    assert calibration_error_per_template(data) == pytest.approx(expected, abs=1e-12)
    assert METRICS["ece"].value(data) == pytest.approx(np.mean(expected))
    assert reliability(data)[..., 0].sum(axis=1).tolist() == [83] * 5


def test_calibration_error_has_no_value_without_labels_or_probabilities():
    data = made()
    assert METRICS["ece"].value(Scores(data.scores, np.full(83, -1))) is None
    certain = np.where(data.predictions[..., None] == np.arange(3), 0.0, -np.inf)
    assert METRICS["ece"].value(Scores(certain, data.gold)) is None
