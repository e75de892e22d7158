import numpy as np

from flip_flop.report import load_run, mean_difference
from flip_flop.report.changes import (
    Change,
    Kind,
    answer_counts,
    find_changes,
    margins,
    select_examples,
    state_counts,
    state_names,
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


def test_an_instance_is_unanimous_if_all_templates_give_one_answer(make_run):
    run = load_run(make_run(num_instances=90))
    right = wrong = 0
    for row, gold in zip(run.scores.tolist(), run.gold.tolist(), strict=True):
        answers = {max(range(2), key=lambda label, scores=scores: (scores[label], -label)) for scores in row}
        right += answers == {gold}
        wrong += len(answers) == 1 and answers != {gold}
    counts = dict(zip(state_names(run), state_counts(run), strict=True))
    assert (counts["unanimous, right"], counts["unanimous, wrong"]) == (right, wrong)


def test_corrected_minus_broken_answers_equal_the_gain_in_accuracy(make_run):
    before, after = pair(make_run)
    (_, turned_right), (turned_wrong, _) = counts = answer_counts(before, after)
    gain = (turned_right - turned_wrong) / (90 * 8)
    assert np.isclose(gain, after.metrics["accuracy"] - before.metrics["accuracy"])
    assert np.sum(counts) == 90 * 8


def test_changes_for_the_worse_get_as_many_examples():
    good, bad, rare = Kind("a", "b", "better"), Kind("b", "a", "worse"), Kind("a", "c", "other")
    changes = [Change(i, good, 5) for i in range(50)] + [Change(50 + i, bad, 1) for i in range(30)]
    changes.append(Change(99, rare, 1))
    chosen = select_examples(changes, limit=11)
    assert {kind: len(members) for kind, members in chosen.items()} == {good: 5, bad: 5, rare: 1}


def test_the_most_changed_instance_of_a_kind_comes_first():
    kind = Kind("a", "b", "better")
    chosen = select_examples([Change(0, kind, 1), Change(1, kind, 7), Change(2, kind, 7)], limit=2)
    assert [change.instance for change in chosen[kind]] == [1, 2]


def test_a_margin_is_a_difference_of_probabilities(make_run):
    run = load_run(make_run(num_instances=11))
    scores = run.scores.astype(np.float64)
    for i in range(11):
        for v in range(8):
            first, second = (np.exp(score) / np.exp(scores[i, v]).sum() for score in scores[i, v])
            assert np.isclose(margins(run.scores)[i, v], abs(first - second), atol=1e-12)


def test_the_interval_of_a_difference_contains_it(make_run):
    before, after = pair(make_run)
    for metric in ("observed_agreement", "mean_f1", "macro_f1", "accuracy", "vote_f1", "vote_accuracy"):
        change = mean_difference(metric, before, [after])
        assert change.interval[0] <= change.value <= change.interval[1]
        same = mean_difference(metric, before, [before])
        assert same.interval[0] < same.value == 0 < same.interval[1]
