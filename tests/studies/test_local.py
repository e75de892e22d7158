"""Studies as a user runs them: in processes, killed, started twice, with cells that fail."""

import os
import re
import signal
import subprocess
import time
from collections import Counter

import pytest

from tests.studies.running import ENVIRONMENT, STUDY, attempts, outcome, run, start, tables, write_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    out, err = run("run", write_study(folder), "--out", folder / "out")
    assert out.splitlines()[0] == str(folder / "out" / "small" / "index.md")
    return folder / "out", err, outcome(folder / "out"), tables(folder / "out")


def wait_for(condition, seconds=120):
    over = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < over, "it never came"
        time.sleep(0.02)


def workers_of(process) -> list[int]:
    listed = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(listed, encoding="ascii") as file:
        return [int(number) for number in file.read().split()]


def test_a_study_leaves_runs_tables_and_figures(whole):
    root, err, found, shown = whole
    assert "small: 2 trainings, 4 audits; 0 of these 6 cells are done already" in err
    assert len(re.findall(r"^\[\d/6\] ", err, re.M)) == 6
    assert Counter(attempts(root).values()) == {1: 6}
    assert len(found) == 6
    assert {"table1_methods.md", "table1_methods.csv", "table1_methods.tex"} <= set(shown)
    assert list((root / "small" / "figures").glob("*.png"))


def test_a_complete_study_is_not_run_again(whole):
    root = whole[0]
    _, err = run("run", write_study(root.parent), "--out", root)
    assert "6 of these 6 cells are done already" in err
    assert Counter(attempts(root).values()) == {1: 6}
    assert outcome(root) == whole[2]


def test_a_new_seed_runs_only_what_is_new(whole):
    root = whole[0]
    _, err = run(
        "run", write_study(root.parent), "--out", root, "--seeds", "0,1", "--tasks", "demo_clear", "--workers", "2"
    )
    assert "2 trainings, 3 audits; 3 of these 5 cells are done already" in err
    assert Counter(attempts(root).values()) == {1: 8}


def test_killed_in_a_training_and_started_again_it_ends_as_if_undisturbed(whole, tmp_path):
    study, root = write_study(tmp_path), tmp_path / "out"
    driver = start("run", study, "--out", root)
    wait_for(lambda: list(root.glob("trainings/*/checkpoints/checkpoint-2/MANIFEST.json")))
    killed = [driver.pid, *workers_of(driver)]
    done = outcome(root)
    for process in killed:
        os.kill(process, signal.SIGKILL)
    driver.communicate()
    assert not list(root.glob("trainings/*/run.json"))
    _, err = run("run", study, "--out", root)
    assert outcome(root) == whole[2]
    assert tables(root) == whole[3]
    assert f"{len(done)} of these 6 cells are done already" in err
    (training,) = root.glob("trainings/cce-clear*")
    assert {name: count for name, count in attempts(root).items() if count > 1} == {training.name: 2}
    assert "resuming from checkpoint-" in (root / "logs" / f"{training.name}.log").read_text()


def test_a_worker_does_not_outlive_its_driver(tmp_path):
    root = tmp_path / "out"
    driver = start("run", write_study(tmp_path), "--out", root)
    wait_for(lambda: list(root.glob("trainings/*/checkpoints/checkpoint-2")))
    (worker,) = workers_of(driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not os.path.exists(f"/proc/{worker}"))
    assert not list((root / "claims").glob("*.*"))


def test_two_drivers_on_one_folder_do_no_cell_twice(whole, tmp_path):
    study, root = write_study(tmp_path), tmp_path / "out"
    drivers = [start("run", study, "--out", root) for _ in range(2)]
    for driver in drivers:
        out, err = driver.communicate(timeout=600)
        assert driver.returncode == 0, out + err
    assert outcome(root) == whole[2]
    # A look at a cell that another one holds is an attempt, too; but each was trained, or audited, once.
    starts = [log.read_text().count("first votes over") for log in (root / "logs").glob("cce-*.log")]
    assert sorted(starts) == [0, 0, 1, 1]


def test_exported_commands_leave_the_same_folders_in_any_order_of_finishing(whole, tmp_path):
    study, root, commands = write_study(tmp_path), tmp_path / "out", tmp_path / "commands.txt"
    out, _ = run("run", study, "--out", root, "--export", commands)
    assert out == f"{commands}: 6 commands\n"
    assert not (root / "trainings").exists()
    shell = f"grep -v '^#' {commands} | xargs -d '\\n' -P 6 -n 1 sh -c"
    done = subprocess.run(["sh", "-c", shell], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert outcome(root) == whole[2]
    run("tables", study, "--out", root)
    assert tables(root) == whole[3]


def test_a_failed_cell_is_named_with_its_log_and_the_others_go_on(tmp_path):
    text = STUDY.replace("[base, cce]", "[base, cce, f2c]") + "seeds: [0]\n"
    text = text.replace("  max_steps: 6\n", "  max_steps: 2\n  methods: {f2c: {optim: galore_adamw}}\n")
    study, root = write_study(tmp_path, text), tmp_path / "out"
    _, err = run("run", study, "--out", root, "--tasks", "demo_clear", code=1)
    failed = re.search(r"^failed: f2c-clear_hotel_reviews-seed0: (.*) Log: (.*)$", err, re.M)
    assert "galore" in failed[1].lower()
    with open(failed[2], encoding="utf-8") as log:
        assert "Traceback" in log.read()
    assert "not run, as their training failed: f2c-clear_hotel_reviews-seed0" in err
    assert "Traceback" not in err
    out, _ = run("status", study, "--out", root)
    assert out.splitlines()[3].split() == ["all", "3", "0", "1", "1"]
    assert "failed: f2c-clear_hotel_reviews-seed0" in out


def test_a_worker_that_dies_takes_only_its_cell_with_it(tmp_path):
    study, root = write_study(tmp_path), tmp_path / "out"
    driver = start("run", study, "--out", root)
    wait_for(lambda: list(root.glob("trainings/*/checkpoints/checkpoint-2")))
    (worker,) = workers_of(driver)
    os.kill(worker, signal.SIGKILL)
    _, err = driver.communicate(timeout=600)
    assert driver.returncode == 1
    assert "failed: cce-clear_hotel_reviews-seed0: the worker died of signal SIGKILL Log: " in err
    assert len(outcome(root)) == 4
    run("run", study, "--out", root)
    assert len(outcome(root)) == 6


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_a_word(tmp_path, number, code):
    study, root = write_study(tmp_path, STUDY.replace("max_steps: 6", "max_steps: 400")), tmp_path / "out"
    driver = start("run", study, "--out", root)
    wait_for(lambda: list(root.glob("trainings/*/checkpoints/checkpoint-2/MANIFEST.json")))
    driver.send_signal(number)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == code
    assert err.endswith("stopped\n")
    assert "Traceback" not in err
    assert "stopped by a signal at step" in next((root / "logs").glob("cce-clear*.log")).read_text()
    assert not list((root / "claims").glob("*.*"))
