import numpy as np
import pytest
from benchmarks.coverage import LABELS, contains, coverage, simulate
from scipy.stats import binomtest

from flip_flop.files import generator
from flip_flop.metrics import METRICS, Scores, bootstrap_interval, mean_statistic, paired_bootstrap_interval
from flip_flop.metrics.agreement import instance_agreement, observed_agreement
from tests.metrics import oracle
from tests.metrics.oracle import data_of

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
    noise = generator(0, "tests/metrics/noisy").normal(size=data.values.shape)
    return Scores(data.values + np.clip(noise, -1, 1), data.gold)


def weights(num_instances, resamples=2000):
    """Dirichlet weights of other draws than those of the package."""
    draws = np.random.default_rng(9).exponential(size=(resamples, num_instances))
    return draws / draws.sum(axis=1, keepdims=True)


def weighted_f1(predicted, gold, weights):
    """Macro-F1 of weighted instances, label by label."""
    predicted, found = np.array(predicted), []
    for label in range(3):
        is_predicted, is_gold = predicted == label, gold == label
        hits = weights[:, is_predicted & is_gold].sum(axis=1)
        found.append(2 * hits / (weights[:, is_predicted].sum(axis=1) + weights[:, is_gold].sum(axis=1)))
    return sum(found) / 3


def weighted_kappa(predictions, weights):
    observed = weights @ [oracle.agreement_of_instance(row) for row in predictions.tolist()]
    by_chance = sum((weights @ (predictions == label).mean(axis=1)) ** 2 for label in range(3))
    return (observed - by_chance) / (1 - by_chance)


def weighted_agreement(data, weights):
    return weights @ [oracle.agreement_of_instance(row) for row in data.predictions.tolist()]


def weighted_accuracy(data, weights):
    return weights @ (data.predictions == data.gold[:, None]).mean(axis=1)


def weighted_mean_f1(data, weights):
    return np.mean([weighted_f1(column, data.gold, weights) for column in data.predictions.T], axis=0)


def weighted_vote_f1(data, weights):
    return weighted_f1([oracle.majority_vote(rows) for rows in data.values.tolist()], data.gold, weights)


def weighted_ensemble_f1(data, weights):
    return weighted_f1([oracle.ensemble(rows) for rows in data.values.tolist()], data.gold, weights)


def weighted_posix(data, weights):
    return weights @ [oracle.posix([rows]) for rows in data.values.tolist()]


