"""Agreement, the majority vote, POSIX and collapse equal slow loops."""

from itertools import product

import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import (
    METRICS,
    Scores,
    is_collapsed,
    label_probs,
    label_shares,
    majority_vote,
    share_drift,
    template_agreement_matrix,
    vote_counts,
)
from flip_flop.metrics.agreement import (
    constant_templates,
    instance_agreement,
    label_shares_per_template,
    lacks_consensus,
    observed_agreement,
)
from tests.metrics import oracle
from tests.metrics.oracle import data_of

# Instances, templates, labels: with fewer templates than labels and with more.
SHAPES = [(7, 4, 3), (7, 3, 4), (1, 2, 3), (30, 15, 2), (11, 8, 4)]


def no_consensus_share(predictions):
    return METRICS["no_consensus_share"].value(data_of(predictions, num_labels=4))


def fleiss_kappa(predictions, num_labels=4):
    return METRICS["fleiss_kappa"].value(data_of(predictions, num_labels=num_labels))


def random_predictions(num_instances, num_templates, num_labels):
    random = generator(0, "tests/metrics/agreement", num_instances, num_templates, num_labels)
    return random.integers(num_labels, size=(num_instances, num_templates))


@pytest.mark.parametrize("shape", SHAPES)
def test_agreement_equals_counting_every_pair_and_votes_every_label(shape):
    predictions = random_predictions(*shape)
    rows = predictions.tolist()
    assert vote_counts(predictions, shape[2]).tolist() == [[row.count(c) for c in range(shape[2])] for row in rows]
    assert observed_agreement(predictions) == pytest.approx(oracle.observed_agreement(rows), abs=1e-14)
    assert no_consensus_share(predictions) == pytest.approx(oracle.no_consensus_share(rows), abs=1e-14)
    assert METRICS["observed_agreement"].value(data_of(predictions, num_labels=4)) == observed_agreement(predictions)
    if shape[0] > 1:
        assert fleiss_kappa(predictions) == pytest.approx(oracle.fleiss_kappa(rows), abs=1e-13)


@pytest.mark.parametrize("shape", [(7, 1, 3), (0, 4, 3)])
def test_a_single_template_and_no_instances_have_no_agreement(shape):
    predictions = random_predictions(*shape)
    for measure in (observed_agreement, no_consensus_share, fleiss_kappa):
        assert measure(predictions) is None
    if shape[0]:
        assert instance_agreement(predictions) is lacks_consensus(predictions) is None
    else:
        assert vote_counts(predictions, 3).shape == (0, 3)
        with pytest.raises(ValueError, match="without instances"):
            template_agreement_matrix(predictions)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_matrix_compares_every_two_templates_and_averages_to_observed_agreement(shape):
    predictions = random_predictions(*shape)
    matrix = template_agreement_matrix(predictions)
    for u, v in np.ndindex(matrix.shape):
        assert matrix[u, v] == pytest.approx(oracle.template_agreement(predictions.tolist(), u, v))
    assert (matrix == matrix.T).all()
    assert (np.diag(matrix) == 1).all()
    assert matrix[~np.eye(shape[1], dtype=bool)].mean() == pytest.approx(observed_agreement(predictions))


@pytest.mark.parametrize("bad", [-2, 3])
def test_a_prediction_that_is_no_label_is_refused(bad):
    with pytest.raises(ValueError, match="label indices, 0 to 2"):
        vote_counts(np.array([[0, bad]]), 3)


@pytest.mark.parametrize("labels", [2, 5])
def test_the_interval_of_kappa_contains_it_if_no_two_templates_agree(labels):
    never = data_of(np.tile([0, 1], (30, 1)), num_labels=labels)
    low, high = METRICS["fleiss_kappa"].interval(never)
    assert low == pytest.approx(-1) == METRICS["fleiss_kappa"].value(never)
    assert -1 < high < 0


# Table 1 of Fleiss 1971: how many of six psychiatrists gave each of 30 patients each of five diagnoses.
FLEISS_1971 = """
00060 03003 01401 00006 03030 20400 00402 20310 20040 00006 10050 11040 03300 10050 02031
00501 30012 51000 02040 10203 00006 01050 02013 20040 10041 05010 40002 02040 10500 00006
"""


def test_kappa_of_the_diagnoses_of_fleiss_1971_is_the_printed_one():
    votes = [[label for label in range(5) for _ in range(int(row[label]))] for row in FLEISS_1971.split()]
    assert {len(row) for row in votes} == {6}
    shares = [oracle.share(votes, label) for label in range(5)]
    assert shares == pytest.approx([0.144, 0.144, 0.167, 0.306, 0.239], abs=5e-4), "the table's last line"
    assert fleiss_kappa(np.array(votes), 5) == pytest.approx(0.430, abs=5e-4)


def test_kappa_is_near_zero_by_chance_too_where_answers_are_no_label():
    predictions = random_predictions(4000, 6, 2)
    predictions[np.random.default_rng(5).random(predictions.shape) < 0.4] = -1
    assert fleiss_kappa(predictions, 2) == pytest.approx(0, abs=0.02)
    assert fleiss_kappa(np.full((3, 4), -1), 2) is None


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


def test_a_tie_of_the_ensemble_goes_to_the_first_label():
    for a, b, c in product(range(1, 7), repeat=3):
        rows = [(-a, -b), (-b, -c), (-c, -a), (-b, -a), (-c, -b), (-a, -c)]  # with the mirror image of each template
        assert Scores(np.array([rows], np.float32), np.array([0])).ensembled.predictions.tolist() == [[0]]


