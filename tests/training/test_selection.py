"""Selection of the checkpoint: constant predictions cannot win by a default criterion."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.metrics import majority_vote
from flip_flop.training.selection import CheckpointCriterion, vote_agreement
from flip_flop.training.votes import VoteTable
from tests.training.conftest import settings

GUARDED = {"stop_on_collapse": True}


def make_scores(predictions, num_labels):
    return np.where(np.eye(num_labels)[predictions] > 0, -0.1, -3.0).astype(np.float32)


def make_base(predictions, num_labels):
    ids = tuple(map(str, range(len(predictions))))
    return VoteTable(ids, make_scores(predictions, num_labels)).batch_calibrated


def noisy(gold, num_labels, *, accuracy, num_templates=5, seed=0):
    """Predictions of independent templates with this accuracy."""
    random = np.random.default_rng(seed)
    others = random.integers(num_labels, size=(len(gold), num_templates))
    return np.where(random.random(others.shape) < accuracy, gold[:, None], others)


def criterion_for(by, num_rows):
    labels = [0] * num_rows if by == "macro_f1" else [None] * num_rows
    found = CheckpointCriterion.of(settings(**GUARDED), labels)
    assert found.by == by
    return found


def test_auto_uses_labels_if_most_rows_have_one():
    for guard, by_labels in ((True, "macro_f1"), (False, "mean_f1")):
        config = settings(stop_on_collapse=guard)
        assert CheckpointCriterion.of(config, [0, 1, None]).by == by_labels
        assert CheckpointCriterion.of(config, [0, None]).by == "vote_agreement"
        assert CheckpointCriterion.of(config, None).by == "last"


def test_named_criteria_need_no_majority_of_labels():
    for name in ("mean_f1", "macro_f1", "vote_agreement"):
        assert CheckpointCriterion.of(settings(select_by=name), [0, None, None]).by == name


DATA = {
    "balanced": (np.tile([0, 1], 30), 2),
    "three labels": (np.tile([0, 1, 2], 20), 3),
    "skewed": (np.repeat([0, 1], [48, 12]), 2),
    "three labels, skewed": (np.repeat([0, 1, 2], [42, 12, 6]), 3),
    "few rows": (np.array([0, 1, 1, 0, 1]), 2),
}


@pytest.mark.parametrize("by", ["macro_f1", "vote_agreement"])
@pytest.mark.parametrize(("gold", "num_labels"), DATA.values(), ids=DATA)
def test_constant_predictions_lose_against_the_base_model(by, gold, num_labels):
    base, criterion = make_base(noisy(gold, num_labels, accuracy=0.5), num_labels), criterion_for(by, len(gold))
    for label in range(num_labels):
        found = criterion.judge(make_scores(np.full((len(gold), 5), label), num_labels), base, gold)
        assert found["selection"] < found["base_selection"]
        assert found["selection"] <= criterion.constant_value(gold, num_labels)
        assert found["collapsed"] == 1
    followed = np.repeat(majority_vote(base.scores)[:, None], 5, axis=1)
    assert criterion.judge(make_scores(followed, num_labels), base, gold)["selection"] > found["base_selection"]


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 30), st.integers(1, 9), st.floats(0.1, 10))
def test_vote_agreement_of_constant_templates_is_exactly_zero(seed, num_labels, num_rows, num_templates, skew):
    random = np.random.default_rng(seed)
    votes = random.choice(num_labels, size=num_rows, p=random.dirichlet([skew] * num_labels))
    constants = np.tile(random.integers(num_labels, size=num_templates), (num_rows, 1))
    assert vote_agreement(constants, votes, num_labels) == 0
    assert vote_agreement(votes[:, None], votes, num_labels) == (1 if len(set(votes.tolist())) > 1 else 0)


def test_a_biased_base_model_is_compared_with_its_calibrated_votes():
    """Label 1 wins everywhere; calibration recovers the ranking of the rows, and a model that follows it improves."""
    signal = np.linspace(-0.4, 0.4, 20)
    scores = np.stack([np.zeros(20), 1 + signal], axis=-1)[:, None].repeat(3, axis=1)
    base = VoteTable(tuple(map(str, range(20))), scores).batch_calibrated
    assert majority_vote(base.uncalibrated.scores).tolist() == [1] * 20
    criterion, unlabelled = criterion_for("vote_agreement", 20), np.full(20, -1)
    better = np.stack([np.zeros(20), signal], axis=-1)[:, None].repeat(3, axis=1)
    found = criterion.judge(better, base, unlabelled)
    assert (found["selection"], found["base_selection"], found["collapsed"]) == (1, 0, 0)
    assert found["vote_drift"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("by", ["macro_f1", "vote_agreement"])
@pytest.mark.parametrize(("gold", "num_labels"), DATA.values(), ids=DATA)
def test_constant_predictions_never_exceed_the_constant_value(by, gold, num_labels):
    """Even if the base model guesses, and constant predictions are better than it."""
    for seed in range(10):
        base = make_base(noisy(gold, num_labels, accuracy=0, seed=seed), num_labels)
        criterion = criterion_for(by, len(gold))
        constant = criterion.constant_value(gold, num_labels)
        for labels in np.random.default_rng(seed).integers(num_labels, size=(20, 5)):  # one for each template
            scores = make_scores(np.tile(labels, (len(gold), 1)), num_labels)
            assert criterion.judge(scores, base, gold)["selection"] <= constant


def test_mean_f1_rewards_constant_predictions_that_count_as_collapsed():
    gold = DATA["balanced"][0]
    base, always = make_base(noisy(gold, 2, accuracy=0.1), 2), make_scores(np.ones((60, 5), dtype=int), 2)
    criterion = CheckpointCriterion.of(settings(), [0, 1])
    found = criterion.judge(always, base, gold)
    assert criterion.by == "mean_f1"
    assert found["selection"] > found["base_selection"]
    assert found["collapsed"] == 1


def test_drift_without_a_loss_of_quality_is_not_a_collapse():
    gold = np.repeat([0, 1], [15, 45])
    votes = np.repeat([0, 1], 30)  # the base predicts label 0 too often
    base = make_base(np.repeat(votes[:, None], 5, axis=1), 2)
    criterion = CheckpointCriterion.of(settings(select_by="macro_f1"), [0, 1])
    found = criterion.judge(make_scores(np.repeat(gold[:, None], 5, axis=1), 2), base, gold)
    assert (found["vote_drift"] > 0.2, found["collapsed"]) == (True, 0)


def test_drift_is_measured_from_the_nearest_point_between_raw_and_calibrated_shares():
    raw = np.log([[[0.6, 0.4]]] * 8 + [[[0.1, 0.9]]] * 2)
    votes = VoteTable(tuple("0123456789"), raw + np.array([[-0.5, 0.5]]), np.array([[-0.5, 0.5]]))
    assert (votes.uncalibrated.shares.tolist(), votes.shares.tolist()) == ([0.8, 0.2], [0.0, 1.0])
    for share in (0.8, 0.5, 0.0):
        assert votes.drift(np.array([share, 1 - share])) == pytest.approx(0.0, abs=0.01)
    assert votes.drift(np.array([1.0, 0.0])) == pytest.approx(0.2)
