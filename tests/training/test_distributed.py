"""Several processes train what one does: the same steps, the same log, one folder, one voice."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.waiting import wait_for

# The last of an epoch's 5 steps has 5 instances instead of 8.
ROWS = 37


@pytest.fixture
def task_file(tmp_path):
    rows = [{"text": f"The room was {'not ' * (number % 3 == 0)}good, {number}."} for number in range(ROWS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # One row for two processes: one of them is idle.
    (tmp_path / "validation.jsonl").write_text('{"text": "Fine stay 0"}\n')
    path = tmp_path / "task.yaml"
    path.write_text(
        "name: made\n"
        "data: {train: train.jsonl, validation: validation.jsonl}\n"
        "labels: [0, 1]\n"
        "templates:\n"
        '  - {name: a, jinja: "{{ text }} Is this review positive?", answer_choices: "No ||| Yes"}\n'
        '  - {name: b, jinja: "Review: {{ text }} True or false: a happy guest.", answer_choices: "False ||| True"}\n'
        '  - {name: c, jinja: "{{ text }} The guest was", answer_choices: "unhappy ||| happy"}\n'
    )
    return path


def settings_of(num_processes, task_file, out, *flags):
    settings = ["--model", "demo", "--task", str(task_file), "--method", "f2c", "--out", str(out), "--device", "cpu"]
    settings += ["--num-train-epochs", "2", "--logging-steps", "1", "--divergence-space", "labels", "--keep-worse"]
    return [*settings, "--per-device-train-batch-size", str(8 // num_processes), *flags]


def launch(num_processes, task_file, out, *flags, wait=True, launcher=None, code=0):
    settings = settings_of(num_processes, task_file, out, *flags)
    launcher = launcher or ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command = [sys.executable, *launcher, "-m", "flip_flop.cli.main", "train", *settings]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    if not wait:
        return process
    output, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    return output, errors


def losses(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(line["loss"], line["case_1"], line["own_label_mass"]) for line in lines if "loss" in line]


def training_record(out):
    return json.loads((out / "run.json").read_text())["training"]


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one(tmp_path, task_file, flip_flop):
    assert flip_flop("train", *settings_of(1, task_file, tmp_path / "one", "--lora-dropout", "0")).code == 0
    output, errors = launch(2, task_file, tmp_path / "two", "--lora-dropout", "0")
    assert output.count("next, flip-flop audit") == 1
    assert errors.count("first votes") == errors.count("processes that train together: 2") == 1
    ours, theirs = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert len(ours) == len(theirs) == 2 * 5
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
    one, two = (load_file(tmp_path / run / "adapter" / "adapter_model.safetensors") for run in ("one", "two"))
    size = max(float(tensor.abs().max()) for tensor in one.values())
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-3 * size
    records = [training_record(tmp_path / run) for run in ("one", "two")]
    assert [record["num_processes"] for record in records] == [1, 2]
    assert not any(record["dropout_depends_on_processes"] for record in records)


@pytest.mark.slow
def test_two_processes_stop_at_one_step_on_a_signal_and_resume(tmp_path, task_file):
    out = tmp_path / "two"
    process = launch(2, task_file, out, "--num-train-epochs", "12", wait=False)
    log = out / "log.jsonl"
    wait_for(lambda: log.exists() and '"loss"' in log.read_text())
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert list((out / "checkpoints").glob("checkpoint-*/MANIFEST.json"))
    assert not (out / "run.json").exists()
    _, errors = launch(2, task_file, out, "--num-train-epochs", "12", "--resume")
    assert "resuming from checkpoint-" in errors
    assert training_record(out)["dropout_depends_on_processes"] is True


SHORT_TIMEOUT = """
from datetime import timedelta
from accelerate import PartialState
PartialState(cpu=True, timeout=timedelta(seconds=8))
from flip_flop.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_unresponsive_process_ends_the_others_with_an_error(tmp_path, task_file, sent):
    out = tmp_path / "two"
    flags = ("--num-train-epochs", "200", "--eval-strategy", "no")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-c", SHORT_TIMEOUT, "train", *settings_of(2, task_file, out, *flags)]
    first, second = (
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=os.environ | shared | {"OMP_NUM_THREADS": "1", "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    )
    wait_for(lambda: (out / "log.jsonl").exists() and '"loss"' in (out / "log.jsonl").read_text())
    second.send_signal(sent)
    try:
        _, errors = first.communicate(timeout=60)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert first.returncode == 2
    assert errors.splitlines()[-1].startswith("E-DISTRIBUTED: another process has ended, or has not answered in time")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_one_two_and_four_processes_train_the_same_adapter(tmp_path):
    """50 steps of 4 instances over 37, so that every tenth step has one instance, and three of four processes none.

    In float64 only rounding differs. In float32 AdamW divides a gradient by its size. If the size is near the
    rounding, a step may differ by a part of the learning rate, 1e-3, of which 1e-5 is a hundredth.
    """
    command = [sys.executable, "-m", "tests.training.processes", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for dtype, bound, processes in (("float64", 1e-12, (2, 4)), ("float32", 1e-5, (4,))):
        one, *others = (torch.load(tmp_path / f"{dtype}-{count}.pt") for count in (1, *processes))
        assert one["steps"][-1] == 50
        assert max(float(value.abs().max()) for name, value in one["adapter"].items() if "lora_B" in name) > 0.01
        for other in others:
            assert other["told"] == "E-LABEL: two answers are the same tokens. Change one."
            assert other["steps"] == one["steps"]
            differences = [(other["adapter"][name] - value).abs().max() for name, value in one["adapter"].items()]
            assert float(max(differences)) < bound
            losses = [[*found["losses"], found["train_loss"]] for found in (other, one)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_invalid_setting_is_reported_once(tmp_path, task_file):
    _, errors = launch(2, task_file, tmp_path / "two", "--learning-rat", "1", code=1)  # the launcher's own
    assert errors.count("E-CONFIG: Unknown setting '--learning-rat'") == 1


@pytest.mark.slow
def test_launcher_that_starts_too_few_processes_is_warned_about(tmp_path, task_file):
    accelerate = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    _, errors = launch(1, task_file, tmp_path / "one", "--max-steps", "1", "--eval-strategy", "no", launcher=accelerate)
    assert errors.count("processes that train together: 1") == 1
    assert errors.count("W-ONE-PROCESS: accelerate started one of several requested processes") == 1


@pytest.mark.slow
def test_audit_in_two_processes_has_the_same_scores(tmp_path, flip_flop):
    command = ["audit", "--model", "demo", "--task", "demo", "--limit", "7", "--device", "cpu", "--out"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "flip_flop.cli.main"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *torchrun, *command, str(tmp_path / "two")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("next, flip-flop report") == 1
    assert flip_flop(*command, tmp_path / "one").code == 0
    one, two = (np.load(tmp_path / run / "scores.npz")["scores"] for run in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-5)
