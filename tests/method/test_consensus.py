import math

import pytest
import torch

from flip_flop.method import find_consensus, label_log_probs
from tests.method import oracle
from tests.method.draws import random_of, scores_for_votes, vote_patterns


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_equations_3_to_5_hold_for_all_votes_of_five_templates_on_three_labels(dtype):
    random = random_of("consensus")
    for votes in vote_patterns():
        scores = scores_for_votes(votes, 3, random).to(dtype)
        predictions, counts, label, exists = oracle.consensus(scores.tolist())
        result = find_consensus(scores)
        assert result.predictions.tolist() == predictions
        assert result.vote_counts.tolist() == counts
        assert result.label.item() == label
        assert result.exists.item() == exists
        if dtype != torch.bfloat16:  # which rounds small margins to ties
            assert predictions == list(votes)


def test_equation_3_gives_a_tie_of_scores_to_the_lowest_label_index():
    scores = torch.tensor([[-1.0, -1.0, -1.0, -2.0], [-3.0, -2.0, -2.0, -2.0], [-2.0, -9.0, -3.0, -2.0]])
    assert find_consensus(scores).predictions.tolist() == [0, 1, 0]


def test_equation_5_asks_for_a_strict_majority_so_an_exact_half_is_no_consensus():
    half = torch.tensor([[0.0, -1.0, -1.0]] * 2 + [[-1.0, 0.0, -1.0]] + [[-1.0, -1.0, 0.0]])
    result = find_consensus(half)
    assert result.vote_counts.tolist() == [2, 1, 1]
    assert not result.exists
    assert result.label == 0, "without a majority, label has the most votes"


def test_instances_of_a_batch_do_not_influence_each_other():
    scores = torch.tensor(random_of("batch").normal(size=(2, 3, 5, 4)))
    result = find_consensus(scores)
    for i in range(2):
        for j in range(3):
            alone = find_consensus(scores[i, j])
            for name in ("predictions", "vote_counts", "label", "exists"):
                assert torch.equal(getattr(result, name)[i, j], getattr(alone, name)), name


def test_a_probability_of_zero_is_a_score_and_nan_is_none():
    assert find_consensus(torch.tensor([[-math.inf, -5.0]])).label == 1
    with pytest.raises(ValueError, match="NaN"):
        find_consensus(torch.tensor([[math.nan, -5.0], [-1.0, -2.0], [-1.0, -2.0]]))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_equation_14_is_the_softmax_of_the_scores(scale):
    scores = torch.tensor(random_of("softmax").normal(size=(2, 5, 3)) * scale)
    log_probs = label_log_probs(scores)
    for i in range(2):
        for v in range(5):
            expected = oracle.softmax(scores[i, v].tolist())
            assert log_probs[i, v].exp().tolist() == pytest.approx(expected, rel=1e-12, abs=1e-300)
    assert log_probs.isfinite().all()


def test_label_probabilities_are_computed_in_float32_at_least():
    assert label_log_probs(torch.zeros(2, 3, dtype=torch.bfloat16)).dtype == torch.float32
    assert label_log_probs(torch.zeros(2, 3, dtype=torch.float16)).dtype == torch.float32
    assert label_log_probs(torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float64
