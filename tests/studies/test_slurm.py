"""A study through a real Slurm: two nodes on this machine, one of them lost, jobs pre-empted and queued again."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from tests.studies.running import LONG, attempts, outcome, run, sealed, start, tables, write_study
from tests.studies.slurm_cluster import Cluster, missing_programs
from tests.waiting import wait_for

# Three trainings for two nodes; LONG is one of them.
GRID = LONG.replace("[base, cce]", "[base, swarm, cce, f2c]")
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
    return outcome(folder / "out"), tables(folder / "out")


@pytest.fixture
def submitted(cluster, tmp_path):
    """Start the study through Slurm: its driver and its folder."""
    cluster.revive()
    drivers = []

    def begin(text=LONG):
        root = tmp_path / "out"
        study = write_study(tmp_path, text)
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


def assert_of(root, local):
    """LONG's three cells are done, with the results that they have in the whole grid."""
    found = outcome(root)
    assert len(found) == 3
    assert found.items() <= local[0].items()


def audit_of(root, training):
    """The cell that waits for LONG's training."""
    (audit,) = (path.stem for path in (root / "slurm").glob("cce-*.json") if path.stem != training)
    return audit


@pytest.mark.slow
def test_a_study_that_loses_a_node_gives_the_results_of_the_local_executor(cluster, submitted, local):
    driver, root = submitted(GRID)
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    node = cluster.node_of(root, training)
    cluster.kill_node(node)
    wait_for(lambda: cluster.requeued(), seconds=60)
    _, err = end(driver)
    assert (outcome(root), tables(root)) == local
    assert "failed" not in err
    assert attempts(root)[training] == 2
    assert "resuming from checkpoint-" in (root / "logs" / f"{training}.log").read_text()


def warn(cluster, root, training):
    """The signal before the end of a job's time."""
    cluster.ask("scancel", "--signal=USR2", cluster.job_of(root, training))


def pre_empt(cluster, root, training):
    """A job of a partition with a higher priority wants the node."""
    node = cluster.node_of(root, training)
    cluster.ask("sbatch", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap=sleep 5")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [warn, pre_empt])
def test_a_job_that_slurm_stops_leaves_a_checkpoint_and_goes_on(cluster, submitted, local, stop):
    driver, root = submitted()
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    stop(cluster, root, training)
    wait_for(lambda: cluster.requeued(), seconds=120)
    _, err = end(driver)
    assert_of(root, local)
    assert "failed" not in err
    log = (root / "logs" / f"{training}.log").read_text()
    stopped = int(re.search(r"stopped by a signal at step (\d+)", log)[1])
    assert f"resuming from checkpoint-{stopped}\n" in log
    begun = attempts(root)
    del begun[audit_of(root, training)]  # Slurm may have started it too early
    assert {name: count for name, count in begun.items() if count > 1} == {training: 2}


@pytest.mark.slow
def test_an_audit_that_slurm_starts_before_its_training_goes_on_is_submitted_again(cluster, submitted, local):
    driver, root = submitted()
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    stopped, audit = cluster.job_of(root, training), audit_of(root, training)
    warn(cluster, root, training)
    wait_for(lambda: cluster.waits_to_go_on(stopped), seconds=120)
    cluster.ask("scontrol", "update", f"JobId={stopped}", "StartTime=now+1hour")
    cluster.ask("scontrol", "update", f"JobId={cluster.job_of(root, audit)}", "Dependency=")
    log = root / "logs" / f"{audit}.log"
    wait_for(lambda: log.exists() and "its training is not done" in log.read_text())
    wait_for(lambda: cluster.requeued())
    _, err = end(driver)
    assert_of(root, local)
    assert "not run" not in err
    assert (attempts(root)[training], attempts(root)[audit]) == (2, 2)


@pytest.mark.slow
def test_a_driver_that_was_killed_finds_its_jobs_again(cluster, submitted, local):
    driver, root = submitted()
    wait_for(lambda: sealed(root))
    driver.kill()
    driver.communicate()
    again, _ = submitted()
    end(again)
    assert_of(root, local)
    assert set(attempts(root).values()) == {1}
