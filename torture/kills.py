"""SIGKILL at a random moment: what is there afterwards is whole, and the next run gives the result of no kill."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from torture.forked import Run, run
from torture.workplace import AUDIT, REPORT, STUDY, TRAIN, Outcome, adapter_of, debris, remove, results_of


def kill_trainings(folder: Path, count: int, rng: Random) -> Outcome:
    """Kill a training up to three times, and resume it."""
    outcome, out = Outcome("kill: train, then --resume", count), folder / "run"
    seconds, expected = _reference(folder, TRAIN, lambda: adapter_of(out))
    for _ in range(count):
        remove(out)
        arguments = TRAIN
        while rng.random() < 0.7 or arguments is TRAIN:
            ended = Run(arguments, folder).wait(kill_after=rng.uniform(0, 1.1 * seconds))
            outcome.expect(not ended.wrong, f"killed: {ended.wrong}")
            if ended.code == 0:
                break
            arguments = [*TRAIN, "--resume"]
        _run_again(outcome, folder, [*TRAIN, "--resume"])
        outcome.expect(adapter_of(out) == expected, "another adapter than without a kill")
    return outcome


def kill_audits(folder: Path, count: int, rng: Random) -> Outcome:
    """Kill an audit, and run it again."""
    outcome, out = Outcome("kill: audit, then again", count), folder / "audit"
    seconds, expected = _reference(folder, AUDIT, lambda: results_of(out))
    for _ in range(count):
        remove(out)
        Run(AUDIT, folder).wait(kill_after=rng.uniform(0, 1.1 * seconds))
        outcome.expect(results_of(out) in (b"", expected), "a part of an audit under its name")
        _run_again(outcome, folder, [*AUDIT, "--overwrite"])
        outcome.expect(results_of(out) == expected, "other metrics than without a kill")
    return outcome


def kill_reports(folder: Path, count: int, rng: Random) -> Outcome:
    """Kill a report, and write it again."""
    outcome, page = Outcome("kill: report, then again", count), folder / "page.html"
    run([*AUDIT, "--overwrite"], folder)
    seconds, _ = _reference(folder, REPORT, page.exists)
    for _ in range(count):
        remove(page)
        Run(REPORT, folder).wait(kill_after=rng.uniform(0, 1.1 * seconds))
        outcome.expect(not page.exists() or page.read_text("utf-8").rstrip().endswith("</html>"), "a part of a page")
        _run_again(outcome, folder, REPORT)
    return outcome


def kill_studies(folder: Path, count: int, rng: Random) -> Outcome:
    """Kill a study with its workers, and run it again."""
    outcome, out = Outcome("kill: study run, then again", count), folder / "studies"
    seconds, expected = _reference(folder, STUDY, lambda: _trained(out))
    for _ in range(count):
        remove(out)
        Run(STUDY, folder).wait(kill_after=rng.uniform(0, 1.1 * seconds))
        _run_again(outcome, folder, STUDY)
        outcome.expect(_trained(out) == expected, "another adapter than without a kill")
    return outcome


def _trained(studies: Path) -> list[bytes]:
    return [adapter_of(training) for training in sorted(studies.glob("trainings/*"))]


def _run_again(outcome: Outcome, folder: Path, arguments: list[str]) -> None:
    """What was killed, to its end this time: it succeeds, and leaves nothing temporary."""
    ended = run(arguments, folder)
    outcome.expect(ended.code == 0, f"again: exit code {ended.code}: {ended.err[-200:]}")
    outcome.expect(not debris(folder), f"left behind: {debris(folder)}")


def _reference(folder: Path, arguments: list[str], result: Callable[[], object]) -> tuple[float, object]:
    """How long a run takes, and what it gives."""
    started = time.monotonic()
    ended = run(arguments, folder)
    if ended.code or not result():
        raise RuntimeError(f"{arguments[0]} without a kill ended with {ended.code}: {ended.err}")
    return time.monotonic() - started, result()
