"""Units are idempotent: they skip completed cells, log failures, and continue interrupted studies."""

import fcntl
import itertools
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from flip_flop import load_run
from flip_flop.paper import run
from flip_flop.paper.cli import PROGRAM
from flip_flop.paper.folder import StudyFolder, load_plan
from flip_flop.paper.plan import Setup
from flip_flop.paper.run import (
    DONE,
    FAILED,
    run_unit,
    run_units,
    split_batch_across_ranks,
    worker_devices,
)
from flip_flop.scoring.models import EMBEDDED_MODEL
from tests.processes import command, end, launch, launched, start, wait_for
from tests.refused import refused
from tests.studies.small_studies import (
    LONG,
    SHORT,
    attempts,
    here,
    outcome,
    plan,
    run_here,
    small,
    tables,
    whole_checkpoints,
    write_study,
    write_task,
)
from tests.training.conftest import settings

pytestmark = pytest.mark.xdist_group("studies")  # its tests share two studies
TRAINING = "cce-clear_hotel_reviews-seed0"


def codes(made, folder):
    return [run_unit(made, folder, unit) for unit in made.units]


@pytest.fixture
def done(whole):
    """A completed plan and its folder."""
    return load_plan(whole[0] / "small" / "study.json"), StudyFolder(whole[0])


@pytest.fixture
def copy(done, tmp_path):
    """A copy of it."""
    made, folder = done
    shutil.copytree(folder.root, tmp_path / "out")
    return made, StudyFolder(tmp_path / "out")


@pytest.mark.slow
def test_completed_cells_are_ordinary_run_directories_and_are_skipped(done, monkeypatch):
    made, folder = done
    base, trained = (load_run(folder.run(cell)) for cell in made.audits)
    assert (base.name, trained.name, trained.method) == ("base", "cce", "cce")
    assert base.scores.shape == trained.scores.shape == (26, 5, 2)
    assert (folder.run(made.trainings[0]) / "adapter" / "adapter_model.safetensors").is_file()
    monkeypatch.setattr(run, "open_task", None)
    assert codes(*done) == [DONE, DONE]


@pytest.mark.slow
def test_a_damaged_record_is_run_again(copy):
    made, folder = copy
    base, run_directory = made.audits[0], folder.run(made.audits[0])
    for file, text in (
        ("cell.json", "{}"),
        ("cell.json", json.dumps({"key": "0" * 64})),
        ("run.json", (run_directory / "run.json").read_text()[:99]),
        ("run.json", ""),
    ):
        whole = (run_directory / file).read_text()
        (run_directory / file).write_text(text)
        assert not folder.is_done(base)
        if text:
            (run_directory / file).write_text(whole)
            assert folder.is_done(base)
    assert run_unit(made, folder, made.units[0]) == DONE
    assert folder.is_done(base)


def failed(folder, made):
    return [state for state in folder.states(made).values() if state not in ("done", "open")]


@pytest.mark.slow
def test_an_audit_of_a_retrained_adapter_is_run_again(copy):
    made, folder = copy
    record = folder.run(made.trainings[0]) / "run.json"
    record.write_text(record.read_text().replace('"digest": "', '"digest": "00'))
    assert [folder.is_done(cell) for cell in made.audits] == [True, False]


@pytest.mark.slow
def test_a_damaged_adapter_of_a_finished_study_is_named_and_repaired(copy):
    made, folder = copy
    training, audit = made.trainings[0], made.audits[1]
    weights = folder.run(training) / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not folder.is_done(training)
    (line,) = failed(folder, made)
    assert line.startswith(f"failed: train {training.label}: {weights} is damaged. Log: ")
    assert run_unit(made, folder, made.units[1]) == DONE
    assert weights.read_bytes() == whole
    assert (folder.is_done(training), folder.is_done(audit), failed(folder, made)) == (True, True, [])


