import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from flip_flop.files import generator
from flip_flop.metrics import METRICS, accuracy_per_template, f1_per_template, resolve_average
from tests.metrics import oracle
from tests.metrics.made_data import data_of


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
def test_f1_equals_scikit_learn_and_the_loop(num_labels):
    for draw in range(25):
        predictions, gold = table(draw, num_labels=num_labels, absent=(0,) if draw % 5 == 0 else ())
        average = "binary" if num_labels == 2 else "macro"
        f1 = f1_per_template(predictions, gold, num_labels=num_labels)
        assert f1.tolist() == pytest.approx(by_sklearn(predictions, gold, num_labels, average), abs=1e-12)
        expected = [oracle.f1(column, gold.tolist(), num_labels) for column in predictions.T.tolist()]
        assert f1.tolist() == pytest.approx(expected, abs=1e-12)
        macro = f1_per_template(predictions, gold, num_labels=num_labels, average="macro")
        assert macro.tolist() == pytest.approx(by_sklearn(predictions, gold, num_labels, "macro"), abs=1e-12)
        assert value("mean_f1", predictions, gold, num_labels) == f1.mean()
        assert value("macro_f1", predictions, gold, num_labels) == macro.mean()


def test_instances_without_gold_are_ignored():
    predictions, gold = table("ignored", num_labels=3)
    known = gold != -1
    assert not known.all()
    for function in (lambda p, g: f1_per_template(p, g, num_labels=3), accuracy_per_template):
        assert function(predictions, gold).tolist() == function(predictions[known], gold[known]).tolist()


def test_accuracy_equals_scikit_learn():
    predictions, gold = table("accuracy", num_labels=4)
    known = gold != -1
    expected = [accuracy_score(gold[known], column[known]) for column in predictions.T]
    assert accuracy_per_template(predictions, gold).tolist() == pytest.approx(expected)
    assert value("accuracy", predictions, gold, 4) == pytest.approx(np.mean(expected))


def test_the_spread_of_a_single_template_has_no_answer():
    for name in ("f1_std", "f1_spread"):
        assert value(name, [[0], [1]], [0, 1]) is None
        assert value(name, [[0, 0], [1, 1]], [0, 1]) == 0.0
        assert METRICS[name].interval(data_of([[0, 0], [1, 0]], [0, 1], 2)) is None, "resampling adds to a spread"


def test_binary_f1_of_three_labels_is_refused():
    predictions, gold = table("binary", num_labels=3)
    assert resolve_average("macro", 2) == resolve_average("auto", 3) == "macro"
    assert resolve_average("auto", 2) == "binary"
    with pytest.raises(ValueError, match="no 'binary' F1 of 3 labels"):
        f1_per_template(predictions, gold, num_labels=3, average="binary")


@pytest.mark.parametrize(
    ("prediction", "gold", "words"), [(2, 0, "Predictions"), (-2, 0, "Predictions"), (0, 2, "Gold")]
)
def test_what_is_no_labels_index_is_refused(prediction, gold, words):
    with pytest.raises(ValueError, match=words):
        f1_per_template(np.array([[prediction]]), np.array([gold]), num_labels=2)
