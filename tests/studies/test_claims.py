"""Claims: one holder at a time, none that outlives its process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.pool import ThreadPool

import pytest

from flip_flop.studies.claims import Claims, Holder
from tests.waiting import wait_for

HOLD = """\
import sys, time
from pathlib import Path
from flip_flop.studies.claims import Claims
with Claims(Path(sys.argv[1])).hold("cell") as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def held_elsewhere(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    return process


def write_claim(folder, generation=0, age=0.0, **changes):
    folder.mkdir(exist_ok=True)
    path = folder / f"cell.{generation}"
    path.write_text(json.dumps(vars(Holder.me()) | changes))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def take(claims, name="cell"):
    with claims.hold(name) as mine:
        return mine


def test_a_claim_is_held_until_it_is_given_back(tmp_path):
    claims = Claims(tmp_path / "claims")
    assert not claims.is_held("cell")
    with claims.hold("cell") as mine:
        assert mine
        assert claims.is_held("cell")
        assert not claims.is_held("cell-2")
        assert not take(Claims(tmp_path / "claims"))
        assert take(claims, "other")
    assert not claims.is_held("cell")
    assert take(claims)
    assert list((tmp_path / "claims").iterdir()) == []


def test_an_error_gives_the_claim_back(tmp_path):
    claims = Claims(tmp_path)
    with pytest.raises(RuntimeError), claims.hold("cell"):
        raise RuntimeError
    assert take(claims)


def test_a_killed_holder_blocks_nobody(tmp_path):
    process = held_elsewhere(tmp_path)
    claims = Claims(tmp_path)
    try:
        assert claims.is_held("cell")
        assert not take(claims)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (tmp_path / "cell.0").exists()
    assert not claims.is_held("cell")
    with claims.hold("cell") as mine:
        assert mine
        assert (tmp_path / "cell.1").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_got_the_number_of_a_dead_one_is_not_the_holder(tmp_path):
    write_claim(tmp_path, began="1")
    assert take(Claims(tmp_path))


@pytest.mark.parametrize(("age", "is_held"), [(0, True), (170, True), (190, False)])
def test_a_holder_on_another_machine_counts_while_it_touches_its_claim(tmp_path, age, is_held):
    write_claim(tmp_path, kernel="another", age=age)
    assert Claims(tmp_path).is_held("cell") == is_held
    assert take(Claims(tmp_path)) != is_held


def test_a_holder_touches_its_claim(tmp_path):
    with Claims(tmp_path, beat_seconds=0.02).hold("cell"):
        os.utime(tmp_path / "cell.0", (1, 1))
        wait_for(lambda: (tmp_path / "cell.0").stat().st_mtime >= 2, seconds=10)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kernel": 1}'])
def test_a_claim_that_says_nothing_counts_for_a_while(tmp_path, content):
    path = write_claim(tmp_path)
    path.write_text(content)
    assert Claims(tmp_path).is_held("cell")
    os.utime(path, (1, 1))
    assert take(Claims(tmp_path))


def test_a_claim_that_was_given_back_this_moment_is_left_to_the_next_look(tmp_path, monkeypatch):
    claims = Claims(tmp_path)
    monkeypatch.setattr(claims, "_newest", lambda name: tmp_path / "cell.5")
    assert not take(claims)
    assert list(tmp_path.iterdir()) == []


def test_who_finds_another_holder_after_its_claim_withdraws(tmp_path, monkeypatch):
    write_claim(tmp_path, generation=3)
    claims = Claims(tmp_path)
    monkeypatch.setattr(claims, "_newest", lambda name: None)  # as it was before the other one came
    assert not take(claims)
    assert [path.name for path in tmp_path.iterdir()] == ["cell.3"]


def test_a_holder_gives_back_its_own_claim_alone(tmp_path):
    with Claims(tmp_path).hold("cell") as mine:
        assert mine
        later = write_claim(tmp_path, generation=1, kernel="another")
        write_claim(tmp_path, generation=0, kernel="another")  # it slept, counted as dead, and its number was taken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cell.0", later.name]


def test_the_holder_of_a_claim_is_named(tmp_path):
    claims = Claims(tmp_path)
    assert claims.holder("cell") is None
    with claims.hold("cell"):
        assert str(claims.holder("cell")) == f"process {os.getpid()} on {socket.gethostname()}"
    path = write_claim(tmp_path)
    path.write_text("")
    assert claims.holder("cell") is None


def test_only_one_of_many_takes_what_a_dead_one_left(tmp_path):
    for turn in range(20):
        folder = tmp_path / str(turn)
        write_claim(folder, generation=3, began="1")
        with ThreadPool(8) as pool:
            taken = pool.map(lambda _, at=folder: Claims(at)._take("cell"), range(8))
        assert [path.name for path in taken if path is not None] == ["cell.4"]
