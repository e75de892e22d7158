"""Equations 3 to 5 and 14, and Algorithm 1 line by line."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flip_flop.method.algorithm import find_consensus, label_log_probs, split_templates
from tests.cases import read_cases
from tests.method import oracle
from tests.method.draws import random_of, scores_for_votes, vote_patterns

DEFAULTS = {
    "unanimous_margin": 1.0,
    "max_cc_size": 3,
    "flip_weight_min": 0.1,
    "flip_weight_max": 0.9,
    "flip_temperature": 0.7,
    "cc_size_bound": "templates",
}


def split_of(scores, predictions=None, drawn=None, **changes):
    scores = torch.as_tensor(scores)
    settings = SimpleNamespace(**{**DEFAULTS, **changes})
    if predictions is None and drawn is None:
        return split_templates(scores, settings)
    consensus = find_consensus(scores, None if predictions is None else torch.tensor(predictions))
    if drawn is None:
        return split_templates(scores, settings, consensus)
    return split_templates(scores[drawn], settings, consensus.under(drawn))


def members(mask):
    return mask.nonzero().flatten().tolist()


def assert_as_printed(scores, predictions=None, **changes):
    """The split equals the oracle's, which follows the algorithm branch for branch."""
    values = {**DEFAULTS, **changes}
    case, cc, nc, weight = oracle.algorithm_1(
        scores.tolist(),
        tau=values["unanimous_margin"],
        k_max=values["max_cc_size"],
        f_min=values["flip_weight_min"],
        f_max=values["flip_weight_max"],
        t=values["flip_temperature"],
        predictions=predictions,
    )
    split = split_of(scores, predictions, **changes)
    assert (split.case, members(split.cc_mask), members(split.nc_mask)) == (case, cc, nc)
    assert split.flip_weight == pytest.approx(weight, abs=1e-12)
    assert not set(cc) & set(nc)
    if nc:
        assert sorted(cc + nc) == list(range(len(scores)))
        assert 2 <= len(cc) <= values["max_cc_size"]
        assert values["flip_weight_min"] <= split.flip_weight <= values["flip_weight_max"]
    return split


@pytest.mark.parametrize("max_cc_size", [2, 9])
@pytest.mark.parametrize("unanimous_margin", [0.3, 50.0])
def test_algorithm_1_holds_for_all_votes_of_five_templates_on_three_labels(max_cc_size, unanimous_margin):
    random = random_of("patterns", max_cc_size)
    for votes in vote_patterns():
        scores = scores_for_votes(votes, 3, random)
        assert_as_printed(scores, max_cc_size=max_cc_size, unanimous_margin=unanimous_margin)


def test_algorithm_1_holds_for_random_scores_and_settings():
    random = random_of("any")
    cases = set()
    for _ in range(500):
        num_templates, num_labels = int(random.integers(1, 9)), int(random.integers(2, 6))
        scores = random.normal(size=(num_templates, num_labels)) - random.uniform(0, 3)
        scores[:, random.integers(num_labels)] += random.choice([0.0, 1.5, 4.0])
        if random.random() < 0.3:
            scores = scores.round(0)  # many ties
        if random.random() < 0.3:
            scores *= 10 ** random.uniform(0, 4)  # the sigmoid saturates at 0 or 1
        low = float(random.uniform(0, 1))
        settings_drawn = {
            "unanimous_margin": float(random.uniform(0, 3)),
            "max_cc_size": int(random.integers(2, 7)),
            "flip_weight_min": low,
            "flip_weight_max": low + float(random.uniform(0, 2)),
            "flip_temperature": float(10 ** random.uniform(-3, 3)),
        }
        cases.add(assert_as_printed(torch.tensor(scores), **settings_drawn).case)
    assert cases == {1, 2, 3}


def test_algorithm_1_holds_for_generated_answers_of_any_number():
    random = random_of("generated")
    cases = set()
    for number in range(400):
        num_templates, num_answers = int(random.integers(2, 8)), 1 + number % 4
        scores = random.normal(size=(num_templates, num_answers)) - 1.0
        popular = int(random.integers(num_answers))
        scores[:, popular] += random.choice([0.0, 3.0])
        predictions = random.integers(-1, num_answers, size=num_templates)  # -1 cannot be read
        predictions = np.where(random.random(num_templates) < 0.7, popular, predictions).tolist()
        cases.add((assert_as_printed(torch.tensor(scores), predictions).case, num_answers))
    assert cases == {(case, num_answers) for case in (1, 2, 3) for num_answers in (1, 2, 3, 4)}


