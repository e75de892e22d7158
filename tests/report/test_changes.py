import numpy as np

from flip_flop.report import load_run
from flip_flop.report.changes import (
    answer_counts,
    find_changes,
    state_counts,
    transition_counts,
)


def pair(make_run):
    return load_run(make_run(num_instances=90)), load_run(make_run("f2c", num_instances=90, pull=0.7))


def test_every_instance_has_one_state_before_and_one_after(make_run, hostile):
    for before, after in (pair(make_run), map(load_run, hostile)):
        table = np.array(transition_counts(before, after))
        assert table.sum() == 90
        assert table.sum(axis=1).tolist() == state_counts(before)
        assert table.sum(axis=0).tolist() == state_counts(after)
        assert {change.kind.tone for change in find_changes(before, after)} <= {"better", "worse", "other"}


def test_corrected_minus_broken_answers_equal_the_gain_in_accuracy(make_run):
    before, after = pair(make_run)
    (_, turned_right), (turned_wrong, _) = counts = answer_counts(before, after)
    gain = (turned_right - turned_wrong) / (90 * 8)
    assert np.isclose(gain, after.metrics["accuracy"] - before.metrics["accuracy"])
    assert np.sum(counts) == 90 * 8
