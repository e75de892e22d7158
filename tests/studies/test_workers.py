"""How many workers there are, what each of them sees, and what the driver makes of their answers."""

import logging
import sys

import pytest
import torch

from flip_flop.studies import local
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.local import LocalDriver, worker_environments
from tests.studies.plans import plan, small


def seen(*arguments):
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in worker_environments(*arguments)]


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_worker_per_gpu(three_gpus):
    assert seen("auto") == ["0", "1", "2"]
    assert seen("cuda", 4) == ["0", "1", "2", "0"]
    assert seen("cuda", 2) == ["0", "1"]


def test_one_worker_on_the_cpu(three_gpus, monkeypatch):
    assert seen("cpu") == [""]
    assert seen("cpu", 2) == ["", ""]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert seen("auto") == [""]


def test_a_gpu_that_the_user_named_keeps_its_name(three_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1a2b,7")
    assert seen("auto") == ["5", "GPU-1a2b", "7"]


ANSWER = """\
import json, os, pathlib, sys, time
folder, index = pathlib.Path(sys.argv[1]), os.environ["INDEX"]

def answer(key, state):
    print(json.dumps({"key": key.strip(), "state": state, "reason": None, "seconds": 0.0}), flush=True)

"""


@pytest.fixture
def driven(tmp_path, monkeypatch):
    """Run a plan with workers that do as a few lines of code say, and give the driver's summary."""
    monkeypatch.setattr(local, "RETRY_SECONDS", 0.05)

    def drive(made, folder, code, workers=1, told=None, **more):
        command = [sys.executable, "-c", ANSWER + code, str(tmp_path)]
        environments = [{"INDEX": str(index)} for index in range(workers)]
        told = [] if told is None else told
        driver = LocalDriver(made, folder, command, environments, lambda *settled: told.append(settled), **more)
        return driver.run()

    return drive


def test_a_training_that_failed_in_another_driver_meanwhile_is_not_tried_again(driven, tmp_path, caplog):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path / "out")
    training, audit = made.cells
    folder.fail(training, "an old reason")
    failure = folder._failure(training)
    code = f"""
for number, key in enumerate(sys.stdin):
    if number == 2:  # the other driver's attempt is over
        pathlib.Path({str(failure)!r}).write_text(json.dumps({{"key": key.strip(), "reason": "out of memory"}}))
    assert number < 3, "it was tried again"
    answer(key, "busy")
"""
    caplog.set_level(logging.INFO, "flip_flop")
    found = driven(made, folder, code)
    assert (found.failed, found.not_run) == ({training: "out of memory"}, [audit])
    assert caplog.messages == [f"waiting for train {training.label}, held by another process"]


def test_an_audit_that_was_refused_elsewhere_is_run_when_its_training_is_done(driven, tmp_path):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path / "out")
    training, audit = made.cells
    code = f"""
failure = pathlib.Path({str(folder._failure(audit))!r})
for key in sys.stdin:
    if key.strip() == {training.key!r}:  # Slurm has started the audit too early
        failure.parent.mkdir(parents=True, exist_ok=True)
        failure.write_text(json.dumps({{"key": "", "reason": "E-STUDY-TRAINING: its training is not done."}}))
    answer(key, "done")
"""
    found = driven(made, folder, code)
    assert (found.done, found.failed) == ([training, audit], {})


def test_a_quiet_driver_does_not_say_what_it_waits_for(driven, tmp_path, caplog):
    made, folder = plan(small(methods=("base",))), StudyFolder(tmp_path / "out")
    code = """
for number, key in enumerate(sys.stdin):
    answer(key, "done" if number else "busy")
"""
    caplog.set_level(logging.INFO, "flip_flop")
    assert driven(made, folder, code, quiet=True).done == list(made.cells)
    assert caplog.messages == []


def test_a_worker_that_dies_before_it_begins_is_named_with_its_own_log(driven, tmp_path):
    made, folder = plan(small(methods=("base",))), StudyFolder(tmp_path / "out")
    found = driven(made, folder, "print('no such library', file=sys.stderr)\nsys.exit(3)")
    log = folder.root / "logs" / "worker-0.log"
    assert list(found.failed.values()) == [f"the worker died of exit status 3; its own log: {log}."]
    assert log.read_text() == "no such library\n"


def test_all_workers_are_asked_to_stop_at_once(driven, tmp_path):
    made, folder = plan(small(methods=("cce",), seeds=(0, 1, 2, 3))), StudyFolder(tmp_path / "out")
    code = """
key = sys.stdin.readline()
if index == "3":
    while len(list(folder.glob("busy-*"))) < 3:
        time.sleep(0.01)
    answer(key, "stopped")
(folder / f"busy-{index}").touch()
sys.stdin.read()
(folder / f"asked-{index}").touch()
while index != "3" and len(list(folder.glob("asked-*"))) < 4:
    time.sleep(0.01)
"""
    with pytest.raises(KeyboardInterrupt):
        driven(made, folder, code, workers=4)
    assert len(list(tmp_path.glob("asked-*"))) == 4
