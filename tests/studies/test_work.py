"""One unit in this process: run once, marked when complete, its mistakes in one line; and the workers of a machine."""

import json
import os
import shutil
import time

import pytest
import torch

from flip_flop.errors import InputError
from flip_flop.report import load_run
from flip_flop.studies import work
from flip_flop.studies.folder import StudyFolder, root_of
from flip_flop.studies.local import LocalExecutor, worker_environments
from flip_flop.studies.study import Settings
from flip_flop.studies.tracker import Tracker
from flip_flop.studies.work import DONE, FAILED, run_unit
from tests.studies.plans import SHORT, plan, small, write_task
from tests.studies.running import here
from tests.waiting import wait_for


def states(made, folder):
    return [run_unit(made, folder, unit) for unit in made.units]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A plan that was run."""
    made, folder = plan(), StudyFolder(tmp_path_factory.mktemp("out"))
    assert states(made, folder) == [DONE, DONE]
    return made, folder


def test_what_is_done_is_an_ordinary_run_directory(done):
    made, folder = done
    base, trained = (load_run(folder.run(cell)) for cell in made.audits)
    assert (base.name, trained.name, trained.method) == ("base", "cce", "cce")
    assert base.scores.shape == trained.scores.shape == (22, 5, 2)
    assert trained.record.model.name == "demo"
    assert (folder.run(made.trainings[0]) / "adapter" / "adapter_model.safetensors").is_file()


def test_nothing_is_opened_for_a_unit_that_is_done(done, monkeypatch):
    def never(*arguments):
        raise AssertionError("it was opened")

    monkeypatch.setattr(work, "open_task", never)
    assert states(*done) == [DONE, DONE]


@pytest.mark.parametrize("damage", ["no record", "half a record", "no key", "another key"])
def test_a_record_that_is_not_complete_is_not_done(done, damage, tmp_path):
    made, folder = done
    cell, copy = made.audits[0], StudyFolder(tmp_path)
    shutil.copytree(folder.run(cell), copy.run(cell))
    assert copy.is_done(cell)
    record, own = copy.run(cell) / "run.json", copy.run(cell) / "cell.json"
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:99])
    elif damage == "no key":
        own.unlink()
    else:
        own.write_text(json.dumps({"key": "0" * 64}))
    assert not copy.is_done(cell)
    assert run_unit(made, copy, made.units[0]) == DONE
    assert copy.is_done(cell)


def test_an_audit_of_an_adapter_that_was_trained_anew_is_not_done(done, tmp_path):
    made, folder = done
    copy = StudyFolder(tmp_path / "out")
    shutil.copytree(folder.root, copy.root)
    base, audit = made.audits
    record = copy.run(made.trainings[0]) / "run.json"
    record.write_text(record.read_text().replace('"digest": "', '"digest": "00'))
    assert (copy.is_done(base), copy.is_done(audit)) == (True, False)


def test_a_training_that_was_begun_with_something_else_says_which_folder_is_in_the_way(tmp_path):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path)
    training = made.trainings[0]
    run = folder.run(training)
    (run / "checkpoints").mkdir(parents=True)  # killed before its first step, it begins anew
    assert states(made, folder) == [DONE]
    (run / "run.json").unlink()
    (run / "checkpoints" / "checkpoint-1").mkdir(parents=True)  # without one nothing is in the way
    (run / "checkpoints" / "checkpoint-1" / "MANIFEST.json").write_text("{}")
    (run / "plan.json").write_text(json.dumps({"format": 2, "settings": {"lora_r": 3}, "model": {}, "digests": {}}))
    assert states(made, folder) == [FAILED]
    reason = folder.failure(training)
    assert reason.startswith(f"E-RESUME-CHANGED: cannot resume {run}, because these have changed: ")
    assert reason.endswith(f"Run it as it was begun, or remove {run} and run the study again.")


def test_an_audit_scores_as_the_settings_say(tmp_path, monkeypatch):
    given = {}

    def audit(*arguments, **options):
        given.update(vars(options["scoring"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "audit", audit)
    scoring = {"chat_template": "off", "backend": "padded", "batch_tokens": 99}
    made = plan(small(methods=("base",), settings=Settings(SHORT | scoring)))
    with pytest.raises(KeyboardInterrupt):
        states(made, StudyFolder(tmp_path))
    assert scoring.items() <= given.items()


def test_a_unit_that_another_process_holds_is_waited_for_by_a_lone_process(tmp_path, monkeypatch, capsys):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path)
    (unit,) = made.units

    class Over(Exception):
        pass

    def sleep(seconds):
        raise Over

    monkeypatch.setattr(work.time, "sleep", sleep)
    with folder.leases.acquire(unit.name), pytest.raises(Over):
        run_unit(made, folder, unit)
    assert f"waiting for {unit.name}, held by process {os.getpid()} on " in capsys.readouterr().err
    assert not folder.run(unit.training).exists()


def test_a_failure_is_one_line_and_what_failed_is_tried_again(tmp_path, capsys, monkeypatch):
    made, folder, real = plan(), StudyFolder(tmp_path), work.open_model

    def broken(setup, adapter):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(work, "open_model", broken)
    assert states(made, folder) == [FAILED, FAILED]
    assert "Traceback" in capsys.readouterr().err
    training, (base, audit) = made.trainings[0], made.audits
    assert [folder.failure(cell) for cell in (training, base, audit)] == ["RuntimeError: out of memory"] * 2 + [None]
    monkeypatch.setattr(work, "open_model", real)
    tracker = Tracker(made, folder)
    tracker.look()
    assert set(tracker.failed) == {base, training}
    assert tracker.not_run == [audit]
    assert len(list(tracker.error_lines())) == 4
    Tracker(made, folder).forget_failures()
    assert folder.failure(training) is None
    assert states(made, folder) == [DONE, DONE]


def test_an_audit_that_fails_leaves_the_others_of_its_unit(tmp_path):
    path = write_task(tmp_path / "task")
    made = plan(small(tasks=("demo_clear", str(path), "demo_remarks"), methods=("cce",), cross=("demo_clear",)))
    write_task(tmp_path / "task", shift=1)
    (unit,) = made.units
    folder = StudyFolder(tmp_path / "out")
    assert run_unit(made, folder, unit) == FAILED
    assert [folder.is_done(cell) for cell in unit.cells] == [True, False, True]
    assert folder.failure(unit.audits[0]).startswith("E-STUDY-CHANGED: ")


def test_one_unit_by_name(done, capsys):
    made, folder = done
    path = folder.write_plan(made)
    assert root_of(path) == folder.root
    assert here("work", path, "--unit", made.units[0].name) == 0
    with pytest.raises(InputError, match=r"E-STUDY-UNIT: .*Did you mean 'base-clear"):
        here("work", path, "--unit", made.units[0].name[:-1])


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def seen(*arguments):
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in worker_environments(*arguments)]


def test_a_worker_per_gpu_or_one_on_the_cpu(three_gpus, monkeypatch):
    assert (seen("auto"), seen("cuda", 4), seen("cuda", 2)) == (["0", "1", "2"], ["0", "1", "2", "0"], ["0", "1"])
    assert (seen("cpu"), seen("cpu", 2)) == ([""], ["", ""])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1a2b,7")
    assert seen("auto") == ["5", "GPU-1a2b", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert seen("auto") == [""]


def test_a_worker_that_dies_before_it_begins_fails_one_unit_after_the_other(tmp_path, capfd):
    made, folder = plan(small(methods=("base", "cce"))), StudyFolder(tmp_path)
    tracker = Tracker(made, folder)
    LocalExecutor(tracker, ["sh", "-c", "echo no such library >&2; exit 3"], [{}]).run()
    assert capfd.readouterr().err.count("no such library\n") == 2
    base, training, not_run, _ = tracker.error_lines()
    log = folder.log(made.units[0])
    assert base == f"failed: audit base-clear_hotel_reviews: the worker died of exit status 3. Log: {log}"
    assert training.startswith("failed: train cce-clear_hotel_reviews-seed0: the worker died of exit status 3.")
    assert not_run == "not run: audit cce-clear_hotel_reviews-seed0"


def test_all_workers_are_asked_to_stop_at_once_and_once(tmp_path, monkeypatch):
    made, folder = plan(small(methods=("cce",), seeds=(0, 1, 2))), StudyFolder(tmp_path / "out")
    # A worker's input ends when it is asked; each then waits for the others.
    code = "trap 'echo >> signalled' TERM; echo >> ready; read line; echo >> asked; "
    code += "while [ $(wc -l < asked) -lt 3 ]; do sleep 0.01; done"
    executor = LocalExecutor(Tracker(made, folder), ["sh", "-c", f"cd {tmp_path}; {code}"], [{}] * 3)

    def interrupt(tracker):
        wait_for(lambda: (tmp_path / "ready").exists() and len((tmp_path / "ready").read_text()) == 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tracker, "look", interrupt)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.run()
    assert (len((tmp_path / "asked").read_text()), time.monotonic() - started < 60) == (3, True)
    assert not (tmp_path / "signalled").exists()
