import itertools

import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import (
    METRICS,
    instance_agreement,
    lacks_consensus,
    observed_agreement,
    template_agreement_matrix,
    vote_counts,
)
from tests.metrics import oracle
from tests.metrics.made_data import data_of

# Instances, templates, labels: with fewer templates than labels and with more.
SHAPES = [(7, 4, 3), (7, 3, 4), (1, 2, 3), (30, 15, 2), (11, 8, 4)]


def no_consensus_share(predictions):
    return METRICS["no_consensus_share"].value(data_of(predictions, num_labels=4))


def fleiss_kappa(predictions, num_labels=4):
    return METRICS["fleiss_kappa"].value(data_of(predictions, num_labels=num_labels))


def random_predictions(num_instances, num_templates, num_labels):
    random = generator(0, "tests/metrics/agreement", num_instances, num_templates, num_labels)
    return random.integers(num_labels, size=(num_instances, num_templates))


def test_equation_11_holds_for_all_votes_of_five_templates_on_three_labels():
    patterns = np.array(list(itertools.product(range(3), repeat=5)))
    agreement = instance_agreement(patterns)
    assert agreement.dtype == np.float64
    assert agreement.tolist() == pytest.approx([oracle.agreement_of_instance(row) for row in patterns.tolist()])
    assert no_consensus_share(patterns) == pytest.approx(oracle.no_consensus_share(patterns.tolist()))


@pytest.mark.parametrize("shape", SHAPES)
def test_agreement_equals_counting_every_pair_and_votes_every_label(shape):
    predictions = random_predictions(*shape)
    rows = predictions.tolist()
    assert vote_counts(predictions, shape[2]).tolist() == [[row.count(c) for c in range(shape[2])] for row in rows]
    assert observed_agreement(predictions) == pytest.approx(oracle.observed_agreement(rows), abs=1e-14)
    assert no_consensus_share(predictions) == pytest.approx(oracle.no_consensus_share(rows), abs=1e-14)
    assert METRICS["observed_agreement"].value(data_of(predictions, num_labels=4)) == observed_agreement(predictions)


def test_a_single_template_has_no_agreement_and_no_consensus():
    one = random_predictions(7, 1, 3)
    assert instance_agreement(one) is None
    assert lacks_consensus(one) is None
    assert fleiss_kappa(one) is None
    assert observed_agreement(one) is None
    assert no_consensus_share(one) is None


def test_no_instances_have_no_agreement():
    none = np.zeros((0, 4), dtype=int)
    assert observed_agreement(none) is None
    assert no_consensus_share(none) is None
    assert fleiss_kappa(none) is None
    assert vote_counts(none, 3).shape == (0, 3)
    with pytest.raises(ValueError, match="without instances"):
        template_agreement_matrix(none)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_matrix_compares_every_two_templates_and_averages_to_observed_agreement(shape):
    predictions = random_predictions(*shape)
    matrix = template_agreement_matrix(predictions)
    num_templates = shape[1]
    for u in range(num_templates):
        for v in range(num_templates):
            assert matrix[u, v] == pytest.approx(oracle.template_agreement(predictions.tolist(), u, v))
    assert (matrix == matrix.T).all()
    assert (np.diag(matrix) == 1).all()
    off_diagonal = matrix[~np.eye(num_templates, dtype=bool)]
    assert off_diagonal.mean() == pytest.approx(observed_agreement(predictions))


@pytest.mark.parametrize("bad", [-2, 3])
def test_a_prediction_that_is_no_label_is_refused(bad):
    with pytest.raises(ValueError, match="label indices, 0 to 2"):
        vote_counts(np.array([[0, bad]]), 3)


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


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] > 1])
def test_kappa_equals_the_loop(shape):
    predictions = random_predictions(*shape)
    assert fleiss_kappa(predictions) == pytest.approx(oracle.fleiss_kappa(predictions.tolist()), abs=1e-13)


def test_kappa_is_near_zero_by_chance_too_where_answers_are_no_label():
    predictions = random_predictions(4000, 6, 2)
    predictions[np.random.default_rng(5).random(predictions.shape) < 0.4] = -1
    assert fleiss_kappa(predictions, 2) == pytest.approx(0, abs=0.02)
    assert fleiss_kappa(np.full((3, 4), -1), 2) is None
