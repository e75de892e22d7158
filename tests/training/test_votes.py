"""Frozen pseudo-labels: they are the base model's, calibrated or not, and a resumed run keeps them."""

import copy
import json
import logging
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from flip_flop import load_classifier, load_model, score
from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.metrics import batch_offsets
from flip_flop.metrics.agreement import label_shares_per_template
from flip_flop.prompts import Template
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.tasks import RowsSource
from flip_flop.training.data import KeyedSampler
from flip_flop.training.votes import VoteTable, initial_vote_stats
from tests.exact import ROUNDED, in_float64
from tests.metrics import oracle
from tests.refused import refused
from tests.tiny import save_tiny, tiny_model
from tests.training.conftest import (
    adapter_bytes,
    load_tiny,
    log_of,
    make_task,
    make_trainer,
    randomize,
    record_of,
    run,
    settings,
    signal_in,
    training_rows,
)
from tests.training.naive_step import WEIGHTS, distance, slow_instance, slow_step, step


@pytest.mark.slow
def test_frozen_votes_and_algorithm_1_use_the_model_before_training(tmp_path):
    trainer = make_trainer(
        tmp_path, model=in_float64(tiny_model("qwen2")), votes="frozen", divergence_space="both", **WEIGHTS
    )
    trainer.adapted.double()
    _ = trainer.model_scores.first_votes  # before the weights change
    before = copy.deepcopy(trainer.adapted)
    randomize(trainer, 1.0)
    instances = trainer.train_instances.instances
    loss, gradients = step(trainer, instances)
    expected, slow = slow_step(trainer, instances, voter=before)
    assert loss == pytest.approx(expected, rel=ROUNDED)  # scores are float32
    assert distance(gradients, slow) < ROUNDED
    assert slow_step(trainer, instances)[0] != pytest.approx(expected, rel=1e-5)  # by its own votes now


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [0, 1])
def test_step_under_drawn_templates_learns_the_votes_of_all(tmp_path, epoch):
    changes = {"votes": "frozen", "divergence_space": "both", "variants_per_step": 2, **WEIGHTS}
    trainer = make_trainer(tmp_path, model=in_float64(tiny_model("qwen2")), **changes)
    trainer.adapted.double()
    _ = trainer.model_scores.first_votes
    before = copy.deepcopy(trainer.adapted)
    randomize(trainer, 1.0)
    trainer._sampler.set_epoch(epoch)
    drawn = {}

    def draw(instance):
        order = generator(trainer.args.seed, "variants", epoch, instance.id).permutation(3)
        drawn[instance.id] = sorted(order[:2].tolist())
        return drawn[instance.id]

    instances = trainer.train_instances.instances
    expected, slow = slow_step(trainer, instances, voter=before, draw=draw)
    assert len({*map(tuple, drawn.values())}) > 1
    loss, gradients = step(trainer, instances)
    assert loss == pytest.approx(expected, rel=ROUNDED)
    assert distance(gradients, slow) < ROUNDED
    masses = {}  # the probability of all answers, by template
    for instance in instances:
        alone = slow_instance(trainer.adapted, instance, trainer.args)
        for template in drawn[instance.id]:
            scores = alone.scores()[template] * alone.token_counts[template]
            masses.setdefault(template, []).append(float(scores.exp().sum().detach()))
    assert trainer.statistics.means()["own_label_mass_min"] == pytest.approx(min(map(np.mean, masses.values())))


def test_votes_of_drawn_templates_have_their_scores_and_offsets():
    random = np.random.default_rng(0)
    table = VoteTable(tuple("abcdef"), random.normal(size=(6, 5, 3))).with_offsets(random.normal(size=(5, 3)))
    part = table.drawn(2, seed=7)
    for row, name in enumerate(table.ids):
        places = sorted(generator(7, "variants", 0, name).permutation(5)[:2].tolist())
        np.testing.assert_array_equal(part.scores[row], table.scores[row, places])
        np.testing.assert_allclose(part.uncalibrated.scores[row], table.uncalibrated.scores[row, places])
    np.testing.assert_array_equal(table.drawn(None, seed=7).scores, table.scores)


