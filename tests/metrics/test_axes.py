"""The table of axes against slow loops over pairs of answers, in each form."""

import itertools
import math

import numpy as np
import pytest

from flip_flop.metrics import TAGS, Design, Scores, axis_rows, batch_offsets, forms_of
from tests.method import oracle as method_oracle
from tests.metrics import oracle

PLAIN = {"format": "original", "typos": "0"}
CROSSED = [
    {"wording": wording, "order": order, **PLAIN, "language": "de" if wording == "c" else "en"}
    for wording, order in itertools.product("abc", ("1 2 3", "2 3 1", "3 1 2"))
]
LEVELS = [*CROSSED, *(CROSSED[place] | {"format": "bold"} for place in (0, 4)), CROSSED[8] | {"typos": "0.05"}]
ROWS = 60


def made_scores(levels=LEVELS):
    """Scores with many ties, and gold labels of most rows."""
    random = np.random.default_rng(0)
    values = np.round(random.normal(size=(ROWS, len(levels), 3)))
    return Scores(values, random.integers(-1, 3, size=ROWS), design=Design(levels=levels))


def slow_flips(predictions, axis, levels=LEVELS):
    """The flips of pairs with two levels on the axis and the same ones elsewhere. Tags are of no account elsewhere."""
    ignored = {*TAGS, "wording"} if axis in TAGS else {*TAGS}
    kept = [dict(own) for own in levels]
    for own in kept:
        for name in ignored - {axis}:
            own.pop(name, None)
    return oracle.axis_flips(predictions.tolist(), kept, axis)


def slow_average(data, members):
    """The mean probabilities of some templates."""
    means = []
    for row in data.values.tolist():
        sums = [0.0] * len(row[0])
        for place, label in itertools.product(members, range(len(sums))):
            sums[label] += math.exp(method_oracle.log_softmax(row[place])[label])
        means.append([total / len(members) for total in sums])
    return np.array(means)


@pytest.mark.parametrize("axis", ["order", "wording", "format", "typos", "language"])
def test_flips_along_an_axis_are_those_of_a_loop_over_pairs(axis):
    data = made_scores()
    after = Scores(data.values + batch_offsets(data.values), data.gold, design=data.design)
    unread = np.where(np.random.default_rng(1).random((ROWS, len(LEVELS))) < 0.3, -1, data.predictions)
    written = Scores(np.where(unread[..., None] == np.arange(3), 0.0, -np.inf), data.gold, design=data.design)
    tables = [(axis_rows(forms_of(data, after)), "raw", data), (axis_rows(forms_of(data, after)), "calibrated", after)]
    for rows, form, scores in [*tables, (axis_rows(forms_of(written)), "raw", written)]:
        rate, num_pairs = slow_flips(scores.predictions, axis)
        row = rows[axis, None, form]
        assert (row.flips, row.pairs) == (pytest.approx(rate, abs=1e-12), num_pairs)
        assert row.low < row.flips < row.high
        members = sorted({place for group in data.design.groups(axis) for same in group.values() for place in same})
        right = (scores.predictions == data.gold[:, None])[data.gold >= 0][:, members].mean(axis=0)
        assert (row.accuracy, row.worst, row.best, row.variants) == (
            pytest.approx(right.mean()), right.min(), right.max(), len(members),
        )  # fmt: skip
    assert {form for *_, form in axis_rows(forms_of(written))} == {"raw"}, "written answers have no probabilities"


def test_averages_over_the_orders_are_plain_and_divided_by_their_mean_over_the_rows():
    data = made_scores(CROSSED)
    rows = axis_rows(forms_of(data, data))
    means = np.stack([slow_average(data, range(start, start + 3)) for start in (0, 3, 6)], axis=1)
    levels = [{"wording": wording} for wording in "abc"]
    for form, values in {"average": means, "calibrated average": means / means.mean(axis=0)}.items():
        predictions = (values - 1e-9 * np.arange(3)).argmax(axis=2)  # a tie goes to the first label
        rate, num_pairs = oracle.axis_flips(predictions.tolist(), levels, "wording")
        row = rows["wording", None, form]
        assert (row.flips, row.pairs) == (pytest.approx(rate, abs=1e-12), num_pairs)
        right = (predictions == data.gold[:, None])[data.gold >= 0].mean(axis=0)
        assert (row.accuracy, row.worst, row.best) == (pytest.approx(right.mean()), right.min(), right.max())
        assert (rows["order", None, form].pairs, rows["order", None, form].accuracy) == (0, row.accuracy)
        assert rows["order", "b", form].accuracy == right[1]


def test_wordings_have_their_own_flips_by_order():
    data = made_scores(CROSSED)
    rows = axis_rows(forms_of(data))
    for start, wording in enumerate("abc"):
        places = range(3 * start, 3 * start + 3)
        rate, num_pairs = slow_flips(data.predictions[:, places], "order", [CROSSED[place] for place in places])
        assert (rows["order", wording, "raw"].flips, rows["order", wording, "raw"].pairs) == (rate, num_pairs)
    assert sum(rows["order", wording, "raw"].pairs for wording in "abc") == rows["order", None, "raw"].pairs


def listed(orders, by_label, by_place):
    """Scores of options in several orders, from a score of each label and of each place."""
    levels = [{"wording": "ask", "order": " ".join(map(str, order))} for order in orders]
    values = np.tile(np.array(by_label), (len(orders), 1)) * 1.0
    for row, order in zip(values, orders, strict=True):
        row[np.array(order) - 1] += by_place
    return Scores(np.tile(values, (ROWS, 1, 1)), np.arange(ROWS) % 3, design=Design(levels=levels))


ROTATIONS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


@pytest.mark.parametrize(
    ("orders", "flips"), [(ROTATIONS, 1.0), ([*itertools.permutations((1, 2, 3))], 1 - 3 / 15), (ROTATIONS[:2], 1.0)]
)
def test_a_scorer_of_places_flips_in_closed_form_and_its_average_ties(orders, flips):
    blind = axis_rows(forms_of(listed(orders, (0.1, 0.3, 0.2), (0, 0, 0))))
    assert blind["order", None, "raw"].flips == 0.0
    data = listed(orders, (0, 0, 0), (0.3, 0.1, 0.2))
    assert axis_rows(forms_of(data))["order", None, "raw"].flips == pytest.approx(flips)
    if len(orders) > 2:
        average = forms_of(data)["average"]
        assert (average.values == average.values[:, :, :1]).all(), "each label is at each place equally often"


def test_tasks_without_pairs_have_no_table():
    for levels in ((), [{}] * 3, [{"wording": "a"}, {"format": "b"}, {"wording": "a"}]):
        data = Scores(np.zeros((ROWS, 3, 2)), np.full(ROWS, -1), design=Design(levels=levels))
        assert axis_rows(forms_of(data)) == {}


def test_a_calibrated_average_has_the_label_prior():
    levels = [{"wording": "ask", "order": order} for order in ("1 2", "2 1")]
    values = np.log([[[0.6, 0.4], [0.8, 0.2]], [[0.1, 0.9], [0.3, 0.7]], [[0.5, 0.5], [0.2, 0.8]]])
    data = Scores(values, np.array([0, 1, 1]), design=Design(levels=levels))
    found = forms_of(data, data, (0.9, 0.1))["calibrated average"].values
    for row, (first, second) in enumerate([(0.7, 0.3), (0.2, 0.8), (0.35, 0.65)]):
        expected = math.log(first * 0.9 / 1.25) - math.log(second * 0.1 / 1.75)
        assert found[row, 0, 0] - found[row, 0, 1] == pytest.approx(expected, abs=1e-6)