@pytest.mark.slow
def test_a_training_without_its_adapter_and_its_mark_is_repaired(copy):
    made, folder = copy
    training, out = made.trainings[0], folder.run(made.trainings[0])
    (out / "cell.json").unlink()
    shutil.rmtree(out / "adapter")
    (line,) = failed(folder, made)
    assert f"{out / 'adapter' / 'adapter_config.json'} is missing." in line
    assert run_unit(made, folder, made.units[1]) == DONE
    assert (folder.is_done(training), failed(folder, made)) == (True, [])


@pytest.mark.slow
def test_changed_settings_on_resume_name_the_folder(copy):
    made, folder = copy
    out = folder.run(made.trainings[0])
    (out / "run.json").unlink()
    recorded = json.loads((out / "plan.json").read_text())
    recorded["settings"]["lora_r"] = 3
    (out / "plan.json").write_text(json.dumps(recorded))
    assert codes(made, folder) == [DONE, FAILED]
    (line,) = failed(folder, made)
    assert line.startswith(f"failed: train {TRAINING}: E-RESUME-CHANGED: cannot resume {out}")
    assert "in a study, remove it." in line


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
    assert failed(folder, made) == []


@pytest.mark.slow
def test_a_failure_is_one_line_and_is_retried(tmp_path, capsys, monkeypatch):
    made, folder, real = plan(), StudyFolder(tmp_path), run.load_model

    def broken(*arguments, **options):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(run, "load_model", broken)
    assert codes(made, folder) == [FAILED, FAILED]
    assert "Traceback" in capsys.readouterr().err
    assert failed(folder, made) == [
        f"failed: {unit.cells[0].kind} {unit.cells[0].label}: RuntimeError: out of memory Log: {folder.log(unit)}"
        for unit in made.units
    ]
    assert [state.partition(":")[0] for state in folder.states(made).values()] == ["failed", "failed", "open"]
    monkeypatch.setattr(run, "load_model", real)
    assert len([*folder.log(made.units[0]).parent.glob("*.failed")]) == 2
    assert codes(made, folder) == [DONE, DONE]
    assert failed(folder, made) == []
    assert not [*folder.log(made.units[0]).parent.glob("*.failed")]


@pytest.mark.slow
def test_a_failed_audit_does_not_stop_the_others(tmp_path):
    path = write_task(tmp_path / "task")
    made = plan(small(tasks=("demo_clear", str(path), "demo_remarks"), methods=("cce",), cross=("demo_clear",)))
    write_task(tmp_path / "task", shift=1)
    (unit,) = made.units
    folder = StudyFolder(tmp_path / "out")
    assert run_unit(made, folder, unit) == FAILED
    assert [folder.is_done(cell) for cell in unit.cells] == [True, False, True]
    (line,) = failed(folder, made)
    assert line.startswith(f"failed: audit {unit.cells[1].label}: E-STUDY: ")


def test_changed_model_folder_fails_the_unit(tmp_path):
    shutil.copytree(EMBEDDED_MODEL, tmp_path / "model")
    made, folder = plan(small(methods=("base",)), Setup(str(tmp_path / "model"), device="cpu")), StudyFolder(tmp_path)
    weights = next((tmp_path / "model").glob("*.safetensors"))
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    assert codes(made, folder) == [FAILED]
    (line,) = failed(folder, made)
    assert f"E-STUDY: the files of {tmp_path / 'model'} have changed since the plan." in line


@pytest.mark.slow
def test_work_runs_a_unit_by_name(done):
    made, folder = done
    path = folder.write_plan(made)
    assert here("work", path, "--unit", made.units[0].name) == 0
    refused(r"E-STUDY: .*Did you mean 'base-clear", here, "work", path, "--unit", made.units[0].name[:-1])


