"""A study through a real Slurm: two nodes on this machine, one of them lost, jobs stopped and queued again."""

import os
import re
import tempfile
import time
from pathlib import Path

import pytest

from flip_flop.errors import InputError
from flip_flop.studies.slurm import slurm_parameters
from tests.studies.running import STUDY, attempts, outcome, run, start, write_study
from tests.studies.slurm_cluster import Cluster, missing_programs

# Long enough for a node to be lost in the middle of a training.
LONG = STUDY.replace("max_steps: 6", "max_steps: 60").replace("_steps: 2", "_steps: 10")
OPTIONS = ("--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1", "--partition", "main")


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
    run("run", write_study(folder, LONG), "--out", folder / "out", "--device", "cpu")
    return outcome(folder / "out")


@pytest.fixture
def submitted(cluster, tmp_path):
    """Start the study through Slurm: its driver and its folder."""
    cluster.revive()
    drivers = []

    def begin():
        root = tmp_path / "out"
        study = write_study(tmp_path, LONG)
        drivers.append(start("run", study, "--out", root, *OPTIONS, **cluster.client))
        return drivers[-1], root

    yield begin
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
        driver.communicate()
    cluster.ask("scancel", "--user=root")


def wait_for(condition, seconds=180):
    over = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < over, "it never came"
        time.sleep(0.1)
    return found


def sealed(root):
    return sorted(root.glob("trainings/*/checkpoints/checkpoint-*/MANIFEST.json"))


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


def test_where_there_is_no_slurm_one_line_says_so(tmp_path):
    root = tmp_path / "out"
    _, err = run("run", write_study(tmp_path), "--out", root, "--executor", "slurm", code=2, PATH=str(tmp_path))
    assert err.splitlines()[-1].startswith("E-STUDY-SLURM: --executor slurm")
