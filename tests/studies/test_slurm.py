"""A study through a real Slurm: two nodes on this machine, one of them lost, jobs pre-empted and queued again."""

import os
import re
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from flip_flop.errors import InputError
from flip_flop.studies import slurm, slurm_task
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.slurm import SlurmDriver, _queue, slurm_parameters
from tests.studies.plans import plan, small
from tests.studies.running import LONG, attempts, outcome, run, sealed, start, tables, wait_for, write_study
from tests.studies.slurm_cluster import Cluster, missing_programs

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
    assert attempts(root)[training] == 2


@pytest.mark.slow
def test_an_audit_that_slurm_starts_before_its_training_goes_on_is_submitted_again(cluster, submitted, local):
    driver, root = submitted()
    training = wait_for(lambda: sealed(root))[0].parents[2].name
    stopped = cluster.job_of(root, training)
    (audit,) = (path.stem for path in (root / "slurm").glob("cce-*.json") if path.stem != training)
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
    for time_, more in (("soon", []), ("1:2:3:4", []), ("90", ["qos"]), ("90", ["=low"]), ("90", ["dependency=x:1"])):
        with pytest.raises(InputError, match="E-STUDY-SLURM"):
            slurm_parameters({"time": time_}, more)


@pytest.fixture
def arrays(monkeypatch):
    """What submitit is asked for, an array each."""
    asked = []

    class Executor:
        def __init__(self, folder, max_num_timeout):
            self.array = SimpleNamespace(timeouts=max_num_timeout, cells=[], commands=[])

        def update_parameters(self, **options):
            self.array.name, self.array.after = options["job_name"], options.get("dependency")
            self.array.gpus = options.get("gpus_per_node")

        @contextmanager
        def batch(self):
            asked.append(self.array)
            yield

        def submit(self, task):
            self.array.cells.append(task.command[-1])
            self.array.commands.append(task.command)
            return SimpleNamespace(job_id=f"{len(asked)}_{len(self.array.cells) - 1}")

    errors = SimpleNamespace(utils=SimpleNamespace(FailedJobError=OSError))
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=Executor, core=errors))
    return asked


def driver_of(made, folder):
    return SlurmDriver(made, StudyFolder(folder), ["run-cell"], {}, lambda cell, outcome: None)


def test_a_training_may_run_out_of_time_often_and_an_audit_once(tmp_path, arrays):
    made = plan()
    driver = driver_of(made, tmp_path)
    driver._submit()
    assert [(array.name, array.timeouts) for array in arrays] == [
        ("small-train", 50),
        ("small-audit", 1),
        ("small-audit", 1),
    ]
    assert driver._lost(made.audits[0], "7_1").endswith("raise --time.")
    assert driver._lost(made.trainings[0], "7_1").endswith("the training goes on from its last checkpoint.")


def test_an_audit_waits_for_its_own_training_alone(tmp_path, arrays, monkeypatch):
    made = plan(small(tasks=("demo_clear", "demo_remarks", "demo"), cross=("demo_clear", "demo_remarks")))
    first, second = made.trainings
    names = {key: [cell.name for cell in made.audits if cell.training == key] for key in (None, first.key, second.key)}
    driver_of(made, tmp_path)._submit()
    assert [(array.after, array.cells) for array in arrays] == [
        (None, [first.name, second.name]),
        (None, names[None]),
        ("afterany:1_0", names[first.key]),
        ("afterany:1_1", names[second.key]),
    ]
    assert [len(found) for found in names.values()] == [3, 2, 2]

    # Another driver, while one training is in the queue and the other one was taken out.
    monkeypatch.setattr(slurm, "_queue", lambda: {"1_1", "2_0", "2_1", "2_2"})
    again = driver_of(made, tmp_path)
    again._find_jobs()
    again._submit()
    assert [(array.after, array.cells) for array in arrays[4:]] == [
        (None, [first.name]),
        ("afterany:1_1", names[second.key]),
        ("afterany:5_0", names[first.key]),
    ]


@pytest.fixture
def early(tmp_path, arrays, monkeypatch):
    """An audit that Slurm started too early: its driver, and a look at a queue and at what is done."""
    made = plan(small(methods=("cce",)))
    driver = driver_of(made, tmp_path)
    driver._submit()
    assert [(array.after, array.cells) for array in arrays] == [
        (None, [made.trainings[0].name]),
        ("afterany:1_0", [made.audits[0].name]),
    ]
    driver.folder.fail(made.audits[0], "E-STUDY-TRAINING: its training is not done.")
    monkeypatch.setattr(driver, "_seconds", lambda cell: 0.0)

    def look(queue, *done):
        monkeypatch.setattr(slurm, "_queue", lambda: queue)
        monkeypatch.setattr(driver.folder, "is_done", lambda cell: cell in done)
        return driver._look()

    return driver, look, made.trainings[0], made.audits[0]


def test_an_audit_that_came_too_early_is_submitted_again_when_its_training_is_done(early, arrays):
    driver, look, training, audit = early
    driver.folder.fail(training, "it died.")  # and its job was queued again
    look({"1_0"})
    assert driver.folder.state(audit) == "waiting"
    driver.folder.forget_failure(training)
    look({"1_0"})
    look(set())  # its record is not seen yet
    look(None, training)  # Slurm does not answer
    assert (len(arrays), driver.jobs[audit]) == (2, "2_0")
    assert look(set(), training)
    assert (arrays[2].after, arrays[2].cells) == (None, [audit.name])
    assert driver.jobs == {audit: "3_0"}
    assert not look({"3_0"}, training)
    look(set(), training, audit)
    assert driver.summary.done == [training, audit]


