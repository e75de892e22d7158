"""A run that is stopped anywhere and resumed is the run that was not stopped, byte for byte."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flip_flop.training.saved_state import read_state

from flip_flop.errors import InputError
from flip_flop.training import F2CConfig, F2CTrainer, train
from flip_flop.training.checkpoints import latest_valid, write_manifest
from flip_flop.training.selection import CheckpointCriterion
from tests.training.conftest import adapter_bytes, before_step, load_tiny, log_of, make_task, record_of, settings
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
# 12 instances in batches of 4: 3 steps an epoch, a checkpoint every 2, so that one lies within an epoch.
EVERY_TWO_STEPS = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


def run(out, resume=False, **changes):
    changes = EVERY_TWO_STEPS | {"num_train_epochs": 3} | changes
    return train(load_tiny(), make_task(), settings(**changes), out, resume=resume, quiet=True, keep_worse=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return adapter_bytes(out)


def interrupted(out, monkeypatch, step):
    """Fail at the given step, as a crash would."""

    def crash():
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        before_step(patch, step, crash)
        with pytest.raises(RuntimeError, match="crash"):
            run(out)


@pytest.mark.parametrize("step", [1, 4, 5, 8])
def test_resume_goes_on_with_the_same_result_and_log_as_an_uninterrupted_run(out, monkeypatch, uninterrupted, step):
    interrupted(out, monkeypatch, step)
    assert not (out / "run.json").exists()
    (out / "survey.json").write_text('{"num_instances": 0}')  # it is for people, and is not read again
    run(out, resume=True)
    assert adapter_bytes(out) == uninterrupted
    assert record_of(out)["training"]["survey"] == json.loads((out / "survey.json").read_text())
    assert record_of(out)["training"]["survey"]["num_instances"] == 12
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 10))
    assert [entry["step"] for entry in log_of(out, "eval_selection")] == [0, 2, 4, 6, 8, 9]
    assert_all_steps_are_in_the_mean(out)


def assert_all_steps_are_in_the_mean(out):
    losses = [entry["loss"] for entry in log_of(out, "loss")]
    assert log_of(out, "train_loss")[0]["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_steps": 5},  # within an epoch
        {"max_steps": 9, "early_stopping_patience": 1, "early_stopping_start": 0, "jsd_weight": 0.0, "cce_weight": 0.0},
    ],
)
def test_resumed_from_its_last_checkpoint_a_run_has_nothing_left_to_train(out, changes):
    changes |= {"lr_scheduler_type": "constant"}
    run(out, **changes)
    before, steps = adapter_bytes(out), [entry["step"] for entry in log_of(out, "loss")]
    (out / "run.json").unlink()
    shutil.rmtree(out / "adapter")
    run(out, resume=True, **changes)
    assert adapter_bytes(out) == before
    assert [entry["step"] for entry in log_of(out, "loss")] == steps
    assert_all_steps_are_in_the_mean(out)


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated", "no manifest"])
def test_a_damaged_checkpoint_is_passed_over(out, monkeypatch, uninterrupted, damage):
    interrupted(out, monkeypatch, 5)
    newest = out / "checkpoints" / "checkpoint-4"
    file = newest / "optimizer.safetensors"
    if damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        (newest / "MANIFEST.json").unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content if damage == "flipped" else content[:-10])
    run(out, resume=True)
    assert adapter_bytes(out) == uninterrupted


def test_a_checkpoint_has_neither_pickles_nor_a_token(out):
    run(out, num_train_epochs=1, hub_token="a token of no known shape")
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"optimizer.safetensors", "scheduler.json", "random_state_0.json"} <= {path.name for path in files}
    assert not [
        path for path in files if path.suffix in (".pt", ".pth", ".bin", ".pkl") or b"PK\x03" in path.read_bytes()
    ]
    assert not [path for path in files if b"a token of no known shape" in path.read_bytes()]


def test_a_checkpoint_of_pickles_as_earlier_versions_wrote_is_read_once(out, monkeypatch, uninterrupted, caplog):
    caplog.set_level("INFO")
    interrupted(out, monkeypatch, 5)
    former = out / "checkpoints" / "checkpoint-4"
    for name in ("optimizer", "scheduler"):
        torch.save(read_state(former, name), former / f"{name}.pt")
    for path in [*former.glob("optimizer.[js]*"), former / "scheduler.json", *former.glob("random_state*")]:
        path.unlink()
    write_manifest(former)
    run(out, resume=True)
    assert "checkpoint-4: its optimizer is read from a pickle" in caplog.text
    assert adapter_bytes(out) == uninterrupted
    assert not [path for path in out.rglob("*.pt") if path.parent != former]


@pytest.mark.parametrize("step", [5, 7])  # after a checkpoint within an epoch, and after one between two
def test_all_random_generators_go_on_where_they_were(tmp_path, monkeypatch, step):
    outs, draws, whole_step = (tmp_path / "whole", tmp_path / "resumed"), {}, F2CTrainer.training_step

    def drawing(self, *arguments, **keywords):
        if self.state.global_step == step and not draws.get("crashed", out == outs[0]):
            draws["crashed"] = True
            raise RuntimeError("crash")
        drawn = (float(np.random.rand()), float(torch.rand(())))  # of Python's the type checker of the tests draws too
        draws[out, self.state.global_step] = drawn
        return whole_step(self, *arguments, **keywords)

    monkeypatch.setattr(F2CTrainer, "training_step", drawing)
    for out in outs:
        with contextlib.suppress(RuntimeError):
            run(out)
    run(out, resume=True)
    assert [draws[outs[0], number] for number in range(9)] == [draws[outs[1], number] for number in range(9)]


def test_a_complete_run_is_not_run_again(out, uninterrupted):
    run(out)
    before = (out / "run.json").stat().st_mtime_ns
    run(out, resume=True)
    assert (out / "run.json").stat().st_mtime_ns == before
    assert adapter_bytes(out) == uninterrupted


def test_a_run_that_is_there_is_not_begun_again_unasked_nor_resumed_as_another_run(out, monkeypatch):
    interrupted(out, monkeypatch, 3)
    with pytest.raises(InputError, match=r"E-OUT-USED: .*Add --resume"):
        run(out)
    with pytest.raises(InputError, match=r"E-RESUME-CHANGED: .*settings\.learning_rate \(0.01, now 0.1\)"):
        run(out, resume=True, learning_rate=0.1)
    config = settings(**EVERY_TWO_STEPS, num_train_epochs=3)
    with pytest.raises(
        InputError, match=r"E-RESUME-CHANGED: .* have changed: training rows, gold labels of the training rows\. "
    ):
        train(load_tiny(), make_task(11), config, out, resume=True, quiet=True, keep_worse=True)
    for content in ("{", "null", "[]", '{"settings": []}'):
        (out / "plan.json").write_text(content)
        with pytest.raises(InputError, match=r"E-RUN-BROKEN: .*plan\.json"):
            run(out, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_without_a_checkpoint_is_begun_anew_with_other_settings(out, monkeypatch, uninterrupted, resume):
    with monkeypatch.context() as patch:
        before_step(patch, 1, lambda: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            run(out, learning_rate=0.1)
    run(out, resume=resume)
    assert adapter_bytes(out) == uninterrupted


# Its name changed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_kwargs": {"waves": 3}},
        {"lr_scheduler_type": "cosine_with_min_lr"},
        {"optim_args": "beta"},
        {"optim": "galore_adamw"},
        {"torch_compile_backend": "wavy"},
        {"dataloader_persistent_workers": True},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"waves": 3}},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": [3]},
    ],
)
def test_what_cannot_be_built_of_the_settings_is_refused_before_the_folder_is_taken(out, changes):
    named = "optim or lr_scheduler|torch_compile_backend|activation_checkpointing|dataloader_persistent_workers"
    with pytest.raises(InputError, match=rf"E-CONFIG-VALUE: .*({named})"):
        run(out, **changes)
    assert {item.name for item in out.rglob("*")} <= {".lock", "checkpoints"}


def test_the_best_checkpoint_lost_is_replaced_by_the_next_best(out, monkeypatch, caplog):
    values = iter([0.1, 0.9, 0.7, 0.5, 0.2, 0.3])  # at steps 0, 2, 4, 6, 8, 9
    monkeypatch.setattr(CheckpointCriterion, "judge", lambda *_: {"selection": next(values), "vote_drift": 0.0})
    with monkeypatch.context() as patch:
        before_step(patch, 7, lambda: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            run(out, save_total_limit=None)
    (out / "checkpoints" / "checkpoint-2" / "adapter_model.safetensors").write_bytes(b"")
    run(out, resume=True, save_total_limit=None)
    assert "checkpoint-2, cannot be used (adapter_model.safetensors is damaged): it is now checkpoint-4" in caplog.text
    training = record_of(out)["training"]
    assert (training["selected_checkpoint"], training["selected_value"]) == ("checkpoint-4", 0.7)


@pytest.mark.parametrize("limit", [1_000, 10_000, 30_000])  # bytes of a file: of the log, an adapter, an optimizer
def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(out, monkeypatch, uninterrupted, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        before_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)))
        try:
            with pytest.raises(InputError, match=rf"E-OS: A file in {out} could not be written.*--resume") as caught:
                run(out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert latest_valid(out / "checkpoints")[0] == out / "checkpoints" / "checkpoint-2"
    run(out, resume=True)
    assert adapter_bytes(out) == uninterrupted


def test_a_run_that_wanted_memory_goes_on_with_smaller_batches(out, monkeypatch):
    interrupted(out, monkeypatch, 3)
    plan = json.loads((out / "plan.json").read_text())
    assert "batch_tokens" not in plan["settings"]
    plan["settings"] |= {"batch_tokens": 4096, "fast_linear": True}  # as earlier versions wrote
    (out / "plan.json").write_text(json.dumps(plan))
    less = {"per_device_eval_batch_size": 1, "torch_empty_cache_steps": 1, CHECKPOINTING: True}
    run(out, resume=True, batch_tokens=256, **less)
    assert (out / "run.json").exists()
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 10))


# It stays in its sixth step until it is killed.
SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
from pathlib import Path
from flip_flop.training.trainer import F2CTrainer
from tests.training.test_resume import run
whole_step = F2CTrainer.training_step
def step(self, *arguments, **keywords):
    if self.state.global_step == 5:
        time.sleep(120)
    return whole_step(self, *arguments, **keywords)
F2CTrainer.training_step = step
run(Path(sys.argv[1]))
"""


def test_kill_9_in_the_middle_then_resume_gives_the_same_adapter(out, uninterrupted):
    command, environment = [sys.executable, "-c", SCRIPT, str(out)], os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment)
    manifest = out / "checkpoints" / "checkpoint-4" / "MANIFEST.json"
    wait_for(lambda: manifest.exists() or process.poll() is not None)
    assert manifest.exists()
    assert process.poll() is None, "it was over before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "run.json").exists()
    run(out, resume=True)
    assert adapter_bytes(out) == uninterrupted
