"""One unit in several processes of a launcher: the same adapter, and one process that reports."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flip_flop.errors import InputError
from flip_flop.paper.run import StudyFolder, split_batch_across_ranks
from flip_flop.training.checkpoints import lock
from tests.studies.plans import SHORT, plan, small
from tests.studies.running import ENVIRONMENT, here, write_study
from tests.training.conftest import settings

# Four whole steps of an epoch, without dropout, whose masks depend on the batch.
WHOLE = SHORT | {"max_steps": 4, "lora_dropout": 0.0, "eval_strategy": "steps", "eval_steps": 2}
WHOLE |= {"save_strategy": "steps", "save_steps": 2}


def launch(path, unit):
    """Run a unit's command in two processes: its exit code and output."""
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m flip_flop study work"
    command, output = [sys.executable, *launcher.split(), str(path), "--unit", unit.name], path.with_suffix(".txt")
    with output.open("w") as file:
        process = subprocess.run(command, env=ENVIRONMENT, stdout=file, stderr=file, timeout=240)
    return process.returncode, output.read_text()


def adapter(folder, training):
    return load_file(folder.run(training) / "adapter" / "adapter_model.safetensors")


@pytest.fixture
def planned(tmp_path):
    made = plan(small(WHOLE, methods=("cce",)))
    folder = StudyFolder(tmp_path / "out")
    return made, folder, folder.write_plan(made)


@pytest.mark.slow
def test_two_processes_match_one(planned, tmp_path):
    made, folder, path = planned
    (unit,), (training, audit) = made.units, made.cells
    code, out = launch(path, unit)
    assert (code, out.count(f"train {training.label}: "), out.count(f"audit {audit.label}: ")) == (0, 1, 1), out
    assert (out.count("---- "), out.count("first votes over")) == (1, 1)
    assert folder.is_done(training)
    assert folder.is_done(audit)

    alone = StudyFolder(tmp_path / "alone")
    assert here("work", alone.write_plan(made), "--unit", unit.name) == 0
    one, two = adapter(alone, training), adapter(folder, training)
    # Gradients are summed in another order: AdamW divides them by their size, so that a step of 3e-4 may differ by a
    # few units in the last place of its float32 parts, 4 steps of 4 instances.
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert max(float(tensor.abs().max()) for name, tensor in two.items() if "lora_B" in name) > 1e-4

    (folder.run(audit) / "cell.json").unlink()  # what one process does
    code, out = launch(path, unit)
    assert (code, out.count(f"audit {audit.label}: "), out.count("train ")) == (0, 1, 0), out
    assert folder.is_done(audit)


@pytest.mark.slow
def test_launched_processes_end_at_a_busy_unit(planned):
    made, folder, path = planned
    (unit,) = made.units
    with lock(folder.run(unit.training)):
        code, out = launch(path, unit)
    assert (code != 0, out.count("E-OUT-BUSY: ")) == (True, 1), out
    assert not list(folder.root.glob("trainings/*/plan.json"))


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes", "shared"),
    [(8, 1, 4, (2, 1)), (1, 8, 4, (1, 2)), (4, 4, 2, (4, 2)), (4, 2, 8, (1, 1)), (6, 2, 4, (3, 1)), (8, 3, 1, (8, 3))],
)
def test_processes_divide_a_step(batch, accumulation, processes, shared):
    config = settings(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
    split_batch_across_ranks(config, processes)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == shared
    with pytest.raises(InputError, match=r"E-DISTRIBUTED: A step of 6 .* by 4 proc|E-DISTRIBUTED: .* that divides 6"):
        split_batch_across_ranks(settings(per_device_train_batch_size=6), 4)


def test_export_launches_only_training_units(tmp_path):
    study, out = write_study(tmp_path), tmp_path / "list"
    launcher = ("--launcher", "my launch --name 'a b'")
    here("run", study, "--out", tmp_path / "out", "--device", "cpu", "--export", out, "--gpus", "2", *launcher)
    commands = [shlex.split(line) for line in out.read_text().splitlines() if not line.startswith("#")]
    assert [command[: command.index("-m")] for command in commands] == [
        [sys.executable],
        ["my", "launch", "--name", "a b"],
    ]
    for command in commands:
        *_, plan_path, flag, name, append, log, errors = command
        assert (Path(plan_path).parent.name, flag, append, errors) == ("plans", "--unit", ">>", "2>&1")
        assert log == str(tmp_path / "out" / "logs" / f"{name}.log")
    name = Path(sys.executable).name  # a launcher of this installation is in the folder of its Python
    for launcher, program in ((name, sys.executable), ("no-such-program -x", "no-such-program -x")):
        here("run", study, "--out", tmp_path / "o", "--device", "cpu", "--export", out, "--launcher", launcher)
        assert f"\n{program} -m flip_flop" in out.read_text()


@pytest.mark.parametrize(
    ("options", "processes", "expected"),
    [
        (("--launcher", "torchrun"), "1", "E-DISTRIBUTED: --launcher: local workers .* Use --executor slurm, or --exp"),
        (("--gpus", "4", "--executor", "slurm"), "1", "E-DISTRIBUTED: --gpus is 4.* Give --launcher '.*_processes 4"),
        (("--launcher", "a 'b", "--executor", "slurm"), "1", "E-STUDY: Invalid --launcher"),
        (("--launcher", "", "--executor", "slurm"), "1", "E-STUDY: Invalid --launcher ''"),
        ((), "2", "E-DISTRIBUTED: A launcher has started 2 processes"),
    ],
)
def test_unusable_launcher_is_refused(tmp_path, monkeypatch, options, processes, expected):
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(InputError, match=expected):
        here("run", write_study(tmp_path), "--out", tmp_path / "out", *options)
