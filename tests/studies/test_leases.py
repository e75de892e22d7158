"""Leases: one holder at a time, none that outlives its process."""

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.pool import ThreadPool

import pytest

from flip_flop_paper.leases import Holder, Leases
from tests.studies.running import write_lease
from tests.waiting import wait_for

HOLD = """\
import sys, time
from pathlib import Path
from flip_flop_paper.leases import Leases
with Leases(Path(sys.argv[1])).acquire("unit") as acquired:
    print(acquired, flush=True)
    time.sleep(60)
"""


def can_acquire(leases, name="unit"):
    with leases.acquire(name) as acquired:
        return acquired


def test_a_lease_is_held_until_it_is_given_back(tmp_path):
    leases = Leases(tmp_path / "leases")
    assert (leases.is_held("unit"), leases.holder("unit")) == (False, None)
    with leases.acquire("unit") as acquired:
        assert acquired
        assert leases.is_held("unit")
        assert str(leases.holder("unit")) == f"process {os.getpid()} on {socket.gethostname()}"
        assert not leases.is_held("unit-2")
        assert not can_acquire(Leases(tmp_path / "leases"))
        assert can_acquire(leases, "other")
    assert not leases.is_held("unit")
    with pytest.raises(RuntimeError), leases.acquire("unit"):
        raise RuntimeError
    assert can_acquire(leases)
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_killed_holder_blocks_nobody(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    leases = Leases(tmp_path)
    try:
        assert process.stdout.readline() == "True\n"
        assert leases.is_held("unit")
        assert not can_acquire(leases)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (tmp_path / "unit.0").exists()
    assert not leases.is_held("unit")
    assert leases.left_by(leases.holder("unit")) == {"unit"}
    assert leases.left_by(Holder.of(os.getpid())) == set()
    with leases.acquire("unit") as acquired:
        assert acquired
        assert (tmp_path / "unit.1").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_got_the_number_of_a_dead_one_is_not_the_holder(tmp_path):
    write_lease(tmp_path, "unit", start_time="1")
    assert can_acquire(Leases(tmp_path))


@pytest.mark.parametrize(("age", "is_held"), [(0, True), (170, True), (190, False)])
def test_a_holder_on_another_machine_counts_while_it_touches_its_lease(tmp_path, age, is_held):
    write_lease(tmp_path, "unit", boot_id="another", age=age)
    assert Leases(tmp_path).is_held("unit") == is_held
    assert can_acquire(Leases(tmp_path)) != is_held


def test_a_holder_touches_its_lease(tmp_path):
    with Leases(tmp_path, heartbeat_seconds=0.02).acquire("unit"):
        os.utime(tmp_path / "unit.0", (1, 1))
        wait_for(lambda: (tmp_path / "unit.0").stat().st_mtime >= 2, seconds=10)


@pytest.mark.parametrize("content", ["", "[]", '{"kernel": 1}'])
def test_a_lease_that_cannot_be_read_counts_for_a_while(tmp_path, content):
    path = write_lease(tmp_path, "unit")
    path.write_text(content)
    assert (Leases(tmp_path).is_held("unit"), Leases(tmp_path).holder("unit")) == (True, None)
    os.utime(path, (1, 1))
    assert can_acquire(Leases(tmp_path))


def test_who_finds_another_holder_after_its_lease_withdraws(tmp_path, monkeypatch):
    write_lease(tmp_path, "unit", generation=3)
    leases = Leases(tmp_path)
    monkeypatch.setattr(leases, "_newest", lambda name: None)  # as it was before the other one came
    assert not can_acquire(leases)
    assert [path.name for path in tmp_path.iterdir()] == ["unit.3"]


def test_a_holder_gives_back_its_own_lease_alone(tmp_path):
    with Leases(tmp_path).acquire("unit") as acquired:
        assert acquired
        later = write_lease(tmp_path, "unit", generation=1, boot_id="another")
        write_lease(
            tmp_path, "unit", generation=0, boot_id="another"
        )  # it slept, counted as dead, and its number was taken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unit.0", later.name]


def test_only_one_of_many_takes_what_a_dead_one_left(tmp_path):
    for turn in range(20):
        folder = tmp_path / str(turn)
        write_lease(folder, "unit", generation=3, start_time="1")
        with ThreadPool(8) as pool:
            taken = pool.map(lambda _, at=folder: Leases(at)._create("unit"), range(8))
        assert [path.name for path in taken if path is not None] == ["unit.4"]
