"""The ranking of templates equals slow loops, and does not depend on the order of the templates."""

import math

import numpy as np
import pytest
from benchmarks.coverage import LABELS, false_differences
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flip_flop.files import generator
from flip_flop.metrics import Scores, calibrated, rank_templates
from tests.method.oracle import softmax
from tests.metrics import oracle
from tests.metrics.made_data import data_of


def made(num_instances=61, num_templates=5, num_labels=3, seed=0):
    random = generator(seed, "tests/metrics/ranking", num_labels)
    gold = random.integers(num_labels, size=num_instances)
    scores = random.normal(size=(num_instances, num_templates, num_labels)) - 3
    scores[np.arange(num_instances), :, gold] += np.linspace(2.5, 0.2, num_templates)
    return scores, gold


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
    scores, gold = made(num_templates=num_templates, num_labels=num_labels)
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


@given(
    arrays(np.float64, (12, 4, 3), elements=st.floats(-5, -0.125, width=32)),
    st.permutations(range(4)),
)
@settings(max_examples=40, deadline=None)
def test_permuted_templates_have_a_permuted_ranking(scores, order):
    gold = np.full(12, -1)
    found, moved = rank_templates(Scores(scores, gold)), rank_templates(Scores(scores[:, order], gold))
    assert moved.agreement.tolist() == found.agreement[order].tolist()
    assert moved.constancy.tolist() == found.constancy[order].tolist()
    np.testing.assert_allclose(moved.bias, found.bias[order], atol=1e-12)
    assert moved.values[moved.order].tolist() == found.values[found.order].tolist()


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


def test_generated_answers_without_a_label_agree_with_nothing():
    predictions = np.array([[0, 0, -1], [1, 1, -1], [1, -1, -1]])
    certain = np.where(predictions[..., None] == np.arange(2), 0.0, -np.inf)
    found = rank_templates(Scores(certain, np.full(3, -1)))
    assert found.agreement == pytest.approx([2 / 3, 2 / 3, 0])
    assert found.bias is None
    assert found.order == [0, 1, 2]
