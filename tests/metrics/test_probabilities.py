"""Brier score, log-likelihood, temperature and auto-decidable share equal slow loops and keep their promises."""

import math

import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import METRICS, Scores, calibration_error_per_template, decidable
from flip_flop.metrics.certainty import binomial_tail
from flip_flop.metrics.probabilities import temperature
from tests.method.oracle import softmax
from tests.metrics.oracle import random_data


def slow_losses(probs, label):
    brier = math.fsum((prob - (place == label)) ** 2 for place, prob in enumerate(probs))
    return brier, -math.log(probs[label])


@pytest.mark.parametrize("num_labels", [2, 3])
def test_brier_and_nll_equal_slow_loops_with_an_unread_answer_as_equal_probabilities(num_labels):
    scores, gold = random_data(61, num_labels=num_labels)
    scores[3, 1] = -np.inf
    single, ensemble = [], []
    for row, label in zip(scores.tolist(), gold.tolist(), strict=True):
        read = [softmax(values) for values in row if max(values) > -math.inf]
        single += [slow_losses(probs, label) for probs in read]
        single += [slow_losses([1 / num_labels] * num_labels, label)] * (len(row) - len(read))
        ensemble.append(slow_losses([math.fsum(column) / len(read) for column in zip(*read, strict=True)], label))
    expected = [*np.mean(single, axis=0), *np.mean(ensemble, axis=0)]
    for name, value in zip(("brier", "nll", "ensemble_brier", "ensemble_nll"), expected, strict=True):
        assert METRICS[name].value(Scores(scores, gold)) == pytest.approx(value)
        low, high = METRICS[name].interval(Scores(scores, gold))
        assert low < value < high


def test_an_impossible_gold_label_has_no_likelihood():
    data = Scores(np.array([[[0.0, -np.inf]], [[-0.5, -0.9]]]), np.array([1, 0]))
    assert (METRICS["nll"].value(data), METRICS["nll"].interval(data)) == (None, None)
    assert METRICS["brier"].value(data) > 1


def overconfident(count=600, seed=0):
    """Calibrated templates whose errors differ, with scores multiplied by 4."""
    draw = generator(seed, "tests/metrics/overconfident")
    logits = draw.normal(size=(count, 1, 2)) + draw.normal(size=(count, 6, 2)) / 2
    probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    gold = (draw.random(count) < probs[..., 1].mean(axis=1)).astype(int)
    return Scores(4 * np.log(probs), gold)


def test_temperature_makes_confidence_equal_agreement_and_lowers_errors_without_labels():
    data = overconfident()
    heat = temperature(data)
    after = Scores(data.values / heat, data.gold)
    confidence = np.mean([max(softmax(values)) for row in after.values.tolist() for values in row])
    assert confidence == pytest.approx(METRICS["observed_agreement"].value(data), abs=1e-6)
    assert temperature(Scores(data.values, np.full(len(data), -1))) == heat
    assert calibration_error_per_template(after).mean() < calibration_error_per_template(data).mean() - 0.1
    for name in ("nll", "brier", "ensemble_nll"):
        assert METRICS[name].value(after) < METRICS[name].value(data)
    assert temperature(after) == pytest.approx(1, abs=1e-6)


def test_temperature_does_not_sharpen_and_needs_agreement_above_chance():
    data = overconfident()
    assert temperature(Scores(data.values / 100, data.gold)) == 1
    assert temperature(data.single(0)) is None
    opposed = np.log([[[0.9, 0.1], [0.1, 0.9]]] * 60)
    assert temperature(Scores(opposed, np.zeros(60, int))) is None


def slow_decidable(shares, wrong):
    """The share of rows above the smallest threshold before the first whose exact test fails."""
    found = 0.0
    for threshold in sorted(set(shares), reverse=True):
        kept = [error for share, error in zip(shares, wrong, strict=True) if share >= threshold]
        terms = [math.comb(len(kept), k) * 0.05**k * 0.95 ** (len(kept) - k) for k in range(sum(kept) + 1)]
        if len(kept) >= 59 and math.fsum(terms) > 0.05:
            return found
        found = len(kept) / len(shares) if len(kept) >= 59 else 0.0
    return found


def voted(shares, wrong):
    """Five templates, of which a number votes for label 0, which is wrong in some rows."""
    is_zero = np.arange(5) < np.array(shares)[:, None]
    return Scores(np.where(is_zero[..., None], np.log([0.9, 0.1]), np.log([0.1, 0.9])), np.array(wrong, int))


@pytest.mark.parametrize("seed", range(6))
def test_decidable_share_equals_slow_loop(seed):
    draw = generator(seed, "tests/metrics/decidable")
    shares = draw.integers(3, 6, size=300)
    wrong = draw.random(300) < 0.08 * (5 - shares) + 0.005 * seed
    threshold, share = decidable(voted(shares, wrong))
    assert share == pytest.approx(slow_decidable(shares.tolist(), wrong.tolist()))
    assert share == pytest.approx((shares / 5 >= threshold).mean())
    assert METRICS["decidable_share"].value(voted(shares, wrong)) == share


def test_decidable_share_needs_59_labels():
    assert METRICS["decidable_share"].value(voted([5] * 58, [0] * 58)) is None
    assert METRICS["decidable_share"].value(voted([5] * 59, [0] * 59)) == 1
    assert METRICS["decidable_share"].value(voted([5] * 59, [0] * 58 + [1])) == 0


def test_binomial_tail_of_many_rows_is_finite():
    assert binomial_tail(500, 10_000, 0.05) == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_votes_above_the_error_are_rarely_decidable():
    """Every threshold has a risk of just over 5 %; three are tested."""
    false = 0
    for seed in range(1000):
        draw = generator(seed, "tests/metrics/false decisions")
        data = voted(draw.integers(3, 6, size=400), draw.random(400) < 0.0501)
        false += decidable(data)[1] > 0
    assert false <= 50 + 3 * 50**0.5
