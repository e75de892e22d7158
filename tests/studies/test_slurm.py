"""A study through Slurm: the scripts, and two real nodes on this machine, of which one is lost."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.run import unit_commands
from flip_flop.paper.slurm import sbatch_options, submit
from tests.studies.slurm_cluster import Cluster, obstacle
from tests.studies.small_studies import attempts, here, outcome, plan, tables, whole_checkpoints, write_study
from tests.waiting import wait_for


def test_options_of_sbatch_are_those_of_the_command_line():
    options = sbatch_options("gpu", "1-02:30:00", 2, None, None, ["--qos=low", "nice=1=2"])
    expected = {"partition": "gpu", "time": "1-02:30:00", "gpus-per-node": "2", "qos": "low", "nice": "1=2"}
    assert options == expected
    for more in ("qos", "=low", "array=1-2"):
        with pytest.raises(InputError, match="E-STUDY-SLURM"):
            sbatch_options(None, "90", 0, None, None, [more])


def write_program(folder, name, command):
    (folder / name).write_text(f"#!/bin/sh\n{command}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Slurm's programs as scripts: jobs get the numbers 7, 8, ...; ``queue`` holds those of squeue."""
    (tmp_path / "queue").touch()
    write_program(tmp_path, "sbatch", f"echo job >> {tmp_path}/count; echo $(($(wc -l < {tmp_path}/count) + 6))")
    write_program(tmp_path, "squeue", f"cat {tmp_path}/queue")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def submit_all(programs):
    """Submit all units of a plan, and return the numbers of the jobs."""
    made, folder = plan(), StudyFolder(programs / "out")
    commands = unit_commands(folder, made.units, ["py", "-m", "ff"], ["launch", "-n4"])
    return lambda: submit(folder, made, commands, ["py", "tables"], {"gpus-per-node": "4", "time": "9"}, 3)


def test_one_array_has_all_units_and_launches_those_that_train(programs, submit_all, monkeypatch):
    assert submit_all() == ["7", "8"]
    write_program(programs, "srun", 'echo "$@"; exit 3')
    jobs = programs / "out" / "slurm"
    lines = {"#SBATCH --array=0-1%3", "#SBATCH --gpus-per-node=4", "#SBATCH --requeue", "#SBATCH --signal=TERM@90"}
    assert lines < set((jobs / "small.sh").read_text().splitlines())
    for index, (unit, started) in enumerate(zip(plan().units, ("py -m ff", "launch -n4 -m ff"), strict=True)):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(index))
        job = subprocess.run(["bash", jobs / "small.sh"], capture_output=True, text=True)
        assert job.returncode == 3
        log = programs / "out" / "logs" / f"{unit.name}.log"
        assert job.stdout.endswith(f"exec {started} --unit {unit.name} >> {log} 2>&1\n")
    tables = (jobs / "small-tables.sh").read_text()
    assert "\n#SBATCH --dependency=afterany:7\n" in tables
    assert "gpus" not in tables
    assert tables.endswith("\nexec py tables\n")


def test_units_in_the_queue_are_not_submitted_again(programs, submit_all):
    for queue, numbers in (("", ["7", "8"]), ("7_1\n8\n", ["9", "10"]), ("7_1\n9_0\n", [])):
        (programs / "queue").write_text(queue)
        assert submit_all() == numbers
    script = (programs / "out" / "slurm" / "small.sh").read_text()
    assert [unit.name in script for unit in plan().units] == [True, False]


def test_the_script_requeues_a_running_job_once(programs, submit_all, monkeypatch):
    """Slurm itself requeues a pre-empted job, whose state is not RUNNING."""
    submit_all()
    write_program(programs, "srun", "exit 143")
    write_program(programs, "scontrol", f'echo "$2" >> {programs}/requeued; false')
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    for state, restarts, number in (("RUNNING", 0, 1), ("PREEMPTED", 0, 1), ("RUNNING", 100, 1), ("RUNNING", 99, 2)):
        (programs / "queue").write_text(f"{state}\n")
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        assert subprocess.run(["bash", programs / "out" / "slurm" / "small.sh"]).returncode == 143
        assert (programs / "requeued").read_text() == "7_0\n" * number


@pytest.mark.parametrize(("has_slurm", "expected"), [(False, "there is no sbatch here"), (True, "invalid account")])
def test_missing_or_refusing_slurm_is_one_line(tmp_path, monkeypatch, has_slurm, expected):
    if has_slurm:
        write_program(tmp_path, "squeue", "true")
        write_program(tmp_path, "sbatch", "echo invalid account >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if has_slurm else str(tmp_path))
    with pytest.raises(InputError, match=f"E-STUDY-SLURM: .*{expected}"):
        here("run", write_study(tmp_path), "--out", tmp_path / "out", "--executor", "slurm")


@pytest.fixture
def cluster(monkeypatch):
    if reason := obstacle():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # sockets need a short path
        made = Cluster(Path(folder))
        for name, value in made.client.items():
            monkeypatch.setenv(name, value)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.mark.slow
def test_a_study_that_loses_a_node_has_the_results_of_a_local_run(cluster, whole, tmp_path):
    root, study = tmp_path / "out", write_study(tmp_path)
    here("run", study, "--out", root, "--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1")
    unit = wait_for(lambda: whole_checkpoints(root))[0].parents[2].name
    cluster.lose_node_of(root, unit)
    wait_for(cluster.is_idle, seconds=600)  # the last job has written the tables
    assert (root / "logs" / f"{unit}.log").read_text().count("resuming from checkpoint-") == 1
    assert sorted(attempts(root).values()) == [1, 2]
    assert (outcome(root), tables(root)) == whole[1:]
