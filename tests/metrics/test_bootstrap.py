import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import (
    METRICS,
    Scores,
    accuracy_per_template,
    bootstrap_interval,
    f1_per_template,
    instance_agreement,
    mean_statistic,
    observed_agreement,
    paired_bootstrap_interval,
)
from tests.metrics import oracle
from tests.metrics.made_data import data_of

AGREEMENT = mean_statistic(instance_agreement)  # of predictions


def metric_interval(name, data, **settings):
    return bootstrap_interval(METRICS[name].statistic, data, **settings)


def table(num_instances=50, num_templates=4, num_labels=3, accuracy=0.6, *keys):
    """Instances of differing difficulty, so that an instance's templates err together."""
    random = generator(0, "tests/metrics/bootstrap", num_instances, *keys)
    gold = random.integers(num_labels, size=num_instances)
    chance = np.clip(accuracy + random.normal(scale=0.4, size=(num_instances, 1)), 0, 1)
    right = random.random((num_instances, num_templates)) < chance
    wrong = random.integers(num_labels, size=(num_instances, num_templates))
    return np.where(right, gold[:, None], wrong), gold


def noisy(data):
    """The same predictions with scores of all sizes, so that probabilities matter."""
    noise = generator(0, "tests/metrics/noisy").normal(size=data.scores.shape)
    return Scores(data.scores + np.clip(noise, -1, 1), data.gold)


SLOW = {
    "observed_agreement": lambda data: observed_agreement(data.predictions),
    "no_consensus_share": lambda data: oracle.no_consensus_share(data.predictions.tolist()),
    "mean_f1": lambda data: f1_per_template(data.predictions, data.gold, num_labels=3).mean(),
    "accuracy": lambda data: float(accuracy_per_template(data.predictions, data.gold).mean()),
    "fleiss_kappa": lambda data: oracle.fleiss_kappa(data.predictions.tolist()),
    "posix": lambda data: oracle.posix(data.scores.tolist()),
    "ensemble_f1": lambda data: oracle.f1([oracle.ensemble(i) for i in data.scores.tolist()], data.gold.tolist(), 3),
    "vote_f1": lambda data: oracle.f1([oracle.majority_vote(i) for i in data.scores.tolist()], data.gold.tolist(), 3),
}


@pytest.mark.parametrize("name", SLOW)
def test_one_matrix_product_gives_the_interval_of_calling_the_statistic_on_every_resample(name):
    fast, slow = METRICS[name].statistic, SLOW[name]
    before, after = noisy(data_of(*table(30))), noisy(data_of(*table(30, 6, 3, 0.8)))
    settings = {"resamples": 60, "seed": 3}
    assert fast(before) == pytest.approx(slow(before), abs=1e-12)
    assert bootstrap_interval(fast, before, **settings) == pytest.approx(
        bootstrap_interval(slow, before, **settings), abs=1e-12
    )
    assert paired_bootstrap_interval(fast, [before], [after], **settings) == pytest.approx(
        paired_bootstrap_interval(slow, [before], [after], **settings), abs=1e-12
    )


def test_the_change_of_several_runs_is_that_of_their_mean():
    runs = [data_of(*table(40, 4, 3, accuracy, "runs")) for accuracy in (0.4, 0.6, 0.9)]
    before, *after = ([run] for run in runs)
    slow = SLOW["accuracy"]

    def difference(first, second, third):
        return (slow(second) + slow(third)) / 2 - slow(first)

    assert paired_bootstrap_interval(METRICS["accuracy"].statistic, before, *after, resamples=99) == pytest.approx(
        bootstrap_interval(difference, *runs, resamples=99), abs=1e-12
    )


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    population, _ = table(20_000, 5)
    truth = observed_agreement(population)
    random = generator(0, "tests/metrics/coverage")
    hits = 0
    for _ in range(200):
        sample = population[random.integers(20_000, size=80)]
        low, high = bootstrap_interval(AGREEMENT, sample, resamples=300)
        hits += low <= truth <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_what_is_resampled_is_the_instance_and_not_the_cell():
    # Copies of templates add no evidence: the interval of a mean over cells must not shrink.
    predictions, gold = table()
    once = metric_interval("accuracy", data_of(predictions, gold))
    copies = data_of(np.tile(predictions, (1, 25)), gold)
    assert metric_interval("accuracy", copies) == pytest.approx(once, abs=1e-12)