def test_an_early_audit_whose_training_ended_between_two_looks_is_submitted_again(early, arrays):
    driver, look, training, audit = early
    look(set(), training)
    assert [array.cells for array in arrays[2:]] == [[audit.name]]
    assert driver.folder.failure(audit) is None


def test_an_audit_that_fails_of_itself_is_not_submitted_again(early, arrays):
    driver, look, training, audit = early
    driver.folder.fail(audit, "it died.")
    look(set(), training)
    assert (len(arrays), driver.summary.failed) == (2, {audit: "it died."})


@pytest.mark.parametrize("came_early", [False, True])
def test_an_audit_whose_training_failed_is_not_run(early, arrays, came_early):
    driver, look, training, audit = early
    if came_early:
        look({"1_0"})
    driver.folder.fail(training, "it died.")
    look(set())
    assert (driver.summary.failed, driver.summary.not_run) == ({training: "it died."}, [audit])
    assert (len(arrays), driver.jobs) == (2, {})


def test_what_another_process_is_at_work_on_has_not_failed(early, arrays):
    driver, look, training, audit = early
    driver.folder.forget_failure(audit)
    with driver.folder.claims.hold(audit.name):
        assert look(set(), training)
        assert (driver.jobs, driver.gone_since) == ({audit: "2_0"}, {})
    look(set(), training)
    assert set(driver.gone_since) == {audit}


def test_another_driver_of_the_folder_may_submit_an_audit_again(early, tmp_path, arrays):
    driver, look, training, audit = early
    other = driver_of(driver.plan, tmp_path)
    other._submit_array([audit], "audit")
    other.folder.forget_failure(audit)
    look({"3_0"}, training)
    assert driver.jobs == {audit: "3_0"}
    assert driver.summary.failed == {}


def test_an_audit_that_cannot_be_submitted_again_has_failed(early, monkeypatch):
    driver, look, training, audit = early

    def refuse(*arguments):
        raise InputError("E-STUDY-SLURM", "sbatch refused the study's jobs: too many.", "See sbatch's own words.")

    monkeypatch.setattr(driver, "_submit_array", refuse)
    look(set(), training)
    reason = "E-STUDY-SLURM: sbatch refused the study's jobs: too many. See sbatch's own words."
    assert (driver.jobs, driver.summary.failed) == ({}, {audit: reason})
    assert driver.folder.failure(audit) == reason


def test_a_driver_that_gets_no_answer_from_slurm_submits_nothing(tmp_path, arrays, monkeypatch):
    monkeypatch.setattr(slurm, "_require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "_queue", lambda: None)
    with pytest.raises(InputError, match="E-STUDY-SLURM: squeue does not answer"):
        driver_of(plan(), tmp_path).run()
    assert arrays == []
    monkeypatch.setattr(StudyFolder, "is_done", lambda self, cell: True)
    assert len(driver_of(plan(), tmp_path).run().done) == 3  # nothing is to be asked


def test_the_queue_is_looked_at_less_often_while_nothing_changes(tmp_path, monkeypatch):
    made, slept = plan(), []
    ends = dict(zip(made.cells, (1000.0, 1001.0, 1100.0), strict=True))
    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    monkeypatch.setattr(slurm, "_require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "_queue", lambda: {cell.name for cell in made.cells if sum(slept) < ends[cell]})
    driver = driver_of(made, tmp_path)
    monkeypatch.setattr(driver, "_submit", lambda: driver.jobs.update({cell: cell.name for cell in made.cells}))
    monkeypatch.setattr(driver, "_seconds", lambda cell: 0.0)
    monkeypatch.setattr(driver.folder, "is_done", lambda cell: sum(slept) >= ends[cell])
    assert len(driver.run().done) == 3
    slow = [number for number, seconds in enumerate(slept) if seconds == max(slept)]
    first, last = slow[0], slow[-1]
    assert slow == list(range(first, last + 1))
    assert slept[:first] == sorted(slept[:first])
    assert (slept[0], slept[first], slept[last + 1]) == (5.0, 30.0, 5.0)


@pytest.mark.parametrize(("command", "waits"), [("kill -TERM $$", True), ("exit 143", True), ("exit 1", False)])
def test_a_cell_that_slurm_stops_waits_for_the_end_of_its_job(monkeypatch, command, waits):
    slept = []
    monkeypatch.setattr(slurm_task, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    with pytest.raises(RuntimeError, match="the cell's command ended with"):
        slurm_task.SlurmTask(["sh", "-c", command])()
    assert (slurm_task.GRACE_SECONDS in slept) == waits


def test_a_launcher_that_slurm_stops_waits_whatever_its_status_is(monkeypatch):
    slept, heard = [], []
    monkeypatch.setattr(slurm_task, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))  # submitit's lets it pass
    try:
        with pytest.raises(RuntimeError, match="ended with 1"):
            slurm_task.SlurmTask(["sh", "-c", "kill -TERM $PPID; exit 1"])()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert heard == [signal.SIGTERM]
    assert slurm_task.GRACE_SECONDS in slept


def test_a_training_is_launched_with_all_its_gpus_and_an_audit_has_one(tmp_path, arrays):
    parameters, command = {"gpus_per_node": 4}, ["python", "-m", "ff", "run-cell", "plan"]
    made = plan(small(methods=("cce",)))
    SlurmDriver(made, StudyFolder(tmp_path), command, parameters, lambda *_: None, ["launch", "-n4"])._submit()
    training, audit = made.cells
    assert [(array.gpus, array.commands) for array in arrays] == [
        (4, [["launch", "-n4", *command[1:], training.name]]),
        (1, [[*command, "--untrained", "refuse", audit.name]]),
    ]


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
