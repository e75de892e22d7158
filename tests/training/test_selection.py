"""Selection of the checkpoint, and collapse: constant predictions lose, and only ``keep_worse`` saves them."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

from flip_flop.metrics import majority_vote
from flip_flop.tasks import RowsSource
from flip_flop.training.selection import (
    CheckpointCriterion,
    StopOnCollapse,
    drift_beyond_chance,
    reason_to_withhold,
    vote_agreement,
)
from flip_flop.training.votes import VoteTable
from tests.training import conftest
from tests.training.conftest import load_tiny, log_of, make_task, record_of, rows, settings

GUARDED = {"stop_on_collapse": True}


def make_scores(predictions, num_labels):
    return np.where(np.eye(num_labels)[predictions] > 0, -0.1, -3.0).astype(np.float32)


def make_base(predictions, num_labels):
    ids = tuple(map(str, range(len(predictions))))
    return VoteTable(ids, make_scores(predictions, num_labels)).batch_calibrated


def noisy(gold, num_labels, *, accuracy, num_templates=5, seed=0):
    """Predictions of independent templates with this accuracy."""
    random = np.random.default_rng(seed)
    others = random.integers(num_labels, size=(len(gold), num_templates))
    return np.where(random.random(others.shape) < accuracy, gold[:, None], others)


def criterion_for(by, num_rows):
    labels = [0] * num_rows if by == "macro_f1" else [None] * num_rows
    result = CheckpointCriterion.of(settings(**GUARDED), labels)
    assert result.by == by
    return result


@pytest.mark.parametrize(
    ("changes", "labels", "by"),
    [
        ({"stop_on_collapse": True}, [0, 1, None], "macro_f1"),
        ({"stop_on_collapse": False}, [0, 1, None], "mean_f1"),
        ({}, [0, None], "vote_agreement"),
        ({}, None, "last"),
        *(
            ({"select_by": name}, [0, None, None], name)
            for name in ("mean_f1", "macro_f1", "worst_f1", "worst_agreement")
        ),
        ({"select_by": "last", "stop_on_collapse": True}, [0, 1], "macro_f1"),
        ({"select_by": "last"}, [None, 0], "vote_agreement"),
    ],
)
def test_auto_uses_labels_if_most_rows_have_one(changes, labels, by):
    assert CheckpointCriterion.of(settings(**changes), labels).by == by


DATA = {
    "balanced": (np.tile([0, 1], 30), 2),
    "three labels": (np.tile([0, 1, 2], 20), 3),
    "skewed": (np.repeat([0, 1], [48, 12]), 2),
    "three labels, skewed": (np.repeat([0, 1, 2], [42, 12, 6]), 3),
    "few rows": (np.array([0, 1, 1, 0, 1]), 2),
}


@pytest.mark.parametrize("by", ["macro_f1", "vote_agreement"])
@pytest.mark.parametrize(("gold", "num_labels"), DATA.values(), ids=DATA)
def test_constant_predictions_lose_against_the_base_model(by, gold, num_labels):
    base, criterion = make_base(noisy(gold, num_labels, accuracy=0.5), num_labels), criterion_for(by, len(gold))
    for label in range(num_labels):
        result = criterion.judge(make_scores(np.full((len(gold), 5), label), num_labels), base, gold)
        assert result["selection"] < result["base_selection"]
        assert result["selection"] <= criterion.constant_value(gold, num_labels)
        assert result["collapsed"] == 1 or len(gold) < 10  # few rows can be constant by chance
    followed = np.repeat(majority_vote(base.scores)[:, None], 5, axis=1)
    assert criterion.judge(make_scores(followed, num_labels), base, gold)["selection"] > result["base_selection"]


@pytest.mark.parametrize(("gold", "num_labels"), DATA.values(), ids=DATA)
def test_worst_template_selects(gold, num_labels):
    predictions = noisy(gold, num_labels, accuracy=0.7)
    predictions[:, 3] = noisy(gold, num_labels, accuracy=0.2, num_templates=1)[:, 0]
    base = make_base(noisy(gold, num_labels, accuracy=0.6, seed=1), num_labels)
    alone = [make_scores(column[:, None], num_labels) for column in predictions.T]
    for worst, mean in (("worst_f1", "macro_f1"), ("worst_agreement", "vote_agreement")):
        found = CheckpointCriterion(worst, 0.2).judge(make_scores(predictions, num_labels), base, gold)
        each = [CheckpointCriterion(mean, 0.2).judge(scores, base, gold)["selection"] for scores in alone]
        assert found["selection"] == pytest.approx(min(each))
        assert found["selection"] < np.mean(each)


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 30), st.integers(1, 9), st.floats(0.1, 10))
def test_vote_agreement_of_constant_templates_is_exactly_zero(seed, num_labels, num_rows, num_templates, skew):
    random = np.random.default_rng(seed)
    votes = random.choice(num_labels, size=num_rows, p=random.dirichlet([skew] * num_labels))
    constants = np.tile(random.integers(num_labels, size=num_templates), (num_rows, 1))
    assert vote_agreement(constants, votes, num_labels) == 0
    assert vote_agreement(votes[:, None], votes, num_labels) == (1 if len(set(votes.tolist())) > 1 else 0)


def test_a_biased_base_model_is_compared_with_its_calibrated_votes():
    """Label 1 wins everywhere; calibration recovers the ranking of the rows, and a model that follows it improves."""
    signal = np.linspace(-0.4, 0.4, 20)
    scores = np.stack([np.zeros(20), 1 + signal], axis=-1)[:, None].repeat(3, axis=1)
    base = VoteTable(tuple(map(str, range(20))), scores).batch_calibrated
    assert majority_vote(base.uncalibrated.scores).tolist() == [1] * 20
    criterion, unlabelled = criterion_for("vote_agreement", 20), np.full(20, -1)
    better = np.stack([np.zeros(20), signal], axis=-1)[:, None].repeat(3, axis=1)
    result = criterion.judge(better, base, unlabelled)
    assert (result["selection"], result["base_selection"], result["collapsed"]) == (1, 0, 0)
    assert result["vote_drift"] == pytest.approx(0, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["macro_f1", "vote_agreement"])
@pytest.mark.parametrize(("gold", "num_labels"), DATA.values(), ids=DATA)
def test_constant_predictions_never_exceed_the_constant_value(by, gold, num_labels):
    """Even if the base model guesses, and constant predictions are better than it."""
    for seed in range(3):
        base = make_base(noisy(gold, num_labels, accuracy=0, seed=seed), num_labels)
        criterion = criterion_for(by, len(gold))
        constant = criterion.constant_value(gold, num_labels)
        for labels in np.random.default_rng(seed).integers(num_labels, size=(8, 5)):  # one for each template
            scores = make_scores(np.tile(labels, (len(gold), 1)), num_labels)
            assert criterion.judge(scores, base, gold)["selection"] <= constant


def test_drift_without_a_loss_of_quality_is_not_a_collapse():
    gold = np.repeat([0, 1], [15, 45])
    votes = np.repeat([0, 1], 30)  # the base predicts label 0 too often
    base = make_base(np.repeat(votes[:, None], 5, axis=1), 2)
    criterion = CheckpointCriterion.of(settings(select_by="macro_f1"), [0, 1])
    result = criterion.judge(make_scores(np.repeat(gold[:, None], 5, axis=1), 2), base, gold)
    assert (result["vote_drift"] > 0.2, result["collapsed"]) == (True, 0)


def test_drift_is_measured_from_the_nearest_point_between_raw_and_calibrated_shares():
    raw = np.log([[[0.6, 0.4]]] * 8 + [[[0.1, 0.9]]] * 2)
    votes = VoteTable(tuple("0123456789"), raw + np.array([[-0.5, 0.5]]), np.array([[-0.5, 0.5]]))
    assert (votes.uncalibrated.shares.tolist(), votes.shares.tolist()) == ([0.8, 0.2], [0.0, 1.0])
    for share in (0.8, 0.5, 0.0):
        assert votes.drift(np.array([share, 1 - share])) == pytest.approx(0.0, abs=0.01)
    assert votes.drift(np.array([1.0, 0.0])) == pytest.approx(0.2)


# The base's votes are 3 to 1. At this rate all votes are for one label after five steps.
RUNAWAY = {
    "method": "cce",
    "votes": "online",
    "stop_on_collapse": True,
    "learning_rate": 3e-2,
    "lr_scheduler_type": "constant",
    "max_steps": 20,
    "logging_steps": 1,
    "per_device_train_batch_size": 50,
    "eval_strategy": "steps",
    "eval_steps": 4,
}


def run_away(out, labelled=True, resume=False, keep_worse=False, validation=None, **changes):
    made = {"train": rows(200), "validation": validation or rows(40, 300)}
    data = {name: RowsSource(made[name], name) for name in made}
    task = replace(make_task(), data=data, label_field="label" if labelled else None)
    how = {"resume": resume, "keep_worse": keep_worse, **(RUNAWAY | changes)}
    return conftest.run(out, model=load_tiny(2), task=task, **how)


def reasons(caplog):
    """The reasons against saving an adapter."""
    return [line for line in caplog.messages if "--resume --keep-worse saves it" in line]


@pytest.mark.slow
def test_collapse_stops_training_without_saving_an_adapter(out, caplog):
    result = run_away(out, labelled=False)
    evaluations = log_of(out, "eval_collapsed")
    collapsed = [entry["eval_collapsed"] for entry in evaluations]
    assert collapsed[-2:] == [1, 1], "two evaluations in a row"
    assert (1, 1) not in pairwise(collapsed[:-1])
    step = evaluations[-1]["step"]
    assert step < 20
    assert f"W-COLLAPSE: stopped at step {step}" in caplog.text
    assert result.withheld
    assert result.adapter is None
    assert [line[:10] for line in reasons(caplog)] == ["W-COLLAPSE"]
    assert not (out / "adapter").exists()
    assert not (out / "run.json").exists()
    assert run_away(out, labelled=False, resume=True).withheld
    result = run_away(out, labelled=False, resume=True, keep_worse=True)
    assert result.adapter == out / "adapter"
    training = record_of(out)["training"]
    assert training["collapsed_at_step"] == training["steps"] == step
    assert [entry["step"] for entry in log_of(out, "eval_collapsed")][-1] == step, "nothing is trained again"


@pytest.mark.slow
def test_checkpoint_before_a_collapse_is_saved_if_it_beats_the_base_model(out):
    result = run_away(out, labelled=False, learning_rate=1e-2, eval_steps=2, lora_dropout=0.0)
    assert result.adapter == out / "adapter"
    training = record_of(out)["training"]
    values = {entry["step"]: entry["eval_selection"] for entry in log_of(out, "eval_selection")}
    assert training["selected_value"] == max(values.values()) > training["base_value"] == values[0]
    assert int(training["selected_checkpoint"].split("-")[1]) < training["collapsed_at_step"]


@pytest.mark.slow
def test_log_line_with_drift_asks_for_an_evaluation(out):
    run_away(out, eval_steps=10)
    drifted = [entry["step"] for entry in log_of(out, "vote_drift") if entry["vote_drift"] > 0.2]
    assert drifted[0] < 10
    assert drifted[0] in [entry["step"] for entry in log_of(out, "eval_collapsed")]


@pytest.mark.slow
def test_collapse_without_evaluations_is_found_in_the_log_lines(out, caplog):
    assert run_away(out, eval_strategy="no").withheld
    drifted = [entry["vote_drift"] > 0.2 for entry in log_of(out, "vote_drift")]
    assert drifted[-2:] == [True, True]
    assert (True, True) not in pairwise(drifted[:-1])
    assert [line[:10] for line in reasons(caplog)] == ["W-COLLAPSE"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"eval_strategy": "no"}, {"select_by": "last", "eval_steps": 5}])
def test_signals_do_not_change_what_a_log_line_says_of_the_votes(tmp_path, changes):
    """Half of a line's votes drift more than its whole, and two lines with drift stop the run."""
    changes = {"learning_rate": 1e-2, "logging_steps": 3, "save_strategy": "no", "keep_worse": True} | changes
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    run_away(whole, **changes)
    steps = record_of(whole)["training"]["steps"]
    for step in range(2, steps + 1):  # a signal in each step, twice in each line
        with pytest.MonkeyPatch.context() as patch:
            conftest.signal_in(patch, step)
            run_away(parts, resume=True, **changes)
    if not (parts / "run.json").exists():
        run_away(parts, resume=True, **changes)
    for key in ("vote_drift", "eval_collapsed"):
        lines = [[(entry["step"], entry[key]) for entry in log_of(out, key)] for out in (whole, parts)]
        assert lines[0] == lines[1], key
    assert record_of(parts)["training"]["steps"] == steps
    assert conftest.adapter_bytes(parts) == conftest.adapter_bytes(whole)


