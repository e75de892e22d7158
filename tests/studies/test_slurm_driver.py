"""What the Slurm driver asks submitit for, and what it makes of a queue; a cell's process on its node."""

import signal
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from flip_flop.errors import InputError
from flip_flop.studies import slurm, slurm_task
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.slurm import SlurmDriver, _queue, slurm_parameters
from tests.studies.plans import plan, small
from tests.studies.running import run, write_study


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
