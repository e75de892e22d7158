"""Units are idempotent: they skip completed cells, log failures, and continue interrupted studies."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess

import pytest
import torch

from flip_flop.errors import InputError
from flip_flop.paper import run
from flip_flop.paper.cli import PROGRAM, plan_lines
from flip_flop.paper.run import DONE, FAILED, StudyFolder, run_unit, run_units, worker_devices
from flip_flop.report import load_run
from tests.studies.plans import DEMO, plan, small, write_task
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

TRAINING = "cce-clear_hotel_reviews-seed0"


def codes(made, folder):
    return [run_unit(made, folder, unit) for unit in made.units]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A completed plan."""
    made, folder = plan(), StudyFolder(tmp_path_factory.mktemp("out"))
    assert codes(made, folder) == [DONE, DONE]
    return made, folder


@pytest.fixture
def copy(done, tmp_path):
    """A copy of it."""
    made, folder = done
    shutil.copytree(folder.root, tmp_path / "out")
    return made, StudyFolder(tmp_path / "out")


def test_completed_cells_are_ordinary_run_directories_and_are_skipped(done, monkeypatch):
    made, folder = done
    base, trained = (load_run(folder.run(cell)) for cell in made.audits)
    assert (base.name, trained.name, trained.method) == ("base", "cce", "cce")
    assert base.scores.shape == trained.scores.shape == (22, 5, 2)
    assert (folder.run(made.trainings[0]) / "adapter" / "adapter_model.safetensors").is_file()
    monkeypatch.setattr(run, "open_task", None)
    assert codes(*done) == [DONE, DONE]


@pytest.mark.parametrize("damage", ["no record", "half a record", "no digest", "another digest"])
def test_a_damaged_record_is_run_again(copy, damage):
    made, folder = copy
    cell = made.audits[0]
    record, mark = folder.run(cell) / "run.json", folder.run(cell) / "cell.json"
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:99])
    elif damage == "no digest":
        mark.unlink()
    else:
        mark.write_text(json.dumps({"key": "0" * 64}))
    assert not folder.is_done(cell)
    assert run_unit(made, folder, made.units[0]) == DONE
    assert folder.is_done(cell)


def test_an_audit_of_a_retrained_adapter_is_run_again(copy):
    made, folder = copy
    record = folder.run(made.trainings[0]) / "run.json"
    record.write_text(record.read_text().replace('"digest": "', '"digest": "00'))
    assert [folder.is_done(cell) for cell in made.audits] == [True, False]


def test_a_damaged_adapter_of_a_finished_study_is_named_and_repaired(copy):
    made, folder = copy
    (training,), unit = made.trainings, made.units[1]
    weights = folder.run(training) / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not folder.is_done(training)
    (line,) = folder.error_lines(made)
    assert line.startswith(f"failed: train {training.label}: {weights} is damaged. Log: ")
    assert run_unit(made, folder, unit) == DONE
    assert weights.read_bytes() == whole
    assert all(map(folder.is_done, made.cells))
    assert folder.error_lines(made) == []


