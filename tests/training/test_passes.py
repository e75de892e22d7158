"""The same weights score the same rows once, and every pass shows its progress."""

import io
import itertools
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from flip_flop import train
from flip_flop.console import track
from flip_flop.evaluation.audit import audit
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import RowsSource
from flip_flop.training import votes
from flip_flop.training.config import make_config
from flip_flop.training.run import ShowProgress
from tests.training.conftest import (
    load_tiny,
    make_task,
    make_trainer,
    randomize,
    record_of,
    rows,
    settings,
    training_rows,
)


@pytest.fixture
def passes(monkeypatch):
    """The scoring passes, by the label of their progress bar."""
    counted, score_instances = Counter(), votes.score_instances

    def counting(*arguments, label, **keywords):
        counted[label] += 1
        return score_instances(*arguments, label=label, **keywords)

    monkeypatch.setattr(votes, "score_instances", counting)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"eval_steps": 1},
            {"base votes": 1, "validation": 4},
        ),  # 5 evaluations: the learning rate of the first step is 0
        ({"eval_strategy": "no"}, {"base votes": 1, "offsets of predict --with": 1}),
    ],
)
def test_a_training_scores_each_state_once(out, passes, changes, expected):
    task = make_task(64)
    task = replace(task, data={**task.data, "validation": RowsSource(rows(60, 100), "made rows")})
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "lora_r": 4, "stop_on_collapse": False}
    config = make_config({**settings, "early_stopping_start": 20, "use_cpu": True, **changes})
    train(load_tiny(), task, config, out, quiet=True, keep_worse=True)
    assert dict(passes) == expected
    validation = record_of(out)["training"]["validation"]
    assert (validation is None) is (changes.get("eval_strategy") == "no")


def test_changed_weights_are_scored_again(tmp_path, passes):
    trainer = make_trainer(tmp_path, eval_rows=training_rows(count=5))
    before = [trainer.evaluate(), trainer.evaluate()]
    assert passes == {"validation": 1}
    assert before[0] == before[1]
    randomize(trainer, 1.0)
    assert trainer.evaluate() != before[0]
    assert passes == {"validation": 2}


PASSES = {"encoding train", "encoding validation", "base votes", "validation", "f2c"}
CALIBRATED = {"votes": "frozen", "vote_calibration": "batch", "max_steps": 3, "batch_tokens": 64}


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


def run(out, *, quiet):
    """Train with its progress shown."""
    train(load_tiny(), make_task(), settings(**CALIBRATED), out, quiet=quiet, keep_worse=True)


@pytest.fixture
def slow_clock(monkeypatch):
    """Half a minute passes whenever someone reads the time."""
    readings, started = itertools.count(), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: started + 30 * next(readings))


@pytest.mark.slow
def test_log_has_lines_for_every_pass(out, capsys, slow_clock):
    run(out, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines if " left" in line} == PASSES
    assert "base votes: 12 of 12 instances" in lines


@pytest.mark.slow
def test_terminal_has_a_bar_for_every_pass(out, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(out, quiet=False)
    assert set(re.findall(r"([a-z0-9 ]+):\s+\d+%", sys.stderr.getvalue())) == PASSES


@pytest.mark.slow
def test_quiet_training_shows_no_progress(out, monkeypatch, slow_clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(out, quiet=True)
    assert not re.search(r"instances|steps|P_o", sys.stderr.getvalue())


# ---- progress ----


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests advance."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    return found


def test_long_work_has_a_line_at_once_then_each_minute_and_at_its_end(clock, capsys):
    with track("audit", 100, "instances") as done:
        for _ in range(10):
            clock.now += 25
            done(10)
    assert capsys.readouterr().err.splitlines() == [
        "audit: 10 of 100 instances, 3.8 min left",
        "audit: 40 of 100 instances, 2.5 min left",
        "audit: 70 of 100 instances, 1.2 min left",
        "audit: 100 of 100 instances",
    ]


@pytest.mark.parametrize(
    ("seconds", "lines"), [(2, []), (5, ["audit: 1 of 2 instances, 5.0 s left", "audit: 2 of 2 instances"])]
)
def test_work_of_more_than_four_seconds_has_a_sign_of_life(seconds, lines, clock, capsys):
    with track("audit", 2, "instances") as done:
        for _ in range(2):
            clock.now += seconds
            done(1)
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize("quiet", [False, True])
def test_passes_after_the_scores_of_an_audit_have_lines_too(monkeypatch, capsys, quiet):
    readings, started = itertools.count(), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: started + 60 * next(readings))
    audit(load_tiny(dtype=torch.bfloat16), make_task(), scoring=ScoringOptions(batch_tokens=64), quiet=quiet)
    found = {line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if " instances" in line}
    assert found == (set() if quiet else {"audit", "self-check"})


def test_a_training_has_a_line_each_minute_with_step_loss_and_time_left(clock, capsys):
    trainer, state = SimpleNamespace(step_loss=0.0), TrainerState(global_step=20, max_steps=100)
    shown = ShowProgress("f2c", trainer)
    shown.on_train_begin(None, state, None)  # resumed at step 20
    for step in range(21, 31):
        clock.now += 10
        state.global_step, trainer.step_loss = step, step / 10
        shown.on_step_end(None, state, None)
    shown.on_train_end(None, state, None)
    assert capsys.readouterr().err.splitlines() == [
        "f2c: 1 of 80 steps, loss 2.100, 13.2 min left",
        "f2c: 7 of 80 steps, loss 2.700, 12.2 min left",
    ]
