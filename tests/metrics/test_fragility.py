"""Answers and votes that noise decides, against every way in which the fragile answers may fall."""

from itertools import product

import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import METRICS, Resolution, Scores, fragile_votes, summarise
from tests.metrics import oracle

NAMES = ["plain", "formal", "reversed", "terse"]


def made(num_templates, num_labels, num_instances=60):
    """Scores on a grid of tenths: margins of 0, .1, .2, ... and exact ties."""
    random = generator(0, "tests/metrics/fragility", num_templates, num_labels)
    return random.integers(-9, 0, size=(num_instances, num_templates, num_labels)) / 10


def two_best(row):
    return sorted(range(len(row)), key=lambda label: (-row[label], label))[:2]


def is_fragile(row, resolution):
    best, second = two_best(row)
    return row[best] - row[second] < resolution


def winner(answers, weights):
    """The label of most answers; of a tie the one with the larger summed probability, then the lowest."""
    return max(range(len(weights)), key=lambda label: (answers.count(label), weights[label], -label))


def vote_may_change(rows, resolution):
    """Whether some choice of best or second label for each fragile answer gives another vote."""
    probs = [oracle.softmax(row) for row in rows]
    weights = [sum(sorted(row[label] for row in probs)) for label in range(len(rows[0]))]
    options = [two_best(row) if is_fragile(row, resolution) else two_best(row)[:1] for row in rows]
    vote = winner([each[0] for each in options], weights)
    return any(winner(list(answers), weights) != vote for answers in product(*options))


@pytest.mark.parametrize(("num_templates", "num_labels"), [(4, 2), (5, 2), (4, 3), (3, 4)])
@pytest.mark.parametrize("resolution", [0.0, 0.15, 0.35])
def test_shares_and_votes_are_those_of_every_way_in_which_fragile_answers_may_fall(
    num_templates, num_labels, resolution
):
    scores = made(num_templates, num_labels)
    data = Scores(scores, np.full(len(scores), -1), resolution=resolution)
    fragile = [[is_fragile(row, resolution) for row in rows] for rows in scores.tolist()]
    votes = [vote_may_change(rows, resolution) for rows in scores.tolist()]
    assert fragile_votes(scores, resolution).tolist() == votes
    assert METRICS["fragile_share"].value(data) == pytest.approx(np.mean(fragile))
    assert METRICS["fragile_vote_share"].value(data) == pytest.approx(np.mean(votes))
    assert any(votes) == (resolution > 0)


def test_a_summary_has_the_share_of_each_template_and_the_resolution():
    scores, resolution = made(4, 3), Resolution(0.15, "measured")
    found = summarise(scores, np.full(60, -1), NAMES, intervals=False, resolution=resolution)
    expected = [np.mean([is_fragile(rows[v], 0.15) for rows in scores.tolist()]) for v in range(4)]
    assert found["fragile_share_per_template"] == pytest.approx(dict(zip(NAMES, expected, strict=True)))
    assert (found["resolution"], found["resolution_found"]) == (0.15, "measured")
    unknown = summarise(scores, np.full(60, -1), NAMES, intervals=False)
    assert [unknown[name] for name in ("fragile_share", "fragile_vote_share", "resolution")] == [None] * 3