# The paper's criterion rewards label 1 for every row, and its protocol does not stop.
MOSTLY_1 = [row | {"label": 1} for row in rows(30, 300)] + [row | {"label": 0} for row in rows(10, 400)]


@pytest.mark.slow
def test_collapsed_model_of_the_papers_protocol_is_withheld_and_kept_on_request(out, caplog):
    changes = {"select_by": "mean_f1", "validation": MOSTLY_1, "stop_on_collapse": False, "max_steps": 8}
    assert run_away(out, **changes).withheld
    assert [line[:10] for line in reasons(caplog)] == ["W-COLLAPSE"]
    run_away(out, resume=True, keep_worse=True, **changes)
    training = record_of(out)["training"]
    assert training["collapsed_at_step"] is not None
    assert training["steps"] == 8
    line = log_of(out, "vote_drift")[-1]
    assert line["vote_share_0"] + line["vote_share_1"] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"select_by": "last"}, {"load_best_model_at_end": False}])
def test_the_last_checkpoint_is_withheld_too_if_it_is_worse_than_the_base(out, caplog, monkeypatch, changes):
    values = {"selection": 0.45, "base_selection": 0.52, "vote_drift": 0.0, "collapsed": 0.0}
    monkeypatch.setattr(CheckpointCriterion, "judge", lambda *_: values)
    changes |= {"learning_rate": 1e-4, "max_steps": 4}
    assert run_away(out, **changes).withheld
    (line,) = reasons(caplog)
    assert "W-WORSE: the selected checkpoint's macro_f1 on validation is 45.0, the base model's 52.0." in line
    run_away(out, resume=True, keep_worse=True, **changes)
    training = record_of(out)["training"]
    assert (training["selected_by"], training["selected_checkpoint"]) == ("last", None)
    assert (training["selected_value"], training["base_value"]) == (0.45, 0.52)
    card = (out / "adapter" / "README.md").read_text()
    assert "of the validation split. The last checkpoint was used." in card
    assert "selected the checkpoint" not in card
    assert "**It scores below its base model on validation**" in card


