import json

import numpy as np
import pytest

from flip_flop.files import generator
from flip_flop.metrics import METRICS, bootstrap_interval, mean_statistic, summarise
from tests.metrics import oracle

AGAINST_GOLD = [
    "mean_f1", "f1_std", "macro_f1", "accuracy", "f1_per_template", "accuracy_per_template",
    "vote_f1", "vote_accuracy", "f1_spread", "ensemble_f1", "ece",
]  # fmt: skip
KEYS = {
    *AGAINST_GOLD, "observed_agreement", "no_consensus_share", "fleiss_kappa", "posix",
    "label_shares", "label_shares_per_template",
    "collapsed", "constant_templates", "num_instances", "num_templates", "num_labels", "intervals",
}  # fmt: skip
NAMES = ["plain", "formal", "reversed", "terse"]


def run(num_instances=40, num_templates=4, num_labels=3):
    random = generator(0, "tests/metrics/summary", num_labels)
    gold = random.integers(num_labels, size=num_instances)
    scores = random.normal(size=(num_instances, num_templates, num_labels)) - 3
    scores[np.arange(num_instances), :, gold] += 1.0
    return scores.astype(np.float32), gold


@pytest.mark.parametrize("num_labels", [2, 3])
def test_every_number_equals_the_loop(num_labels):
    scores, gold = run(num_labels=num_labels)
    gold[5] = -1
    predictions = scores.argmax(axis=2)
    votes = [oracle.majority_vote(rows) for rows in scores.tolist()]
    columns = predictions.T.tolist()
    f1 = [oracle.f1(column, gold.tolist(), num_labels) for column in columns]
    known = [i for i in range(40) if i != 5]
    found = summarise(scores, gold, NAMES)
    assert found["observed_agreement"] == pytest.approx(oracle.observed_agreement(predictions.tolist()))
    assert found["no_consensus_share"] == pytest.approx(oracle.no_consensus_share(predictions.tolist()))
    assert list(found["f1_per_template"]) == NAMES
    assert list(found["f1_per_template"].values()) == pytest.approx(f1)
    assert found["mean_f1"] == pytest.approx(sum(f1) / 4)
    assert found["f1_std"] == pytest.approx((sum((x - sum(f1) / 4) ** 2 for x in f1) / 4) ** 0.5)
    accuracies = [sum(column[i] == gold[i] for i in known) / 39 for column in columns]
    assert list(found["accuracy_per_template"].values()) == pytest.approx(accuracies)
    assert found["accuracy"] == pytest.approx(sum(accuracies) / 4)
    assert found["vote_f1"] == pytest.approx(oracle.f1(votes, gold.tolist(), num_labels))
    assert found["vote_accuracy"] == pytest.approx(sum(votes[i] == gold[i] for i in known) / 39)
    assert found["label_shares"] == pytest.approx([oracle.share(predictions.tolist(), c) for c in range(num_labels)])
    assert found["label_shares_per_template"]["formal"] == pytest.approx(
        [columns[1].count(c) / 40 for c in range(num_labels)]
    )
    assert (found["num_instances"], found["num_templates"], found["num_labels"]) == (40, 4, num_labels)
    assert found["collapsed"] is False


def test_the_keys_are_those_of_metrics_json_and_the_values_are_plain_json():
    found = summarise(*run(), NAMES)
    assert set(found) == KEYS
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for name, metric in METRICS.items():
        assert type(found[name]) is float
        assert 0 <= found[name] <= 1 or not metric.in_percent


def test_intervals_hold_every_metric_but_the_spread_and_contain_it():
    scores, gold = run(50)
    found = summarise(scores, gold, NAMES)
    assert set(found["intervals"]) == {
        "observed_agreement", "no_consensus_share",
        "mean_f1", "macro_f1", "accuracy", "vote_f1", "vote_accuracy", "fleiss_kappa", "posix", "ensemble_f1",
    }  # fmt: skip
    for name, (low, high) in found["intervals"].items():
        assert low <= found[name] <= high, name
    hits = (scores.argmax(axis=2) == gold[:, None]).mean(axis=1)
    mean = mean_statistic(lambda values: values, bounds=(0.0, 1.0))
    assert found["intervals"]["accuracy"] == pytest.approx(bootstrap_interval(mean, hits, seed=0), abs=1e-12)
    assert summarise(scores, gold, NAMES, seed=1)["intervals"] != found["intervals"]
    assert summarise(scores, gold, NAMES, intervals=False)["intervals"] == {}


def test_a_single_template_has_f1_but_no_agreement():
    scores, gold = run(num_templates=1)
    found = summarise(scores, gold, ["plain"])
    assert set(found) == KEYS
    for name in ("observed_agreement", "no_consensus_share", "fleiss_kappa", "posix"):
        assert found[name] is None
        assert found["intervals"][name] is None
    assert found["f1_std"] is None
    assert found["f1_spread"] is None
    assert found["mean_f1"] == found["vote_f1"] == found["f1_per_template"]["plain"]


def test_names_that_do_not_fit_no_instances_or_a_nan_are_refused():
    scores, gold = run()
    for names in ("abc", "abcc", "abcde"):
        with pytest.raises(ValueError, match="unique name"):
            summarise(scores, gold, names)
    with pytest.raises(ValueError, match="set of instances is empty"):
        summarise(scores[:0], gold[:0], NAMES)
    scores[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        summarise(scores, gold, NAMES)
