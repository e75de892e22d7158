"""Signals at any stage of a command: its outputs are whole or absent, and the next run ends as without a signal."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM, SIGXFSZ

from torture.forked import Ended, Stop, run
from torture.workplace import AUDIT, PREDICT, REPORT, STUDY, TRAIN, Outcome, adapter_of, debris, remove, results_of


@dataclass(frozen=True)
class Command:
    """A command, its output with parts that are whole or absent, and the options of another run."""

    arguments: list[str]
    out: str
    parts: Callable[[Path], dict[str, bytes]]
    again: tuple[str, ...] = ()
    first: tuple[list[str], ...] = ()  # what must be there before


def _page(out: Path) -> dict[str, bytes]:
    return {out.name: out.read_bytes()} if out.is_file() else {}


def _trained(out: Path) -> dict[str, bytes]:
    return {str(run.relative_to(out)): adapter_of(run) for run in sorted([out, *out.glob("trainings/*")])}


COMMANDS = {
    "train": Command(TRAIN, "run", _trained, ("--resume",)),
    "audit": Command(AUDIT, "audit", lambda out: {"metrics": results_of(out)}, ("--overwrite",)),
    "report": Command(REPORT, "page.html", _page, first=([*AUDIT, "--overwrite"],)),
    "predict": Command(PREDICT, "answers.csv", _page),
    "study": Command(STUDY, "studies", _trained),
}


@dataclass(frozen=True)
class Undisturbed:
    """A run without a signal: its seconds, changes of files, sizes of files and parts."""

    seconds: float
    changes: int
    sizes: tuple[int, ...]
    parts: dict[str, bytes]


def _at_any_time(usual: Undisturbed, rng: Random) -> Stop:
    return Stop(SIGKILL, after=rng.uniform(0, 1.1 * usual.seconds))


def _at_a_change(usual: Undisturbed, rng: Random) -> Stop:
    """At any change, or at one of the last ones, which give an output its name; over an older output there are more."""
    last = rng.randint(usual.changes - 12, usual.changes + 8)
    return Stop(SIGKILL, at_change=max(1, rng.choice((last, last, rng.randint(1, usual.changes)))))


def _in_a_write(usual: Undisturbed, rng: Random) -> Stop:
    size = rng.choice(usual.sizes)
    return Stop(SIGXFSZ, max_file_size=rng.choice((size - 1, size // 2, rng.randrange(size))))


def _signalled(usual: Undisturbed, rng: Random) -> Stop:
    draw = rng.choice((_at_any_time, _at_a_change))
    return replace(draw(usual, rng), number=rng.choice((SIGINT, SIGTERM)))


STOPS: dict[str, Callable[[Undisturbed, Random], Stop]] = {
    "SIGKILL": _at_any_time,
    "SIGKILL at a change of a file": _at_a_change,
    "SIGXFSZ in a write": _in_a_write,
    "SIGINT, SIGTERM": _signalled,
}


def stop_command(command: Command, folder: Path, count: int, rng: Random) -> Outcome:
    """Stop a command up to three times, half of the times over an older output, then run it to its end."""
    outcome, out = Outcome(f"signals: {command.arguments[0]}, then again", count), folder / command.out
    usual, kinds = _undisturbed(command, folder), rng.sample(sorted(STOPS), len(STOPS))
    for number in range(count):
        kind = kinds[number % len(kinds)]
        arguments, older = command.arguments, bool(command.again != ("--resume",) and rng.random() < 0.5)
        if older:
            arguments = [*arguments, *command.again]
        else:
            remove(out)
        for _ in range(rng.choice((1, 1, 2, 3))):
            stop = STOPS[kind](usual, rng)
            ended = run(arguments, folder, stop)
            what = f"{stop}: exit code {ended.code}: {ended.err[-200:]}"
            outcome.count(f"{kind}: {'finished' if ended.code == 0 else 'stopped'}")
            outcome.expect(not ended.wrong, f"{ended.wrong}, {what}")
            parts = command.parts(out)
            whole = all(part in (b"", usual.parts.get(part_name)) for part_name, part in parts.items())
            outcome.expect(whole, f"a part of an output under its name, {what}")
            outcome.expect(ended.code or parts == usual.parts, f"success without its output, {what}")
            outcome.expect(not older or _is_kept(command, out, usual), f"the older output is lost, {what}")
            if ended.code == 0 and command.again == ("--resume",):
                break
            arguments = [*command.arguments, *command.again]
        ended = run([*command.arguments, *command.again], folder)
        outcome.expect(ended.code == 0, f"again: exit code {ended.code}: {ended.err[-200:]}")
        outcome.expect(command.parts(out) == usual.parts, "another output than without a stop")
        outcome.expect(not debris(folder), f"left behind: {debris(folder)}")
    return outcome


def _is_kept(command: Command, out: Path, usual: Undisturbed) -> bool:
    """Whether an older output is whole, under its name or under the one from which the next run restores it."""
    places = [out, *out.parent.glob(f".{out.name}.*.old")]
    return any(command.parts(place) == usual.parts for place in places)


def _undisturbed(command: Command, folder: Path) -> Undisturbed:
    remove(folder / command.out)
    for arguments in command.first:
        run(arguments, folder)
    started = time.monotonic()
    ended: Ended = run(command.arguments, folder)
    seconds, out = time.monotonic() - started, folder / command.out
    parts = command.parts(out)
    if ended.code or not any(parts.values()):
        raise RuntimeError(f"{command.arguments[0]} without a signal ended with {ended.code}: {ended.err}")
    sizes = {file.stat().st_size for file in [out, *out.rglob("*")] if file.is_file()} - {0}
    return Undisturbed(seconds, ended.changes, tuple(sorted(sizes)), parts)


# How often each command is stopped in full.
ATTACKS = {
    f"stop-{name}": (functools.partial(stop_command, COMMANDS[name]), number)
    for name, number in {"train": 600, "audit": 400, "report": 200, "predict": 400, "study": 50}.items()
}
