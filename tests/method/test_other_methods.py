"""The methods of other papers match slow loops, in value and gradient, and stay finite at extreme scores."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from examples.methods import adaptive, ensemble
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.method import METHODS, PAPER_METHODS
from flip_flop.method.algorithm import find_consensus
from tests.exact import EXACT
from tests.method import oracle
from tests.method.draws import LIMITS, PAPER, MadeInstance, random_of

LABEL_FREE = ("bct", "opct", "ssd", "ttrl", "cpc_grpo", "swarm_l2", "swarm_l1_l2", "marginal_entropy")
WITH_LABELS = ("supervised", "paft", "ppcl")
NAMES = (*LABEL_FREE, *WITH_LABELS)
# Templates and labels: never equally many.
SHAPES = st.sampled_from([(2, 3), (4, 3), (5, 2), (3, 6)])
CROSS_ENTROPIES = {"space": st.sampled_from(["vocab", "labels", "both"]), "reduction": st.sampled_from(["mean", "sum"])}


@dataclass
class ScoredInstance(MadeInstance):
    """An instance with scores as a leaf. The scores of the votes, from the base model, are separate."""

    leaf: torch.Tensor
    vote_scores: torch.Tensor
    token_counts: torch.Tensor
    gold: int | None
    id: str = "made"

    def __post_init__(self):
        self.decide(self.vote_scores, SimpleNamespace(**LIMITS))

    def scores(self):
        return self.leaf


def made(number, shape, name="bct", dtype=torch.float64):
    random = random_of("others", number)
    leaf, votes = (torch.tensor(random.normal(scale=2.0, size=shape) - 3.0, dtype=dtype) for _ in range(2))
    counts = torch.tensor(random.integers(1, 5, size=shape))
    gold = int(random.integers(shape[1])) if METHODS[name].uses_labels else None
    return ScoredInstance(leaf.requires_grad_(), votes, counts, gold, id=f"row {number}")


def config_of(clean=0, beta=0.7, **variant):
    return SimpleNamespace(clean_template=clean, ppcl_beta=beta, **(PAPER | {"swarm_pairs": "all"} | variant))


def terms_of(name, instance, config):
    terms = METHODS[name].loss(instance, config)
    torch.stack(list(terms.values())).sum().backward()
    return terms


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(
    number=st.integers(0, 2**31),
    shape=SHAPES,
    **CROSS_ENTROPIES,
)
def test_loss_and_gradient_match_the_loops(name, number, shape, space, reduction):
    instance, clean = made(number, shape, name), number % shape[0]
    case = {
        "clean": clean, "beta": 0.7, "cce_space": space, "cce_reduction": reduction, "gold": instance.gold,
        "vote_scores": instance.vote_scores.tolist(), "token_counts": instance.token_counts.tolist(),
        "consensus": int(instance.consensus.label),
        "drawn": {purpose: instance.random(purpose).permutation(shape[0]).tolist() for purpose in ("paft", "ppcl")},
    }  # fmt: skip
    loss, rows = getattr(oracle, name), instance.leaf.tolist()
    expected = [complex(value).real for value in loss(rows, rows, case)]
    slope = torch.tensor(oracle.gradient(lambda *both: sum(loss(*both, case)), rows), dtype=torch.float64)
    terms = terms_of(name, instance, config_of(clean, cce_space=space, cce_reduction=reduction))
    assert [value.item() for value in terms.values()] == pytest.approx(expected, rel=EXACT, abs=EXACT)
    # A divergence or a deviation is a difference of larger numbers, and its inverse multiplies the rounding.
    size = max(1.0, slope.abs().max().item()) * magnification(name, instance, case)
    torch.testing.assert_close(instance.leaf.grad, slope, rtol=0, atol=EXACT * size)


def magnification(name, instance, case):
    if name == "ppcl":
        return 1 + 1 / abs(oracle.ppcl_pair(instance.leaf.tolist(), case)[1])
    if name == "cpc_grpo":
        rows = instance.leaf.detach()
        return 1 + float((rows.abs().max() / (rows.sum(0) - rows).std(dim=1, correction=0).clamp_min(1e-4)).max())
    return 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_scores_have_finite_losses_and_gradients(name, dtype):
    rows = [[-1e4, -1e-6, -200.0], [-1e-6, -1e4, -200.0], [-90.0, -90.0, -90.0], [-1e-6, -3e4, -1e4]]
    for gold in range(3):
        leaf = torch.tensor(rows, dtype=dtype, requires_grad=True)
        votes = torch.tensor(rows[1:] + rows[:1])
        instance = ScoredInstance(leaf, votes, torch.ones(4, 3, dtype=torch.long), gold)
        for clean in range(4):
            leaf.grad = None
            terms = terms_of(name, instance, config_of(clean, cce_space="both"))
            assert all(value.isfinite() and value.dtype == torch.float32 for value in terms.values())
            assert leaf.grad.isfinite().all()


def test_ppcl_has_no_divergence_term_if_the_templates_agree():
    for dtype in (torch.float32, torch.float64):
        instance = made(3, (2, 5), "ppcl", dtype)
        instance.leaf.data[1] = instance.leaf.data[0] + 1  # equal distributions up to rounding
        terms = terms_of("ppcl", instance, config_of(beta=1.0))
        assert terms["ppcl_js"].item() == 0
        expected = torch.zeros(2, 5, dtype=dtype)
        expected[:, instance.gold] = -1
        assert torch.equal(instance.leaf.grad, expected)


def test_cpc_grpo_has_no_gradient_if_the_other_templates_prefer_no_label():
    instance = made(4, (3, 4), "cpc_grpo")
    instance.leaf.data[:] = torch.tensor([[-1.0], [-2.0], [-4.0]])
    terms = terms_of("cpc_grpo", instance, config_of())
    assert terms["cpc_grpo"].item() == 0
    assert not instance.leaf.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_targets_carry_no_gradient_into_the_scores_that_vote(name):
    instance = made(5, (4, 3), name)
    instance.vote_scores.requires_grad_()
    terms_of(name, instance, config_of())
    assert instance.vote_scores.grad is None


def test_ssd_skips_answers_that_cannot_be_read():
    instance = made(6, (4, 3), "ssd")
    instance.consensus = find_consensus(instance.vote_scores, torch.tensor([2, -1, 0, -1]))
    terms_of("ssd", instance, config_of(cce_space="vocab"))
    expected = torch.zeros(4, 3, dtype=torch.float64)
    expected[0, 2] = expected[2, 0] = -0.5
    assert torch.equal(instance.leaf.grad, expected)
    instance.consensus = find_consensus(instance.vote_scores, torch.full((4,), -1))
    assert METHODS["ssd"].loss(instance, config_of()) == {}


def test_random_templates_are_drawn_by_instance_and_never_the_clean_one():
    seen = {"paft": set(), "ppcl": set()}
    for number in range(40):
        for name in seen:
            instance = made(number, (4, 3), name)
            terms_of(name, instance, config_of(clean=2))
            seen[name].add(tuple(instance.leaf.grad.any(dim=1).nonzero().flatten().tolist()))
    assert seen["paft"] == {(0,), (1,), (2,), (3,)}
    assert seen["ppcl"] == {(0, 2), (1, 2), (2, 3)}


def test_titles_mark_the_methods_that_use_labels_and_colours_differ():
    marked = {name for name, method in METHODS.items() if "(labels)" in method.title}
    assert marked == {name for name, method in METHODS.items() if method.uses_labels} == set(WITH_LABELS)
    assert len({method.colour for method in METHODS.values()}) == len(METHODS)
    of_f2c = {f"{name}{suffix}" for name in PAPER_METHODS for suffix in ("", "_release")}
    assert set(NAMES) == METHODS.keys() - of_f2c


def test_the_ensemble_of_the_examples_is_a_cross_entropy_to_the_mean_of_the_votes(monkeypatch):
    monkeypatch.setattr(ensemble, "f2c_terms", lambda instance, config: {})
    instance = made(7, (4, 3))
    votes, rows = ([oracle.softmax(row) for row in scores.tolist()] for scores in (instance.vote_scores, instance.leaf))
    mean = [sum(row[label] for row in votes) / 4 for label in range(3)]
    expected = -sum(mean[label] * math.log(row[label]) for row in rows for label in range(3)) / 4
    assert ensemble.ensemble_terms(instance, config_of())["ensemble"].item() == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 10_000), SHAPES)
@settings(max_examples=50, deadline=None)
def test_the_adaptive_method_of_the_examples_splits_templates_below_the_largest_gap_of_margins(number, shape):
    instance = made(number, shape)
    label = int(instance.consensus.label)
    margins = [row[label] - max(row[:label] + row[label + 1 :]) for row in instance.vote_scores.tolist()]
    ordered = sorted(margins, reverse=True)
    gaps = {size: ordered[size - 1] - ordered[size] for size in range(2, len(ordered))}
    size = max(gaps, key=gaps.get, default=2)
    assert adaptive.adaptive_size(instance.vote_scores, label) == size
    weights = {"cce_weight": 1.0, "jsd_weight": 0.5, "labels_weight": 1.0}
    config = config_of(**LIMITS | weights | {"divergence_space": "labels"})
    fixed = made(number, shape)
    fixed.decide(fixed.vote_scores, SimpleNamespace(**LIMITS | {"max_cc_size": size}))
    expected = METHODS["f2c"].loss(fixed, config)
    assert adaptive.adaptive_terms(instance, config) == expected
    assert config.max_cc_size == LIMITS["max_cc_size"]
