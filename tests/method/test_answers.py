import math

import pytest
import torch
from torch.autograd import gradcheck

from flip_flop.method import aggregate_answer_log_probs, kl_divergence
from tests.method import oracle
from tests.method.draws import log_distributions, random_of

READINGS = ["mean_log_prob", "mean_prob"]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("positions", [1, 2, 3, 64])
def test_an_answer_is_aggregated_over_its_positions(reading, positions):
    token_log_probs = log_distributions(random_of("answer", positions), positions, 13)
    expected = oracle.aggregate(token_log_probs.exp().tolist(), reading)
    found = aggregate_answer_log_probs(token_log_probs, reading=reading)
    assert found.exp().tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("positions", [1, 2, 5])
def test_an_aggregated_answer_is_a_distribution_even_over_a_large_vocabulary(reading, positions):
    token_log_probs = log_distributions(random_of("mass"), positions, 30_000, dtype=torch.float32, scale=3.0)
    found = aggregate_answer_log_probs(token_log_probs, reading=reading).double()
    # Each log-probability is a few float32 roundings off; rounding errors of 30,000 outcomes partly cancel.
    assert found.exp().sum().item() == pytest.approx(1, abs=4 * 2**-24 * float(found.abs().max()))


def test_without_renormalisation_a_divergence_of_mean_log_probabilities_would_be_negative():
    p = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()  # the mean has a mass of .3 + .3 only
    q = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()
    assert kl_divergence(p.mean(dim=0), q.mean(dim=0)) < -0.2
    assert kl_divergence(aggregate_answer_log_probs(p), aggregate_answer_log_probs(q)) > 0


@pytest.mark.parametrize("reading", READINGS)
def test_aggregation_gradient_equals_finite_differences(reading):
    logits = log_distributions(random_of("gradient"), 3, 5).requires_grad_()
    assert gradcheck(lambda x: aggregate_answer_log_probs(x.log_softmax(-1), reading=reading), (logits,))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "logits", [[[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], [[-math.inf, 1.0, 0.0], [-math.inf, 0.0, 9.0]]]
)
def test_extreme_logits_give_no_nan_in_answers_or_gradients(logits, reading):
    leaf = torch.tensor(logits, requires_grad=True)
    log_probs = aggregate_answer_log_probs(leaf.log_softmax(-1), reading=reading)
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-6)
    kl_divergence(log_probs, torch.full((3,), 1 / 3).log()).backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("reading", READINGS)
def test_answers_in_half_precision_are_aggregated_in_float32(reading):
    token_log_probs = log_distributions(random_of("half"), 3, 7).to(torch.bfloat16)
    found = aggregate_answer_log_probs(token_log_probs, reading=reading)
    assert found.dtype == torch.float32
    assert torch.equal(found, aggregate_answer_log_probs(token_log_probs.float(), reading=reading))


@pytest.mark.parametrize("reading", READINGS)
def test_an_answer_without_tokens_is_refused(reading):
    with pytest.raises(ValueError, match="at least one token"):
        aggregate_answer_log_probs(torch.zeros(0, 5), reading=reading)
