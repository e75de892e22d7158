"""Checkpoints by labelled mean F1, or by agreement, which a collapsed model must not win."""

import numpy as np
import pytest

from flip_flop.scoring import ScoreTable
from flip_flop.training.checkpoint_choice import CheckpointCriterion, evaluation_metrics
from tests.training.conftest import settings


def table(predictions):
    scores = np.where(np.eye(3)[predictions] > 0, -0.1, -3.0).astype(np.float32)
    return ScoreTable(scores, np.ones(scores.shape, dtype=np.int64), 0, "packed")


BASE = np.array([[0, 0, 1, 0], [1, 1, 1, 1], [2, 2, 0, 2], [0, 1, 0, 0], [2, 2, 2, 2]])
AGREED = np.array([[0] * 4, [1] * 4, [2] * 4, [0] * 4, [2] * 4])
COLLAPSED = np.zeros((5, 4), dtype=int)


def test_auto_is_mean_f1_where_every_row_has_a_label():
    assert CheckpointCriterion.of(settings(), [0, 1]).by == "mean_f1"
    assert CheckpointCriterion.of(settings(), [0, None]).by == "agreement"
    assert CheckpointCriterion.of(settings(), None).by == "last"


@pytest.mark.parametrize(("predictions", "agreement", "value"), [(BASE, 0.7, 0.7), (AGREED, 1, 1), (COLLAPSED, 1, -1)])
def test_agreement_prefers_the_model_that_agrees_and_does_not_reward_collapse(predictions, agreement, value):
    criterion = CheckpointCriterion.of(settings(select_by="agreement"), [None])
    found = table(predictions)
    metrics = evaluation_metrics(found, np.full(5, -1), list("abcd"))
    assert metrics["observed_agreement"] == pytest.approx(agreement)
    assert criterion.value(metrics, found, lambda: table(BASE).scores) == pytest.approx(value)


def test_mean_f1_is_the_papers_criterion():
    criterion = CheckpointCriterion.of(settings(select_by="mean_f1"), [0] * 5)
    found = table(AGREED)
    metrics = evaluation_metrics(found, np.array([0, 1, 2, 0, 2]), list("abcd"))
    assert criterion.value(metrics, found, lambda: pytest.fail("no base is needed")) == 1.0
