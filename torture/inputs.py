"""Files with some bytes changed: read, or refused in one line, and soon; never an error of another kind."""

import contextlib
import json
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from flip_flop.errors import InputError
from flip_flop.paper.study_file import load_study
from flip_flop.record import RunRecord
from flip_flop.report import load_run
from flip_flop.scoring import load_model
from flip_flop.tasks import load_task
from flip_flop.training import F2CConfig
from flip_flop.training.checkpoints import latest_valid
from torture.forked import run
from torture.workplace import AUDIT, TRAIN, Outcome, remove

SECONDS = 5
# What no number is, and what some numbers are not.
NEVER = ("nan", "many", "", "2020-01-01", "[1]", "true")
SELDOM = ("-1", "0", "inf", "1e999", "0.5", "9" * 23)
WORDS = [b"null", b"-1", b"1e999", b"{}", b"[]", b'"', b"\x00", b"\xff", b"\xed\xa0\x80", b"&a", b"*a", b"!!x", b"{{"]
WORDS += [b"9" * 30, b"\xe2\x80\xae", b"\x1b[31m", b"NaN", b"[" * 300, b": ", b"\n- ", b"'" * 3, b"true", b"../.."]


def mutate_inputs(folder: Path, count: int, rng: Random) -> Outcome:
    """Mutate each kind of file in turn, and read it as its command does."""
    remove(folder / "run", folder / "audit")
    run(TRAIN, folder)
    run(AUDIT, folder)
    table = [json.loads(line) for line in (folder / "test.jsonl").read_text("utf-8").splitlines()]
    lines = [",".join(table[0]), *(",".join(map(str, row.values())) for row in table)]
    (folder / "test.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "csv.yaml").write_text((folder / "task.yaml").read_text("utf-8").replace("test.jsonl", "test.csv"))
    (folder / "input.csv").write_text("\n".join(lines), encoding="utf-8")
    checkpoint = folder / "run" / "checkpoints" / "checkpoint-6"
    readers: list[tuple[Path, Callable[[], object]]] = [
        (folder / "task.yaml", lambda: _render(folder / "task.yaml")),
        (folder / "test.jsonl", lambda: _render(folder / "task.yaml")),
        (folder / "test.csv", lambda: _render(folder / "csv.yaml")),
        (folder / "input.csv", lambda: load_task(str(folder / "task.yaml")).render_file(folder / "input.csv")),
        (folder / "study.yaml", lambda: load_study(str(folder / "study.yaml"))),
        (folder / "run" / "run.json", lambda: RunRecord.read(folder / "run")),
        (folder / "audit" / "run.json", lambda: load_run(folder / "audit")),
        (folder / "audit" / "metrics.json", lambda: load_run(folder / "audit")),
        (folder / "audit" / "scores.npz", lambda: load_run(folder / "audit")),
        (checkpoint / "MANIFEST.json", lambda: latest_valid(checkpoint.parent)),
        (folder / "run" / "adapter" / "adapter_config.json", lambda: _adapted(folder)),
    ]
    outcome = Outcome("mutated inputs", count)
    for number in range(count):
        # The adapter's is a hundred times slower than the others: it has a share of a hundredth.
        path, read = readers[-1] if number % 100 == 99 else readers[number % (len(readers) - 1)]
        content = path.read_bytes()
        path.write_bytes(mutated(content, rng))
        try:
            problem = problem_of(read)
            outcome.expect(problem is None, f"{path.name}: {problem}")
        finally:
            path.write_bytes(content)
    return outcome


def give_wrong_settings(folder: Path, count: int, rng: Random) -> Outcome:
    """Settings of a training with values that no setting has, or that few have."""
    out = folder / "run"
    numbers = [item.name for item in fields(F2CConfig) if re.search(r"\b(int|float)\b", str(item.type))]
    pairs = [(f"--{name.replace('_', '-')}", value) for name in numbers for value in (*NEVER, *SELDOM)]
    outcome = Outcome("wrong settings of a training", min(count, len(pairs)))
    for name, value in rng.sample(pairs, min(count, len(pairs))):
        remove(out)
        ended = run([*TRAIN, "--max-steps", "1", f"{name}={value}"], folder)
        what = f"{name} {value!r}: exit code {ended.code}: {ended.err[-300:]}"
        outcome.expect(not ended.wrong, f"{what}: {ended.wrong}")
        diverged = "E-NONFINITE" in ended.err  # a learning rate of 1e23 is found out by a step alone
        outcome.count("diverged" if diverged else "refused" if ended.code == 2 else "trained")
        outcome.expect(ended.code == 2 or (ended.code == 0 and value in SELDOM), what)
        taken = ended.code == 2 and not diverged and (out / "plan.json").exists()
        outcome.expect(not taken, f"{what}, and the folder is taken")
    return outcome


def _render(task: Path) -> object:
    return load_task(str(task)).render("test")


def _adapted(folder: Path) -> object:
    return load_model("demo", adapter=folder / "run" / "adapter", device="cpu")


def mutated(content: bytes, rng: Random) -> bytes:
    """Change some bytes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(changed) + 1)
        end = min(len(changed), start + rng.choice((0, 1, 1, 4, 30)))
        put = rng.choice((b"", bytes([rng.randrange(256)]), rng.choice(WORDS), bytes(changed[start:end]) * 2))
        changed[start:end] = put
    return bytes(changed)


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """All holders and keys in a JSON value."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places_of(value[key])


def problem_of(read: Callable[[], object], seconds: int = SECONDS) -> str | None:
    """Return what is wrong with a call: it takes too long, or raises an error other than an InputError of one line."""
    with _alarm(seconds):
        try:
            read()
        except InputError as error:
            return "more than one line" if "\n" in str(error) else None
        except TimeoutError:
            return f"more than {seconds} s"
        except Exception:
            return (
                traceback.format_exc().strip().splitlines()[-1] + " " + traceback.format_exc().splitlines()[-3].strip()
            )
    return None


@contextlib.contextmanager
def _alarm(seconds: int):  # type: ignore[no-untyped-def]
    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
