"""A collapsed training stops. A collapsed or worse adapter is saved only with ``keep_worse``."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from flip_flop.tasks import RowsSource
from flip_flop.training import train
from flip_flop.training.selection import drift_beyond_chance
from flip_flop.training.votes import VoteTable
from tests.training.conftest import load_tiny, log_of, make_task, record_of, rows, settings

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


def run(out, labelled=True, resume=False, keep_worse=False, validation=None, **changes):
    made = {"train": rows(200), "validation": validation or rows(40, 300)}
    data = {name: RowsSource(each, name) for name, each in made.items()}
    task = replace(make_task(), data=data, label_field="label" if labelled else None)
    config = settings(**(RUNAWAY | changes))
    return train(load_tiny(2), task, config, out, resume=resume, quiet=True, keep_worse=keep_worse)


def reasons(caplog):
    """The reasons against saving an adapter."""
    return [line for line in caplog.messages if "--resume --keep-worse saves it" in line]


@pytest.mark.parametrize("labelled", [True, False])
def test_collapse_stops_training_without_saving_an_adapter(out, caplog, labelled):
    found = run(out, labelled)
    evaluations = log_of(out, "eval_collapsed")
    collapsed = [entry["eval_collapsed"] for entry in evaluations]
    assert collapsed[-2:] == [1, 1], "two evaluations in a row"
    assert (1, 1) not in pairwise(collapsed[:-1])
    step = evaluations[-1]["step"]
    assert step < 20
    assert f"W-COLLAPSE: stopped at step {step}" in caplog.text
    assert found.withheld
    assert found.adapter is None
    assert [line[:10] for line in reasons(caplog)] == ["W-COLLAPSE"]
    assert not (out / "adapter").exists()
    assert not (out / "run.json").exists()
    assert run(out, labelled, resume=True).withheld
    found = run(out, labelled, resume=True, keep_worse=True)
    assert found.adapter == out / "adapter"
    training = record_of(out)["training"]
    assert training["collapsed_at_step"] == training["steps"] == step
    assert [entry["step"] for entry in log_of(out, "eval_collapsed")][-1] == step, "nothing is trained again"


def test_checkpoint_before_a_collapse_is_saved_if_it_beats_the_base_model(out):
    found = run(out, labelled=False, learning_rate=1e-2, eval_steps=2)
    assert found.adapter == out / "adapter"
    training, values = (
        record_of(out)["training"],
        {e["step"]: e["eval_selection"] for e in log_of(out, "eval_selection")},
    )
    assert training["selected_value"] == max(values.values()) > training["base_value"] == values[0]
    assert int(training["selected_checkpoint"].split("-")[1]) < training["collapsed_at_step"]


def test_log_line_with_drift_asks_for_an_evaluation(out):
    run(out, eval_steps=10)
    drifted = [entry["step"] for entry in log_of(out, "vote_drift") if entry["vote_drift"] > 0.2]
    assert drifted[0] < 10
    assert drifted[0] in [entry["step"] for entry in log_of(out, "eval_collapsed")]


def test_collapse_without_evaluations_is_found_in_the_log_lines(out, caplog):
    assert run(out, eval_strategy="no").withheld
    drifted = [entry["vote_drift"] > 0.2 for entry in log_of(out, "vote_drift")]
    assert drifted[-2:] == [True, True]
    assert (True, True) not in pairwise(drifted[:-1])
    assert [line[:10] for line in reasons(caplog)] == ["W-COLLAPSE"]
    assert run(out, eval_strategy="no", resume=True, keep_worse=True).adapter is not None


def test_collapsed_model_is_withheld_for_every_criterion(out, caplog):
    """The paper's criterion rewards label 1 for every row, and its protocol does not stop."""
    validation = [row | {"label": 1} for row in rows(30, 300)] + [row | {"label": 0} for row in rows(10, 400)]
    for select_by in ("mean_f1", "last"):
        caplog.clear()
        changes = {"select_by": select_by, "stop_on_collapse": False, "max_steps": 12, "validation": validation}
        assert run(out / select_by, **changes).withheld
        assert len(reasons(caplog)) == 1
        assert "W-COLLAPSE" in reasons(caplog)[0]


@pytest.mark.parametrize("changes", [{"eval_on_start": False}, {"load_best_model_at_end": False}])
def test_worse_model_is_withheld_for_all_evaluation_settings(out, caplog, changes):
    assert run(out, select_by="macro_f1", stop_on_collapse=False, **changes, learning_rate=3e-3, max_steps=12).withheld
    assert len(reasons(caplog)) == 1


@pytest.mark.parametrize("changes", [{"votes": "frozen"}, {"votes": "online"}])
def test_training_within_the_bound_continues(out, changes):
    run(out, **changes, learning_rate=1e-5, max_steps=6, keep_worse=True)
    training = record_of(out)["training"]
    assert (training["collapsed_at_step"], training["steps"]) == (None, 6)
    line = log_of(out, "vote_drift")[-1]
    assert line["vote_share_0"] + line["vote_share_1"] == pytest.approx(1)


def test_paper_protocol_records_a_collapse_and_continues(out):
    run(out, stop_on_collapse=False, keep_worse=True, max_steps=12)
    training = record_of(out)["training"]
    assert training["steps"] == 12
    assert 0 < training["collapsed_at_step"] < 12


def one_hot(votes, num_labels):
    return VoteTable(tuple(map(str, range(len(votes)))), np.eye(num_labels)[votes][:, None])


def test_label_drift_ignores_sampling_noise():
    random = np.random.default_rng(0)
    for num_labels, count in ((2, 80), (20, 60)):
        first = one_hot(random.integers(num_labels, size=200), num_labels)
        alike = np.bincount(random.integers(num_labels, size=count), minlength=num_labels)
        assert drift_beyond_chance(alike, first) < 0.1
        assert drift_beyond_chance(np.bincount([0] * count, minlength=num_labels), first) > 0.3
