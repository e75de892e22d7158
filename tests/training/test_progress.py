"""Progress of training: every pass has a name, a bar on a terminal, and a line each minute in a log."""

import io
import itertools
import re
import sys
import time

import pytest

from flip_flop.training import train
from tests.training.conftest import load_tiny, make_task, settings

PASSES = {"encoding train", "encoding validation", "base votes", "validation", "f2c"}
CALIBRATED = {"votes": "frozen", "vote_calibration": "batch", "max_steps": 3, "batch_tokens": 64}


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


def run(out, *, quiet):
    train(load_tiny(), make_task(), settings(**CALIBRATED), out, quiet=quiet, keep_worse=True)


@pytest.fixture
def slow_clock(monkeypatch):
    """Half a minute passes whenever someone reads the time."""
    readings, started = itertools.count(), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: started + 30 * next(readings))


def test_log_has_lines_for_every_pass(out, capsys, slow_clock):
    run(out, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines if " left" in line} == PASSES
    assert "base votes: 12 of 12 instances" in lines


def test_terminal_has_a_bar_for_every_pass(out, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(out, quiet=False)
    assert set(re.findall(r"([a-z0-9 ]+):\s+\d+%", sys.stderr.getvalue())) == PASSES


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_training_shows_no_progress(out, monkeypatch, slow_clock, terminal):
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    run(out, quiet=True)
    assert not re.search(r"instances|steps|P_o", sys.stderr.getvalue())
