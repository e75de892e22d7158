"""Certified early stops against slow loops, and on draws whose true share of changed answers is known."""

import math

import numpy as np
import pytest

from flip_flop.metrics.early_stop import certified_lead, leads


def draw(random, rows, noise=1.5):
    """Probabilities of two labels under four orders that agree more or less."""
    content = random.normal(0, 2, (rows, 1))
    odds = np.exp(content + random.normal(0, noise, (rows, 4)))
    return np.stack([odds / (1 + odds), 1 / (1 + odds)], axis=2)


def slow_stops(row, threshold):
    """The number of passes of a row, and whether its answer is not that of all passes."""
    num_passes = len(row)
    answers = []
    stops = num_passes
    for number in range(1, num_passes + 1):
        sums = [math.fsum(column) for column in zip(*row[:number], strict=True)]
        answers.append(sums.index(max(sums)))
        first, second, *_ = sorted(sums, reverse=True)
        if stops == num_passes and number < num_passes and first - second >= threshold * (num_passes - number):
            stops = number
    return stops, answers[stops - 1] != answers[-1]


def slow_tail(wrong, number, share):
    return math.fsum(math.comb(number, k) * share**k * (1 - share) ** (number - k) for k in range(wrong + 1))


def slow_certificate(rows, share):
    found = None
    for step in range(20, 0, -1):
        stops = [slow_stops(row, step / 20) for row in rows]
        stopped = [is_changed for passes, is_changed in stops if passes < len(rows[0])]
        if slow_tail(0, len(stopped), share) <= 0.05:
            if slow_tail(sum(stopped), len(stopped), share) > 0.05:
                break
            found = step / 20
    return found


@pytest.mark.parametrize(("rows", "noise", "confidence"), [(600, 0.5, 0.99), (600, 1.5, 0.9), (300, 1.5, 0.95)])
def test_the_certificate_is_that_of_a_slow_loop(rows, noise, confidence):
    probs = draw(np.random.default_rng(0), rows, noise)
    found = certified_lead(probs, confidence)
    assert found == slow_certificate(probs.tolist(), 1 - confidence)
    assert found < 1
    for row, reached in zip(probs[:50].tolist(), leads(probs[:50]) >= found, strict=True):
        assert slow_stops(row, found)[0] == (*reached.tolist(), True).index(True) + 1


def test_the_bound_holds_in_95_of_100_draws():
    random = np.random.default_rng(0)
    population = draw(random, 100_000)
    sums = population.cumsum(axis=1)
    gaps = np.abs(sums[:, :3, 0] - sums[:, :3, 1]) / np.array([3, 2, 1])
    changed = sums.argmax(axis=2)[:, :3] != sums[:, -1].argmax(axis=1)[:, None]
    true_share = {None: 0.0}
    for step in range(1, 21):
        stops = gaps >= step / 20
        true_share[step / 20] = changed[stops.any(axis=1), stops[stops.any(axis=1)].argmax(axis=1)].mean()
    found = [certified_lead(draw(random, 400), 0.95) for _ in range(200)]
    assert np.mean([true_share[lead] <= 0.05 for lead in found]) >= 0.95
    assert len(set(found)) > 2, "a certificate that is the same for all rows tests nothing"
    assert max(share for share in true_share.values()) > 0.05


def test_few_rows_or_many_changes_certify_nothing():
    certain = np.tile([[0.9, 0.1]] * 3, (299, 1, 1))
    assert certified_lead(certain, 0.99) == 0.05
    assert certified_lead(certain[1:], 0.99) is None
    turns = np.tile([[0.6, 0.4], [0.0, 1.0], [0.0, 1.0]], (299, 1, 1))
    assert certified_lead(turns, 0.99) == 0.1, "at 0.05, all stop after the first pass, which the others outvote"
