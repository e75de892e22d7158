"""A run that is killed at any point and resumed gives the same adapter, byte for byte."""

import functools
import json
import os
import resource
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import safe_globals

from flip_flop import F2CConfig, F2CTrainer
from flip_flop.record import write_manifest
from flip_flop.training.checkpoints import rotate
from flip_flop.training.folder import complete_checkpoints
from tests.refused import refused
from tests.training import conftest
from tests.training.conftest import (
    adapter_bytes,
    before_step,
    log_of,
    make_trainer,
    record_of,
    signal_in,
    training_rows,
)

# 12 instances in batches of 4 are 3 steps an epoch. A checkpoint every 2 steps also falls within an epoch.
STRATEGIES = {
    "epochs": {"save_strategy": "epoch", "eval_strategy": "epoch", "save_total_limit": 1},
    "steps": {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
    "apart": {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "epoch", "select_by": "last"},
    "variants": {"save_strategy": "steps", "save_steps": 2, "eval_steps": 2, "votes": "frozen", "variants_per_step": 2},
}
# Renamed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)
slow = pytest.mark.slow
pytestmark = pytest.mark.xdist_group("resume")


def run(out, resume=False, **changes):
    return conftest.run(out, resume=resume, **(STRATEGIES["steps"] | {"learning_rate": 3e-3} | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Make the folder of a run without an interruption, once for each strategy."""

    @functools.cache
    def made(strategy):
        out = tmp_path_factory.mktemp(strategy) / "run"
        run(out, **STRATEGIES[strategy])
        return out

    return made


def crash_after(patch, step):
    def crash():
        raise RuntimeError("crash")

    before_step(patch, step, crash)


def interrupt(out, monkeypatch, step, **changes):
    """Fail after so many steps, as a crash would."""
    with monkeypatch.context() as patch:
        crash_after(patch, step)
        with pytest.raises(RuntimeError, match="crash"):
            run(out, **changes)


def signal_in_evaluation(patch, step):
    """Send this process a signal before the evaluation of a step."""
    evaluate = F2CTrainer._evaluate_own

    def signalled(self):
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self)

    patch.setattr(F2CTrainer, "_evaluate_own", signalled)


# Of 6 steps. A signal lets the step end with a checkpoint.
@slow
@pytest.mark.parametrize(
    ("strategy", "interrupt", "step", "checkpoint"),
    [
        ("epochs", signal_in, 2, 2),
        ("epochs", signal_in, 3, 3),
        ("steps", signal_in_evaluation, 4, 4),
        ("apart", signal_in, 3, 3),
        ("steps", crash_after, 1, None),
        ("steps", crash_after, 3, 2),
        ("variants", crash_after, 3, 2),
        ("steps", crash_after, 5, 2),
    ],
)
def test_a_run_that_stops_or_crashes_resumes_to_the_same_adapter_and_log(
    out, monkeypatch, whole, strategy, interrupt, step, checkpoint
):
    expected, changes = whole(strategy), STRATEGIES[strategy]
    crashes = interrupt is crash_after
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="crash") if crashes else nullcontext():
        interrupt(patch, step)
        stopped = run(out, **changes)
        assert (stopped.stopped_by, stopped.adapter) == (signal.SIGTERM, None)
        assert log_of(out, "loss")[-1]["step"] == step
    assert not (out / "run.json").exists()
    if step == 5:  # the newest checkpoint is incomplete
        (out / "checkpoints" / "checkpoint-4" / "MANIFEST.json").unlink()
        (out / "survey.json").write_text('{"num_instances": 0}')
    complete = complete_checkpoints(out / "checkpoints")
    assert [path.name for path in complete[:1]] == ([] if checkpoint is None else [f"checkpoint-{checkpoint}"])
    run(out, resume=True, **changes)
    assert adapter_bytes(out) == adapter_bytes(expected)
    ours, theirs = (record_of(path)["training"] for path in (out, expected))
    assert ours["selected_checkpoint"] == theirs["selected_checkpoint"]
    assert ours["survey"] == json.loads((out / "survey.json").read_text()) == theirs["survey"]
    for key in ("loss", "eval_selection"):
        steps = [[entry["step"] for entry in log_of(path, key)] for path in (out, expected)]
        assert steps[0] == steps[1]
    losses = [entry["loss"] for entry in log_of(out, "loss")]
    assert log_of(out, "train_loss")[0]["train_loss"] == pytest.approx(np.mean(losses), rel=1e-9)


@slow
@pytest.mark.parametrize("limit", [1_000, 30_000])  # bytes of a file: below a log, an optimizer
def test_full_disk_is_one_line_and_keeps_the_last_checkpoint(out, monkeypatch, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        before_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)))
        try:
            refused(rf"E-OS: A file in {out} could not be written.*--resume", run, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert complete_checkpoints(out / "checkpoints")[0] == out / "checkpoints" / "checkpoint-2"


# Twelve instances are three steps an epoch.
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}
EVALUATIONS = {
    "apart": EACH_STEP | {"eval_steps": 3, "save_strategy": "steps", "save_steps": 2, "select_by": "last"},
    "patience of epochs": {"eval_strategy": "epoch", "logging_steps": 2, "early_stopping_patience": 2},
    "collapse": EACH_STEP | {"stop_on_collapse": True, "method": "cce", "learning_rate": 0.1, "max_steps": 15},
}


def without_times(trainer):
    timed = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
    return [{key: entry[key] for key in entry if key not in timed} for entry in trainer.state.log_history]


@slow
@pytest.mark.parametrize("kind", EVALUATIONS)
def test_trainer_resumed_at_a_checkpoint_evaluates_and_stops_as_the_whole_run(tmp_path, kind):
    """The learning rate of the runs with patience is 0, so the third evaluation without a lower loss is soon."""
    changes = {"max_steps": 9, "num_train_epochs": -1, "early_stopping_start": 0, "save_total_limit": None}
    changes |= {"lr_scheduler_type": "constant"} | ({"learning_rate": 0.0} if "patience" in kind else {})
    changes |= EVALUATIONS[kind]
    made = {"rows": training_rows(count=12), "eval_rows": training_rows(count=7)}
    whole = make_trainer(tmp_path, **made, **changes)
    whole.train()
    evaluated = [entry["step"] for entry in whole.state.log_history if "eval_collapsed" in entry]
    assert evaluated == sorted({*evaluated})
    assert (whole.state.global_step < changes["max_steps"]) is (kind != "apart")
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    assert len(checkpoints) > 1
    resumed = make_trainer(tmp_path, **made, **changes)
    resumed.train(resume_from_checkpoint=str(checkpoints[0]))
    assert without_times(resumed) == without_times(whole)
    for name in ("global_step", "best_global_step", "best_metric"):
        assert getattr(resumed.state, name) == getattr(whole.state, name)


@slow
def test_run_without_a_checkpoint_restarts_with_other_settings(out, monkeypatch, whole):
    interrupt(out, monkeypatch, 1, learning_rate=0.1)
    run(out)
    assert adapter_bytes(out) == adapter_bytes(whole("steps"))


@slow
def test_unsuitable_resume_is_refused(out, monkeypatch):
    interrupt(out, monkeypatch, 3)
    refused(r"E-OUT-USED: .*Add --resume", run, out)
    plan = json.loads((out / "plan.json").read_text())
    changed, broken = r"E-RESUME-CHANGED: .*", r"E-RUN-BROKEN: .*plan\.json"
    for content, changes, words in (
        (json.dumps(plan), {"learning_rate": 0.1}, changed + r"settings\.learning_rate \(0.003, now 0.1\)"),
        *((content, {}, broken) for content in ("{", "null", "[]", '{"settings": []}')),
    ):
        (out / "plan.json").write_text(content)
        refused(words, run, out, resume=True, **changes)


@slow
def test_execution_settings_may_change_after_an_out_of_memory_error(out, monkeypatch):
    interrupt(out, monkeypatch, 3)
    plan = json.loads((out / "plan.json").read_text())
    assert plan["settings"].pop("num_samples") == 0  # a setting that is newer than the run
    (out / "plan.json").write_text(json.dumps(plan))
    less = {"per_device_eval_batch_size": 1, "torch_empty_cache_steps": 1, CHECKPOINTING: True, "ddp_timeout": 9}
    run(out, resume=True, batch_tokens=256, **less)
    assert (out / "run.json").exists()
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 7))


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {"waves": 3}},
        {"optim": "galore_adamw"},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"waves": 3}},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": [3]},
    ],
)
def test_invalid_settings_leave_the_folder_free(out, changes):
    refused(r"E-CONFIG: .*(optim, lr_scheduler or dataloader|activation_checkpointing)", run, out, **changes)
    assert not out.exists()


@slow
def test_checkpoint_is_safe_to_load_and_has_no_token(out):
    run(out, num_train_epochs=1, hub_token="a token of no known shape")
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {path.name for path in files}
    with safe_globals():
        for path in files:
            if path.suffix in (".pt", ".pth", ".bin", ".pkl"):
                torch.load(path, weights_only=True)
    assert not [path for path in files if b"a token of no known shape" in path.read_bytes()]


# ---- the files of a checkpoint ----


def make_checkpoint(folder, step, best=None):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"best_global_step": best}))
    write_manifest(checkpoint)
    return checkpoint


def test_checkpoint_is_on_disk_before_an_older_one_is_deleted(tmp_path, monkeypatch):
    flushed, flush = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(os.readlink(f"/proc/self/fd/{file}")), flush(file)))
    make_checkpoint(tmp_path, 1)
    assert flushed[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("keep", "best", "kept"),
    [
        (2, (None, None, None, None), {3, 4}),
        (2, (1, 1, 1, 1), {1, 4}),
        (2, (1, 2, 2, 4), {2, 3, 4}),  # without 2, no run could resume from 3
        (1, (1, 2, 2, 4), {4}),
        (3, (1, 1, 9, 9), {1, 2, 3, 4}),  # step 9 has no checkpoint
    ],
)
def test_rotation_keeps_the_newest_complete_checkpoints_and_their_best_ones(tmp_path, keep, best, kept):
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step, best[step - 1])
    (tmp_path / "checkpoint-5").mkdir()
    rotate(tmp_path, keep)
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{step}" for step in {*kept, 5}}
    assert complete_checkpoints(tmp_path)[0].name == "checkpoint-4"
