"""Calibration by position against slow loops, with a scorer that prefers a position and one that prefers a label."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from flip_flop.metrics import batch_offsets, option_places
from tests.exact import EXACT
from tests.metrics import oracle
from tests.refused import refused

ROTATIONS = ("1 2 3", "2 3 1", "3 1 2")
VARIANTS = list(itertools.product(ROTATIONS, "ab"))
POSITIONS = np.array([[0, 1, 2], [0, 1, 2], [2, 0, 1], [2, 0, 1], [1, 2, 0], [1, 2, 0]])


def places_of(variants=VARIANTS):
    """The positions of templates with these orders and wordings, named by both."""
    templates = []
    for order, wording in variants:
        levels = {"order": order, "wording": wording} if order else None
        templates.append(SimpleNamespace(name=f"{wording} {order}", levels=levels))
    return option_places("position", templates, 3)


@pytest.mark.parametrize("unread_share", [0.0, 0.4])
def test_position_offsets_match_slow_loops(unread_share):
    random = np.random.default_rng(0)
    scores = random.normal(scale=3.0, size=(20, 6, 3))
    scores[random.random((20, 6)) < unread_share] = -np.inf
    expected = []
    for template, label in itertools.product(range(6), range(3)):
        probs = []
        for row, other in itertools.product(scores.tolist(), range(template % 2, 6, 2)):  # of the same wording
            if row[other][0] == -math.inf:
                continue
            there = POSITIONS[other].tolist().index(POSITIONS[template, label])
            probs.append(oracle.softmax(row[other])[there])
        expected.append(-math.log(math.fsum(probs) / len(probs)))
    expected = np.array(expected).reshape(6, 3)
    offsets = batch_offsets(scores, places=places_of())
    np.testing.assert_allclose(offsets, expected - expected.mean(axis=1, keepdims=True), atol=EXACT)


def test_preference_for_a_position_is_removed_and_for_a_label_kept_unlike_by_batch_calibration():
    by_position = np.array([2.0, 0.5, -400.0])[POSITIONS][None]
    by_label = np.broadcast_to([0.0, 0.0, 2.0], (1, 6, 3))
    removed = by_position + batch_offsets(by_position, places=places_of())
    np.testing.assert_allclose(np.ptp(removed, axis=2), 0.0, atol=1e-9)
    np.testing.assert_allclose(batch_offsets(by_label, places=places_of()), 0.0, atol=EXACT)
    np.testing.assert_allclose(np.ptp(by_label + batch_offsets(by_label), axis=2), 0.0, atol=1e-9)


INCOMPLETE = {
    "two of three rotations": ["1 2 3", "2 3 1"],
    "one order": ["1 2 3"],
    "other texts": ["given", "swapped", "mixed"],
    "other labels": ["1 2", "2 1"],
    "a label at one position more often": [*ROTATIONS, "2 1 3"],
    "a label twice": ["1 1 1", "2 2 2", "3 3 3"],
    "no levels": [None],
}


@pytest.mark.parametrize("orders", INCOMPLETE.values(), ids=INCOMPLETE)
def test_first_template_without_complete_orders_is_refused(orders):
    refused(
        f"E-CALIBRATION: .*template 'c {orders[0]}' lacks",
        places_of,
        [*VARIANTS, *itertools.product(orders, "c")],
    )
