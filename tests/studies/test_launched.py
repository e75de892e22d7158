"""One cell in several processes of a stock launcher: the same adapter, one that speaks, nobody who waits."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flip_flop.cli.study_options import launcher_words
from flip_flop.errors import InputError
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.launched import share_step
from flip_flop.studies.study import Settings
from tests.studies.plans import SHORT, plan, small
from tests.studies.running import ENVIRONMENT, attempts, here, write_study
from tests.training.conftest import settings

# Four whole steps of an epoch; without dropout, whose masks go by what is computed together.
WHOLE = SHORT | {"max_steps": 4, "lora_dropout": 0.0, "eval_strategy": "steps", "eval_steps": 2}
WHOLE |= {"save_strategy": "steps", "save_steps": 2}


def launch(path, cell):
    """A cell's command in two processes: its exit status, and what they said."""
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m flip_flop.cli.main study run-cell"
    command = [sys.executable, *launcher.split(), str(path), cell.name]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stderr


def lines(text, word):
    return [line for line in text.splitlines() if word in line]


def adapter(folder, training):
    return load_file(folder.run(training) / "adapter" / "adapter_model.safetensors")


@pytest.fixture
def planned(tmp_path):
    made = plan(small(methods=("cce",), settings=Settings(WHOLE)))
    folder = StudyFolder(tmp_path / "out")
    return made, folder, folder.write_plan(made)


@pytest.mark.slow
def test_two_processes_train_the_cell_that_one_does(planned, tmp_path):
    made, folder, path = planned
    training, audit = made.cells
    code, err = launch(path, audit)
    assert (code != 0, len(lines(err, "E-DISTRIBUTED: "))) == (True, 1), err
    assert not list(folder.root.glob("logs/*"))

    code, err = launch(path, training)
    assert (code, len(lines(err, f"train {training.label}: "))) == (0, 1), err
    assert folder.is_done(training)
    assert attempts(folder.root) == {training.name: 1}
    assert folder.log(training).read_text().count("first votes over") == 1
    assert not list(folder.root.glob("claims/*.*"))

    alone = StudyFolder(tmp_path / "alone")
    assert here("run-cell", alone.write_plan(made), training.name) == 0
    one, two = adapter(alone, training), adapter(folder, training)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert max(float(tensor.abs().max()) for name, tensor in two.items() if "lora_B" in name) > 1e-4

    for cell in (training, audit):  # what is done, and what one process does
        code, err = launch(path, cell)
        assert (code, len(lines(err, f"{cell.kind} {cell.label}: "))) == (0, 1), err
    assert folder.is_done(audit)
    assert attempts(folder.root) == {training.name: 1, audit.name: 1}


@pytest.mark.slow
def test_several_processes_do_not_wait_for_anothers_cell(planned):
    made, folder, path = planned
    training = made.trainings[0]
    with folder.claims.hold(training.name):
        code, err = launch(path, training)
    words = f"not run, as process {os.getpid()} on "
    assert (code != 0, len(lines(err, words))) == (True, 1), err
    assert not list(folder.root.glob("logs/*"))
    assert not list(folder.root.glob("trainings/*"))


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes", "shared"),
    [(8, 1, 4, (2, 1)), (1, 8, 4, (1, 2)), (4, 4, 2, (4, 2)), (4, 2, 8, (1, 1)), (6, 2, 4, (3, 1)), (8, 3, 1, (8, 3))],
)
def test_the_processes_share_the_instances_of_a_step(monkeypatch, batch, accumulation, processes, shared):
    config = settings(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
    monkeypatch.setattr("flip_flop.studies.launched.world", lambda: processes)
    share_step(config)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == shared
    assert shared[0] * shared[1] * processes == batch * accumulation


def test_a_step_that_cannot_be_shared_alike_is_refused(monkeypatch):
    monkeypatch.setattr("flip_flop.studies.launched.world", lambda: 3)
    with pytest.raises(InputError, match=r"E-DISTRIBUTED: A step of 8 instances .* by 3 processes .* divides 8\."):
        share_step(settings(per_device_train_batch_size=4, gradient_accumulation_steps=2))


def test_the_launcher_begins_the_commands_of_trainings_alone(tmp_path):
    study, file = write_study(tmp_path), tmp_path / "list.txt"
    options = ("--device", "cpu", "--out", tmp_path / "out", "--export", file, "--launcher", "my launch --name 'a b'")
    here("run", study, *options)
    commands = [shlex.split(line) for line in file.read_text().splitlines() if not line.startswith("#")]
    own = ["-m", "flip_flop.cli.main", "study", "run-cell"]
    plan = commands[0][-2]
    names = [command[-1] for command in commands]
    assert commands == [
        ["my", "launch", "--name", "a b", *own, plan, names[0]],
        *[[sys.executable, *own, plan, "--untrained", "wait", name] for name in names[1:]],
    ]


def test_an_audit_leaves_the_training_to_its_own_command(planned, capsys):
    made, folder, path = planned
    training, audit = made.cells
    assert here("run-cell", path, "--untrained", "wait", audit.name) == 1
    assert "E-STUDY-TRAINING: " in capsys.readouterr().err
    assert folder.failure(audit).startswith("E-STUDY-TRAINING: ")
    assert (folder.state(training), folder.failure(training)) == ("waiting", None)
    assert not folder.run(training).exists()


def test_an_audit_that_may_not_wait_refuses_while_its_training_is_at_work(planned, capsys, monkeypatch):
    made, folder, path = planned
    monkeypatch.setattr("flip_flop.studies.worker.WAIT_SECONDS", -1.0)  # to wait raises
    training, audit = made.cells
    with folder.claims.hold(training.name):
        assert here("run-cell", path, "--untrained", "refuse", audit.name) == 1
    assert "its training is not done" in capsys.readouterr().err
    assert folder.failure(audit).startswith("E-STUDY-TRAINING: ")


def test_a_launcher_of_this_installation_is_found_beside_its_python():
    (program,) = launcher_words(Path(sys.executable).name, 2, has_workers=False)
    assert Path(program) == Path(sys.executable)
    assert launcher_words("no-such-program -x", None, has_workers=False) == ["no-such-program", "-x"]
    assert launcher_words(None, 1, has_workers=True) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--launcher", "torchrun"), "E-DISTRIBUTED: --launcher: local workers .* Use --executor slurm, or --export"),
        (("--gpus", "4", "--executor", "slurm"), "E-DISTRIBUTED: --gpus is 4.* Give --launcher '.*--num_processes 4"),
        (("--launcher", "a 'b", "--executor", "slurm"), "E-STUDY-VALUE: --launcher .* is no command"),
        (("--launcher", "", "--executor", "slurm"), "E-STUDY-VALUE: --launcher '' is no command"),
    ],
)
def test_a_launcher_with_nothing_to_start_is_refused(tmp_path, options, expected):
    with pytest.raises(InputError, match=expected):
        here("run", write_study(tmp_path), "--out", tmp_path / "out", *options)


def test_a_study_that_is_itself_started_by_a_launcher_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="E-DISTRIBUTED: A launcher has started 2 processes"):
        here("run", write_study(tmp_path), "--out", tmp_path / "out")
