"""The losses of the paper with each open choice, and of the release, match loops in values and gradients."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.method import METHODS
from tests.exact import EXACT
from tests.method import oracle
from tests.method.draws import LIMITS, PAPER, LogitInstance, random_of

NUMBERS = {"tau": 0.5, "k_max": 3, "f_min": 0.2, "f_max": 0.9, "t": 0.6}
# The paper's loss with each choice that it leaves open, and our extensions.
F2C_READINGS = [
    {},
    {"bound": "group"},
    {"cce_reduction": "sum", "answer_aggregation": "mean_prob"},
    {"divergence_space": "labels"},
    {"divergence_space": "both"},
]
# The loss of the release, which has a distribution per position.
RELEASE_READINGS = [
    {},
    {"bound": "group"},
    {"bound": "group", "cce_reduction": "sum"},
    {"divergence_space": "labels"},
    {"divergence_space": "both", "bound": "group"},
]
SPACE_WEIGHTS = {"vocab_weight": 0.6, "labels_weight": 1.7}


def made(number, num_templates):
    """Logits over 7 tokens, 3 labels, answers of one to 4 tokens of which some have more positions than the others."""
    random = random_of("readings", number)
    lengths = random.integers(1, 5, size=(num_templates, 3))
    logits = [[(1.5 * random.normal(size=(n, 7))).tolist() for n in row] for row in lengths]
    targets = [[random.integers(7, size=n).tolist() for n in row] for row in lengths]
    # Votes of every kind: few instances of random answers have a consensus.
    favourite, strength = int(random.integers(3)), random.choice([0.0, 2.0, 4.0])
    for answers, tokens in zip(logits, targets, strict=True):
        for position, token in zip(answers[favourite], tokens[favourite], strict=True):
            position[token] += strength * random.uniform(0.3, 1.0)
    return logits, targets


def decide(logits, targets, bound="templates"):
    """The label with the most votes, and Algorithm 1, which carries no gradient and so is decided once."""
    scores = oracle.scores_of(logits, targets)
    return oracle.consensus(scores)[2], oracle.algorithm_1(scores, bound=bound, **NUMBERS)


def assert_equal(method, logits, targets, variant, expected, limits=None):
    """Compare terms and gradients with the loops; ``expected`` gets the logits with and without gradient."""
    leaves = [[torch.tensor(rows, dtype=torch.float64, requires_grad=True) for rows in answers] for answers in logits]
    config = SimpleNamespace(cce_weight=0.7, jsd_weight=1.3, **SPACE_WEIGHTS, **variant)
    instance = LogitInstance(leaves, targets, SimpleNamespace(**(LIMITS | (limits or {}))))
    terms = METHODS[method].loss(instance, config)
    for term, value in zip(terms.values(), expected(logits, logits), strict=True):
        assert term.item() == pytest.approx(complex(value).real, rel=EXACT, abs=EXACT)
    torch.stack(list(terms.values())).sum().backward()
    by_logit = oracle.gradient(lambda *both: sum(expected(*both)), logits)
    for leaf_row, rows in zip(leaves, by_logit, strict=True):
        for leaf, row in zip(leaf_row, rows, strict=True):
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            torch.testing.assert_close(gradient, torch.tensor(row, dtype=torch.float64), rtol=0, atol=EXACT)
    return instance


@pytest.mark.parametrize(
    ("method", "changes"),
    [*(("f2c", changes) for changes in F2C_READINGS), *(("f2c_release", changes) for changes in RELEASE_READINGS)],
    ids=str,
)
@settings(max_examples=2)
@given(number=st.integers(0, 2**31), num_templates=st.integers(3, 5))
def test_f2c_matches_the_loops_for_each_variant(method, changes, number, num_templates):
    bound = changes.get("bound", "templates")
    variant = {name: (PAPER | changes)[name] for name in PAPER}
    logits, targets = made(number, num_templates)
    decided = decide(logits, targets, bound)
    limits = {"cc_size_bound": bound}

    def expected(moved, still):
        spaces = ["vocab", "labels"] if variant["divergence_space"] == "both" else [variant["divergence_space"]]
        terms = []
        for space in spaces:
            one = variant | {"divergence_space": space}
            cce, *divergences = oracle.f2c(moved, still, targets, *decided, one, release=method == "f2c_release")
            terms += [divergence * SPACE_WEIGHTS[f"{space}_weight"] for divergence in divergences]
        return cce, *terms

    assert_equal(method, logits, targets, variant, expected, limits)


@settings(max_examples=8)
@given(number=st.integers(0, 2**31), num_templates=st.integers(3, 5))
def test_swarm_of_the_release_is_the_one_by_hand(number, num_templates):
    logits, targets = made(number, num_templates)

    def expected(moved, still):
        return (oracle.swarm_release(moved, still),)

    assert_equal("swarm_release", logits, targets, PAPER, expected)


@pytest.mark.parametrize("method", ["cce", "cce_release"])
def test_cce_of_the_release_is_divided_by_the_number_of_labels(method):
    logits, targets = made(4, 4)
    decided = decide(logits, targets)

    def expected(moved, still):
        return oracle.f2c(moved, still, targets, *decided, PAPER, release=method == "cce_release")[:1]

    assert_equal(method, logits, targets, PAPER, expected)
