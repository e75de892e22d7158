"""A whole training run, through the function that the command calls, and its data."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest

from flip_flop import F2CTrainer
from flip_flop.prompts import TemplateSet
from flip_flop.tasks import FileSource, RowsSource
from flip_flop.training import run as run_module
from flip_flop.training.data import load_training_data
from flip_flop.training.run import StopOnSignal
from flip_flop.training.selection import CheckpointCriterion
from flip_flop.training.votes import SAMPLE_SIZE, initial_vote_stats
from tests.refused import refused
from tests.tiny import byte_bpe, tiny_model
from tests.training.conftest import adapter_bytes, before_step, make_task, record_of, rows, run, settings, signal_in


@pytest.fixture
def hangup():
    """The default of SIGHUP, which the starter of the tests may ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def selected(out):
    return record_of(out)["training"]["selected_checkpoint"]


@pytest.mark.slow
def test_signal_in_the_last_step_has_no_effect(tmp_path, monkeypatch):
    """Step 5 of 5 lies within an epoch, and can still be selected."""
    whole, out, changes = tmp_path / "whole", tmp_path / "signalled", {"max_steps": 5, "learning_rate": 3e-3}
    run(whole, **changes)
    signal_in(monkeypatch, 5)
    assert run(out, **changes).adapter is not None
    assert adapter_bytes(whole) == adapter_bytes(out)
    for path in (whole, out):
        assert {checkpoint.name for checkpoint in (path / "checkpoints").iterdir()} == {"checkpoint-3", "checkpoint-5"}
    assert selected(whole) == selected(out)


