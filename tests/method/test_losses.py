"""Equations 7 to 9, the swarm loss and Theorem A.1, and the divergences."""

import functools
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from flip_flop.method.algorithm import TemplateSplit, find_consensus, label_log_probs, split_templates
from flip_flop.method.divergences import aggregate_answer_log_probs, kl_divergence, mixture_log_probs
from flip_flop.method.losses import cce_loss, f2c_loss, flip_loss, jsd_loss
from flip_flop.method.others import swarm_loss, swarm_teachers
from tests.method import oracle
from tests.method.draws import LIMITS, log_distributions, random_of, scores_for_votes, vote_patterns

WEIGHTS = {"cce_weight": 0.7, "jsd_weight": 1.3}


def split_with(case, cc, nc, flip_weight, num_templates):
    cc_mask, nc_mask = torch.zeros(2, num_templates, dtype=torch.bool)
    cc_mask[list(cc)] = True
    nc_mask[list(nc)] = True
    return TemplateSplit(case, cc_mask, nc_mask, flip_weight)


NO_CONSENSUS = split_with(1, [], [], 0.0, 5)
CONFIDENT = split_with(2, range(5), [], 0.0, 5)
SPLIT = split_with(3, [0, 3], [1, 2, 4], 0.6, 5)


def instance(*keys, vocab=11, dtype=torch.float64):
    random = random_of(*keys)
    nll = torch.tensor(random.uniform(0.1, 4, size=5), dtype=dtype, requires_grad=True)
    return nll, log_distributions(random, 5, vocab, dtype=dtype).requires_grad_()


def total(loss):
    return sum(loss.values())


def test_a_worked_example():
    # CC: (.8, .2) and (.4, .6), mixture (.6, .4). NC: (.3, .7).
    # JSD: half of .8 log(8/6) + .2 log(2/4) = .0915162 and half of .4 log(4/6) + .6 log(6/4) = .0810930.
    # Flip: .5 * (.3 log(3/6) + .7 log(7/4)) = .5 * .1837868. CCE: the mean of .2, .9 and 1.2.
    log_probs = torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.4, 0.6]]).log()
    split = split_with(3, [0, 2], [1], 0.5, 3)
    loss = f2c_loss(torch.tensor([0.2, 1.2, 0.9]), log_probs, split, cce_weight=1.0, jsd_weight=1.0)
    assert loss["cce"].item() == pytest.approx(2.3 / 3, abs=1e-6)
    assert loss["jsd"].item() == pytest.approx(0.0863046, abs=1e-6)
    assert loss["flip"].item() == pytest.approx(0.0918934, abs=1e-6)


@pytest.mark.parametrize("poison", [0.0, math.inf, math.nan])
def test_case_1_applies_no_loss_and_no_gradient(poison):
    nll, log_probs = instance("case 1")
    with torch.no_grad():
        nll[1] += poison
        log_probs[2] -= poison
    loss = f2c_loss(nll, log_probs, NO_CONSENSUS, **WEIGHTS)
    assert [loss["cce"].item(), loss["jsd"].item(), loss["flip"].item(), total(loss).item()] == [0.0] * 4
    total(loss).backward()
    assert torch.equal(nll.grad, torch.zeros_like(nll))
    assert torch.equal(log_probs.grad, torch.zeros_like(log_probs))


def test_a_weight_of_zero_is_exactly_zero_even_where_the_term_is_infinite():
    assert cce_loss(torch.tensor([math.inf, 1.0]), weight=0.0).item() == 0.0
    assert jsd_loss(torch.full((2, 3), math.nan), weight=0.0).item() == 0.0


def test_agreement_of_no_template_is_exactly_zero():
    assert jsd_loss(torch.zeros(0, 40), weight=2.0).item() == 0.0


def test_equation_9_is_zero_where_nc_already_equals_the_cc_mixture():
    one = log_distributions(random_of("arrived"), 1, 11, dtype=torch.float32)
    assert flip_loss(one.repeat(5, 1), SPLIT).item() == 0.0


