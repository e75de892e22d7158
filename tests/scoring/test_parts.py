"""A stopped run continues with the scores that it has stored."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flip_flop import LoadedModel, audit, load_model, load_task
from flip_flop.files import write_answer
from flip_flop.scoring import ScoringOptions, parts, scores
from tests.cli.project import make_project
from tests.processes import command, end, start
from tests.refused import refused

SMALL = ScoringOptions(batch_tokens=100)
OUTPUTS = ("metrics.json", "scores.npz", "instances.jsonl.gz")
OF_TIME = ("seconds", "created")  # of run.json: all that may differ
KEEP_ANSWERS = LoadedModel.keep_answers  # other tests keep none


def log_passes(patch, log, *, until=None, stop=None):
    """Append the ids of each forward pass to a list. After ``until`` of them, ``stop()``."""
    compute, add, latest = scores.answer_states, parts.Parts.add, []

    def computed(model, members, **how):
        latest[:] = [member.id for member in members]
        return compute(model, members, **how)

    def logged(self, key, answers):  # without the checks of some scores
        log.append([*latest])
        if len(log) == until:
            stop()
        add(self, key, answers)

    patch.setattr(scores, "answer_states", computed)
    patch.setattr(parts.Parts, "add", logged)
    patch.setattr(parts, "SECONDS", 0)
    return log


class File(list):
    """A list whose items survive the process."""

    def append(self, item):
        with Path("passes.jsonl").open("a") as file:
            file.write(json.dumps(item) + "\n")
        super().append(item)


def audit_until(passes, number):
    """``flip-flop audit``, which gets a signal after so many forward passes, or when it names its output."""

    def stop():
        os.kill(os.getpid(), number)

    log_passes(pytest.MonkeyPatch(), File(), until=passes, stop=stop)
    if passes == "written":
        sys.addaudithook(lambda event, names: event == "os.rename" and str(names[1]).endswith("out") and stop())
    how = ("--device", "cpu", "--batch-tokens", "100", "--out", "out")
    command("audit", "--model", "demo", "--task", "tickets.yaml", *how)


def results(run):
    record = json.loads((run / "run.json").read_text())
    same = {name: value for name, value in record.items() if name not in OF_TIME}
    return same, [(run / name).read_bytes() for name in OUTPUTS]


STOPS = [(2, "SIGKILL"), (1, "SIGINT"), (2, "SIGTERM"), ("written", "SIGTERM"), ("written", "SIGKILL")]


@pytest.mark.slow
def test_a_killed_audit_continues_and_its_files_are_those_of_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(make_project(tmp_path))
    passes, output, cache = Path("passes.jsonl"), Path("output.txt"), tmp_path / "cache"

    def run(stop, name):
        process = start(audit_until, stop, getattr(signal, name), output=output, XDG_CACHE_HOME=str(cache))
        (code,) = end([process])
        return code

    assert run(None, "SIGKILL") == 0
    expected = results(tmp_path / "out")
    once = [json.loads(line) for line in passes.read_text().splitlines()]
    assert len(once) > 6
    assert not list(cache.rglob("*.jsonl"))
    shutil.rmtree("out")
    passes.unlink()
    assert [run(*stop) for stop in STOPS] == [-9, 130, 143, 143, -9]
    assert output.read_text().count("The scores so far are stored. Run the command again to continue.") == 1
    read = [json.loads(line) for line in passes.read_text().splitlines()]
    cut = [read[number] for number in (1, 2, 4)]  # the pass in which a signal came
    assert sorted(map(sorted, read)) == sorted(map(sorted, once + cut))
    shutil.rmtree("out", ignore_errors=True)
    assert run(None, "SIGKILL") == 0
    assert len(passes.read_text().splitlines()) == len(read)
    assert results(tmp_path / "out") == expected
    assert not list(cache.rglob("*.jsonl"))


class Interrupted(RuntimeError):
    """The end of a run that a test asks for."""


def interrupt():
    raise Interrupted


@pytest.fixture
def task(tmp_path):
    return load_task(make_project(tmp_path / "project") / "tickets.yaml")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(LoadedModel, "keep_answers", KEEP_ANSWERS)
    return tmp_path / "cache"


def stopped(monkeypatch, cache, task, passes=4, **how):
    """Stop an audit after some passes, and return the file of its scores."""
    before = set(cache.rglob("*.scores.jsonl"))
    with monkeypatch.context() as patch:
        log_passes(patch, [], until=passes, stop=interrupt)
        with pytest.raises(Interrupted):
            audit("demo", task, quiet=True, **({"scoring": SMALL} | how))
    (file,) = set(cache.rglob("*.scores.jsonl")) - before
    return file


def continued(monkeypatch, task, **how):
    """Return the scores of an audit, and the number of its forward passes."""
    with monkeypatch.context() as patch:
        log = log_passes(patch, [])
        return audit("demo", task, quiet=True, **({"scoring": SMALL} | how)).scores, len(log)


def change_score(text):
    line = json.loads(text.splitlines()[1])
    line[1][0][0][0] += 1
    return f"{json.dumps(line)}\n"


DAMAGES = {
    "cut": lambda text: text[:-40],
    "another score": change_score,
    "no text": lambda text: "\x00\ud800".join(text),
    "empty": lambda text: "",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_parts_are_scored_again(monkeypatch, cache, task, damage):
    expected, count = continued(monkeypatch, task)
    file = stopped(monkeypatch, cache, task)
    damaged = DAMAGES[damage](file.read_text())
    file.write_bytes(damaged.encode("utf-8", "surrogatepass"))
    found, left = continued(monkeypatch, task)
    assert count - 3 < left <= count
    np.testing.assert_array_equal(found, expected)
    assert not file.exists()
    assert continued(monkeypatch, task)[1] == count  # a new audit measures again


def test_parts_belong_to_one_model_its_prompts_and_settings(monkeypatch, cache, task):
    file = stopped(monkeypatch, cache, task)
    others = {
        "batch": {"scoring": ScoringOptions(batch_tokens=101)},
        "backend": {"scoring": ScoringOptions(batch_tokens=100, backend="padded")},
        "rows": {"limit": 8},
    }
    for change, how in others.items():
        expected, count = continued(monkeypatch, task, **how)
        other = stopped(monkeypatch, cache, task, passes=2, **how)
        shutil.copy(file, other)
        found, left = continued(monkeypatch, task, **how)
        assert left == count, change
        np.testing.assert_array_equal(found, expected)
    assert file.exists()
    half = load_model("demo", dtype="bfloat16").keep_answers()
    assert half.store.name != load_model("demo").keep_answers().store.name


def test_stored_scores_that_the_model_does_not_give_are_refused_once(monkeypatch, cache, task):
    expected, count = continued(monkeypatch, task)
    file = stopped(monkeypatch, cache, task, passes=count)
    for line in filter(None, file.read_text().splitlines()):
        key, table, _ = json.loads(line)
        write_answer(file, key, (np.array(table) - 1).tolist())
    refused("E-SELF-CHECK", audit, "demo", task, scoring=SMALL, quiet=True)
    found, left = continued(monkeypatch, task)
    assert left == count
    np.testing.assert_array_equal(found, expected)


def test_an_audit_that_memory_has_divided_continues(monkeypatch, cache, task):
    loaded, wide = load_model("demo").keep_answers(), ScoringOptions(batch_tokens=1000)

    def refuse(module, given, named):
        if named["input_ids"].numel() > 200:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    loaded.model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    expected = audit(loaded, task, scoring=wide, quiet=True).scores
    with monkeypatch.context() as patch:
        first = log_passes(patch, [], until=2, stop=interrupt)
        with pytest.raises(Interrupted):
            audit(loaded, task, scoring=wide, quiet=True)
    rest = log_passes(monkeypatch, [])
    np.testing.assert_array_equal(audit(loaded, task, scoring=wide, quiet=True).scores, expected)
    scored = [name for members in first[:1] + rest for name in members]
    assert len(scored) == len(set(scored)) == 9


def test_an_audit_needs_no_cache(monkeypatch, cache, task):
    cache.write_text("a file, and no folder")
    found, count = continued(monkeypatch, task)
    assert count > 6
    np.testing.assert_array_equal(found, audit(load_model("demo"), task, scoring=SMALL, quiet=True).scores)


def test_an_estimate_neither_reads_nor_writes_parts(monkeypatch, cache, task, tmp_path, flip_flop):
    file = stopped(monkeypatch, cache, task)
    before = file.read_bytes()
    how = ("--batch-tokens", "100", "--dry-run", "--out", tmp_path / "none")
    assert flip_flop("audit", "--model", "demo", "--task", tmp_path / "project" / "tickets.yaml", *how).code == 0
    assert file.read_bytes() == before
