"""One cell: run once, marked when complete, and its mistakes in one line."""

import contextlib
import json
import os
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flip_flop.cli.study import PROGRAM, openers
from flip_flop.report import load_run
from flip_flop.studies import worker
from flip_flop.studies.cells import BUSY, DONE, FAILED, STOPPED, CellRunner
from flip_flop.studies.drive import Summary
from flip_flop.studies.export import export_commands
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.plan import Openers
from flip_flop.studies.results import read_results
from flip_flop.studies.study import Settings
from tests.studies.plans import SHORT, plan, small, write_task
from tests.studies.running import here, write_study


def counted(calls, **changes) -> Openers:
    """Openers that say what they opened."""
    real = openers()

    def model(setup, adapter):
        calls.append(None if adapter is None else adapter.parent.name)
        return real.model(setup, adapter)

    return replace(Openers(real.task, model, real.model_folder), **changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A plan that was run, its audits first."""
    folder, calls = StudyFolder(tmp_path_factory.mktemp("out")), []
    made = plan()
    runner = CellRunner(made, folder, counted(calls))
    outcomes = [runner.run(cell) for cell in (*made.audits, *made.trainings)]
    return made, folder, calls, outcomes


def test_an_audit_runs_the_training_that_it_needs(done):
    made, folder, calls, outcomes = done
    assert [outcome.state for outcome in outcomes] == [DONE, DONE, DONE]
    assert calls == [None, None, made.trainings[0].name]
    assert all(folder.state(cell) == "done" for cell in made.cells)


def test_what_is_done_is_an_ordinary_run_directory(done):
    made, folder, _, _ = done
    base, trained = (load_run(folder.run(cell)) for cell in made.audits)
    assert (base.name, trained.name, trained.method) == ("base", "cce", "cce")
    assert base.scores.shape == trained.scores.shape == (22, 5, 2)
    assert trained.record["model"]["name"] == "demo"
    assert (folder.run(made.trainings[0]) / "adapter" / "adapter_model.safetensors").is_file()


def test_results_are_read_from_disk(done):
    made, folder, _, _ = done
    base, trained = read_results(folder, made)
    assert (base.method, base.source, base.seed, base.k, base.training) == ("base", "", None, 0, None)
    found = (trained.task, trained.source, trained.seed, trained.k, trained.held_out, len(trained.template_names))
    assert found == ("clear_hotel_reviews", "clear_hotel_reviews", 0, 5, False, 5)
    assert (trained.run, trained.training) == (folder.run(made.audits[1]), folder.run(made.trainings[0]))


def test_nothing_is_opened_for_a_cell_that_is_done(done):
    made, folder, _, _ = done

    def never(*arguments):
        raise AssertionError("it was opened")

    runner = CellRunner(made, folder, Openers(never, never, never))
    assert [runner.run(cell).state for cell in made.cells] == [DONE] * 3


@pytest.mark.parametrize("damage", ["no record", "half a record", "no key", "another key"])
def test_a_record_that_is_not_complete_is_not_done(done, damage, tmp_path):
    made, folder, _, _ = done
    cell = made.audits[0]
    copy = StudyFolder(tmp_path)
    run = copy.run(cell)
    run.mkdir(parents=True)
    for file in folder.run(cell).iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    assert copy.is_done(cell)
    record, own = run / "run.json", run / "cell.json"
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:99])
    elif damage == "no key":
        own.unlink()
    else:
        own.write_text(json.dumps({"key": "0" * 64}))
    assert not copy.is_done(cell)
    assert copy.state(cell) == "waiting"
    assert [result.run for result in read_results(copy, made)] == [None, None]
    assert CellRunner(made, copy, openers()).run(cell).state == DONE
    assert copy.is_done(cell)


def test_an_audit_of_an_adapter_that_was_trained_anew_is_not_done(done, tmp_path):
    made, folder, _, _ = done
    copy = StudyFolder(tmp_path / "out")
    shutil.copytree(folder.root, copy.root)
    training, (base, audit) = made.trainings[0], made.audits
    assert copy.is_done(audit)
    record = copy.run(training) / "run.json"
    content = json.loads(record.read_text())
    content["adapter"]["digest"] = "0" * 64
    record.write_text(json.dumps(content))
    assert (copy.is_done(base), copy.is_done(audit)) == (True, False)
    assert [result.run for result in read_results(copy, made)] == [copy.run(base), None]
    record.unlink()
    assert not copy.is_done(audit)


def test_a_training_that_was_begun_with_something_else_says_which_folder_is_in_the_way(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    training = made.trainings[0]
    run = folder.run(training)
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"settings": {"lora_r": 3}}))
    outcome = CellRunner(made, folder, openers()).run(training)
    assert outcome.reason.startswith(f"E-RESUME-CHANGED: {run} was started with another ")
    assert outcome.reason.endswith(f"Run it as it was begun, or remove {run} and run the study again.")


def test_an_audit_scores_as_the_settings_say(tmp_path, monkeypatch):
    given = {}

    def audit(*arguments, **options):
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("flip_flop.studies.cells.audit", audit)
    scoring = {"chat_template": "off", "backend": "padded", "batch_tokens": 99, "fast_linear": True}
    made = plan(small(methods=("base",), settings=Settings(SHORT | scoring)))
    assert CellRunner(made, StudyFolder(tmp_path), openers()).run(made.audits[0]).state == STOPPED
    assert scoring.items() <= given.items()


def test_a_cell_that_another_process_holds_is_left_alone(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    training = made.trainings[0]
    with folder.claims.hold(training.name):
        assert folder.state(training) == "running"
        runner = CellRunner(made, folder, openers())
        assert runner.run(training).state == BUSY
        assert runner.run(made.audits[1]).state == BUSY  # its training is not there yet
        assert [runner.obstacle(cell) for cell in made.cells] == [None, training, training]
    assert not folder.run(training).exists()


def test_a_failure_is_one_line_and_its_audit_says_so(tmp_path, capsys):
    made, folder, calls = plan(), StudyFolder(tmp_path), []

    def broken(setup, adapter):
        calls.append(adapter)
        raise RuntimeError("out of\nmemory")

    runner = CellRunner(made, folder, counted([], model=broken))
    training, audit = made.trainings[0], made.audits[1]
    outcome = runner.run(training)
    assert (outcome.state, outcome.reason) == (FAILED, "RuntimeError: out of memory")
    assert "Traceback" in capsys.readouterr().err
    assert (folder.state(training), folder.failure(training)) == ("failed", "RuntimeError: out of memory")
    assert runner.run(audit).reason.startswith("E-STUDY-TRAINING: cce-clear_hotel_reviews-seed0 was not run")
    assert len(calls) == 1  # the training was not tried again for its audit's sake
    assert CellRunner(made, folder, openers()).run(training).state == DONE
    assert folder.failure(training) is None


def test_data_that_changed_since_the_plan_was_made_is_refused(tmp_path):
    path = write_task(tmp_path / "task")
    made = plan(small(tasks=(str(path),), limit=None))
    write_task(tmp_path / "task", shift=1)
    outcome = CellRunner(made, StudyFolder(tmp_path / "out"), openers()).run(made.audits[0])
    assert outcome.state == FAILED
    assert outcome.reason.startswith("E-STUDY-CHANGED: ")


def test_a_training_that_was_killed_before_its_first_step_begins_anew(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    run = folder.run(made.trainings[0])
    (run / "checkpoints").mkdir(parents=True)
    (run / "survey.json").write_text("{}")
    assert CellRunner(made, folder, openers()).run(made.trainings[0]).state == DONE


def test_exported_commands_are_trainings_first_and_name_what_is_left(done, tmp_path):
    made, folder, _, _ = done
    fresh = StudyFolder(tmp_path / "out")
    path = fresh.write_plan(made)
    assert export_commands(made, "small", fresh, path, ["ff", "study"], tmp_path / "all.txt") == 3
    commands = [line for line in (tmp_path / "all.txt").read_text().splitlines() if not line.startswith("#")]
    cells = [*made.trainings, *made.audits]
    assert commands == [f"ff study run-cell {path} {cell.name}" for cell in cells]
    assert export_commands(made, "small", folder, path, ["ff"], tmp_path / "none.txt") == 0


def test_the_exported_command_for_the_tables_runs_from_anywhere(tmp_path, monkeypatch, capsys):
    write_study(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    here("run", "small.yaml", "--out", "out", "--device", "cpu", "--export", "list")
    last = shlex.split((tmp_path / "list").read_text().splitlines()[-1].removeprefix("# "))
    assert last[: len(PROGRAM)] == PROGRAM
    monkeypatch.chdir("elsewhere")
    assert here(*last[len(PROGRAM) :]) == 0
    assert "no audit is complete" in capsys.readouterr().err


def test_a_cell_that_is_waited_for_is_named_once_and_leaves_no_line_in_a_log(tmp_path, monkeypatch, capfd):
    made, folder, looks = plan(), StudyFolder(tmp_path), []
    path, training, audit = folder.write_plan(made), made.trainings[0], made.audits[1]
    with contextlib.ExitStack() as held:
        assert held.enter_context(folder.claims.hold(training.name))

        def sleep(seconds):
            looks.append([*folder.root.glob("logs/*")])
            if len(looks) == 3:
                folder.fail(training, "out of memory")
                held.close()

        monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=sleep))
        assert worker.run_one(path, audit.name, openers()) == 1
    assert looks == [[], [], []]
    words = f"waiting for train {training.label}, held by process {os.getpid()} on "
    assert capfd.readouterr().err.count(words) == 1
    assert folder.log(audit).read_text().count("---- ") == 1


def test_tables_are_those_of_the_grid_that_stands_on_disk_at_the_end(tmp_path, monkeypatch):
    study, folder, shown = write_study(tmp_path), StudyFolder(tmp_path / "out"), []

    def drive(own, *arguments, **more):
        assert folder.read_study(own.study) == own
        folder.write_plan(replace(own, cells=own.cells[:1]))  # as another driver would: the base alone
        return Summary()

    monkeypatch.setattr("flip_flop.studies.drive.drive", drive)
    monkeypatch.setattr("flip_flop.cli.study._write_outputs", lambda folder, found, quiet: shown.append(found))
    here("run", study, "--out", folder.root)
    assert [cell.method for cell in shown[0].cells] == ["base"]


def test_a_run_that_shares_no_audit_with_the_grid_on_disk_has_tables_of_its_own(tmp_path):
    folder, own, other = StudyFolder(tmp_path), plan(), plan(small(limit=23))
    folder.write_plan(own)
    folder.write_plan(other)
    assert folder.standing_plan(own) == own
    assert folder.read_study(own.study) == folder.standing_plan(other) == other


def test_one_cell_by_name(tmp_path):
    made, folder = plan(small(methods=("base",))), StudyFolder(tmp_path)
    path = folder.write_plan(made)
    assert worker.root_of(path) == folder.root
    assert worker.run_one(path, made.audits[0].name, openers()) == 0
    assert folder.is_done(made.audits[0])
    with pytest.raises(Exception, match=r"E-STUDY-CELL: .*Did you mean 'base-clear"):
        worker.run_one(path, made.audits[0].name[:-1], openers())
