"""A study through Slurm: the script, and two real nodes on this machine, one lost, jobs pre-empted and queued again."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from flip_flop.errors import InputError
from flip_flop_paper.folder import StudyFolder
from flip_flop_paper.slurm import SlurmExecutor, sbatch_directives
from flip_flop_paper.tracker import Tracker
from tests.studies.plans import plan
from tests.studies.running import LONG, attempts, here, outcome, start, tables, whole_checkpoints, write_study
from tests.studies.slurm_cluster import Cluster, missing_programs
from tests.waiting import wait_for

# What Slurm does takes seconds. Two trainings for two nodes, and one of them.
ONE = LONG.replace("max_steps: 48", "max_steps: 120").replace("_steps: 6", "_steps: 10")
GRID = ONE.replace("[base, cce]", "[base, cce, f2c]")
FAILING = ONE.replace("settings:\n", "settings:\n  methods: {f2c: {optim: galore_adamw}}\n")
FAILING = FAILING.replace("[base, cce]", "[cce, f2c]").replace("max_steps: 120", "max_steps: 4000")
OPTIONS = ("--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1", "--partition", "main")

pytestmark = pytest.mark.xdist_group("slurm")  # one Slurm for all


def test_slurm_is_asked_for_what_the_command_line_says():
    assert sbatch_directives("gpu", "1-02:30:00", 2, None, None, ["--qos=low", "nice=1=2"]) == {
        "partition": "gpu",
        "time": "1-02:30:00",
        "gpus-per-node": "2",
        "qos": "low",
        "nice": "1=2",
    }
    for time, more in (("soon", []), ("1:2:3:4", []), ("90", ["qos"]), ("90", ["=low"]), ("90", ["array=1-2"])):
        with pytest.raises(InputError, match="E-STUDY-SLURM"):
            sbatch_directives(None, time, 0, None, None, more)


def test_a_training_is_launched_and_an_audit_of_the_base_is_one_process_with_one_gpu(tmp_path, monkeypatch):
    made, folder = plan(), StudyFolder(tmp_path / "out")
    commands = {"sbatch": "echo 7", "srun": 'echo "$@"; exit 3', "squeue": ":"}
    for name, command in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    executor = SlurmExecutor(Tracker(made, folder), ["py", "-m", "ff"], {"gpus-per-node": "4"}, 3, ["launch", "-n4"])
    monkeypatch.setattr(executor, "_look", lambda: False)
    executor.run()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    expected = (("small.sh", "py -m ff", 1), ("small-launched.sh", "launch -n4 -m ff", 4))
    for unit, (name, started, gpus) in zip(made.units, expected, strict=True):
        script = folder.root / "slurm" / name
        assert {"#SBATCH --array=0-0%3", f"#SBATCH --gpus-per-node={gpus}"} < set(script.read_text().splitlines())
        assert subprocess.run(["bash", script]).returncode == 3
        assert folder.log(unit).read_text().endswith(f"step {started} --unit {unit.name}\n")


def test_where_there_is_no_slurm_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="E-STUDY-SLURM: --executor slurm"):
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
def begin(cluster, tmp_path_factory):
    """Start a study through Slurm: its process and its folder."""
    processes = []

    def begin(text, root=None):
        if root is None:
            cluster.revive()
            root = tmp_path_factory.mktemp("study") / "out"
        processes.append(start("run", write_study(root.parent, text), "--out", root, *OPTIONS, **cluster.client))
        return processes[-1], root

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    cluster.ask("scancel", "--user=root")


@pytest.fixture(scope="module")
def cancelled(cluster, begin):
    """A study of which one unit fails and another one's job is cancelled: it takes a while until that is sure."""
    process, root = begin(FAILING)
    unit = begun(root)
    cluster.ask("scancel", cluster.job_of(root, unit))
    return process, unit


@pytest.fixture(scope="module")
def local(cancelled, tmp_path_factory):
    """The whole grid without Slurm."""
    folder = tmp_path_factory.mktemp("local")
    assert here("run", write_study(folder, GRID), "--out", folder / "out", "--device", "cpu") == 0
    return outcome(folder / "out"), tables(folder / "out")


def end(process, code=0):
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, out + err
    return err


def begun(root):
    """The unit whose training has written a checkpoint."""
    return wait_for(lambda: whole_checkpoints(root))[0].parents[2].name


def newest_step(root):
    """The step of the last whole checkpoint."""
    return max((int(path.parent.name.removeprefix("checkpoint-")) for path in whole_checkpoints(root)), default=0)


def run_out_of_time(cluster, root, unit):
    """The signal before the end of a job's time."""
    cluster.ask("scancel", "--signal=TERM", cluster.job_of(root, unit))


def pre_empt(cluster, root, unit):
    """A job of a partition with a higher priority wants the node."""
    node = cluster.node_of(root, unit)
    cluster.ask("sbatch", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap=sleep 5")


@pytest.mark.slow
def test_a_study_that_loses_a_node_gives_the_results_of_the_local_executor(cluster, begin, local):
    process, root = begin(GRID)
    unit = begun(root)
    cluster.kill_node(cluster.node_of(root, unit))
    wait_for(cluster.requeued, seconds=60)
    assert "failed" not in end(process)
    assert (outcome(root), tables(root)) == local
    assert attempts(root)[unit] == 2
    assert "resuming from checkpoint-" in (root / "logs" / f"{unit}.log").read_text()


@pytest.mark.slow
def test_a_job_that_slurm_stops_goes_on_from_its_checkpoint_and_a_study_that_was_killed_finds_it(cluster, begin, local):
    process, root = begin(ONE)
    unit = begun(root)
    process.kill()
    process.communicate()
    process, _ = begin(ONE, root)
    log, last = root / "logs" / f"{unit}.log", 0
    for stop in (run_out_of_time, pre_empt):
        wait_for(lambda before=last: newest_step(root) > before)
        stop(cluster, root, unit)
        wait_for(cluster.requeued, seconds=120)
        stopped = re.findall(r"stopped by a signal at step (\d+)", log.read_text())
        last = int(stopped[-1])
    assert "failed" not in end(process)
    found = outcome(root)
    assert (len(found), found.items() <= local[0].items()) == (3, True)
    assert (len(stopped), re.findall(r"resuming from checkpoint-(\d+)\n", log.read_text())) == (2, stopped)
    assert sorted(attempts(root).items()) == sorted((name, 3 if name == unit else 1) for name in attempts(root))


@pytest.mark.slow
def test_a_unit_that_fails_is_named_with_its_log_and_a_job_that_is_cancelled_does_not_come_back(cancelled):
    process, unit = cancelled
    err = end(process, code=1)
    failed = re.search(r"^failed: train f2c-clear_hotel_reviews-seed0: .*galore.* Log: (.*)$", err, re.M)
    assert "E-CONFIG-VALUE: " in Path(failed[1]).read_text()
    assert re.search(
        rf"^failed: train cce-\S+: its job \d+_\d ended without a result; .* Log: .*{unit}\.log$", err, re.M
    )
