import numpy as np
import pytest

from flip_flop.metrics import METRICS, EvalData
from flip_flop.randomness import generator
from tests.metrics import oracle


def posix(scores):
    return METRICS["posix"].value(EvalData(scores, np.full(len(scores), -1)))


@pytest.mark.parametrize("shape", [(9, 4, 3), (9, 2, 2), (1, 5, 4)])
def test_posix_equals_the_loop_over_pairs(shape):
    scores = generator(0, "tests/metrics/posix", *shape).normal(size=shape) * 2 - 3
    assert posix(scores) == pytest.approx(oracle.posix(scores.tolist()), rel=1e-12)


def test_templates_with_the_same_label_probabilities_are_not_sensitive_however_likely_their_words():
    scores = np.log([[[0.7, 0.3], [0.07, 0.03]]])
    assert posix(scores) == pytest.approx(0, abs=1e-15)
    assert posix(scores[:, :, ::-1]) == pytest.approx(0, abs=1e-15)


def test_posix_sees_doubt_that_agreement_does_not():
    sure, unsure = np.log([[[0.9, 0.1], [0.9, 0.1]]]), np.log([[[0.9, 0.1], [0.55, 0.45]]])
    assert posix(sure) == 0.0
    assert posix(unsure) == pytest.approx(np.log(0.9 / 0.55))


def test_there_is_no_posix_of_one_template_nor_with_an_answer_that_a_template_rules_out():
    assert posix(np.log([[[0.9, 0.1]]])) is None
    with np.errstate(divide="ignore"):
        assert posix(np.log([[[1.0, 0.0], [0.0, 1.0]]])) is None
        assert posix(np.log([[[0.0, 0.0], [0.4, 0.6]]])) is None
