"""Units are idempotent: they skip completed cells, log failures, and continue interrupted studies."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import time

import pytest
import torch

from flip_flop.errors import InputError
from flip_flop.paper import local, run
from flip_flop.paper.cli import PROGRAM
from flip_flop.paper.folder import StudyFolder, root_of
from flip_flop.paper.local import LocalRun, worker_devices
from flip_flop.paper.preview import error_lines
from flip_flop.paper.run import BUSY, DONE, FAILED, run_unit
from flip_flop.paper.study import Settings
from flip_flop.report import load_run
from tests.studies.plans import SHORT, plan, small, write_task
from tests.studies.running import (
    ENVIRONMENT,
    LONG,
    STUDY,
    attempts,
    has_ended,
    here,
    outcome,
    start,
    tables,
    whole_checkpoints,
    write_study,
)
from tests.waiting import wait_for


def codes(made, folder):
    return [run_unit(made, folder, unit) for unit in made.units]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A completed plan."""
    made, folder = plan(), StudyFolder(tmp_path_factory.mktemp("out"))
    assert codes(made, folder) == [DONE, DONE]
    return made, folder


def test_completed_cells_are_ordinary_run_directories(done):
    made, folder = done
    base, trained = (load_run(folder.run(cell)) for cell in made.audits)
    assert (base.name, trained.name, trained.method) == ("base", "cce", "cce")
    assert base.scores.shape == trained.scores.shape == (22, 5, 2)
    assert trained.record.model.name == "demo"
    assert (folder.run(made.trainings[0]) / "adapter" / "adapter_model.safetensors").is_file()


def test_completed_cells_are_skipped(done, monkeypatch):
    monkeypatch.setattr(run, "open_task", None)
    assert codes(*done) == [DONE, DONE]


@pytest.mark.parametrize("damage", ["no record", "half a record", "no digest", "another digest"])
def test_a_damaged_record_is_run_again(done, damage, tmp_path):
    made, folder = done
    cell, copy = made.audits[0], StudyFolder(tmp_path)
    shutil.copytree(folder.run(cell), copy.run(cell))
    assert copy.is_done(cell)
    record, own = copy.run(cell) / "run.json", copy.run(cell) / "cell.json"
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:99])
    elif damage == "no digest":
        own.unlink()
    else:
        own.write_text(json.dumps({"key": "0" * 64}))
    assert not copy.is_done(cell)
    assert run_unit(made, copy, made.units[0]) == DONE
    assert copy.is_done(cell)


def test_an_audit_of_a_retrained_adapter_is_run_again(done, tmp_path):
    made, folder = done
    copy = StudyFolder(tmp_path / "out")
    shutil.copytree(folder.root, copy.root)
    record = copy.run(made.trainings[0]) / "run.json"
    record.write_text(record.read_text().replace('"digest": "', '"digest": "00'))
    assert [copy.is_done(cell) for cell in made.audits] == [True, False]


def test_a_damaged_adapter_of_a_finished_study_is_named_and_repaired(done, tmp_path):
    made, folder = done
    copy, (training,) = StudyFolder(tmp_path / "out"), made.trainings
    shutil.copytree(folder.root, copy.root)
    unit = made.unit(next(unit.name for unit in made.units if unit.training))
    weights = copy.run(training) / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not copy.is_done(training)
    (line,) = copy.failures(unit)
    assert line == f"train {training.label}: {copy.run(training)}/adapter/adapter_model.safetensors is damaged."
    assert run_unit(made, copy, unit) == DONE
    assert weights.read_bytes() == whole
    assert copy.failures(unit) == []
    assert all(map(copy.is_done, made.cells))


