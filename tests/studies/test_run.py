"""Studies as a user runs them: in processes, killed, started twice, with units that fail."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter

import pytest

from flip_flop.cli.study import PROGRAM
from tests.studies.running import (
    ENVIRONMENT,
    LONG,
    STUDY,
    attempts,
    has_ended,
    here,
    outcome,
    run,
    start,
    tables,
    whole_checkpoints,
    write_study,
)
from tests.waiting import wait_for

# One process for the whole file: its tests share a study that takes half a minute.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("studies")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    out, err = run("run", write_study(folder, LONG), "--out", folder / "out")
    assert out.splitlines()[0] == str(folder / "out" / "small" / "index.md")
    return folder / "out", err, outcome(folder / "out"), tables(folder / "out")


def workers_of(process) -> list[int]:
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        return [int(number) for number in file.read().split()]


def test_a_study_leaves_runs_tables_and_figures(whole):
    root, err, found, shown = whole
    assert "small: 1 trainings, 2 audits; 0 of these 3 cells are done already" in err
    lines = re.findall(r"^\[(\d)/3\] (\w+ \S+): \d+ s$", err, re.M)
    cells = [
        "audit base-clear_hotel_reviews",
        "train cce-clear_hotel_reviews-seed0",
        "audit cce-clear_hotel_reviews-seed0",
    ]
    assert lines == [(str(number), cell) for number, cell in enumerate(cells, 1)]
    assert Counter(attempts(root).values()) == {1: 2}
    assert len(found) == 3
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(shown)
    assert list((root / "small" / "figures").glob("*.png"))


def test_what_is_complete_is_not_run_again_and_a_new_seed_runs_only_what_is_new(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    shutil.copytree(whole[0], root)
    _, err = run("run", study, "--out", root)
    assert "3 of these 3 cells are done already" in err
    assert (outcome(root), tables(root)) == whole[2:]
    shutil.rmtree(next(root.glob("audits/cce-*")))  # its training is not begun again
    _, err = run("run", study, "--out", root, "--seeds", "0,1", "--workers", "2")
    assert "2 trainings, 3 audits; 2 of these 5 cells are done already" in err
    assert sorted(attempts(root).values()) == [1, 1, 2]
    assert whole[2].items() <= outcome(root).items()


def test_killed_in_a_training_and_started_again_it_ends_as_if_undisturbed(whole, tmp_path, capsys):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"

    process = start("run", study, "--out", root)
    wait_for(lambda: whole_checkpoints(root))
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    first = whole_checkpoints(root)
    (log,) = (root / "logs").glob("cce-*.log")
    assert process.returncode == 1
    assert f"failed: train cce-clear_hotel_reviews-seed0: the worker died of signal SIGKILL. Log: {log}\n" in err
    assert "not run: audit cce-clear_hotel_reviews-seed0\n" in err
    assert len(outcome(root)) == 1  # the base's audit
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "1", "0", "1", "1"]
    assert "failed: train cce-clear_hotel_reviews-seed0: the worker died" in out

    process = start("run", study, "--out", root)
    wait_for(lambda: set(whole_checkpoints(root)) - set(first))
    for number in [process.pid, *workers_of(process)]:
        os.kill(number, signal.SIGKILL)
    process.communicate()
    assert not list(root.glob("trainings/*/run.json"))

    _, err = run("run", study, "--out", root)
    assert (outcome(root), tables(root)) == whole[2:]
    assert "1 of these 3 cells are done already" in err
    assert sorted(attempts(root).values()) == [1, 3]
    assert log.read_text().count("resuming from checkpoint-") == 2


def test_a_signal_or_the_death_of_its_supervisor_leaves_a_checkpoint_and_no_worker(tmp_path):
    study, root = write_study(tmp_path, LONG.replace("max_steps: 120", "max_steps: 4000")), tmp_path / "out"
    seen = set()
    for stopped, (number, code) in enumerate(((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)), 1):
        process = start("run", study, "--out", root)
        wait_for(lambda before=frozenset(seen): set(whole_checkpoints(root)) - before)
        (worker,) = workers_of(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code
        wait_for(lambda process=worker: has_ended(process))
        assert "Traceback" not in err
        assert err.endswith("stopped\n") or number == signal.SIGKILL
        (log,) = (root / "logs").glob("cce-*.log")
        assert log.read_text().count("stopped by a signal at step") == stopped
        assert not list((root / "claims").glob("*.*"))
        seen |= set(whole_checkpoints(root))


def test_two_runs_of_one_study_do_no_unit_twice(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    processes = [start("run", study, "--out", root) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
    assert outcome(root) == whole[2]
    assert set(attempts(root).values()) == {1}


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
    assert outcome(root) == whole[2]
    assert set(attempts(root).values()) == {1}
    last = shlex.split(commands.read_text().splitlines()[-1].removeprefix("# "))
    assert last[: len(PROGRAM)] == PROGRAM
    monkeypatch.chdir("/")
    here(*last[len(PROGRAM) :])
    assert tables(root) == whole[3]

    shutil.rmtree(next(root.glob("audits/base-*")))
    (plan,) = root.glob("small/plans/*.json")
    _, err = run("work", plan)
    assert "[3/3] audit base-clear_hotel_reviews" in err
    assert outcome(root) == whole[2]


def test_a_failed_training_is_named_with_its_log_and_the_others_go_on(tmp_path, capsys):
    text = STUDY.replace("[base, cce]", "[base, cce, f2c]") + "seeds: [0]\n"
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    _, err = run("run", study, "--out", root, code=1)
    failed = re.search(r"^failed: train f2c-clear_hotel_reviews-seed0: (.*) Log: (.*)$", err, re.M)
    assert "galore" in failed[1].lower()
    with open(failed[2], encoding="utf-8") as log:
        assert "Traceback" in log.read()
    assert "not run: audit f2c-clear_hotel_reviews-seed0" in err
    assert "Traceback" not in err
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "3", "0", "1", "1"]
    assert "failed: train f2c-clear_hotel_reviews-seed0" in out
