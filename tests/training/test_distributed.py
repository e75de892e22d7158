"""Two processes of the stock launcher train what one does: the same step, the same log, one folder."""

import json
import os
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tests.cli.project import TASK, make_project
from tests.waiting import wait_for

# Every epoch of 4 * 8 instances is whole steps for one process of 8 and for two of 4.
ROWS = 32


@pytest.fixture
def task_file(tmp_path):
    folder = make_project(tmp_path / "project")
    rows = [{"text": f"The room was {'not ' * (number % 3 == 0)}good, {number}."} for number in range(ROWS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # One row for two processes: one of them has nothing to score.
    (folder / "validation.csv").write_text("text\nFine stay 0\n")
    (folder / "tickets.yaml").write_text(TASK.replace("label_field: urgent\n", ""))
    return folder / "tickets.yaml"


def arguments(task_file, out, num_processes):
    settings = ["--model", "demo", "--task", str(task_file), "--method", "f2c", "--out", str(out), "--device", "cpu"]
    settings += ["--num-train-epochs", "3", "--logging-steps", "1", "--divergence-space", "labels"]
    return ["train", *settings, "--per-device-train-batch-size", str(8 // num_processes)]


def launch(task_file, out, *flags):
    """Two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "flip_flop.cli.main", *arguments(task_file, out, 2), *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, **pipes, env=environment, start_new_session=True)


def losses(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(line["loss"], line["case_1"], line["own_label_mass"]) for line in lines if "loss" in line]


@pytest.mark.slow
def test_two_processes_stop_at_one_step_on_a_signal_and_go_on_from_it_and_take_the_steps_of_one(
    tmp_path, task_file, flip_flop
):
    one, two = tmp_path / "one", tmp_path / "two"
    process, log = launch(task_file, two), two / "log.jsonl"
    wait_for(lambda: log.exists() and '"loss"' in log.read_text())
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert errors.count("first votes") == 1
    assert list((two / "checkpoints").glob("checkpoint-*/MANIFEST.json"))
    assert not (two / "run.json").exists()

    resumed = launch(task_file, two, "--resume")
    output, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert "resuming from checkpoint-" in errors
    assert output.count("next, flip-flop audit") == 1
    assert json.loads((two / "run.json").read_text())["kind"] == "train"

    assert flip_flop(*arguments(task_file, one, 1)).code == 0
    ours, theirs = losses(two), losses(one)
    assert len(ours) == len(theirs) == 3 * ROWS // 8
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=2e-3, abs=2e-4)
    adapters = [load_file(run / "adapter" / "adapter_model.safetensors") for run in (one, two)]
    size = max(float(tensor.abs().max()) for tensor in adapters[0].values())
    assert max(float((adapters[0][name] - adapters[1][name]).abs().max()) for name in adapters[0]) < 0.02 * size