@pytest.mark.parametrize(
    ("device", "jobs", "processes", "gpus", "visible", "expected"),
    [
        ("auto", None, 1, 3, None, ["0", "1", "2"]),
        ("cuda", 4, 1, 3, None, ["0", "1", "2", "0"]),
        ("cpu", 2, 1, 3, None, ["", ""]),
        ("cpu", None, 2, 3, None, [""]),
        ("auto", None, 1, 3, "5, GPU-1a2b,7", ["5", "GPU-1a2b", "7"]),
        ("auto", None, 2, 5, "5,6,GPU-1a2b,8,9", ["5,6", "GPU-1a2b,8"]),
        ("auto", 3, 2, 5, None, ["0,1", "2,3", "0,1"]),
        ("auto", None, 1, 0, "5, GPU-1a2b,7", [""]),
    ],
)
def test_a_worker_has_one_gpu_per_process_or_none(monkeypatch, device, jobs, processes, gpus, visible, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert worker_devices(device, jobs, processes) == expected


def test_a_unit_with_more_processes_than_gpus_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    study = write_study(tmp_path)
    refused(
        r"E-DISTRIBUTED: A unit of 4 processes .* 3 are visible. Give --proc.* 3",
        here,
        "run",
        study,
        "--out",
        tmp_path / "out",
        "--device",
        "cuda",
        "--processes-per-unit",
        "4",
    )


def test_a_lost_process_ends_its_unit_alone(tmp_path):
    base, training = plan().units
    commands = {base: "sh -c 'kill -9 $$'", training: f"sh -c 'echo no such library; exit 3' > {tmp_path}/log"}
    assert run_units("small", commands, [""]) == {base: -signal.SIGKILL, training: 3}
    assert (tmp_path / "log").read_text() == "no such library\n"


def hang_up():
    """Send the signal as a shell does whose terminal is closed."""
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    raise OSError("no terminal")


def press():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(press, KeyboardInterrupt), (lambda: os.kill(os.getpid(), signal.SIGTERM), SystemExit), (hang_up, SystemExit)],
)
def test_all_processes_stop_at_the_same_time(tmp_path, monkeypatch, stop, expected):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the starter of the tests may ignore it
    units = plan(small(methods=("cce",), seeds=(0, 1, 2, 3))).units
    ready = tmp_path / "ready"
    code = f"trap 'echo >> {tmp_path}/stopped; exit' TERM; echo >> {ready}; while :; do sleep 0.01; done"

    def interrupt(seconds):
        if ready.exists() and len(ready.read_text()) == 3:
            stop()

    monkeypatch.setattr(run.time, "sleep", interrupt)
    monkeypatch.setattr(run, "echo", lambda *_, **__: hang_up() if stop == hang_up else None)
    with pytest.raises(expected):
        run_units("small", dict.fromkeys(units, f"sh -c {shlex.quote(code)}"), [""] * 3)
    signal.signal(signal.SIGHUP, before)
    assert len((tmp_path / "stopped").read_text()) == 3


# ---- studies in processes ----


@pytest.mark.slow
def test_a_study_writes_tables_and_figures_and_skips_what_is_complete(whole, tmp_path, capsys):
    root, results, printed = whole
    assert len(results) == 3
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(printed)
    assert list((root / "small" / "figures").glob("*.pdf"))
    copy = shutil.copytree(root, tmp_path / "out")
    here("run", write_study(tmp_path), "--out", copy)
    assert "small: 2 units, 2 of them done" in capsys.readouterr().err
    assert (outcome(copy), tables(copy), attempts(copy)) == (results, printed, {})


@pytest.mark.slow
def test_interrupted_study_matches_an_uninterrupted_one(whole, tmp_path, capsys, monkeypatch):
    study, root, output, seen = write_study(tmp_path), tmp_path / "out", tmp_path / "shown.txt", set()
    (base,) = whole[0].glob("audits/base-*")
    shutil.copytree(base, root / "audits" / base.name)
    for number, code in ((signal.SIGHUP, 129), (None, 1)):
        seen.update(whole_checkpoints(root))
        process = start(command, "study", "run", study, "--out", root, output=output)
        wait_for(lambda: set(whole_checkpoints(root)) - seen)
        (worker,) = psutil.Process(process.pid).children()
        if number is None:
            worker.kill()
        else:
            os.kill(process.pid, number)
        assert end([process]) == [code]
        assert not worker.is_running()
    (log,) = (root / "logs").glob("*.log")
    assert log.read_text().count("stopped by a signal at step") == 1
    shown = output.read_text()
    assert f"not done: {log.stem} ended with exit code -9. Log: {log}\n" in shown
    assert "Traceback" not in shown
    here("status", study, "--out", root)
    assert capsys.readouterr().out.splitlines()[3].split() == ["all", "1", "0", "2"]

    monkeypatch.setattr(run, "run_units", run_here)
    here("run", study, "--out", root)
    assert (outcome(root), tables(root), attempts(root)) == (*whole[1:], {log.stem: 2})
    assert log.read_text().count("resuming from checkpoint-") == 1
    assert "step 4/12" not in capsys.readouterr().err  # it resumes here, too


