"""Two processes of the stock launcher train what one does: the same step, the same log, one folder."""

import json
import os
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tests.waiting import wait_for

# Every epoch of 4 * 8 instances is whole steps for one process of 8 and for two of 4.
ROWS = 32


@pytest.fixture
def task_file(tmp_path):
    rows = [{"text": f"The room was {'not ' * (number % 3 == 0)}good, {number}."} for number in range(ROWS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # One row for two processes: one of them has nothing to score.
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


def launch(num_processes, task_file, out, *flags, wait=True):
    settings = ["--model", "demo", "--task", str(task_file), "--method", "f2c", "--out", str(out), "--device", "cpu"]
    settings += ["--num-train-epochs", "2", "--logging-steps", "1", "--divergence-space", "labels"]
    settings += ["--per-device-train-batch-size", str(8 // num_processes), *flags]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command = [sys.executable, *launcher * (num_processes > 1), "-m", "flip_flop.cli.main", "train", *settings]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    if not wait:
        return process
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output, errors


def losses(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(line["loss"], line["case_1"], line["own_label_mass"]) for line in lines if "loss" in line]


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one(tmp_path, task_file):
    launch(1, task_file, tmp_path / "one")
    output, errors = launch(2, task_file, tmp_path / "two")
    assert output.count("next, flip-flop audit") == 1
    assert errors.count("first votes") == 1
    ours, theirs = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert len(ours) == len(theirs) == 2 * ROWS // 8
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=2e-3, abs=2e-4)
    one, two = (load_file(tmp_path / run / "adapter" / "adapter_model.safetensors") for run in ("one", "two"))
    size = max(float(tensor.abs().max()) for tensor in one.values())
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 0.02 * size
    assert json.loads((tmp_path / "two" / "run.json").read_text())["kind"] == "train"


@pytest.mark.slow
def test_two_processes_stop_at_one_step_on_a_signal_and_go_on_from_it(tmp_path, task_file):
    out = tmp_path / "two"
    process = launch(2, task_file, out, "--num-train-epochs", "40", wait=False)
    log = out / "log.jsonl"
    wait_for(lambda: log.exists() and '"loss"' in log.read_text())
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert list((out / "checkpoints").glob("checkpoint-*/MANIFEST.json"))
    assert not (out / "run.json").exists()
    _, errors = launch(2, task_file, out, "--num-train-epochs", "40", "--resume")
    assert "resuming from checkpoint-" in errors
    assert (out / "run.json").exists()
