import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import (
    constant_templates,
    is_collapsed,
    label_shares,
    label_shares_per_template,
    observed_agreement,
    share_drift,
)
from tests.metrics import oracle


def predictions_of(*shares, num_templates=4, num_instances=200):
    """Every template predicts the labels in these shares, each template on different instances."""
    random = generator(0, "tests/metrics/collapse", *(str(share) for share in shares))
    counts = np.round(np.array(shares) * num_instances).astype(int)
    column = np.repeat(np.arange(len(shares)), counts)
    return np.stack([random.permutation(column) for _ in range(num_templates)], axis=1)


def test_label_shares_equal_counting_cells():
    predictions = generator(0, "tests/metrics/shares").integers(3, size=(7, 4))
    assert label_shares(predictions, 5).tolist() == pytest.approx(
        [oracle.share(predictions.tolist(), c) for c in range(5)]
    )
    per_template = label_shares_per_template(predictions, 5)
    assert per_template.shape == (4, 5)
    for v in range(4):
        alone = [[row[v]] for row in predictions.tolist()]
        assert per_template[v].tolist() == pytest.approx([oracle.share(alone, c) for c in range(5)])


def test_a_collapsed_model_has_perfect_agreement_and_is_flagged():
    predictions, gold = np.ones((60, 4), dtype=int), np.arange(60) % 3
    assert observed_agreement(predictions) == 1.0
    assert is_collapsed(predictions, 3)
    assert is_collapsed(predictions, 3, gold)


def test_a_model_that_is_right_about_a_skewed_task_is_not_collapsed():
    gold = np.array([0] * 96 + [1] * 4)
    predictions = np.repeat(gold[:, None], 5, axis=1)
    assert is_collapsed(predictions, 2), "without gold labels it looks like a collapse"
    assert not is_collapsed(predictions, 2, gold)


@pytest.mark.parametrize(
    ("share", "without_gold", "with_gold"), [(0.85, False, False), (0.92, False, True), (0.97, True, True)]
)
def test_gold_labels_lower_the_bar_because_they_rule_out_a_skewed_task(share, without_gold, with_gold):
    predictions = predictions_of(share, 1 - share)
    assert is_collapsed(predictions, 2) is without_gold
    assert is_collapsed(predictions, 2, np.arange(200) % 2) is with_gold


def test_a_model_whose_templates_are_all_constant_is_collapsed():
    """Three templates are always negative and one is always positive, as in a small model under some templates."""
    predictions = np.tile([0, 0, 0, 1], (20, 1))
    assert label_shares(predictions, 2).tolist() == [0.75, 0.25]
    assert constant_templates(predictions).tolist() == [True] * 4
    for gold in (None, np.arange(20) % 2, np.full(20, -1)):
        assert is_collapsed(predictions, 2, gold)
    predictions[0, 3] = 0
    assert constant_templates(predictions).tolist() == [True, True, True, False]
    assert not is_collapsed(predictions, 2)


@pytest.mark.parametrize(("others", "constant"), [(0, False), (9, False), (10, True), (50, True)])
def test_a_constant_template_is_right_if_the_gold_labels_are_nearly_all_that_label(others, constant):
    gold = np.array([0] * (100 - others) + [1] * others)
    predictions = np.tile([0, 1], (100, 1))
    assert constant_templates(predictions, gold).tolist() == [constant, True]
    assert is_collapsed(predictions[:, :1], 2, gold) is constant


def test_gold_labels_count_only_where_they_are():
    predictions = np.zeros((40, 3), dtype=int)
    unlabelled = np.full(40, -1)
    assert is_collapsed(predictions, 2, unlabelled), "no gold at all: the bar without gold"
    skewed = np.where(np.arange(40) < 20, 0, -1)
    assert not is_collapsed(predictions, 2, skewed)
    # All labelled instances get label 0 although half are 1; the rest, not judged, are answered evenly.
    predictions[20:] = np.arange(20)[:, None] % 2
    judged = np.where(np.arange(40) < 20, np.arange(40) % 2, -1)
    assert is_collapsed(predictions, 2, judged)


def test_nothing_has_not_collapsed():
    assert not is_collapsed(np.zeros((0, 3), dtype=int), 2)
    with pytest.raises(ValueError, match="at least one prediction"):
        label_shares(np.zeros((0, 3), dtype=int), 2)


def test_drift_is_the_share_of_predictions_that_must_have_changed():
    before, after = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.6, 0.0])
    assert share_drift(before, after) == pytest.approx(0.3)
    assert share_drift(after, before) == pytest.approx(0.3)
    assert share_drift(before, before) == 0.0
    assert share_drift(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0