WEIGHTED = {
    "observed_agreement": weighted_agreement,
    "accuracy": weighted_accuracy,
    "fleiss_kappa": lambda data, weights: weighted_kappa(data.predictions, weights),
    "mean_f1": weighted_mean_f1,
    "vote_f1": weighted_vote_f1,
    "ensemble_f1": weighted_ensemble_f1,
    "posix": weighted_posix,
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_intervals_of_many_instances_are_quantiles_of_the_statistic_under_random_weights(name):
    before, after = noisy(data_of(*table(400))), noisy(data_of(*table(400, 4, 3, 0.8)))
    slow = WEIGHTED[name]
    equal = np.full((1, 400), 1 / 400)
    assert [METRICS[name].value(before)] == pytest.approx(slow(before, equal), abs=1e-12)
    first, second = (slow(data, weights(400)) for data in (before, after))
    for found, drawn in (
        (METRICS[name].interval(before), first),
        (METRICS[name].change_interval(before, after), second - first),
    ):
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert found == pytest.approx((low, high), abs=0.3 * (high - low))
        assert 0.9 * (high - low) < found[1] - found[0] < 1.3 * (high - low)


@pytest.mark.parametrize(("successes", "total"), [(60, 60), (0, 60), (59, 60), (41, 60), (3, 20), (995, 1000)])
def test_the_interval_of_a_share_is_that_of_clopper_and_pearson(successes, total):
    values = (np.arange(total) < successes).astype(float)
    exact = binomtest(successes, total).proportion_ci(method="exact")
    found = bootstrap_interval(mean_statistic(lambda values: values, bounds=(0.0, 1.0)), values)
    tolerance = 1e-6 if successes in (0, total) else 0.1 * (exact.high - exact.low)
    assert found == pytest.approx((exact.low, exact.high), abs=tolerance)


@pytest.mark.parametrize("confidence", [1 - 0.05 / 400, 0.95])
def test_a_high_confidence_has_enough_resamples_to_be_exact(confidence):
    share = mean_statistic(lambda right: right, bounds=(0.0, 1.0))
    low, high = bootstrap_interval(share, np.ones(100), confidence=confidence)
    assert (low, high) == (pytest.approx(((1 - confidence) / 2) ** (1 / 100), abs=1e-5), 1.0)


def test_answers_that_are_all_right_or_all_alike_have_no_interval_of_width_zero():
    gold = np.arange(60) % 2
    data = data_of(np.repeat(gold[:, None], 3, axis=1), gold, num_labels=2)
    for name in ("observed_agreement", "accuracy", "vote_accuracy"):
        assert METRICS[name].interval(data) == pytest.approx((0.025 ** (1 / 60), 1))
    for name in ("mean_f1", "macro_f1", "vote_f1", "fleiss_kappa"):
        low, high = METRICS[name].interval(data)
        assert 0.85 < low < 0.96
        assert high == 1
    low, high = METRICS["no_consensus_share"].interval(data)
    assert (low, high) == pytest.approx((0, 1 - 0.025 ** (1 / 60)), abs=1e-6)
    # A template that always differs: each instance has the same agreement.
    low, high = METRICS["observed_agreement"].interval(data_of([[0, 0, 1]] * 60, num_labels=2))
    assert low < 1 / 3 - 0.01
    assert high > 1 / 3 + 0.02
    assert METRICS["posix"].interval(data) is None  # unbounded: nothing is known of other instances


def test_a_rare_label_that_is_always_right_has_an_f1_above_zero():
    gold = (np.arange(100) < 3).astype(int)
    data = data_of(np.repeat(gold[:, None], 3, axis=1), gold, num_labels=2)
    recall = binomtest(3, 3).proportion_ci(method="exact").low
    low, high = METRICS["mean_f1"].interval(data)
    assert low == pytest.approx(2 * recall / (1 + recall), abs=0.03)
    assert high == 1
    assert METRICS["macro_f1"].interval(data)[0] > 0.6


def test_the_change_of_several_runs_is_that_of_their_mean():
    runs = [data_of(*table(400, 4, 3, accuracy, "runs")) for accuracy in (0.4, 0.6, 0.9)]
    first, second, third = (WEIGHTED["accuracy"](data, weights(400)) for data in runs)
    low, high = np.quantile((second + third) / 2 - first, [0.025, 0.975])
    found = METRICS["accuracy"].change_interval(*runs)
    assert found == pytest.approx((low, high), abs=0.1 * (high - low))


@pytest.mark.slow
@pytest.mark.parametrize("shares", LABELS.values(), ids=LABELS)
def test_intervals_contain_the_true_value_from_50_instances_on(shares):
    for share in coverage(50, shares, 60).values():
        assert share >= 0.9  # 54 of 60


def test_the_interval_of_a_change_of_f1_grows_little_with_the_number_of_labels():
    widths = []
    for num_labels in (4, 40):
        before, after = simulate(generator(0, "labels", num_labels), 400, (1 / num_labels,) * num_labels, 3)
        interval = METRICS["macro_f1"].change_interval(before, after)
        assert contains(interval, 0.05)
        widths.append(np.ptp(interval))
    assert widths[1] < 2 * widths[0]  # four times with one side for all labels


@pytest.mark.parametrize("name", ["observed_agreement", "fleiss_kappa", "mean_f1", "vote_accuracy"])
@pytest.mark.parametrize("num_instances", [8, 60])
def test_a_change_in_the_other_direction_has_the_mirrored_interval(name, num_instances):
    before, after = data_of(*table(num_instances)), data_of(*table(num_instances, 4, 3, 0.8))
    low, high = METRICS[name].change_interval(before, after)
    assert METRICS[name].change_interval(after, before) == pytest.approx((-high, -low), abs=1e-12)
    low, high = METRICS[name].change_interval(before, before)
    assert -low == pytest.approx(high, abs=1e-12)


def test_equal_answers_to_few_instances_leave_a_change_on_others_possible():
    data = data_of(*table(60))
    for name in ("observed_agreement", "accuracy"):
        low, high = METRICS[name].change_interval(data, data)
        assert (-low, high) == pytest.approx((1 - 0.05 ** (1 / 60),) * 2, rel=0.15)  # as likely as not to be seen
    low, high = METRICS["mean_f1"].change_interval(data, data)
    assert low < 0 < high
    assert METRICS["posix"].change_interval(data, data) is None


@pytest.mark.slow
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


def test_a_resample_without_any_gold_label_is_left_out():
    values, known = np.array([0.5, 7.0, 7.0]), np.array([True, False, False])
    mean = lambda values, known: values[known].mean() if known.any() else None  # noqa: E731
    assert bootstrap_interval(mean, values, known) == (0.5, 0.5)
    data = data_of([[0, 1], [1, 1], [0, 0]], [1, -1, -1], num_labels=2)
    for name in ("accuracy", "mean_f1"):
        low, high = METRICS[name].interval(data)
        assert (low, high) == pytest.approx((0.0125, 0.9875), abs=0.02)


def test_a_number_without_known_extremes_has_an_interval_from_50_instances_on():
    data = noisy(data_of(*table(50)))
    assert METRICS["posix"].interval(data) is not None
    assert METRICS["posix"].interval(data[:49]) is METRICS["posix"].change_interval(data[:49], data[:49]) is None
    assert METRICS["observed_agreement"].interval(data[:5]) is not None


PREDICTIONS, GOLD = table()


@pytest.mark.parametrize(
    ("function", "data", "settings", "words"),
    [
        (bootstrap_interval, [AGREEMENT, PREDICTIONS], {"confidence": 0.0}, "confidence is 0.0"),
        (bootstrap_interval, [AGREEMENT, PREDICTIONS], {"confidence": 1.0}, "confidence is 1.0"),
        (bootstrap_interval, [AGREEMENT, PREDICTIONS, GOLD[1:]], {}, r"same instances; they have \[49, 50\]"),
        (bootstrap_interval, [AGREEMENT, PREDICTIONS[:0]], {}, "no instances"),
        (paired_bootstrap_interval, [AGREEMENT, [PREDICTIONS], [PREDICTIONS[:-1]]], {}, "same instances"),
        (bootstrap_interval, [AGREEMENT, PREDICTIONS[:, :1]], {}, "no value on any resample"),
        (bootstrap_interval, [observed_agreement, PREDICTIONS[:, :1]], {}, "no value on any resample"),
    ],
)
def test_invalid_settings_and_data_are_refused(function, data, settings, words):
    with pytest.raises(ValueError, match=words):
        function(*data, **settings)