@pytest.mark.slow
def test_resumed_run_without_its_votes_has_those_of_the_unbroken_one(tmp_path, monkeypatch):
    changes = {"votes": "frozen", "vote_calibration": "batch", "early_stopping_patience": 9}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, **changes)
    with monkeypatch.context() as patch:
        signal_in(patch, 3)
        assert run(broken, **changes).adapter is None
    (broken / "votes.npz").write_bytes(b"PK")
    run(broken, resume=True, **changes)
    assert adapter_bytes(whole) == adapter_bytes(broken)
    losses = [[entry["eval_loss"] for entry in log_of(out, "eval_loss")] for out in (whole, broken)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_short_run_has_votes_only_for_the_instances_that_it_sees(out):
    run(out, votes="frozen", max_steps=2)
    ids = [instance.id for instance in make_task().with_templates(["plain"]).instances("train")]
    order = list(KeyedSampler(ids, seed=3))  # 2 steps of 4 instances
    seen, prompts = [ids[index] for index in sorted(order[:8])], record_of(out)["scoring"]["prompts_digest"]
    table = VoteTable.read(out / "votes.npz", seen, prompts)
    assert VoteTable.read(out / "votes.npz", seen, "of other answers") is None
    assert table.scores.shape == (8, 4, 2)
    assert record_of(out)["training"]["votes_digest"] == table.digest


def test_evaluation_loss_uses_the_frozen_votes(tmp_path):
    rows = training_rows(count=6)
    trainer = make_trainer(tmp_path, rows, eval_rows=rows, votes="frozen", early_stopping_patience=3, lora_dropout=0.0)
    _ = trainer.model_scores.first_votes  # before the weights change
    expected = step(trainer, trainer.train_instances.instances)[0]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_loss_of_scores_that_are_not_finite_is_one_line(tmp_path):
    rows = training_rows(count=6)
    trainer = make_trainer(tmp_path, rows, eval_rows=rows, votes="online", early_stopping_patience=3)
    with torch.no_grad():
        next(trainer.adapted.parameters()).fill_(torch.nan)
    refused(r"E-NONFINITE: .*instance 'train-\d'", trainer.evaluate)


# ---- calibration ----

CALIBRATED = {"votes": "frozen", "num_train_epochs": 1}


def base_scores(task):
    return score(load_tiny(), task.instances("train")).scores.values


def made_task():
    return make_task().with_templates(["plain", "truth", "long", "terse"])


def votes_of(out):
    with np.load(out / "votes.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file}


def test_batch_calibrated_votes_match_slow_loops_and_the_survey_has_their_changes(out, caplog):
    caplog.set_level(logging.INFO)
    run(out, vote_calibration="batch", **CALIBRATED)
    raw, result = base_scores(made_task()), votes_of(out)
    offsets = np.array(oracle.batch_offsets(raw.astype(float).tolist()))
    np.testing.assert_allclose(result["offsets"], offsets, atol=1e-5)
    np.testing.assert_allclose(result["scores"], raw + offsets, atol=1e-5)
    survey = json.loads((out / "survey.json").read_text())
    assert survey["calibration"].keys() == {"votes_changed", "vote_share_drift"}
    assert "batch calibration changes " in caplog.text
    assert record_of(out)["training"]["vote_calibration"] == "batch"


@pytest.mark.slow
@pytest.mark.parametrize(("num_train", "calibration"), [(60, "batch"), (60, "none"), (12, "batch")])
def test_calibration_offsets_are_stored_with_the_adapter(out, tmp_path, num_train, calibration):
    folder = str(save_tiny(tmp_path / "tiny"))
    task, changes = make_task(num_train), {"vote_calibration": calibration, "max_steps": 2, **CALIBRATED}
    adapter = run(out, model=folder, task=task, **changes).adapter
    classify = load_classifier(adapter)
    is_stored = bool(classify.classifier.offsets)
    assert is_stored == (num_train == 60 and calibration == "batch")
    if is_stored:
        instances = task.with_templates(classify.task.templates.names).instances("train")
        scores = score(load_model(folder, adapter=adapter), instances).scores.values
        stored = [*classify.classifier.offsets.values()]
        np.testing.assert_allclose(stored, oracle.batch_offsets(scores.astype(float).tolist()), atol=1e-4)


@pytest.mark.slow
def test_predictions_calibrated_to_a_prior_have_its_shares(out):
    run(out, vote_calibration="prior", label_prior=[0.25, 0.75], **CALIBRATED)
    scores = votes_of(out)["scores"]
    np.testing.assert_allclose(label_shares_per_template(scores.argmax(2), 2), [[0.25, 0.75]] * 4)


@pytest.mark.slow
def test_contextual_offsets_use_the_templates_without_content(out):
    run(out, vote_calibration="contextual", **CALIBRATED)
    rows = RowsSource([{"text": text, "label": 0} for text in ("N/A", "[MASK]")], "content-free")
    task = made_task()
    instances = type(task)(**{**vars(task), "data": {"test": rows}}).instances("test")
    content_free = score(load_tiny(), instances).scores.values
    offsets = oracle.batch_offsets(content_free.astype(float).tolist())
    np.testing.assert_allclose(votes_of(out)["offsets"], offsets, atol=1e-5)


@pytest.mark.slow
def test_position_offsets_calibrate_votes_and_are_stored_with_the_adapter(out, tmp_path):
    orders = {"1 2": "{{ text }} No or yes?", "2 1": "{{ text }} Yes or no?"}
    templates = [
        Template(order, jinja, "No ||| Yes", {"wording": "ask", "order": order}) for order, jinja in orders.items()
    ]
    task = replace(make_task(60), templates=templates, held_out_templates=())
    folder = str(save_tiny(tmp_path / "tiny"))
    changes = {"vote_calibration": "position", "max_steps": 2, "per_device_train_batch_size": 30, **CALIBRATED}
    adapter = run(out, model=folder, task=task, **changes).adapter
    places = np.array([[0, 1], [1, 0]])
    raw = score(load_model(folder), task.instances("train")).scores.values
    np.testing.assert_allclose(votes_of(out)["offsets"], batch_offsets(raw, places=places), atol=1e-5)
    stored = load_classifier(adapter).classifier
    trained = score(load_model(folder, adapter=adapter), task.instances("train")).scores.values
    np.testing.assert_allclose(list(stored.offsets.values()), batch_offsets(trained, places=places), atol=1e-4)
    assert stored.calibration["method"] == "position"


SAME_ID = [row | {"id": "a"} for row in training_rows(count=3)]


@pytest.mark.parametrize(
    ("rows", "calibration", "words"),
    [
        (SAME_ID, "batch", "E-DATA-ROWS: Two rows have the id 'a'"),
        (None, "contextual", "E-CALIBRATION: .* give F2CTrainer content_free"),
        (None, "position", "E-CALIBRATION: position calibration needs orders"),
    ],
)
def test_rows_without_votes_are_refused(tmp_path, rows, calibration, words):
    refused(words, make_trainer, tmp_path, rows, vote_calibration=calibration, **CALIBRATED)


def test_validation_votes_are_calibrated_like_the_training_votes(tmp_path):
    trainer = make_trainer(tmp_path, vote_calibration="batch", eval_rows=training_rows()[:5], **CALIBRATED)
    first = trainer.model_scores.first_votes
    result = first.scores_for(trainer.train_instances.instances[:3])
    assert torch.equal(result, torch.from_numpy(first.scores[:3]))
    np.testing.assert_allclose(trainer.model_scores.validation_votes.scores, first.scores[:5], atol=1e-5)
    assert np.abs(first.offsets).max() > 0.01


def test_prior_with_another_number_of_labels_is_refused(out):
    refused(
        r"E-LABEL-PRIOR: .* is not of 2 labels",
        run,
        out,
        votes="frozen",
        vote_calibration="batch",
        label_prior="0.2,0.3,0.5",
    )


ORDERS = {"levels": [{"wording": wording, "order": order} for wording in "ab" for order in ("given", "swapped")]}


@pytest.mark.parametrize(
    ("pull", "changes", "is_refused"),
    [
        (0.1, {"vote_calibration": "none"}, True),
        (0.1, {"vote_calibration": "batch"}, True),
        (1.0, {"vote_calibration": "none"}, True),
        (1.0, {"vote_calibration": "batch"}, False),  # calibration leaves the content
        (0.1, {"method": "supervised"}, False),
    ],
)
def test_answers_by_position_do_not_train_unless_calibration_or_labels_help(pull, changes, is_refused):
    random = np.random.default_rng(0)
    content, noise = pull * random.normal(size=(60, 1)), random.normal(size=(60, 4))
    margins = content + noise * 0.2 + 1.5 * np.array([1, -1, 1, -1])
    scores = np.stack([margins, np.zeros_like(margins)], axis=2)
    config = settings(votes="frozen", **changes)
    offsets = None if config.vote_calibration == "none" else batch_offsets(scores)
    votes = VoteTable(tuple(map(str, range(60))), scores).with_offsets(offsets)
    with pytest.raises(InputError, match="E-POSITION") if is_refused else nullcontext():
        initial_vote_stats(votes, config, ORDERS, [EncodedInstance(row, ()) for row in votes.ids])
