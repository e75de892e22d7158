"""Studies as a user runs them: in processes, killed, started twice, with cells that fail."""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter

import pytest

from tests.studies.running import (
    ENVIRONMENT,
    LONG,
    STUDY,
    attempts,
    has_ended,
    here,
    outcome,
    run,
    sealed,
    start,
    tables,
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
    listed = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(listed, encoding="ascii") as file:
        return [int(number) for number in file.read().split()]


def test_a_study_leaves_runs_tables_and_figures(whole):
    root, err, found, shown = whole
    assert "small: 1 trainings, 2 audits; 0 of these 3 cells are done already" in err
    assert len(re.findall(r"^\[\d/3\] ", err, re.M)) == 3
    assert Counter(attempts(root).values()) == {1: 3}
    assert len(found) == 3
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(shown)
    assert list((root / "small" / "figures").glob("*.png"))


def test_what_is_complete_is_not_run_again_and_a_new_seed_runs_only_what_is_new(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    shutil.copytree(whole[0], root)
    _, err = run("run", study, "--out", root)
    assert "3 of these 3 cells are done already" in err
    assert Counter(attempts(root).values()) == {1: 3}
    assert (outcome(root), tables(root)) == whole[2:]
    _, err = run("run", study, "--out", root, "--seeds", "0,1", "--workers", "2")
    assert "2 trainings, 3 audits; 3 of these 5 cells are done already" in err
    assert Counter(attempts(root).values()) == {1: 5}


def test_killed_in_a_training_and_started_again_it_ends_as_if_undisturbed(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"

    driver = start("run", study, "--out", root)
    wait_for(lambda: sealed(root))
    (worker,) = workers_of(driver)
    os.kill(worker, signal.SIGKILL)
    _, err = driver.communicate(timeout=600)
    first = sealed(root)
    assert driver.returncode == 1
    assert "failed: cce-clear_hotel_reviews-seed0: the worker died of signal SIGKILL; its own log: " in err
    assert "not run, as their training failed: cce-clear_hotel_reviews-seed0" in err
    assert len(outcome(root)) == 1  # the base's audit

    driver = start("run", study, "--out", root)
    wait_for(lambda: set(sealed(root)) - set(first))
    for process in [driver.pid, *workers_of(driver)]:
        os.kill(process, signal.SIGKILL)
    driver.communicate()
    assert not list(root.glob("trainings/*/run.json"))

    _, err = run("run", study, "--out", root)
    assert (outcome(root), tables(root)) == whole[2:]
    assert "1 of these 3 cells are done already" in err
    (training,) = root.glob("trainings/cce-clear*")
    assert {name: count for name, count in attempts(root).items() if count > 1} == {training.name: 3}
    assert (root / "logs" / f"{training.name}.log").read_text().count("resuming from checkpoint-") == 2


def test_a_signal_or_the_death_of_its_driver_leaves_a_checkpoint_and_no_worker(tmp_path):
    study, root = write_study(tmp_path, LONG.replace("max_steps: 120", "max_steps: 4000")), tmp_path / "out"
    seen, log = set(), None
    for stopped, (number, code) in enumerate(((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)), 1):
        driver = start("run", study, "--out", root)
        wait_for(lambda before=frozenset(seen): set(sealed(root)) - before)
        (worker,) = workers_of(driver)
        driver.send_signal(number)
        _, err = driver.communicate(timeout=120)
        assert driver.returncode == code
        wait_for(lambda process=worker: has_ended(process))
        assert "Traceback" not in err
        assert err.endswith("stopped\n") or number == signal.SIGKILL
        (log,) = (root / "logs").glob("cce-*.log")
        assert log.read_text().count("stopped by a signal at step") == stopped
        assert not list((root / "claims").glob("*.*"))
        seen |= set(sealed(root))


def test_two_drivers_on_one_folder_do_no_cell_twice(whole, tmp_path):
    study, root = write_study(tmp_path, LONG), tmp_path / "out"
    drivers = [start("run", study, "--out", root) for _ in range(2)]
    for driver in drivers:
        out, err = driver.communicate(timeout=600)
        assert driver.returncode == 0, out + err
    assert outcome(root) == whole[2]
    # A cell that another one takes between the look and the claim is an attempt, too; but each was run once.
    starts = [log.read_text().count("first votes over") for log in (root / "logs").glob("cce-*.log")]
    assert sorted(starts) == [0, 1]
    assert max(attempts(root).values()) <= 2


def test_exported_commands_leave_the_same_folders_in_any_order_of_finishing(whole, tmp_path, capsys):
    study, root, commands = write_study(tmp_path, LONG), tmp_path / "out", tmp_path / "commands.txt"
    here("run", study, "--out", root, "--device", "cpu", "--export", commands)
    assert capsys.readouterr().out == f"{commands}: 3 commands\n"
    assert not (root / "trainings").exists()
    shell = f"grep -v '^#' {commands} | xargs -d '\\n' -P 3 -n 1 sh -c"
    done = subprocess.run(["sh", "-c", shell], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert outcome(root) == whole[2]
    here("tables", study, "--out", root)
    assert tables(root) == whole[3]


def test_a_failed_cell_is_named_with_its_log_and_the_others_go_on(tmp_path, capsys):
    text = STUDY.replace("[base, cce]", "[base, cce, f2c]") + "seeds: [0]\n"
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    _, err = run("run", study, "--out", root, code=1)
    failed = re.search(r"^failed: f2c-clear_hotel_reviews-seed0: (.*) Log: (.*)$", err, re.M)
    assert "galore" in failed[1].lower()
    with open(failed[2], encoding="utf-8") as log:
        assert "Traceback" in log.read()
    assert "not run, as their training failed: f2c-clear_hotel_reviews-seed0" in err
    assert "Traceback" not in err
    here("status", study, "--out", root)
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["all", "3", "0", "1", "1"]
    assert "failed: f2c-clear_hotel_reviews-seed0" in out
