"""What each rule of selection would have chosen, read off the log that training leaves."""

import json

import pytest

from flip_flop.studies.selection import read_choices
from flip_flop.studies.summary import Summary
from flip_flop.studies.tables import render_markdown, selection_table
from flip_flop.training import train
from tests.studies.made_results import Maker, evaluation, study2
from tests.training.conftest import load_tiny, make_task, settings


def choice_of(tmp_path, log=None, **training):
    return read_choices([Maker(tmp_path).audit("f2c", "rte", seed=0, log=log, **training)])[0]


def test_mean_f1_takes_the_first_of_the_best(tmp_path):
    chosen = choice_of(tmp_path).by_mean_f1()
    assert (chosen.step, chosen.mean_f1, chosen.agreement) == (3, 0.80, 0.75)


def test_agreement_takes_the_best_that_has_not_collapsed(tmp_path):
    chosen = choice_of(tmp_path).by_agreement()
    assert (chosen.step, chosen.agreement) == (6, 0.85)
    assert chosen.drift == pytest.approx(0.10)


def test_the_guard_is_the_trainings_own(tmp_path):
    assert choice_of(tmp_path, max_share_drift=0.5).by_agreement().step == 9
    assert choice_of(tmp_path / "b", max_share_drift=0.01).by_agreement() is None


def test_the_base_itself_is_no_candidate(tmp_path):
    log = [evaluation(0, 0.99, 0.99), evaluation(4, 0.5, 0.5)]
    choice = choice_of(tmp_path, log)
    assert choice.by_mean_f1().step == choice.by_agreement().step == 4


def test_without_the_bases_votes_in_the_log_the_guard_is_unknown(tmp_path):
    log = [evaluation(3, 0.8, 0.9), evaluation(6, 0.7, 0.95)]
    choice = choice_of(tmp_path, log)
    assert not choice.is_guarded
    assert choice.by_agreement() is None
    text = render_markdown(selection_table(Summary((), ("m",)), [choice]))
    assert "guard is unknown: 1 training." in text


def test_a_training_that_was_not_scored_has_not_left_the_guards_bounds(tmp_path):
    unscored = choice_of(tmp_path, [{"step": 1, "loss": 0.7}])
    drifted = choice_of(tmp_path / "b", max_share_drift=0.01)
    notes = selection_table(Summary((), ("m",)), [unscored, drifted]).notes
    assert "No checkpoint was scored on the validation split: 1 training." in notes
    assert "No checkpoint within max_share_drift: 1 training." in notes
    assert not any("guard is unknown" in note for note in notes)


def test_a_training_behind_several_audits_is_read_once(tmp_path):
    assert len(read_choices(study2(Maker(tmp_path)))) == 2


def test_the_table_says_what_choosing_without_labels_costs(tmp_path):
    choices = [choice_of(tmp_path), choice_of(tmp_path / "b", [evaluation(0, 0.5, 0.5), evaluation(2, 0.6, 0.9)])]
    table = selection_table(Summary((), ("m",)), choices)
    text = render_markdown(table)
    assert "| F2C | RTE, 10 templates | 0 | 3 | 80.00 | 75.00 | 5.00 | 6 | 80.00 | 85.00 | 10.00 |" in text
    assert "the same checkpoint in 1 of 2 trainings; choosing without labels moves validation mean F1 by ±0.00" in text


@pytest.mark.parametrize("rate", [1e-2, 0.3])
def test_the_log_alone_gives_the_value_that_training_selects_by(tmp_path, rate):
    out = tmp_path / "trained"
    config = settings(select_by="agreement", learning_rate=rate, num_train_epochs=3, max_share_drift=0.15)
    train(load_tiny(), make_task(), config, out, quiet=True)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["eval_selection"] for line in log if "eval_selection" in line and line["step"]}
    result = Maker(tmp_path).audit("f2c", "rte", seed=3)
    choice = read_choices([type(result)(**{**vars(result), "training": out})])[0]
    assert choice.selected_by == "agreement"
    assert choice.num_templates == 4
    assert {c.step: c.agreement if c.drift <= 0.15 else -1.0 for c in choice.candidates} == logged
    record = json.loads((out / "run.json").read_text())
    if max(logged.values()) > 0:
        assert record["training"]["selected_checkpoint"] == f"checkpoint-{choice.by_agreement().step}"