def test_failed_training_restores_the_signal_handlers(out, monkeypatch):
    def failing():
        assert signal.getsignal(signal.SIGTERM) != before[0]
        raise RuntimeError("out of memory")

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    before_step(monkeypatch, 0, failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(out)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("processes", [1, 2])
def test_signals_of_a_scheduler_are_one_request_with_one_line(monkeypatch, capfd, processes, hangup):
    monkeypatch.setattr("flip_flop.training.run.world_size", lambda: processes)
    numbers = (
        signal.SIGTERM,
        signal.SIGTERM,
        signal.SIGHUP,
        *[signal.SIGINT] * (processes - 1),
    )  # a launcher repeats Ctrl-C
    before, stop = [signal.getsignal(number) for number in numbers], StopOnSignal(Mock())
    stop.on_train_begin(None, None, None)
    for number in numbers:
        os.kill(os.getpid(), number)
    assert capfd.readouterr().err.splitlines() == ["finishing the step; press Ctrl-C again to stop now"]
    assert stop.received == numbers[-1]
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(run_module, "SECONDS_OF_A_LAUNCHER", 0.0)
    os.kill(os.getpid(), signal.SIGINT)
    assert (codes, capfd.readouterr().err) == ([130], "stopped\n")
    stop.restore()
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_hangup_that_nohup_ignores_stays_ignored(hangup):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopOnSignal(Mock())
    stop.on_train_begin(None, None, None)
    os.kill(os.getpid(), signal.SIGHUP)
    assert (stop.received, signal.getsignal(signal.SIGHUP)) == (None, signal.SIG_IGN)
    stop.restore()


@pytest.mark.slow
def test_moved_run_still_saves_the_best_checkpoint(tmp_path, monkeypatch):
    out, moved = tmp_path / "run", tmp_path / "elsewhere" / "run"
    values = iter([0.1, 0.9, 0.2])  # before the first step, after the first epoch, after the second

    with monkeypatch.context() as patch:
        patch.setattr(
            CheckpointCriterion,
            "judge",
            lambda *_: {"selection": next(values), "base_selection": 0.0, "vote_drift": 0.0},
        )
        patch.setattr(F2CTrainer, "describe", lambda *_: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            run(out)
    expected = (out / "checkpoints" / "checkpoint-3" / "adapter_model.safetensors").read_bytes()
    moved.parent.mkdir()
    out.rename(moved)
    run(moved, resume=True)
    assert adapter_bytes(moved) == expected
    assert selected(moved) == "checkpoint-3"


@pytest.mark.slow
def test_model_no_better_than_constant_predictions_is_saved_only_with_keep_worse(out, caplog):
    changes = {"select_by": "vote_agreement", "learning_rate": 1e-5}  # the base model is constant on these rows
    assert run(out, keep_worse=False, **changes).withheld
    line = "W-WORSE: the selected checkpoint's vote_agreement on validation is 0.0, that of constant predictions 0.0."
    assert line in caplog.text
    assert not (out / "adapter").exists()
    run(out, resume=True, **changes)
    training = record_of(out)["training"]
    assert (training["selected_by"], training["selected_value"], training["base_value"]) == ("vote_agreement", 0, 0)


def test_folder_stays_free_after_a_mistake_and_leftovers_are_removed(out):
    refused("E-CHAT-TEMPLATE", run, out, chat_template="on")
    assert not out.exists()
    out.mkdir()
    (out / ".plan.json.1234.tmp").write_text("{")
    (out / ".adapter.1234.tmp").mkdir()
    run(out, num_train_epochs=1)
    assert (out / "run.json").exists()
    assert not list(out.glob(".*.tmp"))


def test_scores_that_are_not_finite_stop_training(out):
    refused(r"E-NONFINITE: Step \d+: .*instance .*lower --learning-rate", run, out, learning_rate=1e30, max_grad_norm=0)


def test_first_votes_of_online_training_use_a_sample(out):
    instances = make_task(SAMPLE_SIZE + 60).with_templates(["plain", "truth"]).instances("train")
    config = settings(method="swarm", votes="online", output_dir=str(out))
    trainer = F2CTrainer(tiny_model("qwen2"), config, train_dataset=instances, processing_class=byte_bpe())
    stats = initial_vote_stats(trainer.model_scores.first_votes, config, {}, trainer.voters)
    assert stats["num_instances"] == SAMPLE_SIZE
    assert sum(stats["case_shares"]) == pytest.approx(1)


@pytest.mark.slow
def test_gold_labels_do_not_affect_a_whole_run(tmp_path):
    results = []
    for number, labels in enumerate([[0, 1], [None, None]]):
        made = [row | {"label": labels[index % 2]} for index, row in enumerate(rows(15))]
        task = replace(make_task(), data={"train": RowsSource(made, "made rows")})
        run(tmp_path / str(number), task=task, select_by="last", num_train_epochs=1)
        results.append(adapter_bytes(tmp_path / str(number)))
    assert results[0] == results[1]


# ---- data ----


# Three labels of the validation rows, in the order of the rows.
LABELS = [0] * 30 + [1] * 18 + [2] * 12
SPLITS = ("train", "validation", "test")


def write_rows(path, first):
    made = [{"text": f"{row['text']} {first}", "label": row["label"]} for row in rows(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return FileSource(path)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("select_by", ["auto", "last"])
def test_rows_of_few_labels_are_not_held_out_and_no_other_label_is_used(tmp_path, seed, select_by):
    made = rows(40)
    paid = made[:38:2]
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "".join(f"{row['text']},{1 - row['label']}\n" for row in paid))
    config = settings(seed=seed, select_by=select_by, supervised_weight=1.0)
    task = replace(make_task(), data={"train": RowsSource(made, "made rows")})
    data = load_training_data(task, config, few_labels=few)
    labels = {row.prompts[0].removesuffix(". Good?"): row.label for row in data.train if row.label is not None}
    assert labels == {row["text"]: 1 - row["label"] for row in paid}
    assert [row.label for row in data.validation] == [None, None]
    assert len(data.train) == 38
    relabelled = [row | {"label": 0} for row in made]
    other = replace(task, data={"train": RowsSource(relabelled, "made rows")})
    again = load_training_data(other, config, few_labels=few)
    assert (again.train, again.validation) == (data.train, data.validation)


def test_labels_of_a_validation_split_are_used_with_few_labels(tmp_path):
    (tmp_path / "few.csv").write_text(f"text,label\n{rows(12)[3]['text']},0\n")
    data = load_training_data(make_task(), settings(supervised_weight=1.0), few_labels=tmp_path / "few.csv")
    assert [row.label for row in data.train if row.label is not None] == [0]
    assert None not in [row.label for row in data.validation]


def data(eval_limit, **changes):
    task = make_task(7)
    validation = [{"text": f"v{number}", "label": label} for number, label in enumerate(LABELS)]
    templates = [replace(template, answer_choices="No ||| Yes ||| So") for template in task.templates]
    task = replace(
        task,
        templates=TemplateSet(tuple(templates)),
        data={**task.data, "validation": RowsSource(validation, "made rows")},
        labels=(0, 1, 2),
    )
    return load_training_data(task, settings(**changes), eval_limit=eval_limit)


@pytest.mark.parametrize("same", ["train", "validation"])
def test_training_on_the_rows_of_the_audit_is_warned_about(tmp_path, caplog, same):
    data = {split: write_rows(tmp_path / f"{split}.jsonl", first) for first, split in enumerate(SPLITS)}
    load_training_data(replace(make_task(), data=data), settings())
    assert "W-TRAINING" not in caplog.text
    load_training_data(replace(make_task(), data=data | {"test": replace(data[same])}), settings())
    assert f"W-TRAINING: the splits {same} and test have the same rows" in caplog.text


def test_sample_is_stratified_and_keeps_the_order_of_the_rows():
    whole, sample = data(None), data(20)
    assert Counter(instance.label for instance in sample.validation) == {0: 10, 1: 6, 2: 4}
    order = [instance.id for instance in whole.validation]
    places = [order.index(instance.id) for instance in sample.validation]
    assert places == sorted(places)
    assert sample.train == whole.train
    assert sample.record.num_validation == sample.record.eval_limit == 20
    assert whole.record.eval_limit is None


def test_sample_depends_on_the_seed():
    drawn = [{instance.id for instance in data(20, seed=seed).validation} for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_sample_ignores_labels_if_they_do_not_select_the_checkpoint():
    samples = [data(20, seed=seed, select_by="vote_agreement").validation for seed in range(6)]
    assert len({tuple(sorted(Counter(instance.label for instance in sample).items())) for sample in samples}) > 1


@pytest.mark.parametrize("eval_limit", [60, 61])
def test_limit_above_the_size_of_the_split_keeps_all_rows(eval_limit):
    assert data(eval_limit).validation == data(None).validation
