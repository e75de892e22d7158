import math
from collections import Counter

import pytest
import torch

from flip_flop.method import kl_divergence, label_log_probs, mixture_log_probs, swarm_loss, swarm_teachers
from tests.method import oracle
from tests.method.draws import log_distributions, random_of


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
