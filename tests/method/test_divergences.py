import functools
import math

import pytest
import torch

from flip_flop.method import (
    aggregate_answer_log_probs,
    jsd_loss,
    kl_divergence,
    mixture_log_probs,
)
from tests.method import oracle
from tests.method.draws import log_distributions, random_of

NEVER = -math.inf


# Eq. 8 without its factor.
jensen_shannon = functools.partial(jsd_loss, weight=1.0)


def logs(*probs):
    return torch.tensor(probs, dtype=torch.float64).log()


def test_kl_divergence_of_random_distributions_equals_the_loop():
    log_p, log_q = log_distributions(random_of("p"), 6, 11), log_distributions(random_of("q"), 6, 11)
    expected = [oracle.kl(p, q) for p, q in zip(log_p.tolist(), log_q.tolist(), strict=True)]
    assert kl_divergence(log_p, log_q).tolist() == pytest.approx(expected, rel=1e-12)
    rounding = 2**-22 * float(log_p.abs().max() + log_q.abs().max())  # of float32 logarithms, weighted with p
    assert kl_divergence(log_p.float(), log_q.float()).tolist() == pytest.approx(expected, rel=0, abs=rounding)


def test_kl_divergence_takes_leading_axes_and_broadcasts_them():
    log_p, log_q = log_distributions(random_of("p"), 2, 3, 7), log_distributions(random_of("q"), 3, 7)
    divergences = kl_divergence(log_p, log_q)
    assert divergences.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert torch.equal(divergences[i, j], kl_divergence(log_p[i, j], log_q[j]))
    assert kl_divergence(log_p, log_q[0]).shape == (2, 3)


def test_an_outcome_of_probability_zero_under_p_adds_nothing_to_kl_divergence():
    assert kl_divergence(logs(1.0, 0.0, 0.0), logs(0.25, 0.75, 0.0)).item() == pytest.approx(math.log(4))
    assert kl_divergence(logs(0.0, 1.0), logs(0.0, 1.0)).item() == 0.0
    # Too small for its dtype is zero as well, and not 0 * inf.
    assert kl_divergence(torch.tensor([0.0, -1e4]), torch.tensor([0.0, NEVER])).item() == 0.0


def test_an_outcome_of_probability_zero_under_q_alone_makes_kl_divergence_infinite():
    assert kl_divergence(logs(0.5, 0.5), logs(1.0, 0.0)).item() == math.inf


def test_kl_divergence_has_finite_gradients_where_a_probability_is_zero():
    log_p, log_q = logs(0.5, 0.5, 0.0, 0.0).requires_grad_(), logs(0.25, 0.5, 0.25, 0.0).requires_grad_()
    kl_divergence(log_p, log_q).backward()
    assert log_p.grad.tolist() == pytest.approx([0.5 * (math.log(2) + 1), 0.5, 0.0, 0.0])
    assert log_q.grad.tolist() == pytest.approx([-0.5, -0.5, 0.0, 0.0])


def test_the_mixture_is_the_average_in_probability_space():
    log_probs = log_distributions(random_of("mixture"), 4, 9)
    assert mixture_log_probs(log_probs).tolist() == pytest.approx(oracle.mixture(log_probs.tolist()), abs=1e-14)


def test_the_mixture_keeps_what_probability_space_would_lose():
    far = torch.tensor([[0.0, -1e4], [0.0, -1e4 + math.log(3)]])
    assert mixture_log_probs(far).tolist() == pytest.approx([0.0, -1e4 + math.log(2)], abs=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_jensen_shannon_divergence_equals_the_loop(size):
    log_probs = log_distributions(random_of("jsd", size), size, 11)
    expected = oracle.jsd(log_probs.tolist())
    assert jensen_shannon(log_probs).item() == pytest.approx(expected, rel=1e-10, abs=1e-15)
    rounding = 2**-21 * float(log_probs.abs().max())  # of float32 logarithms, weighted with each distribution
    assert jensen_shannon(log_probs.float()).item() == pytest.approx(expected, rel=0, abs=rounding)


def test_the_jensen_shannon_divergence_of_equal_distributions_is_exactly_zero():
    for size in range(1, 16):
        one = log_distributions(random_of("zero", size), 1, 1000, dtype=torch.float32)
        log_probs = one.repeat(size, 1).requires_grad_()
        divergence = jensen_shannon(log_probs)
        assert divergence.item() == 0.0
        divergence.backward()
        assert log_probs.grad.abs().max() < 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_divergences_of_half_precision_are_computed_in_float32(dtype):
    log_probs = log_distributions(random_of("half"), 3, 40).to(dtype)
    for function in (mixture_log_probs, jensen_shannon, aggregate_answer_log_probs):
        assert function(log_probs).dtype == torch.float32
        assert torch.equal(function(log_probs), function(log_probs.float()))
    assert torch.equal(kl_divergence(log_probs[0], log_probs[1]), kl_divergence(*log_probs[:2].float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "logits",
    [
        [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]],
        [[1e4, 1e4, 1e4], [0.0, 0.0, 0.0]],
        [[0.0, NEVER, 1.0], [2.0, NEVER, 0.0]],
        [[0.0, NEVER, NEVER], [NEVER, NEVER, 0.0]],
        [[1e4, NEVER, 0.0], [0.0, 1e4, NEVER]],
    ],
)
def test_extreme_logits_give_no_nan_in_divergences_or_gradients(logits, dtype):
    leaf = torch.tensor(logits, dtype=dtype, requires_grad=True)
    log_probs = leaf.log_softmax(dim=-1)
    divergence = jensen_shannon(log_probs)
    assert -1e-6 <= divergence.item() <= math.log(2) + 1e-6
    (divergence + kl_divergence(log_probs[0], mixture_log_probs(log_probs))).backward()
    assert leaf.grad.isfinite().all()
    assert not kl_divergence(log_probs[0], log_probs[1]).isnan()


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one distribution"):
        mixture_log_probs(torch.zeros(0, 5))


# ---- an answer of several tokens as one distribution ----

READINGS = ["mean_log_prob", "mean_prob"]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("positions", [1, 2, 3, 64])
def test_an_answer_is_aggregated_over_its_positions(reading, positions):
    token_log_probs = log_distributions(random_of("answer", positions), positions, 13)
    expected = oracle.aggregate(token_log_probs.tolist(), reading)
    assert aggregate_answer_log_probs(token_log_probs, reading=reading).tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("positions", [1, 2, 5])
def test_an_aggregated_answer_is_a_distribution_even_over_a_large_vocabulary(reading, positions):
    token_log_probs = log_distributions(random_of("mass"), positions, 30_000, dtype=torch.float32, scale=3.0)
    result = aggregate_answer_log_probs(token_log_probs, reading=reading).double()
    # Each log-probability is a few float32 roundings off; rounding errors of 30,000 outcomes partly cancel.
    assert result.exp().sum().item() == pytest.approx(1, abs=4 * 2**-24 * float(result.abs().max()))


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
def test_an_answer_without_tokens_is_refused(reading):
    with pytest.raises(ValueError, match="at least one token"):
        aggregate_answer_log_probs(torch.zeros(0, 5), reading=reading)
