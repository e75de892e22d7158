"""A training whose votes run away stops by itself, and what is worse than the base is not handed out unasked."""

from dataclasses import replace

import numpy as np
import pytest

from flip_flop.tasks import RowsSource
from flip_flop.training import train
from flip_flop.training.collapse import drift_beyond_chance
from flip_flop.training.votes import VoteTable
from tests.training.conftest import adapter_bytes, load_tiny, log_of, make_task, record_of, rows, settings, signal_in

# The base's votes are 3 to 1; at this rate those of the model in training are all for one label after five steps.
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


def run(out, labelled=True, resume=False, keep_worse=False, **changes):
    made = {"train": rows(200), "validation": rows(40, 300)}
    data = {name: RowsSource(each, name) for name, each in made.items()}
    task = replace(make_task(), data=data, label_field="label" if labelled else None)
    config = settings(**(RUNAWAY | changes))
    return train(load_tiny(2), task, config, out, resume=resume, quiet=True, keep_worse=keep_worse)


@pytest.mark.parametrize("labelled", [True, False])
def test_votes_that_run_away_end_the_training_and_nothing_worse_is_handed_out(out, caplog, labelled):
    found = run(out, labelled)
    evaluations = log_of(out, "eval_collapsed")
    assert [entry["eval_collapsed"] for entry in evaluations][-1] == 1
    assert not any(entry["eval_collapsed"] for entry in evaluations[:-1])
    step = evaluations[-1]["step"]
    assert step < 20
    assert f"W-COLLAPSE: stopped at step {step}" in caplog.text
    line = next(entry for entry in log_of(out, "vote_drift") if entry["step"] == step)
    assert line["vote_drift"] > 0.2 or step % 4 == 0  # the line asked for the evaluation, unless it was due
    if found.withheld:
        assert found.adapter is None
        assert "The adapter is not written; --resume --keep-worse writes it" in caplog.text
        assert not (out / "adapter").exists()
        assert not (out / "run.json").exists()
        assert run(out, labelled, resume=True).withheld
        found = run(out, labelled, resume=True, keep_worse=True)
    assert found.adapter == out / "adapter"
    training = record_of(out)["training"]
    assert training["collapsed_at_step"] == training["steps"] == step
    assert [entry["step"] for entry in log_of(out, "eval_collapsed")][-1] == step


def test_without_evaluations_the_log_line_ends_the_training_and_no_checkpoint_is_trusted(out, caplog):
    assert run(out, eval_strategy="no").withheld
    assert "no evaluation chose a checkpoint" in caplog.text
    assert run(out, eval_strategy="no", resume=True, keep_worse=True).adapter is not None


def test_a_resumed_training_stops_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
    run(tmp_path / "whole", keep_worse=True)
    with monkeypatch.context() as patch:
        signal_in(patch, 1)
        assert run(tmp_path / "broken", keep_worse=True).stopped_by
    run(tmp_path / "broken", keep_worse=True, resume=True)
    assert log_of(tmp_path / "broken", "eval_collapsed") == log_of(tmp_path / "whole", "eval_collapsed")
    assert adapter_bytes(tmp_path / "broken") == adapter_bytes(tmp_path / "whole")


@pytest.mark.parametrize("changes", [{"votes": "frozen"}, {"votes": "online"}])
def test_a_training_within_the_bound_goes_on(out, changes):
    run(out, **changes, learning_rate=1e-5, max_steps=6, keep_worse=True)
    training = record_of(out)["training"]
    assert (training["collapsed_at_step"], training["steps"]) == (None, 6)
    line = log_of(out, "vote_drift")[-1]
    assert line["vote_share_0"] + line["vote_share_1"] == pytest.approx(1)


def test_the_papers_protocol_goes_on_and_its_collapse_is_on_record(out):
    run(out, stop_on_collapse=False, keep_worse=True, max_steps=12)
    training = record_of(out)["training"]
    assert training["steps"] == 12
    assert 0 < training["collapsed_at_step"] < 12


def one_hot(votes, num_labels):
    return VoteTable(tuple(map(str, range(len(votes)))), np.eye(num_labels)[votes][:, None])


def test_drift_is_what_chance_alone_would_not_do():
    random = np.random.default_rng(0)
    for num_labels, count in ((2, 80), (20, 60)):
        first = one_hot(random.integers(num_labels, size=200), num_labels)
        alike = np.bincount(random.integers(num_labels, size=count), minlength=num_labels)
        assert drift_beyond_chance(alike, first) < 0.1
        assert drift_beyond_chance(np.bincount([0] * count, minlength=num_labels), first) > 0.3