def evaluations(*values, base=0.5):
    """The log of evaluations at steps 0, 4, 8, ..., from the criterion's value and whether it has collapsed."""
    return [
        {"step": 4 * number, "eval_selection": value, "eval_collapsed": collapsed, "eval_base_selection": base}
        for number, (value, collapsed) in enumerate(values)
    ]


def test_a_checkpoint_is_compared_with_the_base_on_the_rows_of_its_evaluation():
    """A resumed run may have other validation labels from step 4 on."""
    log = [*evaluations((0.5, 0)), *evaluations((0.5, 0), (0.6, 0), base=0.7)[1:]]
    state = TrainerState(log_history=log, global_step=4)
    guard, criterion = StopOnCollapse(settings(), lambda: None), CheckpointCriterion("macro_f1", 0.2)
    assert re.match("W-WORSE: .* is 60.0, the base model's 70.0", reason_to_withhold(state, guard, criterion, GOLD, 2))
    state.global_step = 6  # the last step was not evaluated
    assert reason_to_withhold(state, guard, criterion, GOLD, 2) is None


GOLD = np.repeat([0, 1], 20)  # the macro-F1 of constant predictions is 1/3


@pytest.mark.parametrize(
    ("values", "best", "by", "reason"),
    [
        ([(0.5, 0), (0.6, 0)], 4, "macro_f1", None),
        ([(0.5, 0), (0.5, 0)], 4, "macro_f1", None),
        ([(0.5, 0), (0.4, 0)], 4, "macro_f1", "W-WORSE: .* on validation is 40.0, the base model's 50.0."),
        ([(0.5, 0), (0.4999, 0)], 4, "macro_f1", "W-WORSE: .* on validation is 49.99, the base model's 50.00."),
        ([(0.5, 0), (0.9, 1)], 4, "mean_f1", "W-COLLAPSE: .* of step 4, have collapsed"),
        ([(0.5, 0), (0.6, 0), (0.9, 1)], 4, "macro_f1", None),  # the selected one has not collapsed
        ([(0.5, 0), (0.4, 1), (0.4, 1)], None, "last", "W-COLLAPSE: .* of step 8, have collapsed"),
        ([(0.5, 0), (0.5, 0), (0.4, 1), (0.4, 1)], 4, "macro_f1", "W-COLLAPSE: .* 50.0, the base model's 50.0"),
    ],
)
def test_collapsed_or_worse_checkpoint_is_withheld(values, best, by, reason):
    config = settings(stop_on_collapse=True)
    log = evaluations(*values)
    state = TrainerState(log_history=log, global_step=log[-1]["step"], best_global_step=best)
    guard, criterion = StopOnCollapse(config, lambda: None), CheckpointCriterion(by, 0.2)
    given = reason_to_withhold(state, guard, criterion, GOLD, 2)
    assert given is None if reason is None else re.match(reason, given)


def one_hot(votes, num_labels):
    return VoteTable(tuple(map(str, range(len(votes)))), np.eye(num_labels)[votes][:, None])


def test_label_drift_ignores_sampling_noise():
    random = np.random.default_rng(0)
    for num_labels, count in ((2, 80), (20, 60)):
        first = one_hot(random.integers(num_labels, size=200), num_labels)
        alike = np.bincount(random.integers(num_labels, size=count), minlength=num_labels)
        assert drift_beyond_chance(alike, first) < 0.1
        assert drift_beyond_chance(np.bincount([0] * count, minlength=num_labels), first) > 0.3
