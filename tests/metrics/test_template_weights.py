"""Weights of templates from few labels match slow loops, and equal weights are the majority vote."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.metrics import majority_vote, predicted, template_accuracies, template_weights
from tests.exact import EXACT
from tests.metrics.oracle import majority_vote as slow_majority_vote

# Instances, templates and labels: never equally many.
SHAPES = st.sampled_from([(0, 3, 2), (1, 4, 2), (2, 3, 4), (7, 5, 2), (9, 2, 3), (20, 7, 4)])
SEEDS = st.integers(0, 2**31)


def made(seed, shape):
    random = np.random.default_rng(seed)
    instances, templates, labels = shape
    gold = random.integers(labels, size=instances)
    skill, scores = random.random(templates), random.normal(size=(instances + 6, templates, labels))
    for row in range(instances):
        scores[row, random.random(templates) < skill, gold[row]] += 5
    return scores, gold


def slow_accuracies(predictions, gold, num_labels, templates):
    n = len(gold)
    hits = [
        [float(int(row[v]) == int(label)) for v in range(templates)]
        for row, label in zip(predictions, gold, strict=True)
    ]
    smoothed = [(math.fsum(row[v] for row in hits) + 1) / (n + num_labels) for v in range(templates)]
    mean = math.fsum(smoothed) / templates
    if n < 2 or templates < 2:
        return [mean] * templates
    own = [math.fsum(row[v] for row in hits) / n for v in range(templates)]
    overall = math.fsum(own) / templates
    between = math.fsum((value - overall) ** 2 for value in own) / (templates - 1)
    if between < 1e-15:
        return [mean] * templates
    squares = []
    for row in hits:
        level = math.fsum(row) / templates
        squares += [(row[v] - own[v] - level + overall) ** 2 for v in range(templates)]
    noise = math.fsum(squares) / ((n - 1) * (templates - 1) * n)
    kept = 1 - noise / between if noise < between else 0.0
    return [mean + kept * (value - mean) for value in smoothed]


def slow_weights(accuracies, num_labels):
    weights = []
    for accuracy in accuracies:
        odds = (num_labels - 1) * accuracy / (1 - accuracy)
        weights.append(math.log(odds) if odds > 1 else 0.0)
    return weights


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, shape=SHAPES)
def test_shrunk_accuracies_and_weights_match_the_loops(seed, shape):
    scores, gold = made(seed, shape)
    predictions = predicted(scores)[: len(gold)]
    expected = slow_accuracies(predictions.tolist(), gold.tolist(), shape[2], shape[1])
    found = template_accuracies(predictions, gold, shape[2])
    assert found.tolist() == pytest.approx(expected, rel=EXACT, abs=EXACT)
    assert ((found > 0) & (found < 1)).all()
    weights, slow = template_weights(predictions, gold, shape[2]), slow_weights(expected, shape[2])
    if max(slow) < 2**-11 - 1e-9:
        slow = [1.0] * shape[1]
    if not any(abs(value - 2**-11) < 1e-9 for value in slow):  # between weights of zero and the smallest step
        assert weights.tolist() == pytest.approx(slow, abs=2**-11 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, shape=SHAPES)
def test_weighted_vote_matches_the_loops(seed, shape):
    scores, gold = made(seed, shape)
    weights = template_weights(predicted(scores)[: len(gold)], gold, shape[2])
    for row, vote in zip(scores.tolist(), majority_vote(scores, weights).tolist(), strict=True):
        sums, mass = [0.0] * shape[2], [0.0] * shape[2]
        for own, weight in zip(row, weights.tolist(), strict=True):
            sums[own.index(max(own))] += weight
            total = math.fsum(math.exp(value) for value in own)
            mass = [before + math.exp(value) / total for before, value in zip(mass, own, strict=True)]
        best = [label for label in range(shape[2]) if sums[label] == max(sums)]
        assert vote == max(best, key=lambda label: mass[label])


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, shape=SHAPES, weight=st.sampled_from([2**-10, 0.5, 1.0, 3.25]))
def test_equal_weights_are_the_majority_vote(seed, shape, weight):
    scores, gold = made(seed, shape)
    scores = np.round(scores)  # with ties
    found = majority_vote(scores, np.full(shape[1], weight))
    assert found.tolist() == majority_vote(scores).tolist()
    assert found.tolist() == [slow_majority_vote(row) for row in scores.tolist()]
    none = template_weights(predicted(scores)[:0], gold[:0], shape[2])
    assert none.tolist() == [1.0] * shape[1]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, shape=SHAPES)
def test_order_of_templates_and_of_labelled_rows_has_no_influence(seed, shape):
    scores, gold = made(seed, shape)
    random, n = np.random.default_rng(seed + 1), len(gold)
    order, rows = random.permutation(shape[1]), random.permutation(n)
    weights = template_weights(predicted(scores)[:n], gold, shape[2])
    moved = template_weights(predicted(scores[:n][rows][:, order]), gold[rows], shape[2])
    assert moved.tolist() == pytest.approx(weights[order].tolist(), abs=2**-9)
    tied = np.round(scores)
    assert majority_vote(tied[:, order], weights[order]).tolist() == majority_vote(tied, weights).tolist()


def test_ties_go_to_the_larger_probability_and_then_to_the_first_label():
    weights = np.array([0.5, 0.25, 0.25])
    even = np.log([[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]])
    assert majority_vote(even, weights).tolist() == [1]
    assert majority_vote(np.log([[[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]]), np.array([0.5, 0.5, 0.0])).tolist() == [0]
    assert majority_vote(np.full((1, 3, 2), -np.inf), weights).tolist() == [-1]


def test_better_template_outweighs_two_that_guess():
    gold = np.array([0, 1] * 10)
    predictions = np.column_stack([gold, np.zeros(20, dtype=int), np.ones(20, dtype=int)])
    weights = template_weights(predictions, gold, 2)
    assert weights[0] > 1
    assert weights[1] == weights[2]
    assert weights[0] > weights[1:].sum()


def test_templates_at_chance_have_equal_weights():
    gold = np.array([0, 1] * 10)
    assert template_weights(np.column_stack([1 - gold] * 3), gold, 2).tolist() == [1.0] * 3
