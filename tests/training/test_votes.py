"""Votes taken once, or refreshed: whose they are, that they cannot run away, and that a resumed run has them."""

import copy

import numpy as np
import pytest

from flip_flop.errors import InputError
from flip_flop.training import train
from flip_flop.training.data import KeyedSampler
from flip_flop.training.votes import VoteTable
from tests.exact import ROUNDED, in_float64
from tests.tiny import tiny_model
from tests.training.conftest import adapter_bytes, load_tiny, make_task, record_of, settings, signal_in
from tests.training.naive_step import WEIGHTS, distance, slow_step, step
from tests.training.test_trainer import make_trainer, training_rows


def run(out, resume=False, **changes):
    return train(load_tiny(), make_task(), settings(**changes), out, resume=resume, quiet=True, keep_worse=True)


def is_same(one, other):
    return adapter_bytes(one) == adapter_bytes(other)


@pytest.mark.parametrize("space", ["labels", "both"])
def test_frozen_votes_and_all_of_algorithm_1_are_the_models_before_training(tmp_path, space):
    trainer = make_trainer(
        tmp_path, model=in_float64(tiny_model("qwen2")), votes="frozen", divergence_space=space, **WEIGHTS
    )
    trainer.adapted.double()
    trainer.votes.take()
    before = copy.deepcopy(trainer.adapted)
    for name, value in trainer.adapted.named_parameters():
        if "lora_B" in name:
            value.data.normal_(0, 1.0)
    instances = trainer.train_instances.instances
    loss, gradients = step(trainer, instances)
    expected, slow = slow_step(trainer, instances, voter=before)
    assert loss == pytest.approx(expected, rel=ROUNDED)  # the votes' scores are kept in float32
    assert distance(gradients, slow) < ROUNDED
    assert slow_step(trainer, instances)[0] != pytest.approx(expected, rel=1e-5)  # by its own votes now


def test_a_frozen_run_keeps_its_votes_and_says_their_digest(out):
    run(out, votes="frozen")
    ids = [instance.id for instance in make_task().with_templates(["plain"]).instances("train")]
    table = VoteTable.read(out / "votes.npz", ids)
    assert table is not None
    assert table.scores.shape == (12, 4, 2)
    assert record_of(out)["training"]["votes_digest"] == table.digest


@pytest.mark.parametrize("votes", ["frozen", "refreshed"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_has_the_votes_of_the_unbroken_one(tmp_path, monkeypatch, votes, lost):
    changes = {"votes": votes, "refresh_steps": 2, "max_share_drift": 1.0}
    run(tmp_path / "whole", **changes)
    with monkeypatch.context() as patch:
        signal_in(patch, 3)
        assert run(tmp_path / "broken", **changes).adapter is None
    if lost:
        (tmp_path / "broken" / "votes.npz").write_bytes(b"PK")
    run(tmp_path / "broken", resume=True, **changes)
    assert is_same(tmp_path / "whole", tmp_path / "broken")


def test_refreshed_votes_follow_the_model_and_no_further_than_the_bound(tmp_path, caplog):
    for name, changes in {
        "late": {"refresh_steps": 100},
        "free": {"refresh_steps": 2, "max_share_drift": 1.0},
    }.items():
        run(tmp_path / name, votes="refreshed", learning_rate=0.1, **changes)
    run(tmp_path / "frozen_fast", votes="frozen", learning_rate=0.1)
    assert is_same(tmp_path / "late", tmp_path / "frozen_fast")
    assert not is_same(tmp_path / "free", tmp_path / "frozen_fast")
    caplog.clear()
    run(tmp_path / "bound", votes="refreshed", learning_rate=0.1, refresh_steps=2, max_share_drift=0.0)
    assert any("the votes stay as they were" in text for text in caplog.messages)
    assert not is_same(tmp_path / "bound", tmp_path / "free")


def test_votes_are_taken_on_the_instances_that_a_short_run_sees(out):
    run(out, votes="frozen", max_steps=2)
    with np.load(out / "votes.npz") as file:
        taken = set(file["ids"].tolist())
    ids = [instance.id for instance in make_task().with_templates(["plain"]).instances("train")]
    order = list(KeyedSampler(ids, seed=3))  # 2 steps of 4 instances
    assert taken == {ids[index] for index in order[:8]}


def test_two_rows_of_one_id_are_refused_where_votes_are_kept_by_id(tmp_path):
    rows = training_rows(count=3)
    rows[2]["id"] = rows[0]["id"] = "a"
    with pytest.raises(InputError, match="E-ROW: Two rows have the id 'a'"):
        make_trainer(tmp_path, rows, votes="frozen")


def test_the_evaluations_loss_follows_the_same_votes(tmp_path):
    rows = training_rows(count=6)
    trainer = make_trainer(tmp_path, rows, eval_rows=rows, votes="frozen", early_stopping_patience=3, lora_dropout=0.0)
    trainer.votes.take()
    expected = step(trainer, trainer.train_instances.instances)[0]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
