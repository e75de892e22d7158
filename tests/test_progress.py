"""Without a terminal, progress prints a line each minute with the remaining time."""

import itertools
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from flip_flop.console import track
from flip_flop.evaluation.audit import audit
from flip_flop.scoring.options import ScoringOptions
from flip_flop.training.run import ShowProgress
from tests.training.conftest import load_tiny, make_task


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests advance."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    return found


def test_long_work_has_a_line_each_minute_and_one_at_its_end(clock, capsys):
    with track("audit", 100, "instances") as done:
        for _ in range(10):
            clock.now += 25
            done(10)
    assert capsys.readouterr().err.splitlines() == [
        "audit: 30 of 100 instances, 2.9 min left",
        "audit: 60 of 100 instances, 1.7 min left",
        "audit: 90 of 100 instances, 25.0 s left",
        "audit: 100 of 100 instances",
    ]


@pytest.mark.parametrize("quiet", [False, True])
def test_passes_after_the_scores_of_an_audit_have_lines_too(monkeypatch, capsys, quiet):
    readings, started = itertools.count(), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: started + 60 * next(readings))
    audit(load_tiny(dtype=torch.bfloat16), make_task(), scoring=ScoringOptions(batch_tokens=64), quiet=quiet)
    found = {line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if " instances" in line}
    assert found == (set() if quiet else {"audit", "self-check"})


def test_a_training_has_a_line_each_minute_with_step_loss_and_time_left(clock, capsys):
    shown, state = ShowProgress("f2c"), TrainerState(global_step=20, max_steps=100)
    shown.on_train_begin(None, state, None)  # resumed at step 20
    for step in range(21, 31):
        clock.now += 10
        state.global_step = step
        shown.on_step_end(None, state, None)
        shown.on_log(None, state, None, {"loss": step / 10})
    shown.on_train_end(None, state, None)
    assert capsys.readouterr().err.splitlines() == ["f2c: 6 of 80 steps, loss 2.500, 12.3 min left"]