@pytest.mark.parametrize(
    ("probabilities", "vote"),
    [
        # Two votes each for labels 0 and 2, and label 2 is surer.
        ([[0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9], [0.0, 0.1, 0.9]], 2),
        # Two votes of four beat one, sure as it may be.
        ([[0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9]], 0),
        # Label 2 has the largest sum of probabilities but no vote.
        ([[0.51, 0.0, 0.49], [0.0, 0.51, 0.49]], 0),
    ],
)
def test_a_plurality_wins_and_the_sum_decides_only_between_tied_labels(probabilities, vote):
    with np.errstate(divide="ignore"):
        assert majority_vote(np.log([probabilities])).tolist() == [vote]


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
    for read in (majority_vote, lambda scores: Scores(scores, np.array([0]))):
        with pytest.raises(ValueError, match="log-probabilities"):
            read(np.array([[[-1.0, bad]]]))


def posix(scores):
    return METRICS["posix"].value(Scores(scores, np.full(len(scores), -1)))


@pytest.mark.parametrize("shape", [(9, 4, 3), (9, 2, 2), (1, 5, 4)])
def test_posix_equals_the_loop_over_pairs(shape):
    scores = generator(0, "tests/metrics/posix", *shape).normal(size=shape) * 2 - 3
    assert posix(scores) == pytest.approx(oracle.posix(scores.tolist()), rel=1e-12)


@pytest.mark.parametrize("probabilities", [[[0.9, 0.1]], [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.4, 0.6]]])
def test_there_is_no_posix_of_one_template_nor_with_an_answer_that_a_template_rules_out(probabilities):
    with np.errstate(divide="ignore"):
        assert posix(np.log([probabilities])) is None


def predictions_of(*shares, num_templates=4, num_instances=200):
    """Every template predicts the labels in these shares, each template on different instances."""
    random = generator(0, "tests/metrics/collapse", *(str(share) for share in shares))
    counts = np.round(np.array(shares) * num_instances).astype(int)
    column = np.repeat(np.arange(len(shares)), counts)
    return np.stack([random.permutation(column) for _ in range(num_templates)], axis=1)


def test_label_shares_equal_counting_cells():
    predictions = generator(0, "tests/metrics/shares").integers(3, size=(7, 4))
    shares = [label_shares(predictions, 5), *label_shares_per_template(predictions, 5)]
    parts = [predictions.tolist(), *([[row[v]] for row in predictions.tolist()] for v in range(4))]
    for found, cells in zip(shares, parts, strict=True):
        assert found.tolist() == pytest.approx([oracle.share(cells, label) for label in range(5)])


EVEN, SKEWED = np.arange(200) % 2, (np.arange(100) >= 96).astype(int)
# Three templates are always negative and one is always positive, as in a small model under some templates.
CONSTANT = np.tile([0, 0, 0, 1], (20, 1))
# Half of the instances are labelled: label 0 for all of them, and the others are answered evenly.
HALF = np.where(np.arange(40) < 20, 0, np.arange(40) % 2)[:, None].repeat(3, axis=1)


@pytest.mark.parametrize(
    ("predictions", "gold", "expected"),
    [
        (np.ones((60, 4), dtype=int), None, True),
        (np.ones((60, 4), dtype=int), np.arange(60) % 2, True),
        (SKEWED[:, None].repeat(5, axis=1), None, True),  # without gold labels it looks like a collapse
        (SKEWED[:, None].repeat(5, axis=1), SKEWED, False),
        (predictions_of(0.85, 0.15), None, False),
        (predictions_of(0.85, 0.15), EVEN, False),
        (predictions_of(0.92, 0.08), None, False),
        (predictions_of(0.92, 0.08), EVEN, True),  # gold labels rule out a skewed task
        (predictions_of(0.97, 0.03), None, True),
        (CONSTANT, None, True),
        (CONSTANT, np.arange(20) % 2, True),
        (CONSTANT, np.full(20, -1), True),
        (np.vstack([CONSTANT, [[0, 0, 0, 0]]]), None, False),
        (np.zeros((40, 3), dtype=int), np.where(np.arange(40) < 20, 0, -1), False),
        (HALF, np.where(np.arange(40) < 20, np.arange(40) % 2, -1), True),
        (np.zeros((0, 3), dtype=int), None, False),
        (np.zeros((9, 3), dtype=int), None, False),  # as likely by chance
        (HALF, np.where(np.arange(len(HALF)) < 9, 1 - HALF[:, 0], -1), False),  # too few gold labels say nothing
    ],
)
def test_a_model_has_collapsed_if_one_label_dominates_or_all_templates_are_constant(predictions, gold, expected):
    assert is_collapsed(predictions, 2, gold) is expected


@pytest.mark.parametrize(("others", "constant"), [(0, False), (9, False), (10, True), (50, True)])
def test_a_constant_template_is_right_if_the_gold_labels_are_nearly_all_that_label(others, constant):
    gold = np.array([0] * (100 - others) + [1] * others)
    predictions = np.tile([0, 1], (100, 1))
    assert constant_templates(predictions, gold).tolist() == [constant, True]
    assert is_collapsed(predictions[:, :1], 2, gold) is constant


def test_a_model_has_collapsed_if_a_label_is_exactly_10_points_too_frequent():
    predictions, gold = (np.arange(100)[:, None] < [95, 95]).astype(int), (np.arange(100) < 85).astype(int)
    assert is_collapsed(predictions, 2, gold)


def test_drift_is_the_share_of_predictions_that_must_have_changed():
    before, after = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.6, 0.0])
    assert share_drift(before, after) == share_drift(after, before) == pytest.approx(0.3)