def test_changed_settings_on_resume_name_the_folder(tmp_path):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path)
    (unit,) = made.units
    out = folder.run(unit.training)
    (out / "checkpoints").mkdir(parents=True)  # of a process that was killed before its first step
    assert codes(made, folder) == [DONE]
    (out / "run.json").unlink()
    (out / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (out / "checkpoints" / "checkpoint-1" / "MANIFEST.json").write_text("{}")
    recorded = json.loads((out / "plan.json").read_text())
    recorded["settings"]["lora_r"] = 3
    (out / "plan.json").write_text(json.dumps(recorded))
    assert codes(made, folder) == [FAILED]
    (line,) = folder.failures(unit)
    assert line.startswith(
        f"train {unit.training.label}: E-RESUME-CHANGED: cannot resume {out}, because these have changed"
    )
    assert line.endswith(f"remove {out}, and run the study again.")


def test_an_audit_uses_the_scoring_settings(tmp_path, monkeypatch):
    given = {}

    def audit(*arguments, **options):
        given.update(vars(options["scoring"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "audit", audit)
    scoring = {"chat_template": "off", "backend": "padded", "batch_tokens": 99}
    made = plan(small(methods=("base",), settings=Settings(SHORT | scoring)))
    with pytest.raises(KeyboardInterrupt):
        codes(made, StudyFolder(tmp_path))
    assert scoring.items() <= given.items()


@pytest.mark.parametrize("unit", [0, 1])
def test_a_unit_that_another_process_runs_is_skipped(tmp_path, capsys, unit):
    made, folder = plan(), StudyFolder(tmp_path)
    out = folder.run(made.units[unit].cells[0])
    file = out / ".lock" if unit else out.with_name(f".{out.name}.lock")
    file.parent.mkdir(parents=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run_unit(made, folder, made.units[unit]) == BUSY
    assert f"E-OUT-BUSY: Another process is writing to {out}." in capsys.readouterr().err
    assert not list(error_lines(made, folder))


def test_a_failure_is_one_line_and_is_retried(tmp_path, capsys, monkeypatch):
    made, folder, real = plan(), StudyFolder(tmp_path), run.open_model

    def broken(setup, adapter):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(run, "open_model", broken)
    assert codes(made, folder) == [FAILED, FAILED]
    assert "Traceback" in capsys.readouterr().err
    base, training = (cells[0] for cells in (made.units[0].cells, made.units[1].cells))
    assert list(error_lines(made, folder)) == [
        f"failed: {cell.kind} {cell.label}: RuntimeError: out of memory Log: {folder.log(unit)}"
        for cell, unit in zip((base, training), made.units, strict=True)
    ]
    monkeypatch.setattr(run, "open_model", real)
    assert codes(made, folder) == [DONE, DONE]
    assert not list(error_lines(made, folder))


def test_a_failed_audit_does_not_stop_the_others(tmp_path):
    path = write_task(tmp_path / "task")
    made = plan(small(tasks=("demo_clear", str(path), "demo_remarks"), methods=("cce",), cross=("demo_clear",)))
    write_task(tmp_path / "task", shift=1)
    (unit,) = made.units
    folder = StudyFolder(tmp_path / "out")
    assert run_unit(made, folder, unit) == FAILED
    assert [folder.is_done(cell) for cell in unit.cells] == [True, False, True]
    (line,) = folder.failures(unit)
    assert line.startswith(f"audit {unit.audits[0].label}: E-STUDY-CHANGED: ")


def test_work_runs_a_unit_by_name(done):
    made, folder = done
    path = folder.write_plan(made)
    assert root_of(path) == folder.root
    assert here("work", path, "--unit", made.units[0].name) == 0
    with pytest.raises(InputError, match=r"E-STUDY-UNIT: .*Did you mean 'base-clear"):
        here("work", path, "--unit", made.units[0].name[:-1])


def test_a_worker_has_one_gpu_or_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = worker_devices
    assert (seen("auto"), seen("cuda", 4), seen("cuda", 2)) == (["0", "1", "2"], ["0", "1", "2", "0"], ["0", "1"])
    assert (seen("cpu"), seen("cpu", 2)) == ([""], ["", ""])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1a2b,7")
    assert seen("auto") == ["5", "GPU-1a2b", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert seen("auto") == [""]


def test_a_lost_process_fails_its_unit_alone(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    code = 'case "$1" in base*) kill -9 $$;; esac; echo no such library >&2; exit 3'
    assert LocalRun(folder, ["sh", "-c", f"shift; {code}", "sh"], [""]).run(made) == []
    base, training = error_lines(made, folder)
    log = folder.log(made.units[0])
    assert base == f"failed: audit base-clear_hotel_reviews: the process ended of signal SIGKILL. Log: {log}"
    assert training.startswith("failed: train cce-clear_hotel_reviews-seed0: the process ended with exit code 3.")
    assert folder.log(made.units[1]).read_text() == "no such library\n"


def test_all_processes_are_asked_to_stop_at_once(tmp_path, monkeypatch):
    made, folder = plan(small(methods=("cce",), seeds=(0, 1, 2, 3))), StudyFolder(tmp_path / "out")
    # Standard input ends on a request to stop. Each process then waits for the others.
    code = "trap 'echo >> signalled' TERM; echo >> ready; read line; echo >> asked; "
    code += "while [ $(wc -l < asked) -lt 3 ]; do sleep 0.01; done"

    def interrupt(futures):
        wait_for(lambda: (tmp_path / "ready").exists() and len((tmp_path / "ready").read_text()) == 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "as_completed", interrupt)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        LocalRun(folder, ["sh", "-c", f"cd {tmp_path}; {code}"], [""] * 3).run(made)
    assert (len((tmp_path / "asked").read_text()), time.monotonic() - started < 60) == (3, True)
    assert not (tmp_path / "signalled").exists()
    assert not list(error_lines(made, folder))


# ---- studies in processes ----

slow = [pytest.mark.slow, pytest.mark.xdist_group("studies")]


def marked(function):
    for mark in slow:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study without interruptions."""
    folder = tmp_path_factory.mktemp("whole")
    assert here("run", write_study(folder, LONG), "--out", folder / "out") == 0
    return folder / "out", outcome(folder / "out"), tables(folder / "out")


@marked
def test_a_study_writes_tables_and_figures_and_skips_what_is_complete(whole, tmp_path, capsys):
    root, found, shown = whole
    assert (len(found), attempts(root)) == (3, dict.fromkeys(attempts(root), 1))
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(shown)
    assert list((root / "small" / "figures").glob("*.png"))
    copy = shutil.copytree(root, tmp_path / "out")
    here("run", write_study(tmp_path, LONG), "--out", copy)
    assert "small: 2 units, 2 of them done" in capsys.readouterr().err
    assert (outcome(copy), tables(copy), attempts(copy)) == (found, shown, attempts(root))


@marked
def test_two_commands_do_not_run_a_unit_twice_and_a_new_seed_runs_alone(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    shutil.copytree(whole[0], root)
    processes = [start("run", study, "--out", root, "--seeds", "0,1", "--workers", 2) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        assert "small: 3 units, 2 of them done" in err
    assert len(outcome(root)) == 5
    assert whole[1].items() <= outcome(root).items()
    (log,) = (root / "logs").glob("cce-*seed1-*.log")
    assert log.read_text().count("train cce-clear_hotel_reviews-seed1: ") == 1


@marked
def test_interrupted_study_matches_an_uninterrupted_one(whole, tmp_path, capsys):
    study, root, seen = write_study(tmp_path, LONG), tmp_path / "out", set()

    def begin():
        seen.update(whole_checkpoints(root))
        process = start("run", study, "--out", root)
        wait_for(lambda: set(whole_checkpoints(root)) - seen)
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            children = {int(number) for number in file.read().split()}
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{thread}/children", encoding="ascii") as file:
                children |= {int(number) for number in file.read().split()}
        (worker,) = children
        return process, worker

    for stopped, (number, code) in enumerate(((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)), 1):
        process, worker = begin()
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code
        wait_for(lambda process=worker: has_ended(process), seconds=5)
        assert "Traceback" not in err
        (log,) = (root / "logs").glob("cce-*.log")
        assert log.read_text().count("stopped by a signal at step") == min(stopped, 2)

    process, worker = begin()
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    training = "train cce-clear_hotel_reviews-seed0"
    assert f"failed: {training}: the process ended of signal SIGKILL. Log: {log}\n" in err
    assert len(outcome(root)) == 1  # the base's audit
    capsys.readouterr()
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "1", "1", "1"]
    assert f"failed: {training}: the process ended" in out

    here("run", study, "--out", root)
    assert (outcome(root), tables(root)) == whole[1:]
    assert sorted(attempts(root).values()) == [1, 5]
    assert log.read_text().count("resuming from checkpoint-") == 4


@marked
def test_exported_commands_leave_the_same_folders(whole, tmp_path, capsys, monkeypatch):
    write_study(tmp_path, LONG)
    root, commands = tmp_path / "out", tmp_path / "commands.txt"
    monkeypatch.chdir(tmp_path)
    here("run", "small.yaml", "--out", "out", "--device", "cpu", "--export", commands)
    assert capsys.readouterr().out == f"{commands}: 2 commands\n"
    assert not (root / "trainings").exists()
    shell = f"grep -v '^#' {commands} | xargs -d '\\n' -P 3 -n 1 sh -c"
    ended = subprocess.run(["sh", "-c", shell], env=ENVIRONMENT, cwd="/", capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert (outcome(root), attempts(root)) == (whole[1], attempts(whole[0]))
    last = shlex.split(commands.read_text().splitlines()[-1].removeprefix("# "))
    assert last[: len(PROGRAM)] == PROGRAM
    monkeypatch.chdir("/")
    here(*last[len(PROGRAM) :])
    assert tables(root) == whole[2]
    shutil.rmtree(next(root.glob("audits/base-*")))
    (made,) = root.glob("small/plans/*.json")
    assert here("work", made) == 0
    assert outcome(root) == whole[1]


@marked
def test_a_failed_training_is_named_with_its_log_and_the_others_run(tmp_path, capsys):
    text = STUDY.replace("[base, cce]", "[base, f2c, cce]")
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    assert here("run", study, "--out", root) == 1
    err = capsys.readouterr().err
    assert "\nfailed: train f2c-clear_hotel_reviews-seed0: E-CONFIG-VALUE: " in f"\n{err}"
    assert "galore" in err.lower()
    assert "Traceback" not in err
    logs = [next(root.glob(f"logs/{name}-*.log")).read_text() for name in ("base", "f2c", "cce")]
    assert ["E-CONFIG-VALUE: " in log for log in logs] == [False, True, False]
    here("status", study, "--out", root)
    assert capsys.readouterr().out.splitlines()[3].split() == ["all", "3", "1", "1"]
