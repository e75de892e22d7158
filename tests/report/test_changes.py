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


def test_every_instance_is_in_one_state_before_and_in_one_after_labelled_or_not(make_run, hostile):
    for before, after in (pair(make_run), map(load_run, hostile)):
        table = np.array(transition_counts(before, after))
        assert table.sum() == 90
        assert table.sum(axis=1).tolist() == state_counts(before)
        assert table.sum(axis=0).tolist() == state_counts(after)
        assert {change.kind.tone for change in find_changes(before, after)} <= {"better", "worse", "other"}


def test_an_instance_has_agreed_where_all_its_templates_answer_alike(make_run):
    run = load_run(make_run(num_instances=90))
    agreed_right = agreed_wrong = 0
    for row, gold in zip(run.scores.tolist(), run.gold.tolist(), strict=True):
        answers = {max(range(2), key=lambda label, scores=scores: (scores[label], -label)) for scores in row}
        agreed_right += answers == {gold}
        agreed_wrong += len(answers) == 1 and answers != {gold}
    counts = dict(zip(state_names(run), state_counts(run), strict=True))
    assert (counts["agreed right"], counts["agreed wrong"]) == (agreed_right, agreed_wrong)


def test_answers_that_turned_right_less_those_that_turned_wrong_are_the_gain_in_accuracy(make_run):
    before, after = pair(make_run)
    (_, turned_right), (turned_wrong, _) = counts = answer_counts(before, after)
    gain = (turned_right - turned_wrong) / (90 * 8)
    assert np.isclose(gain, after.metrics["accuracy"] - before.metrics["accuracy"])
    assert np.sum(counts) == 90 * 8


def test_bad_kinds_have_as_many_places_as_good_ones():
    good, bad, rare = Kind("a", "b", "better"), Kind("b", "a", "worse"), Kind("a", "c", "other")
    changes = [Change(i, good, 5) for i in range(50)] + [Change(50 + i, bad, 1) for i in range(30)]
    changes.append(Change(99, rare, 1))
    chosen = select_examples(changes, limit=11)
    assert {kind: len(members) for kind, members in chosen.items()} == {good: 5, bad: 5, rare: 1}


def test_the_most_changed_instance_of_a_kind_comes_first():
    kind = Kind("a", "b", "better")
    chosen = select_examples([Change(0, kind, 1), Change(1, kind, 7), Change(2, kind, 7)], limit=2)
    assert [change.instance for change in chosen[kind]] == [1, 2]


def test_a_margin_is_the_lead_in_probability(make_run):
    run = load_run(make_run(num_instances=11))
    scores = run.scores.astype(np.float64)
    for i in range(11):
        for v in range(8):
            first, second = (np.exp(score) / np.exp(scores[i, v]).sum() for score in scores[i, v])
            assert np.isclose(margins(run.scores)[i, v], abs(first - second), atol=1e-12)


def test_an_interval_is_of_the_same_metric_as_the_record(make_run):
    before, after = pair(make_run)
    for metric in ("observed_agreement", "mean_f1", "macro_f1", "accuracy", "vote_f1", "vote_accuracy"):
        change = mean_difference(metric, before, [after])
        assert change.interval[0] <= change.value <= change.interval[1]
        assert mean_difference(metric, before, [before]).interval == (0.0, 0.0)