def test_a_worked_example():
    # Label 0 has three votes of four. Its margins are 2.0, 0.5 and 3.0: with k = 2 templates 3 and 0 form the
    # CC set. Levels on label 0: (-0.5 - 0.1) / 2 = -0.3 and (-0.6 - 1.5) / 2 = -1.05. The gap is 0.75,
    # sigmoid(0.75 / 0.5) = 0.8175745, and 0.2 + (0.6 - 0.2) * 0.8175745 = 0.5270298.
    scores = torch.tensor([[-0.5, -2.5], [-0.6, -1.1], [-1.5, -0.3], [-0.1, -3.1]])
    split = split_of(scores, max_cc_size=2, flip_weight_min=0.2, flip_weight_max=0.6, flip_temperature=0.5)
    assert split.case == 3
    assert split.cc_mask.tolist() == [True, False, False, True]
    assert split.nc_mask.tolist() == [False, True, True, False]
    assert split.flip_weight == pytest.approx(0.5270298, abs=1e-6)


LINES = read_cases("method/algorithm_1.yaml")


@pytest.mark.parametrize("line", LINES)
def test_line(line):
    case = LINES[line]
    split = split_of(case["scores"], drawn=case.get("drawn"), **case.get("settings", {}))
    found = {"case": split.case, "cc": members(split.cc_mask), "nc": members(split.nc_mask)}
    assert found == case["split"]
    assert (split.flip_weight > 0) == bool(split.nc_mask.any())


@pytest.mark.parametrize(("others", "median"), [([-1.0, -1.0, -2.0, -2.0], 1.5), ([-1.0, -3.0, -2.0], 2.0)])
def test_line_5_the_median_of_an_even_count_is_the_mean_of_the_middle_two(others, median):
    scores = [[0.0, other] for other in others]
    assert split_of(scores, unanimous_margin=median).case == 2
    assert split_of(scores, unanimous_margin=median + 1e-6).case == 3


def test_line_17_the_gap_is_on_the_consensus_label_and_may_be_negative():
    # The CC set is ahead of the other label by more, yet less likely to give the consensus answer at all.
    scores = torch.tensor([[-6.0, -9.0], [-6.0, -8.0], [-0.1, -0.2], [-0.1, -0.3]])
    weights = {"flip_weight_min": 0.0, "flip_weight_max": 1.0, "flip_temperature": 1.0}
    split = split_of(scores, max_cc_size=2, unanimous_margin=9.0, **weights)
    assert members(split.cc_mask) == [0, 1]
    assert split.flip_weight == pytest.approx(1 / (1 + math.exp(5.9)))


def test_line_18_flip_weight_stays_within_bounds_where_rounding_would_lift_it():
    assert 0.15 + (0.45 - 0.15) * 1.0 > 0.45
    scores = torch.tensor([[0.0, -1.0], [0.0, -1.0], [-100.0, -100.5]])
    split = split_of(scores, max_cc_size=2, flip_weight_min=0.15, flip_weight_max=0.45, unanimous_margin=9.0)
    assert split.flip_weight == 0.45


def test_scores_of_any_width_split_by_their_own_values():
    scores = torch.tensor(random_of("width").normal(size=(7, 3)) - 2, dtype=torch.bfloat16)
    scores[:, 1] += 2
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert_as_printed(scores.to(dtype))


UNSURE = [[-0.1, -0.2]] * 3


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(score):
    with pytest.raises(ValueError, match="not finite"):
        split_of([*UNSURE, [-0.1, score]])


@pytest.mark.parametrize(
    "changes",
    [
        {"max_cc_size": 1},
        {"flip_weight_min": 0.5, "flip_weight_max": 0.4},
        {"flip_weight_min": -0.1},
        {"flip_weight_max": math.inf},
        {"flip_weight_min": math.nan},
        {"flip_temperature": 0.0},
        {"flip_temperature": math.nan},
        {"unanimous_margin": math.nan},
    ],
)
def test_settings_out_of_their_range_are_refused(changes):
    with pytest.raises(ValueError, match="out of its range"):
        split_of(UNSURE, **changes)


@pytest.mark.parametrize(("gap", "weight"), [(0.0, 0.5), (1e6, 0.9), (-1e6, 0.1)])
def test_line_18_flip_weight_runs_from_f_min_to_f_max(gap, weight):
    scores = torch.tensor([[-1e7, -1e7 - 3.0], [-1e7, -1e7 - 3.0], [-1e7 - gap, -1e7 - gap - 1.0]], dtype=torch.float64)
    split = split_of(scores, max_cc_size=2, unanimous_margin=9.0)
    assert split.flip_weight == pytest.approx(weight)


# ---- Equations 3 to 5 and 14 ----


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
