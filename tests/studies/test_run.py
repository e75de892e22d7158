"""Studies as a user runs them: in processes, killed, started twice, with units that fail."""

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest

from flip_flop_paper.cli import PROGRAM
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

# One process for the whole file: its tests share a study.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("studies")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert here("run", write_study(folder, LONG), "--out", folder / "out") == 0
    return folder / "out", outcome(folder / "out"), tables(folder / "out")


def workers_of(process) -> list[int]:
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        return [int(number) for number in file.read().split()]


def test_a_study_leaves_runs_tables_and_figures_and_what_is_complete_is_not_run_again(whole, tmp_path, caplog):
    root, found, shown = whole
    assert (len(found), attempts(root)) == (3, dict.fromkeys(attempts(root), 1))
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(shown)
    assert list((root / "small" / "figures").glob("*.png"))
    copy = shutil.copytree(root, tmp_path / "out")
    caplog.set_level(logging.INFO)
    here("run", write_study(tmp_path, LONG), "--out", copy)
    assert "small: 1 trainings, 2 audits; 3 of these 3 cells are done already" in caplog.text
    assert (outcome(copy), tables(copy), attempts(copy)) == (found, shown, attempts(root))


def test_a_new_seed_runs_only_what_is_new_and_two_runs_of_one_study_do_no_unit_twice(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    shutil.copytree(whole[0], root)
    shutil.rmtree(next(root.glob("audits/cce-*")))  # its training is not begun again
    processes = [start("run", study, "--out", root, "--seeds", "0,1") for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        assert "2 trainings, 3 audits; 2 of these 5 cells are done already" in err
    assert sorted(attempts(root).values()) == [1, 1, 2]
    assert len(outcome(root)) == 5
    assert whole[1].items() <= outcome(root).items()


def test_stopped_or_killed_in_a_training_and_started_again_it_ends_as_if_undisturbed(whole, tmp_path, capsys):
    study, root, seen = write_study(tmp_path, LONG), tmp_path / "out", set()
    training = "cce-clear_hotel_reviews-seed0"

    def begin():
        seen.update(whole_checkpoints(root))
        process = start("run", study, "--out", root)
        wait_for(lambda: set(whole_checkpoints(root)) - seen)
        (worker,) = workers_of(process)
        return process, worker

    # Twice, as by an impatient user: the worker is asked once, and writes its checkpoint.
    stops = (([signal.SIGINT, signal.SIGTERM], 143), ([signal.SIGKILL], -9))
    for stopped, (numbers, code) in enumerate(stops, 1):
        process, worker = begin()
        for number in numbers:
            process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code
        wait_for(lambda process=worker: has_ended(process))
        assert "Traceback" not in err
        assert err.endswith("stopped\n") or code == -9
        (log,) = (root / "logs").glob("cce-*.log")
        assert log.read_text().count("stopped by a signal at step") == stopped
        assert not list((root / "claims").glob("*.*"))

    process, worker = begin()
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"failed: train {training}: the worker died of signal SIGKILL. Log: {log}\n" in err
    assert f"not run: audit {training}\n" in err
    assert len(outcome(root)) == 1  # the base's audit
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "1", "0", "1", "1"]
    assert f"failed: train {training}: the worker died" in out

    here("run", study, "--out", root)
    assert (outcome(root), tables(root)) == whole[1:]
    assert sorted(attempts(root).values()) == [1, 4]
    assert log.read_text().count("resuming from checkpoint-") == 3


def test_exported_commands_and_a_plans_workers_leave_the_same_folders(whole, tmp_path, capsys, monkeypatch):
    write_study(tmp_path, LONG)
    root, commands = tmp_path / "out", tmp_path / "commands.txt"
    monkeypatch.chdir(tmp_path)
    here("run", "small.yaml", "--out", "out", "--device", "cpu", "--export", commands)
    assert capsys.readouterr().out == f"{commands}: 2 commands\n"
    assert not (root / "trainings").exists()
    shell = f"grep -v '^#' {commands} | xargs -d '\\n' -P 3 -n 1 sh -c"
    done = subprocess.run(["sh", "-c", shell], env=ENVIRONMENT, cwd="/", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (outcome(root), attempts(root)) == (whole[1], attempts(whole[0]))
    last = shlex.split(commands.read_text().splitlines()[-1].removeprefix("# "))
    assert last[: len(PROGRAM)] == PROGRAM
    monkeypatch.chdir("/")
    here(*last[len(PROGRAM) :])
    assert tables(root) == whole[2]

    shutil.rmtree(next(root.glob("audits/base-*")))
    (plan,) = root.glob("small/plans/*.json")
    assert here("work", plan) == 0
    assert outcome(root) == whole[1]


def test_a_failed_training_is_named_with_its_log_and_another_worker_goes_on(tmp_path, capsys, caplog):
    text = STUDY.replace("[base, cce]", "[base, f2c, cce]")
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    caplog.set_level(logging.INFO)
    assert here("run", study, "--out", root) == 1
    err = capsys.readouterr().err
    failed = re.search(r"^failed: train f2c-clear_hotel_reviews-seed0: (.*) Log: (.*)$", err, re.M)
    assert "galore" in failed[1].lower()
    assert "not run: audit f2c-clear_hotel_reviews-seed0" in err
    assert "Traceback" not in err
    logs = [next(root.glob(f"logs/{name}-*.log")).read_text() for name in ("base", "f2c", "cce")]
    assert ["E-CONFIG-VALUE: " in log for log in logs] == [False, True, False]
    base, f2c, cce = (re.search(r"---- .* process (\d+)", log)[1] for log in logs)
    assert base == f2c != cce
    told = [re.sub(r": (\d+ s|failed: .*|not run)$", "", record.getMessage()) for record in caplog.records]
    units = ("base", "f2c", "f2c", "cce", "cce")
    kinds = ("audit", "train", "audit", "train", "audit")
    cells = [f"{kind} {name}-clear_hotel_reviews" for kind, name in zip(kinds, units, strict=True)]
    cells = [cell if "base" in cell else f"{cell}-seed0" for cell in cells]
    assert [line for line in told if line.startswith("[")] == [f"[{n}/5] {cell}" for n, cell in enumerate(cells, 1)]
    capsys.readouterr()
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "3", "0", "1", "1"]
    assert "failed: train f2c-clear_hotel_reviews-seed0" in out
