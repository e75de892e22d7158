"""A run that is killed at any point and resumed gives the same adapter, byte for byte."""

import json
import os
import resource

import pytest
import torch
from transformers.trainer_pt_utils import safe_globals

from flip_flop.errors import InputError
from flip_flop.training import F2CConfig
from flip_flop.training.checkpoints import rotate, write_manifest
from flip_flop.training.folder import complete_checkpoints
from tests.training import conftest
from tests.training.conftest import adapter_bytes, before_step, log_of, make_trainer, record_of, training_rows

# 12 instances in batches of 4 are 3 steps an epoch. A checkpoint every 2 steps also falls within an epoch.
EVERY_TWO_STEPS = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
# Renamed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)
slow = pytest.mark.slow
pytestmark = pytest.mark.xdist_group("resume")


def run(out, resume=False, **changes):
    return conftest.run(out, resume=resume, **(EVERY_TWO_STEPS | {"num_train_epochs": 3} | changes))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return adapter_bytes(out)


def interrupt(out, monkeypatch, step, **changes):
    """Fail at the given step, as a crash would."""

    def crash():
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        before_step(patch, step, crash)
        with pytest.raises(RuntimeError, match="crash"):
            run(out, **changes)


DAMAGES = {
    "none": lambda checkpoint: None,
    "no manifest": lambda checkpoint: (checkpoint / "MANIFEST.json").unlink(),
    "survey": lambda checkpoint: (checkpoint.parents[1] / "survey.json").write_text('{"num_instances": 0}'),
}


@slow
@pytest.mark.parametrize(
    ("step", "damage"),
    [(1, "none"), (3, "survey"), (5, "no manifest")],
)
def test_interrupted_run_resumes_to_the_same_adapter_and_log(out, monkeypatch, uninterrupted, step, damage):
    interrupt(out, monkeypatch, step)
    assert not (out / "run.json").exists()
    DAMAGES[damage](out / "checkpoints" / f"checkpoint-{step // 2 * 2}")
    run(out, resume=True)
    assert adapter_bytes(out) == uninterrupted
    assert record_of(out)["training"]["survey"] == json.loads((out / "survey.json").read_text())
    assert record_of(out)["training"]["survey"]["num_instances"] == 12
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 10))
    assert [entry["step"] for entry in log_of(out, "eval_selection")] == [0, 2, 4, 6, 8, 9]
    losses = [entry["loss"] for entry in log_of(out, "loss")]
    assert log_of(out, "train_loss")[0]["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-9)


@slow
@pytest.mark.parametrize("limit", [1_000, 10_000, 30_000])  # bytes of a file: below a log, an adapter, an optimizer
def test_full_disk_is_one_line_and_keeps_the_last_checkpoint(out, monkeypatch, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        before_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)))
        try:
            with pytest.raises(InputError, match=rf"E-OS: A file in {out} could not be written.*--resume") as caught:
                run(out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert complete_checkpoints(out / "checkpoints")[0] == out / "checkpoints" / "checkpoint-2"


# Twelve instances are three steps an epoch.
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}
EVALUATIONS = {
    "apart": EACH_STEP | {"eval_steps": 3, "save_strategy": "steps", "save_steps": 2, "select_by": "last"},
    "patience of epochs": {"eval_strategy": "epoch", "logging_steps": 2, "early_stopping_patience": 2},
    "collapse": EACH_STEP | {"stop_on_collapse": True, "method": "cce", "learning_rate": 0.1},
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
    assert (whole.state.global_step < 9) is (kind != "apart")
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    for checkpoint in {checkpoints[0], checkpoints[-1]}:
        resumed = make_trainer(tmp_path, **made, **changes)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert without_times(resumed) == without_times(whole)
        for name in ("global_step", "best_global_step", "best_metric"):
            assert getattr(resumed.state, name) == getattr(whole.state, name)
    assert len(checkpoints) > 1


@slow
def test_run_without_a_checkpoint_restarts_with_other_settings(out, monkeypatch, uninterrupted):
    interrupt(out, monkeypatch, 1, learning_rate=0.1)
    run(out)
    assert adapter_bytes(out) == uninterrupted


@slow
def test_unsuitable_resume_is_refused(out, monkeypatch):
    interrupt(out, monkeypatch, 3)
    with pytest.raises(InputError, match=r"E-OUT-USED: .*Add --resume"):
        run(out)
    plan = json.loads((out / "plan.json").read_text())
    changed, broken = r"E-RESUME-CHANGED: .*", r"E-RUN-BROKEN: .*plan\.json"
    for content, changes, words in (
        (json.dumps(plan), {"learning_rate": 0.1}, changed + r"settings\.learning_rate \(0.01, now 0.1\)"),
        (json.dumps(plan | {"format": 1}), {}, changed + "another version of flip-flop"),
        *((content, {}, broken) for content in ("{", "null", "[]", '{"settings": []}')),
    ):
        (out / "plan.json").write_text(content)
        with pytest.raises(InputError, match=words):
            run(out, resume=True, **changes)


@slow
def test_execution_settings_may_change_after_an_out_of_memory_error(out, monkeypatch):
    interrupt(out, monkeypatch, 3)
    less = {"per_device_eval_batch_size": 1, "torch_empty_cache_steps": 1, CHECKPOINTING: True, "ddp_timeout": 9}
    run(out, resume=True, batch_tokens=256, **less)
    assert (out / "run.json").exists()
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 10))


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"waves": 3}},
        {"optim": "galore_adamw"},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"waves": 3}},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": [3]},
    ],
)
def test_invalid_settings_leave_the_folder_free(out, changes):
    with pytest.raises(InputError, match=r"E-CONFIG: .*(optim or lr_scheduler|activation_checkpointing)"):
        run(out, **changes)
    assert {item.name for item in out.rglob("*")} <= {".lock", "checkpoints"}


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


def make_checkpoint(folder, step):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text(str(step))
    write_manifest(checkpoint)
    return checkpoint


def test_checkpoint_is_on_disk_before_an_older_one_is_deleted(tmp_path, monkeypatch):
    flushed, flush = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(os.readlink(f"/proc/self/fd/{file}")), flush(file)))
    make_checkpoint(tmp_path, 1)
    assert flushed[-1] == str(tmp_path)


def test_rotation_keeps_the_newest_complete_and_the_best_checkpoint(tmp_path):
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-5").mkdir()
    rotate(tmp_path, 2, best=str(tmp_path / "checkpoint-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-4", "checkpoint-5"]
    assert complete_checkpoints(tmp_path)[0].name == "checkpoint-4"
