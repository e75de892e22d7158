"""What each rule would have chosen, read off the log that training leaves."""

import json

import pytest

from flip_flop.errors import InputError
from flip_flop.training import train
from flip_flop_paper.checkpoints import checkpoints_table, choose, read_checkpoints, read_choices
from flip_flop_paper.table import render_markdown
from tests.studies.made_results import Maker, evaluation, make_training, study2
from tests.training.conftest import load_tiny, make_task, settings

DRIFTED = {"max_share_drift": 0.01}
NO_VOTES = [evaluation(3, 0.8, 0.9), evaluation(6, 0.7, 0.95)]


def choice_of(path, log=None, **training):
    return choose(make_training(path / "training", "f2c", log, **training))


def test_rules_choose_first_best_uncollapsed_checkpoint(tmp_path):
    chosen = choice_of(tmp_path)
    assert (chosen["mean_f1_step"], chosen["mean_f1_value"], chosen["mean_f1_agreement"]) == (3, 0.80, 0.75)
    assert (chosen["agreement_step"], chosen["agreement_value"]) == (6, 0.85)
    assert chosen["agreement_drift"] == pytest.approx(0.10)
    assert choice_of(tmp_path / "a", max_share_drift=0.5)["agreement_step"] == 9
    assert choice_of(tmp_path / "b", **DRIFTED)["agreement_step"] is None


def test_base_is_not_a_candidate(tmp_path):
    choice = choice_of(tmp_path, [evaluation(0, 0.99, 0.99), evaluation(4, 0.5, 0.5)])
    assert choice["mean_f1_step"] == choice["agreement_step"] == 4


def test_calibrated_runs_use_the_logged_drift(tmp_path):
    log = [
        evaluation(0, 0.6, 0.7, votes=(0.9, 0.1)),
        evaluation(3, 0.7, 0.8) | {"eval_vote_drift": 0.05, "eval_selection": 0.8},  # moved only by the calibration
        evaluation(6, 0.7, 0.9) | {"eval_vote_drift": 0.3, "eval_selection": -1.0},
        evaluation(9, 0.7, 0.95) | {"eval_vote_drift": 0.1, "eval_selection": -1.0},
    ]
    calibrated = {"vote_calibration": "batch", "selected_by": "agreement"}
    chosen = choice_of(tmp_path, log, **calibrated)
    assert (chosen["agreement_step"], chosen["agreement_drift"]) == (3, 0.05)
    assert choice_of(tmp_path / "a", log, **calibrated | {"selected_by": "mean_f1"})["agreement_step"] == 9
    assert choice_of(tmp_path / "b", log)["agreement_step"] is None


def test_training_run_with_several_audits_has_one_row(tmp_path):
    assert len(read_choices(study2(Maker(tmp_path)).frame())) == 2


def table_of(tmp_path, *trainings):
    maker = Maker(tmp_path)
    for seed, options in enumerate(trainings):
        maker.audit("f2c", "rte", seed=seed, **options)
    return checkpoints_table(maker.frame(), read_choices(maker.frame()))


def test_notes_name_runs_without_a_choice(tmp_path):
    notes = table_of(tmp_path, {"log": NO_VOTES}, {"log": [{"step": 1, "loss": 0.7}]}, DRIFTED).notes
    assert "The log does not hold the base's votes, so the guard is unknown: 1 training." in notes
    assert "No checkpoint was scored on the validation split: 1 training." in notes
    assert "No checkpoint within max_share_drift: 1 training." in notes


def test_table_has_the_cost_of_label_free_selection(tmp_path):
    text = render_markdown(table_of(tmp_path, {}, {"log": [evaluation(0, 0.5, 0.5), evaluation(2, 0.6, 0.9)]}))
    assert "| F2C | RTE, 10 templates | 0 | 3 | 80.00 | 75.00 | 5.00 | 6 | 80.00 | 85.00 | 10.00 |" in text
    assert "the same checkpoint in 1 of 2 trainings; choosing without labels moves validation mean F1 by ±0.00" in text


@pytest.mark.parametrize("file", ["run.json", "log.jsonl"])
def test_broken_training_record_is_named(tmp_path, file):
    training = make_training(tmp_path / "training", "f2c")
    (training / file).write_text("{")
    with pytest.raises(InputError, match="E-RUN-BROKEN"):
        choose(training)
    (training / file).unlink()
    with pytest.raises(InputError, match="E-RUN-MISSING"):
        choose(training)


def test_log_reproduces_the_selection_value(tmp_path):
    out = tmp_path / "trained"
    config = settings(select_by="vote_agreement", learning_rate=1e-3, num_train_epochs=3)
    train(load_tiny(2), make_task(), config, out, quiet=True, keep_worse=True)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["eval_selection"] for line in log if "eval_selection" in line and line["step"]}
    assert len(set(logged.values())) > 1
    assert {each.step: each.vote_agreement for each in read_checkpoints(out / "log.jsonl").itertuples()} == logged
    choice, record = choose(out), json.loads((out / "run.json").read_text())
    assert choice["selected_by"] == record["training"]["selected_by"] == "vote_agreement"
    assert record["training"]["selected_checkpoint"] == f"checkpoint-{choice['agreement_step']:.0f}"
