"""F1, accuracy and kappa equal scikit-learn or slow loops; the summary has all metrics."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, f1_score

from flip_flop.files import generator
from flip_flop.metrics import (
    AXES,
    BETWEEN_RUNS,
    METRICS,
    Design,
    Metric,
    Scores,
    add_metric,
    answers_by_position,
    bootstrap_interval,
    f1_per_template,
    mean_statistic,
    summarise,
)
from tests.metrics import oracle
from tests.metrics.oracle import data_of, random_data
from tests.refused import refused


def value(name, predictions, gold, num_labels=2):
    return METRICS[name].value(data_of(predictions, gold, num_labels))


def table(*keys, num_labels, absent=()):
    """Predictions of 4 templates and gold of 9 instances, some without gold, some labels absent from both."""
    random = generator(0, "tests/metrics/f1", *keys)
    labels = [label for label in range(num_labels) if label not in absent]
    gold = random.choice(labels, size=9)
    gold[random.random(9) < 0.2] = -1
    return random.choice(labels, size=(9, 4)), gold


def by_sklearn(predictions, gold, num_labels, average):
    known = gold != -1
    labels = [1] if average == "binary" else list(range(num_labels))
    return [
        f1_score(gold[known], column[known], labels=labels, average="macro", zero_division=0)
        for column in predictions.T
    ]


@pytest.mark.parametrize("num_labels", [2, 3, 5])
def test_f1_equals_scikit_learn(num_labels):
    for draw in range(10):
        predictions, gold = table(draw, num_labels=num_labels, absent=(0,) if draw % 5 == 0 else ())
        average = "binary" if num_labels == 2 else "macro"
        f1 = f1_per_template(predictions, gold, num_labels=num_labels)
        assert f1.tolist() == pytest.approx(by_sklearn(predictions, gold, num_labels, average), abs=1e-12)
        macro = f1_per_template(predictions, gold, num_labels=num_labels, average="macro")
        assert macro.tolist() == pytest.approx(by_sklearn(predictions, gold, num_labels, "macro"), abs=1e-12)
        assert value("mean_f1", predictions, gold, num_labels) == f1.mean()
        assert value("macro_f1", predictions, gold, num_labels) == macro.mean()


@pytest.mark.parametrize("is_scale", [False, True], ids=["nominal", "quadratic"])
@pytest.mark.parametrize("num_labels", [2, 3, 5])
def test_cohens_kappa_equals_scikit_learn_and_the_loop(num_labels, is_scale):
    for draw in range(10):
        predictions, gold = table("kappa", draw, num_labels=num_labels)
        weights, known = "quadratic" if is_scale else None, gold >= 0
        labels = list(range(num_labels))
        found = [
            cohen_kappa_score(gold[known], column[known], labels=labels, weights=weights) for column in predictions.T
        ]
        data = replace(data_of(predictions, gold, num_labels), design=Design(is_scale=is_scale))
        assert METRICS["cohen_kappa"].value(data) == pytest.approx(np.mean(found), abs=1e-12)
        low, high = METRICS["cohen_kappa"].interval(data)
        assert low < np.mean(found) < high
        scores = data.values.copy()
        scores[0] = -np.inf  # no label
        data = Scores(scores, gold, design=Design(is_scale=is_scale))
        slow = [oracle.cohen_kappa(column, gold.tolist(), num_labels, is_scale) for column in data.predictions.T]
        assert METRICS["cohen_kappa"].value(data) == pytest.approx(np.mean(slow), abs=1e-12)
        votes = oracle.cohen_kappa(data.votes.tolist(), gold.tolist(), num_labels, is_scale)
        assert METRICS["vote_kappa"].value(data) == pytest.approx(votes, abs=1e-12)


def test_cohens_kappa_is_zero_for_a_constant_answer_and_has_no_value_for_a_single_label():
    assert value("cohen_kappa", [[0], [0], [0]], [0, 1, 1]) == 0
    assert value("cohen_kappa", [[0], [0]], [0, 0]) is None
    assert value("cohen_kappa", [[0, 1], [1, 0]], [0, 1]) == 0  # mean of 1 and -1


CROSSED = tuple({"wording": name, "order": order} for name in ("plain", "short") for order in ("first", "swapped"))
LEVELS = (*CROSSED, {"order": "first", "wording": "long"}, {}, {"wording": "plain"}, {"wording": "long"})


def answers_with(predictions, num_labels=3):
    """The scores of generated answers, -1 for those that could not be read, from templates with and without levels."""
    scores = np.where(np.asarray(predictions)[..., None] == np.arange(num_labels), 0.0, -np.inf)
    gold = np.full(len(predictions), -1)
    return Scores(scores, gold, design=Design(levels=LEVELS))


@pytest.mark.parametrize("share_read", [1.0, 0.7, 0.2, 0.0])
@pytest.mark.parametrize("axis", ["wording", "order"])
def test_flip_rates_along_an_axis_equal_the_loop_over_pairs_that_were_read(axis, share_read):
    random = generator(0, "tests/metrics/flips")
    predictions = random.integers(3, size=(30, 8))
    predictions[random.random((30, 8)) >= share_read] = -1
    data = answers_with(predictions)
    slow, num_pairs = oracle.axis_flips(predictions.tolist(), LEVELS, axis)
    metric = METRICS[f"{axis}_flips"]
    assert metric.value(data) == (None if slow is None else pytest.approx(slow, abs=1e-12))
    found = summarise(data.values, data.gold, list("abcdefgh"), levels=LEVELS)
    assert found["flip_pairs"][metric.name] == num_pairs
    assert (found[metric.name] is None) == (num_pairs == 0)
    assert (num_pairs == 0) == (share_read == 0)
    if slow is None:
        assert metric.interval(data) is found["intervals"][metric.name] is None
    else:
        low, high = metric.interval(data)
        assert low <= slow <= high
        assert low < high
    assert metric.value(data_of(np.abs(predictions))) is None  # no levels


def test_interval_of_a_flip_rate_is_that_of_a_share_of_the_pairs_that_were_read():
    """Of 20 flips in 20 pairs, by Clopper and Pearson, also beside 400 instances without a pair."""
    predictions = np.full((420, 8), -1)
    predictions[:20, :2] = [0, 1]
    for data in (answers_with(predictions[:20]), answers_with(predictions)):
        assert METRICS["order_flips"].interval(data) == (pytest.approx(0.025 ** (1 / 20), abs=0.01), 1.0)
    change = METRICS["order_flips"].change_interval(answers_with(predictions), answers_with(predictions))
    assert change[0] < 0 < change[1]


@pytest.mark.parametrize(("num_labels", "changed", "is_by_position"), [(2, 260, True), (4, 260, False), (4, 360, True)])
def test_position_decides_if_more_answers_change_than_at_random(num_labels, changed, is_by_position):
    predictions = np.zeros((400, 8), dtype=int)
    predictions[:changed, 1::2] = 1
    data = answers_with(predictions[:, :4], num_labels)
    data = replace(data, design=Design(levels=CROSSED))
    assert METRICS["order_flips"].value(data) == changed / 400
    assert answers_by_position(data) is is_by_position


def test_templates_that_differ_on_a_third_axis_are_no_pair():
    levels = [*(each | {"format": "plain"} for each in CROSSED[:3]), CROSSED[3] | {"format": "bold"}]
    data = replace(data_of(np.array([[0, 1, 0, 1]] * 20)), design=Design(levels=levels))
    assert data.flips_along("order")[0].tolist() == [1, 1, 1]
    assert data.flips_along("wording")[0].tolist() == [0, 1, 1]
    assert data.flips_along("format")[0].tolist() == [0, 0, 0]


def test_templates_without_a_wording_are_no_pair_with_one():
    predictions = np.array([[0, 1, 1]] * 20)
    data = replace(data_of(predictions), design=Design(levels=({"wording": "ask"}, {}, {})))
    assert METRICS["wording_flips"].value(data) is METRICS["order_flips"].value(data) is None


def test_the_spread_of_a_single_template_has_no_answer():
    for name in ("f1_std", "f1_spread"):
        assert value(name, [[0], [1]], [0, 1]) is None
        assert value(name, [[0, 0], [1, 1]], [0, 1]) == 0.0
        assert METRICS[name].interval(data_of([[0, 0], [1, 0]], [0, 1], 2)) is None, "resampling adds to a spread"


@pytest.mark.parametrize(
    ("prediction", "gold", "num_labels", "words"),
    [
        (2, 0, 2, "Predictions"),
        (-2, 0, 2, "Predictions"),
        (0, 2, 2, "Gold"),
        (0, 0, 3, "f1 is 'binary', but there are 3 labels"),
    ],
)
def test_what_is_no_labels_index_and_binary_f1_of_three_labels_are_refused(prediction, gold, num_labels, words):
    with pytest.raises(ValueError, match=words):
        f1_per_template(np.array([[prediction]]), np.array([gold]), num_labels=num_labels, average="binary")


AXIS_FLIPS = {f"{axis}_flips" for axis in AXES}
# Metrics without a value here: those of answers, and the flips along axes that the levels do not have.
WITHOUT = AXIS_FLIPS - {"wording_flips", "order_flips"}
WITHOUT |= {"token_f1", "unmapped_share", "distinct_answers", "answer_length"}
AGAINST_GOLD = [
    "mean_f1", "f1_std", "macro_f1", "accuracy", "f1_per_template", "accuracy_per_template", "cohen_kappa_per_template",
    "vote_f1", "vote_accuracy", "f1_spread", "ensemble_f1", "ece", "cohen_kappa", "vote_kappa",
    "brier", "ensemble_brier", "nll", "ensemble_nll", "decidable_share",
]  # fmt: skip
KEYS = {
    *AGAINST_GOLD, "observed_agreement", "no_consensus_share", "fleiss_kappa", "posix", "temperature",
    "wording_flips", "order_flips", "label_shares", "label_shares_per_template",
    "collapsed", "constant_templates", "num_instances", "num_templates", "num_labels", "intervals",
    *WITHOUT, "flip_pairs",
}  # fmt: skip
NAMES = ["plain", "formal", "reversed", "terse"]


def run(num_instances=40, num_templates=4, num_labels=3):
    scores, gold = random_data(num_instances, num_templates, num_labels, 1.0)
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
    accuracies = [sum(column[i] == gold[i] for i in known) / 39 for column in columns]
    expected = {
        "observed_agreement": oracle.observed_agreement(predictions.tolist()),
        "no_consensus_share": oracle.no_consensus_share(predictions.tolist()),
        "mean_f1": sum(f1) / 4,
        "f1_std": (sum((value - sum(f1) / 4) ** 2 for value in f1) / 4) ** 0.5,
        "accuracy": sum(accuracies) / 4,
    }
    expected |= {
        "vote_f1": oracle.f1(votes, gold.tolist(), num_labels),
        "vote_accuracy": sum(votes[i] == gold[i] for i in known) / 39,
        "collapsed": False,
        "num_instances": 40,
        "num_templates": 4,
        "num_labels": num_labels,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["f1_per_template"] == pytest.approx(dict(zip(NAMES, f1, strict=True)))
    assert found["accuracy_per_template"] == pytest.approx(dict(zip(NAMES, accuracies, strict=True)))
    kappas = [oracle.cohen_kappa(column, gold.tolist(), num_labels) for column in columns]
    assert found["cohen_kappa_per_template"] == pytest.approx(dict(zip(NAMES, kappas, strict=True)))
    assert found["label_shares"] == pytest.approx([oracle.share(predictions.tolist(), c) for c in range(num_labels)])
    shares = [columns[1].count(label) / 40 for label in range(num_labels)]
    assert found["label_shares_per_template"]["formal"] == pytest.approx(shares)


def test_the_keys_are_those_of_metrics_json_and_the_values_are_plain_json():
    found = summarise(*run(60), NAMES, levels=CROSSED)
    assert set(found) == KEYS
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(found[name] is None for name in WITHOUT)
    for name in METRICS.keys() - WITHOUT:
        assert type(found[name]) is float
        assert 0 <= found[name] <= 1 or not METRICS[name].in_percent


def test_intervals_hold_every_metric_but_the_spread_and_contain_it():
    scores, gold = run(50)
    found = summarise(scores, gold, NAMES, levels=CROSSED)
    assert set(found["intervals"]) == {
        "observed_agreement", "no_consensus_share",
        "mean_f1", "macro_f1", "accuracy", "vote_f1", "vote_accuracy", "fleiss_kappa", "posix", "ensemble_f1",
        "wording_flips", "order_flips", "cohen_kappa", "vote_kappa", *WITHOUT,
        "brier", "ensemble_brier", "nll", "ensemble_nll",
    }  # fmt: skip
    for name, (low, high) in ((name, ends) for name, ends in found["intervals"].items() if name not in WITHOUT):
        assert low <= found[name] <= high, name
    hits = (scores.argmax(axis=2) == gold[:, None]).mean(axis=1)
    mean = mean_statistic(lambda values: values, bounds=(0.0, 1.0))
    assert found["intervals"]["accuracy"] == pytest.approx(bootstrap_interval(mean, hits, seed=0), abs=1e-12)
    assert summarise(scores, gold, NAMES, seed=1, levels=CROSSED)["intervals"] != found["intervals"]
    assert summarise(scores, gold, NAMES, intervals=False)["intervals"] == {}


def test_a_single_template_has_f1_but_no_agreement():
    scores, gold = run(num_templates=1)
    found = summarise(scores, gold, ["plain"])
    assert set(found) == KEYS
    for name in ("observed_agreement", "no_consensus_share", "fleiss_kappa", "posix", "wording_flips"):
        assert found[name] is found["temperature"] is None
        assert found["intervals"][name] is None
    assert found["f1_std"] is found["f1_spread"] is None
    assert found["mean_f1"] == found["vote_f1"] == found["f1_per_template"]["plain"]


def test_names_that_do_not_fit_no_instances_or_a_nan_are_refused():
    scores, gold = run()
    cases = [(scores, names, "unique name") for names in ("abc", "abcc", "abcde")]
    cases += [(scores[:0], NAMES, "set of instances is empty"), (np.full_like(scores, np.nan), NAMES, "NaN")]
    for values, names, words in cases:
        with pytest.raises(ValueError, match=words):
            summarise(values, gold[: len(values)], names)


def failing(data):
    raise KeyError("no such column")


def changing(data):
    data.predictions[:] = 0
    return 1.0


def one_nan(data):
    return np.where(np.arange(len(data)) == 1, np.nan, 1.0)


@pytest.mark.parametrize(
    ("statistic", "reason"),
    [
        (failing, "KeyError: 'no such column'"),
        (lambda data: np.ones(2), "TypeError: array([1., 1.]) is not a number"),
        (lambda data: "0.5", "TypeError: '0.5' is not a number"),
        (lambda data: (0.0, 1.0), "TypeError: (0.0, 1.0) is not a number"),
        (lambda data: np.inf, "TypeError: inf is not a number"),
        (lambda data: one_nan(data).mean(), "is not a number"),
        (mean_statistic(one_nan), "ValueError: 1 of 60 instances have the value NaN"),
        (
            mean_statistic(lambda data: np.full(len(data), 5.0), bounds=(0.0, 1.0)),
            "outside of the bounds (0.0, 1.0): 5 to 5",
        ),
        (changing, "ValueError: assignment destination is read-only"),
    ],
)
@pytest.mark.parametrize("needs_gold", [False, True])
def test_a_custom_metric_that_fails_has_no_value_and_loses_no_other(monkeypatch, caplog, statistic, reason, needs_gold):
    scores, gold = run(60)
    expected = summarise(scores, gold, NAMES)
    name = f"failing_{len(caplog.handler.records)}_{needs_gold}_{abs(hash(reason))}"  # a warning appears once
    monkeypatch.setitem(METRICS.data, name, Metric(name, "failing", statistic, needs_gold=needs_gold))
    with caplog.at_level(logging.WARNING):
        found = summarise(scores, gold, NAMES)
    assert (found.pop(name), found["intervals"].pop(name)) == (None, None)
    assert found == expected
    assert caplog.text.count("W-PLUGIN") == 1
    assert f"metric {name!r}" in caplog.text
    assert reason in caplog.text


def test_a_custom_metric_whose_resamples_fail_has_a_value_without_an_interval(monkeypatch):
    scores, gold = run(60)
    statistic = lambda data: 1.0 if len({*map(bytes, data.values)}) == 60 else np.inf  # noqa: E731
    monkeypatch.setitem(METRICS.data, "fragile", Metric("fragile", "fragile", statistic))
    found = summarise(scores, gold, NAMES)
    assert (found["fragile"], found["intervals"]["fragile"]) == (1.0, None)


def test_a_metric_cannot_have_the_name_of_another_key():
    for name in {*KEYS - METRICS.keys(), "own_label_mass_per_template", "calibrated", *BETWEEN_RUNS, "agreement"}:
        with pytest.raises(ValueError, match=f"'{name}' is the name of another number"):
            Metric(name, "mine", len)


@pytest.mark.parametrize("reference", ["flips", "flips:"])
def test_a_metric_without_the_name_of_its_object_is_refused(reference):
    refused(f"E-CONFIG: metric is '{reference}', without :NAME. Give MODULE:NAME of a Metric", add_metric, reference)


@pytest.mark.parametrize("line", ["import sys; sys.exit(0)", "1 / 0", "import no_such_package"])
def test_a_module_that_ends_or_fails_is_one_line(tmp_path, monkeypatch, line):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ending.py").write_text(f"{line}\n")
    refused(
        "E-CONFIG: metric is 'ending:X': (SystemExit|ZeroDivisionError|ModuleNotFoundError): ", add_metric, "ending:X"
    )