def test_changed_settings_on_resume_name_the_folder(tmp_path):
    made, folder = plan(small(methods=("cce",))), StudyFolder(tmp_path)
    out = folder.run(made.trainings[0])
    assert codes(made, folder) == [DONE]
    (out / "run.json").unlink()
    (out / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (out / "checkpoints" / "checkpoint-1" / "MANIFEST.json").write_text("{}")
    recorded = json.loads((out / "plan.json").read_text())
    recorded["settings"]["lora_r"] = 3
    (out / "plan.json").write_text(json.dumps(recorded))
    assert codes(made, folder) == [FAILED]
    (line,) = folder.error_lines(made)
    assert line.startswith(f"failed: train {TRAINING}: E-RESUME-CHANGED: cannot resume {out}")
    assert f"remove {out}, and run the study again." in line


def test_a_unit_that_another_process_runs_fails_without_a_record(tmp_path, capsys):
    made, folder = plan(), StudyFolder(tmp_path)
    for unit in made.units:
        out = folder.run(unit.cells[0])
        file = out / ".lock" if unit.training else out.with_name(f".{out.name}.lock")
        file.parent.mkdir(parents=True)
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert run_unit(made, folder, unit) == FAILED
        assert f"E-OUT-BUSY: Another process is writing to {out}." in capsys.readouterr().err
    assert folder.error_lines(made) == []


def test_a_failure_is_one_line_and_is_retried(tmp_path, capsys, monkeypatch):
    made, folder, real = plan(), StudyFolder(tmp_path), run.load_model

    def broken(*arguments, **options):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(run, "load_model", broken)
    assert codes(made, folder) == [FAILED, FAILED]
    assert "Traceback" in capsys.readouterr().err
    assert folder.error_lines(made) == [
        f"failed: {unit.cells[0].kind} {unit.cells[0].label}: RuntimeError: out of memory Log: {folder.log(unit)}"
        for unit in made.units
    ]
    shown = [line.split() for line in plan_lines(small(), DEMO, folder) if line.startswith(("train", "audit"))]
    assert [line[-1] for line in shown] == ["failed", "failed", "open"]
    monkeypatch.setattr(run, "load_model", real)
    assert codes(made, folder) == [DONE, DONE]
    assert folder.error_lines(made) == []


def test_a_failed_audit_does_not_stop_the_others(tmp_path):
    path = write_task(tmp_path / "task")
    made = plan(small(tasks=("demo_clear", str(path), "demo_remarks"), methods=("cce",), cross=("demo_clear",)))
    write_task(tmp_path / "task", shift=1)
    (unit,) = made.units
    folder = StudyFolder(tmp_path / "out")
    assert run_unit(made, folder, unit) == FAILED
    assert [folder.is_done(cell) for cell in unit.cells] == [True, False, True]
    (line,) = folder.error_lines(made)
    assert line.startswith(f"failed: audit {unit.cells[1].label}: E-STUDY: ")


def test_work_runs_a_unit_by_name(done):
    made, folder = done
    path = folder.write_plan(made)
    assert here("work", path, "--unit", made.units[0].name) == 0
    with pytest.raises(InputError, match=r"E-STUDY: .*Did you mean 'base-clear"):
        here("work", path, "--unit", made.units[0].name[:-1])


def test_a_worker_has_one_gpu_or_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_devices("auto") == ["0", "1", "2"]
    assert worker_devices("cuda", 4) == ["0", "1", "2", "0"]
    assert worker_devices("cpu", 2) == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1a2b,7")
    assert worker_devices("auto") == ["5", "GPU-1a2b", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert worker_devices("auto") == [""]


def test_a_lost_process_ends_its_unit_alone(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    code = 'case "$2" in base*) kill -9 $$;; esac; echo no such library >&2; exit 3'
    ended = run_units(made, folder, ["sh", "-c", code, "sh"], [""])
    assert list(ended.values()) == [-signal.SIGKILL, 3]
    assert folder.log(made.units[1]).read_text() == "no such library\n"


def test_all_processes_stop_at_the_same_time(tmp_path, monkeypatch):
    made, folder = plan(small(methods=("cce",), seeds=(0, 1, 2, 3))), StudyFolder(tmp_path / "out")
    ready = tmp_path / "ready"
    code = f"trap 'echo >> {tmp_path}/stopped; exit' TERM; echo >> {ready}; while :; do sleep 0.01; done"

    def interrupt(seconds):
        if ready.exists() and len(ready.read_text()) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_units(made, folder, ["sh", "-c", code, "sh"], [""] * 3)
    assert len((tmp_path / "stopped").read_text()) == 3


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
    root, results, printed = whole
    assert (len(results), attempts(root)) == (3, dict.fromkeys(attempts(root), 1))
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(printed)
    assert list((root / "small" / "figures").glob("*.pdf"))
    copy = shutil.copytree(root, tmp_path / "out")
    here("run", write_study(tmp_path, LONG), "--out", copy)
    assert "small: 2 units, 2 of them done" in capsys.readouterr().err
    assert (outcome(copy), tables(copy), attempts(copy)) == (results, printed, attempts(root))


@marked
def test_two_commands_do_not_run_a_unit_twice(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    shutil.copytree(whole[0], root)
    processes = [start("run", study, "--out", root, "--seeds", "0,1", "--workers", 2) for _ in range(2)]
    ended = [(process.communicate(timeout=600)[1], process.returncode) for process in processes]
    assert min(code for _, code in ended) == 0
    for err, code in ended:
        assert "small: 3 units, 2 of them done" in err
        assert (code == 1) == ("not done: cce-clear_hotel_reviews-seed1-" in err)
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
            (worker,) = map(int, file.read().split())
        return process, worker

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process, worker = begin()
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code
        assert has_ended(worker)
        assert "Traceback" not in err
    (log,) = (root / "logs").glob("cce-*.log")
    assert log.read_text().count("stopped by a signal at step") == 2

    process, worker = begin()
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"not done: {log.stem} ended with exit code -9. Log: {log}\n" in err
    assert len(outcome(root)) == 1  # the base's audit
    capsys.readouterr()
    here("status", study, "--out", root)
    assert capsys.readouterr().out.splitlines()[3].split() == ["all", "1", "0", "2"]

    here("run", study, "--out", root)
    assert (outcome(root), tables(root)) == whole[1:]
    assert sorted(attempts(root).values()) == [1, 4]
    assert log.read_text().count("resuming from checkpoint-") == 3


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


@marked
def test_a_failed_training_is_named_with_its_log_and_the_others_run(tmp_path, capsys):
    text = STUDY.replace("[base, cce]", "[base, f2c, cce]")
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    assert here("run", study, "--out", root) == 1
    err = capsys.readouterr().err
    assert "\nfailed: train f2c-clear_hotel_reviews-seed0: E-CONFIG: " in f"\n{err}"
    assert "galore" in err.lower()
    assert "Traceback" not in err
    logs = [next(root.glob(f"logs/{name}-*.log")).read_text() for name in ("base", "f2c", "cce")]
    assert ["E-CONFIG: " in log for log in logs] == [False, True, False]
    here("status", study, "--out", root)
    assert capsys.readouterr().out.splitlines()[3].split() == ["all", "3", "1", "1"]