def test_an_interval_is_of_all_its_data():
    data, weighted = data_of(*table()), mean_statistic(lambda data, weights: weights)
    for weight in (1.0, 3.0):
        assert bootstrap_interval(weighted, data, np.full(len(data), weight)) == (weight, weight)


def test_a_paired_interval_is_narrower_than_the_two_values_would_suggest():
    before, gold = table(300)
    flip = generator(0, "tests/metrics/paired").random(before.shape) < 0.1
    after = np.where(flip, gold[:, None], before)
    low, high = METRICS["accuracy"].change_interval(data_of(before, gold), data_of(after, gold))
    alone = metric_interval("accuracy", data_of(after, gold))
    assert low > 0
    assert high - low < 0.5 * (alone[1] - alone[0])


def test_no_change_is_zero_in_every_resample():
    data = data_of(*table())
    assert METRICS["mean_f1"].change_interval(data, data) == (0.0, 0.0)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    data = data_of(*table())
    first, again, other = (metric_interval("mean_f1", data, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["observed_agreement", "mean_f1"])
def test_of_many_instances_groups_are_drawn_and_the_interval_is_as_wide(name):
    few = 4000
    predictions, gold = table(10 * few)
    low, high = metric_interval(name, data_of(predictions, gold))
    assert low < METRICS[name].value(data_of(predictions, gold)) < high
    start, end = metric_interval(name, data_of(predictions[:few], gold[:few]))  # resamples single instances
    assert high - low == pytest.approx((end - start) / 10**0.5, rel=0.1)
    mean = (predictions == gold[:, None]).mean(axis=1)
    expected = mean.mean() + 1.96 * mean.std() / len(gold) ** 0.5 * np.array([-1, 1])
    found = metric_interval("accuracy", data_of(predictions, gold))
    assert np.abs(found - expected).max() < 0.06 * (expected[1] - expected[0])


def test_more_confidence_is_a_wider_interval():
    predictions, _ = table()
    low, high = bootstrap_interval(AGREEMENT, predictions, confidence=0.5)
    wide_low, wide_high = bootstrap_interval(AGREEMENT, predictions, confidence=0.99)
    assert wide_low < low < high < wide_high


def test_a_resample_without_any_gold_label_is_left_out():
    values, known = np.array([0.5, 7.0, 7.0]), np.array([True, False, False])
    mean = lambda values, known: values[known].mean() if known.any() else None  # noqa: E731
    assert bootstrap_interval(mean, values, known) == (0.5, 0.5)
    data = data_of([[0, 1], [1, 1], [0, 0]], [1, -1, -1], num_labels=2)
    assert METRICS["accuracy"].interval(data) == METRICS["mean_f1"].interval(data) == (0.5, 0.5)


def test_a_statistic_without_any_value_is_refused():
    one_template, _ = table(9, 1)
    for statistic in (observed_agreement, AGREEMENT):
        with pytest.raises(ValueError, match="no value on any resample"):
            bootstrap_interval(statistic, one_template)


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
        bootstrap_interval(AGREEMENT, table()[0], **changes)


def test_arrays_of_different_instances_are_refused():
    predictions, gold = table()
    with pytest.raises(ValueError, match=r"same instances; they have \[49, 50\]"):
        bootstrap_interval(lambda a, b: 0.0, predictions, gold[1:])
    with pytest.raises(ValueError, match="same instances"):
        paired_bootstrap_interval(AGREEMENT, [predictions], [predictions[:-1]])
    with pytest.raises(ValueError, match="no instances"):
        bootstrap_interval(AGREEMENT, predictions[:0])
