import time

import numpy as np
import pytest

from flip_flop.metrics import (
    accuracy_per_template,
    accuracy_statistic,
    agreement_statistic,
    bootstrap_interval,
    f1_per_template,
    mean_f1,
    mean_f1_statistic,
    no_consensus_share,
    no_consensus_statistic,
    observed_agreement,
    paired_bootstrap_interval,
)
from flip_flop.randomness import generator


def table(num_instances=50, num_templates=4, num_labels=3, accuracy=0.6, *keys):
    """Instances of differing difficulty, so that an instance's templates err together."""
    random = generator(0, "tests/metrics/bootstrap", num_instances, *keys)
    gold = random.integers(num_labels, size=num_instances)
    chance = np.clip(accuracy + random.normal(scale=0.4, size=(num_instances, 1)), 0, 1)
    right = random.random((num_instances, num_templates)) < chance
    wrong = random.integers(num_labels, size=(num_instances, num_templates))
    return np.where(right, gold[:, None], wrong), gold


def slow_mean_f1(predictions, gold):
    return mean_f1(f1_per_template(predictions, gold, num_labels=3))


def slow_accuracy(predictions, gold):
    return float(accuracy_per_template(predictions, gold).mean())


@pytest.mark.parametrize(
    ("fast", "slow", "judged"),
    [
        (agreement_statistic(), observed_agreement, False),
        (no_consensus_statistic(), no_consensus_share, False),
        (mean_f1_statistic(3), slow_mean_f1, True),
        (accuracy_statistic(), slow_accuracy, True),
    ],
    ids=["observed_agreement", "no_consensus_share", "mean_f1", "accuracy"],
)
def test_one_matrix_product_gives_the_interval_of_calling_the_statistic_on_every_resample(fast, slow, judged):
    predictions, gold = table()
    arrays = (predictions, gold) if judged else (predictions,)
    settings = {"resamples": 150, "seed": 3}
    assert fast(*arrays) == pytest.approx(slow(*arrays), abs=1e-12)
    assert bootstrap_interval(fast, *arrays, **settings) == pytest.approx(
        bootstrap_interval(slow, *arrays, **settings), abs=1e-12
    )
    other, _ = table(50, 6, 3, 0.8, "after")
    after = (other, gold) if judged else (other,)
    assert paired_bootstrap_interval(fast, arrays, after, **settings) == pytest.approx(
        paired_bootstrap_interval(slow, arrays, after, **settings), abs=1e-12
    )


def test_the_interval_of_a_mean_is_near_the_textbook_interval():
    values = generator(0, "tests/metrics/normal").normal(loc=5, size=400)
    low, high = bootstrap_interval(lambda x: float(x.mean()), values)
    half_width = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half_width, abs=0.02)
    assert high == pytest.approx(values.mean() + half_width, abs=0.02)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    population, _ = table(20_000, 5)
    truth = observed_agreement(population)
    random = generator(0, "tests/metrics/coverage")
    hits = 0
    for _ in range(200):
        sample = population[random.integers(20_000, size=80)]
        low, high = bootstrap_interval(agreement_statistic(), sample, resamples=300)
        hits += low <= truth <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_what_is_resampled_is_the_instance_and_not_the_cell():
    # Copies of the templates are no new evidence: the interval of a mean over cells must not shrink.
    predictions, gold = table()
    copies = np.tile(predictions, (1, 25))
    once = bootstrap_interval(accuracy_statistic(), predictions, gold)
    assert bootstrap_interval(accuracy_statistic(), copies, gold) == pytest.approx(once, abs=1e-12)


def test_a_paired_interval_is_narrower_than_the_two_values_would_suggest():
    before, gold = table(300)
    flip = generator(0, "tests/metrics/paired").random(before.shape) < 0.1
    after = np.where(flip, gold[:, None], before)
    low, high = paired_bootstrap_interval(accuracy_statistic(), (before, gold), (after, gold))
    alone = bootstrap_interval(accuracy_statistic(), after, gold)
    assert low > 0
    assert high - low < 0.5 * (alone[1] - alone[0])


def test_no_change_is_zero_in_every_resample():
    arrays = table()
    assert paired_bootstrap_interval(mean_f1_statistic(3), arrays, arrays) == (0.0, 0.0)


def test_the_change_is_after_less_before():
    worse, gold = table()
    better = np.repeat(gold[:, None], 7, axis=1)
    low, _ = paired_bootstrap_interval(accuracy_statistic(), (worse, gold), (better, gold))
    assert low > 0


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    arrays = table()
    first, again, other = (bootstrap_interval(mean_f1_statistic(3), *arrays, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_size_of_the_blocks_in_memory_does_not_change_the_interval(monkeypatch):
    predictions, gold = table()
    arguments = (mean_f1_statistic(3), predictions, gold)
    whole = bootstrap_interval(*arguments, resamples=101)
    for block in (1, 50 * 7, 50 * 100):
        monkeypatch.setattr("flip_flop.metrics.bootstrap.BLOCK", block)
        assert bootstrap_interval(*arguments, resamples=101) == pytest.approx(whole, abs=1e-14)


def test_more_confidence_is_a_wider_interval():
    predictions, _ = table()
    low, high = bootstrap_interval(agreement_statistic(), predictions, confidence=0.5)
    wide_low, wide_high = bootstrap_interval(agreement_statistic(), predictions, confidence=0.99)
    assert wide_low < low < high < wide_high


def test_a_resample_without_any_gold_label_is_left_out():
    predictions, gold = np.array([[0, 1], [1, 1], [0, 0]]), np.array([0, -1, -1])
    assert bootstrap_interval(accuracy_statistic(), predictions, gold) == (0.5, 0.5)
    assert bootstrap_interval(mean_f1_statistic(2), predictions, np.array([1, -1, -1])) == (0.5, 0.5)


def test_a_statistic_without_any_value_is_refused():
    one_template, gold = table(9, 1)
    for statistic in (observed_agreement, agreement_statistic()):
        with pytest.raises(ValueError, match="no value on any resample"):
            bootstrap_interval(statistic, one_template)
    with pytest.raises(ValueError, match="no value on any resample"):
        bootstrap_interval(mean_f1_statistic(3), one_template, np.full_like(gold, -1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"confidence": 0.0}, "confidence is 0.0"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"resamples": 0}, "resamples is 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        bootstrap_interval(agreement_statistic(), table()[0], **changes)


def test_arrays_of_different_instances_are_refused():
    predictions, gold = table()
    with pytest.raises(ValueError, match=r"same instances; they have \[49, 50\]"):
        bootstrap_interval(accuracy_statistic(), predictions, gold[1:])
    with pytest.raises(ValueError, match="same instances"):
        paired_bootstrap_interval(agreement_statistic(), [predictions], [predictions[:-1]])
    with pytest.raises(ValueError, match="no instances"):
        bootstrap_interval(agreement_statistic(), predictions[:0])


def test_two_thousand_resamples_of_a_thousand_instances_take_less_than_two_seconds():
    predictions, gold = table(1000, 15)
    start = time.thread_time()
    bootstrap_interval(agreement_statistic(), predictions)
    bootstrap_interval(mean_f1_statistic(3), predictions, gold)
    assert time.thread_time() - start < 4
