import math

import pytest
import torch

from flip_flop.method import (
    SplitSettings,
    TemplateSplit,
    cce_loss,
    f2c_loss,
    find_consensus,
    flip_loss,
    jsd_loss,
    label_log_probs,
    split_templates,
)
from tests.method.draws import log_distributions, random_of, scores_for_votes, vote_patterns

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
    settings = SplitSettings(1.0, max_cc_size=3, flip_weight_min=0.2, flip_weight_max=0.8, flip_temperature=0.5)

    def loss(rows):
        split = split_templates(rows, settings)
        nll = -rows[:, find_consensus(rows).label]
        return total(f2c_loss(nll, label_log_probs(rows), split, **WEIGHTS))

    whole = torch.stack([loss(rows) for rows in scores]).mean()
    parts = [torch.stack([loss(rows) for rows in scores[i : i + 8]]).sum() for i in range(0, 40, 8)]
    assert (sum(parts) / 40).item() == pytest.approx(whole.item(), rel=1e-12)
