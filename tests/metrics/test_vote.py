import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import METRICS, Scores, label_probs, majority_vote
from tests.metrics import oracle


@pytest.mark.parametrize("shape", [(40, 4, 3), (40, 3, 4), (40, 2, 5), (40, 6, 2), (40, 1, 3)])
def test_the_vote_equals_the_loop(shape):
    scores = generator(0, "tests/metrics/vote", *shape).normal(size=shape) - 2
    assert majority_vote(scores).tolist() == [oracle.majority_vote(rows) for rows in scores.tolist()]


@pytest.mark.parametrize("shape", [(40, 4, 3), (40, 3, 4), (40, 1, 3)])
def test_probabilities_and_the_ensemble_equal_the_loop(shape):
    scores = generator(0, "tests/metrics/ensemble", *shape).normal(size=shape) * 3
    gold = np.arange(40) % shape[2]
    assert label_probs(scores).tolist() == [[pytest.approx(oracle.softmax(row)) for row in rows] for rows in scores]
    answers = [oracle.ensemble(rows) for rows in scores.tolist()]
    data = Scores(scores, gold)
    assert data.ensembled.predictions[:, 0].tolist() == answers
    assert METRICS["ensemble_f1"].value(data) == pytest.approx(oracle.f1(answers, gold.tolist(), shape[2]))


def test_a_plurality_wins_without_a_strict_majority():
    probs = np.array([[[0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9], [0.0, 0.1, 0.9]]]) + 1e-9
    assert majority_vote(np.log(probs)).tolist() == [2], "two votes each for labels 0 and 2, and label 2 is surer"
    assert majority_vote(np.log(probs[:, :4])).tolist() == [0], "two votes of four beat one, sure as it may be"


def test_the_sum_decides_only_between_labels_that_are_tied():
    # Label 2 has the largest sum of probabilities but no vote.
    probs = np.array([[[0.51, 0.0, 0.49], [0.0, 0.51, 0.49]]])
    with np.errstate(divide="ignore"):
        assert majority_vote(np.log(probs)).tolist() == [0]


def test_a_tie_of_both_goes_to_the_lowest_index_in_any_order_of_the_templates():
    # Every label wins once, with the same three probabilities: all sums are equal in spite of rounding.
    random = generator(0, "tests/metrics/ties")
    for _ in range(50):
        row = random.dirichlet([1.0, 1.0, 1.0])
        scores = np.log([[np.roll(row, shift) for shift in random.permutation(3)]])
        assert majority_vote(scores).tolist() == [0]


def test_extreme_scores_vote_like_any_others():
    scores = np.array([[[-1e4, -2e4], [-np.inf, -1e4]], [[-np.inf, -np.inf], [-1e4, -3.0]]], dtype=np.float32)
    assert majority_vote(scores).tolist() == [0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_no_log_probability_is_refused(bad):
    with pytest.raises(ValueError, match="log-probabilities"):
        Scores(np.array([[[-1.0, bad]]]), np.array([0]))
    with pytest.raises(ValueError, match="log-probabilities"):
        majority_vote(np.array([[[-1.0, bad]]]))


def posix(scores):
    return METRICS["posix"].value(Scores(scores, np.full(len(scores), -1)))


@pytest.mark.parametrize("shape", [(9, 4, 3), (9, 2, 2), (1, 5, 4)])
def test_posix_equals_the_loop_over_pairs(shape):
    scores = generator(0, "tests/metrics/posix", *shape).normal(size=shape) * 2 - 3
    assert posix(scores) == pytest.approx(oracle.posix(scores.tolist()), rel=1e-12)


def test_there_is_no_posix_of_one_template_nor_with_an_answer_that_a_template_rules_out():
    assert posix(np.log([[[0.9, 0.1]]])) is None
    with np.errstate(divide="ignore"):
        assert posix(np.log([[[1.0, 0.0], [0.0, 1.0]]])) is None
        assert posix(np.log([[[0.0, 0.0], [0.4, 0.6]]])) is None