@pytest.mark.parametrize("split", [CONFIDENT, SPLIT], ids=["2", "3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_give_no_nan_in_losses_or_gradients(split, dtype):
    one_hot = torch.full((5, 11), -1e4)
    one_hot[torch.arange(5), torch.tensor([0, 3, 0, 7, 10])] = 1e4
    impossible = torch.zeros(5, 11)
    impossible[:, 2] = -math.inf
    for rows in (one_hot, impossible, torch.zeros(5, 11)):
        logits = rows.to(dtype).requires_grad_()
        log_probs = logits.log_softmax(dim=-1)
        loss = f2c_loss(-log_probs[:, 0], log_probs, split, **WEIGHTS)
        assert total(loss).dtype == torch.float32
        assert total(loss).isfinite()
        assert min(loss["cce"].item(), loss["jsd"].item(), loss["flip"].item()) >= -1e-6
        total(loss).backward()
        assert logits.grad.isfinite().all()


def test_equation_7_counts_skipped_instances_so_any_split_of_a_batch_adds_up():
    random = random_of("batch")
    scores = [scores_for_votes(votes, 3, random).requires_grad_() for votes in vote_patterns()[:40]]
    settings = SimpleNamespace(**LIMITS)

    def loss(rows):
        split = split_templates(rows, settings)
        nll = -rows[:, find_consensus(rows).label]
        return total(f2c_loss(nll, label_log_probs(rows), split, **WEIGHTS))

    whole = torch.stack([loss(rows) for rows in scores]).mean()
    parts = [torch.stack([loss(rows) for rows in scores[i : i + 8]]).sum() for i in range(0, 40, 8)]
    assert (sum(parts) / 40).item() == pytest.approx(whole.item(), rel=1e-12)


# ---- Swarm ----


@pytest.mark.parametrize("teachers", [[[1], [2], [3], [4], [0]], [[1, 2], [0, 4], [4, 3], [0, 1], [2, 0]]])
def test_the_loss_is_the_cross_entropy_of_each_student_with_its_fixed_teachers(teachers):
    scores = (log_distributions(random_of("scores"), 5, 3) - 0.4).requires_grad_()
    rows = [oracle.average([oracle.softmax(scores[teacher].tolist()) for teacher in group]) for group in teachers]
    targets = torch.tensor(rows, dtype=torch.float64)
    loss = swarm_loss(scores, torch.tensor(teachers))
    loss.backward()
    assert loss.item() == pytest.approx(-(targets * scores).sum().item() / 5, rel=1e-12)
    torch.testing.assert_close(scores.grad, -targets / 5, rtol=0, atol=1e-12)


def test_a_score_is_read_as_it_stands_and_not_renormalised_over_the_labels():
    scores = log_distributions(random_of("shift"), 4, 3)
    teachers = torch.tensor([[1], [2], [3], [0]])
    assert swarm_loss(scores - 2, teachers).item() == pytest.approx(swarm_loss(scores, teachers).item() + 2)


def test_theorem_a1_all_pairs_pull_every_student_toward_the_same_average():
    logits = torch.tensor(random_of("all pairs").normal(size=(5, 3)), requires_grad=True)
    loss = swarm_loss(label_log_probs(logits), swarm_teachers(5, pairs="all"))
    average = mixture_log_probs(label_log_probs(logits)).detach()
    to_average = kl_divergence(average, label_log_probs(logits)).mean()
    (left,) = torch.autograd.grad(loss, logits)
    (right,) = torch.autograd.grad(to_average, logits)
    assert torch.allclose(left, right, atol=1e-14, rtol=0)
    # The loss is that KL plus the average's entropy, which no student can change.
    entropy = -(average.exp() * average).sum()
    assert loss.item() == pytest.approx((to_average + entropy).item(), rel=1e-12)


def test_a_label_that_nobody_gives_any_probability_costs_nothing():
    scores = torch.tensor([[-0.5, -1.0, -math.inf], [-0.2, -2.0, -math.inf]], requires_grad=True)
    loss = swarm_loss(scores, torch.tensor([[1], [0]]))
    loss.backward()
    assert loss.isfinite()
    assert scores.grad.isfinite().all()


def test_the_loss_is_computed_in_float32_at_least():
    scores = log_distributions(random_of("half"), 4, 3).to(torch.bfloat16)
    assert swarm_loss(scores, swarm_teachers(4, pairs="all")).dtype == torch.float32


@pytest.mark.parametrize("num_templates", [2, 3, 4, 15])
def test_in_a_derangement_everyone_teaches_one_other_and_learns_from_one_other(num_templates):
    for draw in range(20):
        teachers = swarm_teachers(num_templates, seed_generator=random_of("draw", draw))
        assert teachers.shape == (num_templates, 1)
        assert teachers.dtype == torch.int64
        assert sorted(teachers.flatten().tolist()) == list(range(num_templates))
        assert (teachers[:, 0] != torch.arange(num_templates)).all()


def test_every_derangement_is_equally_likely():
    random = random_of("uniform")
    draws = 2700
    seen = Counter(tuple(swarm_teachers(4, seed_generator=random).flatten().tolist()) for _ in range(draws))
    assert len(seen) == 9
    assert max(abs(count - draws / 9) for count in seen.values()) < 5 * math.sqrt(draws / 9)


@pytest.mark.parametrize("pairs", ["derangement", "all"])
def test_a_single_template_has_nobody_to_learn_from(pairs):
    with pytest.raises(ValueError, match="two templates or more"):
        swarm_teachers(1, pairs=pairs, seed_generator=random_of("one"))


def test_a_derangement_without_a_generator_is_refused():
    with pytest.raises(ValueError, match="pass the generator"):
        swarm_teachers(4)


# ---- divergences ----


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
