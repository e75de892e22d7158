"""A study through a real Slurm: two nodes on this machine, one of them lost, jobs stopped and queued again."""

import os
import re
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from flip_flop.errors import InputError
from flip_flop.studies import slurm_task
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.slurm import SlurmDriver, _queue, slurm_parameters
from tests.studies.plans import plan, small
from tests.studies.running import LONG, attempts, outcome, run, sealed, start, wait_for, write_study
from tests.studies.slurm_cluster import Cluster, missing_programs

# Two trainings, one for each node.
GRID = LONG.replace("[demo_clear]", "[demo_clear, demo_remarks]")
OPTIONS = ("--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1", "--partition", "main")

pytestmark = pytest.mark.xdist_group("slurm")  # one Slurm for all


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
def local(tmp_path_factory):
    """The same study without Slurm."""
    folder = tmp_path_factory.mktemp("local")
    run("run", write_study(folder, GRID), "--out", folder / "out", "--device", "cpu")
    return outcome(folder / "out")


@pytest.fixture
def submitted(cluster, tmp_path):
    """Start the study through Slurm: its driver and its folder."""
    cluster.revive()
    drivers = []

    def begin():
        root = tmp_path / "out"
        study = write_study(tmp_path, GRID)
        drivers.append(start("run", study, "--out", root, *OPTIONS, **cluster.client))
        return drivers[-1], root

    yield begin
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
        driver.communicate()
    cluster.ask("scancel", "--user=root")


def end(driver):
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 0, out + err
    return out, err


@pytest.mark.slow
def test_a_study_that_loses_a_node_gives_the_results_of_the_local_executor(cluster, submitted, local):
    driver, root = submitted()
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    node = cluster.node_of(root, training)
    cluster.kill_node(node)
    wait_for(lambda: cluster.requeued(), seconds=60)
    _, err = end(driver)
    assert outcome(root) == local
    assert "failed" not in err
    assert attempts(root)[training] == 2
    assert "resuming from checkpoint-" in (root / "logs" / f"{training}.log").read_text()
    assert list((root / "small" / "tables").glob("*.md"))


@pytest.mark.slow
def test_a_job_that_slurm_stops_leaves_a_checkpoint_and_goes_on(cluster, submitted, local):
    driver, root = submitted()
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    cluster.ask("scancel", "--signal=USR2", cluster.job_of(root, training))
    wait_for(lambda: cluster.requeued(), seconds=60)
    end(driver)
    assert outcome(root) == local
    log = (root / "logs" / f"{training}.log").read_text()
    stopped = int(re.search(r"stopped by a signal at step (\d+)", log)[1])
    assert f"resuming from checkpoint-{stopped}\n" in log


@pytest.mark.slow
def test_a_driver_that_was_killed_finds_its_jobs_again(cluster, submitted, local):
    driver, root = submitted()
    wait_for(lambda: sealed(root))
    driver.kill()
    driver.communicate()
    again, _ = submitted()
    end(again)
    assert outcome(root) == local
    assert set(attempts(root).values()) == {1}


def test_slurm_is_asked_for_what_the_command_line_says():
    options = {"partition": "gpu", "time": "1-02:30:00", "mem": None, "gpus_per_node": 2}
    assert slurm_parameters(options, ["--qos=low", "nice=1=2"]) == {
        "partition": "gpu",
        "time": 1590,
        "gpus_per_node": 2,
        "additional_parameters": {"qos": "low", "nice": "1=2"},
    }
    times = {"90": 90, "1:30": 2, "4:00:00": 240, "2-0": 2880, "1-12:00": 2160, "0:10": 1}
    assert {text: slurm_parameters({"time": text}, [])["time"] for text in times} == times
    for time_, more in (("soon", []), ("1:2:3:4", []), ("90", ["qos"]), ("90", ["=low"])):
        with pytest.raises(InputError, match="E-STUDY-SLURM"):
            slurm_parameters({"time": time_}, more)


def test_a_training_may_run_out_of_time_often_and_an_audit_once(tmp_path, monkeypatch):
    arrays = []

    class Executor:
        def __init__(self, folder, max_num_timeout):
            self.jobs, self.timeouts = 0, max_num_timeout

        def update_parameters(self, **options):
            arrays.append((options["job_name"], self.timeouts))

        @contextmanager
        def batch(self):
            yield

        def submit(self, task):
            self.jobs += 1
            return SimpleNamespace(job_id=f"7_{self.jobs}")

    errors = SimpleNamespace(utils=SimpleNamespace(FailedJobError=OSError))
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=Executor, core=errors))
    made = plan(small())
    driver = SlurmDriver(made, StudyFolder(tmp_path), ["run-cell"], {}, lambda cell, outcome: None)
    driver._submit()
    assert arrays == [("small-train", 50), ("small-audit", 1), ("small-audit", 1)]
    assert "raise --time" in driver._lost(made.audits[0], "7_1")


@pytest.mark.parametrize(("command", "waits"), [("kill -TERM $$", True), ("exit 143", True), ("exit 1", False)])
def test_a_cell_that_slurm_stops_waits_for_the_end_of_its_job(monkeypatch, command, waits):
    slept = []
    monkeypatch.setattr(slurm_task, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    with pytest.raises(RuntimeError, match="the cell's command ended with"):
        slurm_task.SlurmTask(["sh", "-c", command])()
    assert (slurm_task.STOP_SECONDS in slept) == waits


def test_slurm_is_asked_for_ones_own_jobs_without_a_users_name(tmp_path, monkeypatch):
    program = tmp_path / "squeue"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _queue() == {"--noheader", "--array", "--format=%i", "--me"}


def test_where_there_is_no_slurm_one_line_says_so(tmp_path):
    root = tmp_path / "out"
    _, err = run("run", write_study(tmp_path), "--out", root, "--executor", "slurm", code=2, PATH=str(tmp_path))
    assert err.splitlines()[-1].startswith("E-STUDY-SLURM: --executor slurm")
