"""Offsets take a template's preference for a label out of its scores, to the shares that are assumed."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.metrics import (
    batch_offsets,
    check_prior,
    find_offsets,
    label_shares_per_template,
    offsets_that_change,
    prior_offsets,
)
from tests.metrics import oracle


@st.composite
def scores_and_prior(draw):
    """Scores of any confidence, a preference per template in them, and a prior that whole instances can have."""
    num_labels, num_templates = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(1, 7), min_size=num_labels, max_size=num_labels))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = random.normal(size=(sum(counts), num_templates, num_labels)) * draw(st.sampled_from((0.01, 1, 30)))
    return scores + 2 * random.normal(size=scores.shape[1:]), [count / sum(counts) for count in counts]


@given(scores_and_prior())
def test_batch_calibration_is_that_of_slow_loops(drawn):
    scores, prior = drawn
    np.testing.assert_allclose(batch_offsets(scores), oracle.batch_offsets(scores.tolist()), atol=1e-9)
    found = batch_offsets(scores[:3], prior)
    np.testing.assert_allclose(found, oracle.batch_offsets(scores[:3].tolist(), prior), atol=1e-9)
    np.testing.assert_allclose(batch_offsets(scores, [1 / len(prior)] * len(prior)), batch_offsets(scores), atol=1e-12)


@settings(max_examples=10)
@given(scores_and_prior())
def test_offsets_have_mean_0_and_answers_follow_labels_and_instances(drawn):
    scores, prior = drawn
    order, labels = np.random.default_rng(1).permutation(len(scores)), np.arange(len(prior))[::-1]
    for find in (batch_offsets, prior_offsets):
        offsets = find(scores, prior)
        np.testing.assert_allclose(offsets.mean(axis=1), 0, atol=1e-9)
        answers = (scores + offsets).argmax(2)
        assert np.array_equal((scores + find(scores[order], prior)).argmax(2), answers)
        turned = scores[..., labels]
        assert np.array_equal(labels[(turned + find(turned, prior[::-1])).argmax(2)], answers)


@given(scores_and_prior())
def test_after_calibration_to_the_prior_each_templates_answers_have_its_shares(drawn):
    scores, prior = drawn
    once = scores + prior_offsets(scores, prior)
    np.testing.assert_allclose(label_shares_per_template(once.argmax(2), len(prior)), [prior] * scores.shape[1])
    assert not prior_offsets(once, prior).any(), "calibrating twice changes nothing"


@given(scores_and_prior().filter(lambda drawn: len(drawn[1]) == 2))
def test_of_two_labels_it_is_the_cut_at_a_quantile(drawn):
    scores, prior = drawn
    answers = (scores + prior_offsets(scores, prior)).argmax(2)
    for template in range(scores.shape[1]):
        assert set(np.flatnonzero(answers[:, template])) == oracle.quantile_cut(scores.tolist(), template, prior[1])


@pytest.mark.parametrize("prior", ["", "1", "0.5,x", "0.5,0.6", "0,1", "-0.5,1.5", "nan,1", [0.5], [0.2, 0.2]])
def test_what_is_no_prior_is_refused(prior):
    with pytest.raises(InputError, match=r"E-LABEL-PRIOR: .* such as 0\.3,0\.7"):
        check_prior(prior)


@pytest.mark.parametrize(("method", "prior", "words"), [("batch", [0.5, 0.5], "not of 3"), ("prior", None, "needs a")])
def test_a_prior_is_of_as_many_labels_and_needed_where_answers_get_its_shares(method, prior, words):
    scores = np.zeros((60, 1, 3))
    with pytest.raises(InputError, match=rf"E-LABEL-PRIOR: .* {words}"):
        find_offsets(method, scores, prior, lambda: scores)


def test_few_instances_are_said_to_be_few(caplog):
    caplog.set_level(logging.WARNING)
    scores = np.random.default_rng(0).normal(size=(50, 2, 2))
    find_offsets("contextual", scores[:2], None, lambda: scores[:3])
    find_offsets("batch", scores, None, lambda: scores)
    assert not caplog.records
    find_offsets("batch", scores[:49], None, lambda: scores)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["W-CALIBRATION-ROWS"]


def test_default_offsets_need_50_instances_probabilities_and_a_prediction_that_changes():
    random = np.random.default_rng(0)
    scores = random.normal(size=(50, 2, 2)) + np.array([[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(offsets_that_change(scores), batch_offsets(scores))
    assert offsets_that_change(scores[:49]) is None
    assert offsets_that_change(np.where(scores == scores.max(axis=2, keepdims=True), 0.0, -np.inf)) is None
    assert offsets_that_change(np.tile([[[-0.1, -3.0]], [[-3.0, -0.1]]], (25, 2, 1))) is None
