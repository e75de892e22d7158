"""A study through Slurm: the scripts, and two real nodes on this machine. One is lost, and jobs are requeued."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.run import StudyFolder, unit_commands
from flip_flop.paper.slurm import sbatch_options, submit
from tests.studies.slurm_cluster import Cluster, missing_programs
from tests.studies.small_studies import (
    FAILING,
    LONG,
    attempts,
    here,
    outcome,
    plan,
    start,
    tables,
    whole_checkpoints,
    write_study,
)
from tests.waiting import wait_for

# Slurm takes seconds. GRID has two training runs for two nodes, ONE has one of them.
ONE = LONG.replace("max_steps: 48", "max_steps: 120").replace("_steps: 6", "_steps: 10")
GRID = ONE.replace("[base, cce]", "[base, cce, f2c]")
OTHER_FAILS = ONE.replace("[base, cce]", "[cce, f2c]").replace("max_steps: 120", "max_steps: 4000")
OTHER_FAILS = OTHER_FAILS.replace("settings:\n", FAILING)
OPTIONS = ("--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1", "--partition", "main")

pytestmark = pytest.mark.xdist_group("slurm")  # one Slurm for all


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


@pytest.fixture(scope="module")
def cluster():
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons are started by root alone")
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # sockets need a short path
        made = Cluster(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    """Submit a study, and return its folder."""

    def run(text):
        cluster.revive()
        root = tmp_path_factory.mktemp("study") / "out"
        process = start("run", write_study(root.parent, text), "--out", root, *OPTIONS, **cluster.client)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        return root

    yield run
    cluster.ask("scancel", "--user=root")


@pytest.fixture(scope="module")
def cancelled(cluster, run):
    """A study with a failing unit and a cancelled job."""
    root = run(OTHER_FAILS)
    unit = begun(root)
    cluster.ask("scancel", cluster.job_of(root, unit))
    return root, unit


@pytest.fixture(scope="module")
def local(cancelled, tmp_path_factory):
    """The whole grid without Slurm."""
    folder = tmp_path_factory.mktemp("local")
    assert here("run", write_study(folder, GRID), "--out", folder / "out", "--device", "cpu") == 0
    return outcome(folder / "out"), tables(folder / "out")


def end(cluster, seconds=600):
    """Wait until the queue is empty: the last job has written the tables."""
    wait_for(cluster.is_idle, seconds=seconds)


def begun(root):
    """The unit whose training has written a checkpoint."""
    return wait_for(lambda: whole_checkpoints(root))[0].parents[2].name


def newest_step(root):
    """The step of the last whole checkpoint."""
    return max((int(path.parent.name.removeprefix("checkpoint-")) for path in whole_checkpoints(root)), default=0)


def run_out_of_time(cluster, root, unit):
    """Send the signal of the time limit."""
    cluster.ask("scancel", "--signal=TERM", cluster.job_of(root, unit))


def pre_empt(cluster, root, unit):
    """Submit a job of a partition with a higher priority for the same node."""
    node = cluster.node_of(root, unit)
    cluster.ask("sbatch", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap=sleep 5")


@pytest.mark.slow
def test_a_study_that_loses_a_node_has_the_results_of_a_local_run(cluster, run, local):
    root = run(GRID)
    unit = begun(root)
    cluster.kill_node(cluster.node_of(root, unit))
    wait_for(cluster.requeued, seconds=60)
    end(cluster)
    assert (outcome(root), tables(root)) == local
    assert attempts(root)[unit] == 2
    assert "resuming from checkpoint-" in (root / "logs" / f"{unit}.log").read_text()


@pytest.mark.slow
def test_a_stopped_job_continues_from_its_checkpoint(cluster, run, local):
    root = run(ONE)
    unit = begun(root)
    log, last = root / "logs" / f"{unit}.log", 0
    for stop in (run_out_of_time, pre_empt):
        wait_for(lambda before=last: newest_step(root) > before)
        stop(cluster, root, unit)
        wait_for(cluster.requeued, seconds=120)
        stopped = re.findall(r"stopped by a signal at step (\d+)", log.read_text())
        last = int(stopped[-1])
    end(cluster)
    results = outcome(root)
    assert (len(results), results.items() <= local[0].items()) == (3, True)
    assert (len(stopped), re.findall(r"resuming from checkpoint-(\d+)\n", log.read_text())) == (2, stopped)
    assert sorted(attempts(root).items()) == sorted((name, 3 if name == unit else 1) for name in attempts(root))


@pytest.mark.slow
def test_a_failed_unit_is_named_with_its_log_and_a_cancelled_job_is_not_requeued(cluster, cancelled, capsys):
    root, unit = cancelled
    end(cluster)
    here("status", root.parent / "small.yaml", "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "0", "1", "3"]
    failed = re.search(r"^failed: train f2c-clear_hotel_reviews-seed0: .*galore.* Log: (.*)$", out, re.M)
    assert "E-CONFIG: " in Path(failed[1]).read_text()
    assert attempts(root)[unit] == 1