@pytest.mark.slow
def test_exported_commands_leave_the_same_folders(whole, tmp_path, monkeypatch):
    write_study(tmp_path)
    root, list_file = shutil.copytree(whole[0], tmp_path / "out"), tmp_path / "commands.txt"
    shutil.rmtree(next(root.glob("audits/base-*")))
    shutil.rmtree(root / "small" / "tables")
    monkeypatch.chdir(tmp_path)
    here("run", "small.yaml", "--out", "out", "--device", "cpu", "--export", list_file)
    here("run", "small.yaml", "--out", "out", "--device", "cpu", "--limit", "4", "--export", tmp_path / "trial.txt")
    monkeypatch.chdir("/")
    lines = [shlex.split(line.removeprefix("# "), comments=True) for line in list_file.read_text().splitlines()]
    commands = [words for words in lines if words[: len(PROGRAM)] == PROGRAM]
    assert [words[len(PROGRAM)] for words in commands] == ["work", "tables"]
    for words in commands:
        here(*itertools.takewhile(">>".__ne__, words[len(PROGRAM) :]))
    assert (outcome(root), tables(root)) == whole[1:]


# ---- one unit in several processes of a launcher ----

# Four whole steps of an epoch, without dropout, whose masks depend on the batch.
WHOLE = SHORT | {"max_steps": 4, "lora_dropout": 0.0, "eval_strategy": "steps", "eval_steps": 2}
WHOLE |= {"save_strategy": "steps", "save_steps": 2}


def adapter(folder, training):
    return load_file(folder.run(training) / "adapter" / "adapter_model.safetensors")


@pytest.mark.slow
def test_two_processes_with_half_of_the_weights_match_one(tmp_path):
    methods, alone = ("base", "cce"), StudyFolder(tmp_path / "alone")
    setup = Setup("demo", dtype="float32", device="cpu")
    made = plan(small(WHOLE, methods=methods, limit=8), setup)
    path = alone.write_plan(made)
    assert [here("work", path, "--unit", unit.name) for unit in made.units] == [DONE, DONE]
    sharded, folder = plan(small(WHOLE, methods=methods, limit=8, shard="fsdp"), setup), StudyFolder(tmp_path / "fsdp")
    assert sharded.cells == made.cells  # the same digests
    names = {"name": "small", "model": "demo", "tasks": ["demo_clear"], "methods": list(methods)}
    study = write_study(tmp_path, yaml.safe_dump({**names, "settings": WHOLE, "limit": 8, "shard": "fsdp"}))
    assert here("run", study, "--out", folder.root, "--device", "cpu", "--processes-per-unit", "2") == 0
    assert set(folder.states(sharded).values()) == {"done"}
    one, two = (adapter(root, made.trainings[0]) for root in (alone, folder))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    for cell in made.audits:
        scores, others = (load_run(root.run(cell)).scores for root in (alone, folder))
        np.testing.assert_allclose(others, scores, rtol=1e-5, atol=1e-5)
    recorded = json.loads((folder.run(made.trainings[0]) / "plan.json").read_text())
    assert recorded["model"]["shard"] == "fsdp"


