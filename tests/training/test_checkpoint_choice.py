"""Checkpoints by labelled mean F1, or by agreement, which a collapsed model must not win."""

import numpy as np
import pytest

from flip_flop.metrics import METRICS, EvalData
from flip_flop.scoring import ScoreTable
from flip_flop.training.checkpoint_choice import CheckpointCriterion, evaluation_metrics
from flip_flop.training.votes import VoteTable
from tests.training.conftest import settings


def table(predictions):
    scores = np.where(np.eye(3)[predictions] > 0, -0.1, -3.0).astype(np.float32)
    return ScoreTable(scores, np.ones(scores.shape, dtype=np.int64), 0, "packed")


BASE = np.array([[0, 0, 1, 0], [1, 1, 1, 1], [2, 2, 0, 2], [0, 1, 0, 0], [2, 2, 2, 2]])
AGREED = np.array([[0] * 4, [1] * 4, [2] * 4, [0] * 4, [2] * 4])
COLLAPSED = np.zeros((5, 4), dtype=int)


def test_auto_is_mean_f1_if_most_rows_have_a_label():
    assert CheckpointCriterion.of(settings(), [0, 1]).by == "mean_f1"
    assert CheckpointCriterion.of(settings(), [0, None]).by == "agreement"
    assert CheckpointCriterion.of(settings(), [0, 1, None]).by == "mean_f1", "most rows have a label"
    assert CheckpointCriterion.of(settings(select_by="mean_f1"), [0, None, None]).by == "mean_f1"
    assert CheckpointCriterion.of(settings(), None).by == "last"


@pytest.mark.parametrize(("predictions", "agreement", "value"), [(BASE, 0.7, 0.7), (AGREED, 1, 1), (COLLAPSED, 1, -1)])
def test_agreement_prefers_the_model_that_agrees_and_does_not_reward_collapse(predictions, agreement, value):
    criterion = CheckpointCriterion.of(settings(select_by="agreement"), [None])
    found = table(predictions)
    metrics = evaluation_metrics(found, np.full(5, -1), list("abcd"))
    assert metrics["observed_agreement"] == pytest.approx(agreement)
    base = VoteTable(tuple("01234"), table(BASE).scores)
    assert criterion.judge(metrics, found.scores, base, np.full(5, -1))["selection"] == pytest.approx(value)


def test_mean_f1_is_the_papers_criterion():
    criterion = CheckpointCriterion.of(settings(select_by="mean_f1"), [0] * 5)
    found = table(AGREED)
    gold = np.array([0, 1, 2, 0, 2])
    metrics, base = evaluation_metrics(found, gold, list("abcd")), VoteTable(tuple("01234"), table(BASE).scores)
    assert criterion.judge(metrics, found.scores, base, gold)["selection"] == 1.0


@pytest.mark.parametrize("refuses", [False, True])
def test_f1_of_label_1_does_not_hide_a_collapse_from_who_refuses_it(refuses):
    changes = {"select_by": "mean_f1", "stop_on_collapse": refuses}
    criterion, gold = CheckpointCriterion.of(settings(**changes), [0] * 4), np.array([0, 1, 0, 1])
    always, half = np.log([[[0.1, 0.9]] * 2] * 4), np.log([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2] * 2)
    base = VoteTable(tuple("0123"), np.where(np.arange(4)[:, None, None] < 3, half, half[::-1]))
    mostly = float(METRICS["mean_f1"].value(EvalData(always, gold)))
    found = criterion.judge({"mean_f1": mostly, "macro_f1": 1 / 3}, always, base, gold)
    assert (found["vote_drift"] > 0.2, found["collapsed"]) == (True, 1.0)
    assert found["selection"] == (-1.0 if refuses else mostly)


def test_a_calibrations_own_shift_is_no_drift_and_what_passes_it_is():
    raw = np.log([[[0.6, 0.4]]] * 8 + [[[0.1, 0.9]]] * 2)
    votes = VoteTable(tuple("0123456789"), raw + np.array([[-0.5, 0.5]]), np.array([[-0.5, 0.5]]))
    assert (votes.uncalibrated.shares.tolist(), votes.shares.tolist()) == ([0.8, 0.2], [0.0, 1.0])
    for share in (0.8, 0.5, 0.0):
        assert votes.drift(np.array([share, 1 - share])) == pytest.approx(0.0, abs=0.01)
    assert votes.drift(np.array([1.0, 0.0])) == pytest.approx(0.2)
