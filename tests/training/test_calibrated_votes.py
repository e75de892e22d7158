"""Votes of a base that prefers a label: calibrated once, read by Algorithm 1, and the same after a resumption."""

import json
import logging

import numpy as np
import pytest
import torch

from flip_flop import audit, load_model
from flip_flop.errors import InputError
from flip_flop.metrics import label_shares_per_template
from flip_flop.scoring import score
from flip_flop.tasks import RowsSource
from flip_flop.training import make_config, train
from flip_flop.training.votes import VoteTable
from tests.metrics import calibration_oracle as oracle
from tests.tiny import save_tiny
from tests.training.conftest import adapter_bytes, load_tiny, log_of, make_task, record_of, settings, signal_in
from tests.training.test_trainer import make_trainer, training_rows

CALIBRATED = {"votes": "frozen", "num_train_epochs": 1}


def base_scores(task):
    return score(load_tiny(), task.instances("train")).scores


def made_task():
    return make_task().with_templates(["plain", "truth", "long", "terse"])


def votes_of(out):
    with np.load(out / "votes.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file}


def test_batch_calibrated_votes_are_those_of_slow_loops_and_the_survey_says_what_changed(out, caplog):
    caplog.set_level(logging.INFO)
    train(load_tiny(), make_task(), settings(vote_calibration="batch", **CALIBRATED), out, quiet=True, keep_worse=True)
    raw, found = base_scores(made_task()), votes_of(out)
    offsets = np.array(oracle.batch_offsets(raw.astype(float).tolist()))
    np.testing.assert_allclose(found["offsets"], offsets, atol=1e-5)
    np.testing.assert_allclose(found["scores"], raw + offsets, atol=1e-5)
    survey = json.loads((out / "survey.json").read_text())
    assert survey["calibration"].keys() == {"votes_changed", "vote_share_drift"}
    assert "batch calibration changes " in caplog.text
    assert record_of(out)["training"]["vote_calibration"] == "batch"


@pytest.mark.parametrize(("num_train", "calibration"), [(60, "batch"), (60, "none"), (12, "batch")])
def test_offsets_of_the_trained_model_are_stored_with_its_adapter(out, tmp_path, num_train, calibration):
    folder = str(save_tiny(tmp_path / "tiny"))
    task, changes = make_task(num_train), {"vote_calibration": calibration, "max_steps": 2, **CALIBRATED}
    run = train(load_model(folder), task, settings(**changes), out, quiet=True, keep_worse=True)
    is_stored = (run.adapter / "calibration.json").exists()
    assert is_stored == (num_train == 60 and calibration == "batch")
    if is_stored:
        model = load_model(folder, adapter=run.adapter)
        found = audit(model, made_task(), calibrate="stored", quiet=True)
        task = task.with_templates(found.template_names)
        offsets = oracle.batch_offsets(score(model, task.instances("train")).scores.astype(float).tolist())
        np.testing.assert_allclose([*found.metrics["calibrated"]["offsets"].values()], offsets, atol=1e-4)


def test_answers_calibrated_to_a_prior_have_its_shares_in_training(out):
    changes = {"vote_calibration": "prior", "label_prior": [0.25, 0.75], **CALIBRATED}
    train(load_tiny(), make_task(), settings(**changes), out, quiet=True, keep_worse=True)
    scores = votes_of(out)["scores"]
    np.testing.assert_allclose(label_shares_per_template(scores.argmax(2), 2), [[0.25, 0.75]] * 4)


def test_contextual_offsets_are_those_of_the_tasks_templates_without_content(out):
    train(
        load_tiny(),
        make_task(),
        settings(vote_calibration="contextual", **CALIBRATED),
        out,
        quiet=True,
        keep_worse=True,
    )
    rows = RowsSource([{"text": text, "label": 0} for text in ("N/A", "[MASK]")], "content-free")
    task = made_task()
    content_free = score(load_tiny(), type(task)(**{**vars(task), "data": {"test": rows}}).instances("test")).scores
    offsets = oracle.batch_offsets(content_free.astype(float).tolist())
    np.testing.assert_allclose(votes_of(out)["offsets"], offsets, atol=1e-5)


def test_the_trainer_takes_rows_without_content_and_needs_them(tmp_path):
    changes = {"vote_calibration": "contextual", **CALIBRATED}
    with pytest.raises(InputError, match=r"E-CONTENT-FREE: .* give F2CTrainer content_free"):
        make_trainer(tmp_path, **changes)


def test_margins_and_validation_votes_are_of_calibrated_scores(tmp_path):
    trainer = make_trainer(tmp_path, vote_calibration="batch", eval_rows=training_rows()[:5], **CALIBRATED)
    first = trainer.votes.take()
    found = trainer.votes.of(trainer.train_instances.instances[:3])
    assert torch.equal(found, torch.from_numpy(first.scores[:3]))
    np.testing.assert_allclose(trainer.base.validation.scores, first.scores[:5], atol=1e-5)
    assert np.abs(first.offsets).max() > 0.01


def test_refreshed_votes_are_calibrated_anew(out):
    changes = {"votes": "refreshed", "refresh_steps": 2, "max_share_drift": 1.0, "save_strategy": "steps"}
    config = settings(vote_calibration="prior", label_prior=[0.5, 0.5], eval_steps=3, eval_strategy="steps", **changes)
    train(load_tiny(), make_task(), config, out, quiet=True, keep_worse=True)
    (last,) = sorted((out / "checkpoints").glob("checkpoint-6"))
    ids = tuple(votes_of(out)["ids"].tolist())
    first, then = VoteTable.read(out / "votes.npz", ids), VoteTable.read(last / "votes.npz", ids)
    assert not np.array_equal(first.offsets, then.offsets)
    np.testing.assert_allclose(label_shares_per_template(then.scores.argmax(2), 2), [[0.5, 0.5]] * 4)


def test_a_resumed_run_has_the_same_calibrated_votes_and_adapter(tmp_path, monkeypatch):
    config = settings(vote_calibration="batch", early_stopping_patience=9, **CALIBRATED | {"num_train_epochs": 2})
    train(load_tiny(), make_task(), config, tmp_path / "whole", quiet=True, keep_worse=True)
    with monkeypatch.context() as patch:
        signal_in(patch, 2)
        train(load_tiny(), make_task(), config, tmp_path / "killed", quiet=True, keep_worse=True)
    train(load_tiny(), make_task(), config, tmp_path / "killed", resume=True, quiet=True, keep_worse=True)
    assert adapter_bytes(tmp_path / "killed") == adapter_bytes(tmp_path / "whole")
    losses = [[entry["eval_loss"] for entry in log_of(tmp_path / name, "eval_loss")] for name in ("whole", "killed")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"vote_calibration": "batch", "votes": "online"},
            r"E-CONFIG-VALUE: votes is 'online'\. .* frozen or refreshed",
        ),
        ({"vote_calibration": "prior"}, "E-CONFIG-VALUE: label_prior is None"),
        ({"vote_calibration": "none", "label_prior": [0.5, 0.5]}, "E-CONFIG-VALUE: vote_calibration is 'none'"),
        ({"vote_calibration": "batch", "label_prior": "0.5,0.6"}, "E-LABEL-PRIOR: .*'0.5,0.6'"),
        ({"vote_calibration": "batc"}, "E-CONFIG-VALUE: vote_calibration is 'batc'"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        make_config(changes)


def test_a_prior_of_other_labels_is_refused_before_the_model_is_read(out):
    config = make_config({"vote_calibration": "batch", "label_prior": "0.2,0.3,0.5", "use_cpu": True})
    with pytest.raises(InputError, match=r"E-LABEL-PRIOR: .* is not of 2 labels"):
        train(load_tiny(), make_task(), config, out, quiet=True, keep_worse=True)