@pytest.mark.slow
def test_two_processes_match_one(tmp_path):
    made, folder = plan(small(WHOLE, methods=("cce",))), StudyFolder(tmp_path / "out")
    path = folder.write_plan(made)
    (unit,), (training, audit) = made.units, made.cells
    code, out = launch(2, command, "study", "work", path, "--unit", unit.name, output=tmp_path / "1.txt")
    assert (code, out.count(f"train {training.label}: "), out.count(f"audit {audit.label}: ")) == (0, 1, 1), out
    assert (out.count("---- "), out.count("first votes over")) == (1, 1)
    assert (folder.is_done(training), folder.is_done(audit)) == (True, True)

    alone = StudyFolder(tmp_path / "alone")
    assert here("work", alone.write_plan(made), "--unit", unit.name) == 0
    one, two = adapter(alone, training), adapter(folder, training)
    # Gradients are summed in another order: AdamW divides them by their size, so that a step of 3e-4 may differ by a
    # few units in the last place of its float32 parts, 4 steps of 4 instances.
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert max(float(tensor.abs().max()) for name, tensor in two.items() if "lora_B" in name) > 1e-4

    (folder.run(audit) / "cell.json").unlink()  # what one process does
    code, out = launch(2, command, "study", "work", path, "--unit", unit.name, output=tmp_path / "2.txt")
    assert (code, out.count(f"audit {audit.label}: "), out.count("train ")) == (0, 1, 0), out
    assert folder.is_done(audit)


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes", "shared"),
    [(8, 1, 4, (2, 1)), (1, 8, 4, (1, 2)), (4, 4, 2, (4, 2)), (4, 2, 8, (1, 1)), (6, 2, 4, (3, 1)), (8, 3, 1, (8, 3))],
)
def test_processes_divide_a_step(batch, accumulation, processes, shared):
    config = settings(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
    split_batch_across_ranks(config, processes)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == shared
    refused(
        r"E-DISTRIBUTED: A step of 6 .* by 4 proc|E-DISTRIBUTED: .* that divides 6",
        split_batch_across_ranks,
        settings(per_device_train_batch_size=6),
        4,
    )


def test_export_launches_only_training_units(tmp_path):
    study, out = write_study(tmp_path), tmp_path / "list"

    options = ("--device", "cpu", "--export", out, "--processes-per-unit", "2")
    here("run", study, "--out", tmp_path / "out", *options)
    base, training = (shlex.split(line) for line in out.read_text().splitlines() if not line.startswith("#"))
    assert base[: base.index("-m")] == [sys.executable]
    torchrun = str(Path(sys.executable).parent / "torchrun")
    assert training[: training.index("-m")] == [torchrun, "--standalone", "--nproc-per-node", "2"]


def test_units_that_divide_the_weights_need_a_launcher(tmp_path):
    study, out = write_study(tmp_path, f"{LONG}shard: fsdp\n"), tmp_path / "list"
    sharded = ("run", study, "--out", tmp_path / "out", "--device", "cpu", "--export", out)
    for options, expected in (
        ((), "E-DISTRIBUTED: shard divides .* there is one. .*study run --processes-per-unit N"),
        (("--processes-per-unit", "2", "--model", "m.gguf"), "E-DISTRIBUTED: --shard does not work with GGUF"),
    ):
        refused(expected, here, *sharded, *options)
    here(*sharded, "--processes-per-unit", "2")
    assert out.read_text().count("torchrun --standalone --nproc-per-node 2 -m flip_flop") == 2  # the base, too


@pytest.mark.parametrize(
    ("options", "processes", "expected"),
    [
        (("--gpus", "4", "--executor", "slurm"), "1", "E-DISTRIBUTED: --gpus is 4.* Give --processes-per-unit 4"),
        ((), "2", "E-DISTRIBUTED: A launcher has started 2 processes"),
    ],
)
def test_unusable_launcher_is_refused(tmp_path, monkeypatch, options, processes, expected):
    for name, value in launched(processes).items():
        monkeypatch.setenv(name, value)
    refused(expected, here, "run", write_study(tmp_path), "--out", tmp_path / "out", *options)
