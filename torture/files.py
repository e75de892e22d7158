"""Damaged checkpoints, full disks, and two runs in one folder."""

import functools
import gzip
import shutil
from pathlib import Path
from random import Random

from flip_flop import files
from torture.forked import Run, run
from torture.workplace import AUDIT, REPORT, TRAIN, Outcome, adapter_of, damage, debris, remove, results_of


def damage_checkpoints(folder: Path, count: int, rng: Random) -> Outcome:
    """Every file that a resume may read: missing, empty, halved, and with one of 64 bits flipped.

    ``count`` is how many of all these damages are tried.
    """
    out, whole = folder / "run", folder / "whole"
    remove(out)
    run(TRAIN, folder)
    expected = adapter_of(out)
    for made_after_the_kill in (out / "run.json", out / "adapter", out / "checkpoints" / "checkpoint-6"):
        remove(made_after_the_kill)
    out.rename(whole)
    names = sorted(file.relative_to(whole) for file in whole.rglob("*") if file.is_file() and file.stat().st_size)
    damages = [(file, kind) for file in names for kind in ("missing", "empty", "halved", *["flipped"] * 64)]
    outcome = Outcome("damage: one file of a killed run", min(count, len(damages)))
    for file, kind in rng.sample(damages, outcome.attempts):
        remove(out)
        shutil.copytree(whole, out)
        damage(out / file, kind, rng)
        ended = run([*TRAIN, "--resume"], folder)
        outcome.expect(not ended.wrong, f"{file} {kind}: {ended.wrong}")
        outcome.count("refused" if ended.code else "resumed")
        same = adapter_of(out) == expected
        outcome.expect(ended.code or same, f"{file} {kind}: another adapter: {ended.err[-300:]}")
    remove(whole)
    return outcome


def damage_audits(folder: Path, count: int, rng: Random) -> Outcome:
    """Change a digit, a value or more in a file of an audit: a report refuses it, or is the same."""
    run([*AUDIT, "--overwrite"], folder)
    run(REPORT, folder)
    page, whole, out = folder / "page.html", folder / "whole", folder / "audit"
    remove(whole)
    expected = page.read_bytes()
    out.rename(whole)
    names = sorted(file.name for file in whole.iterdir() if file.name != "run.json")
    damages = [
        (name, kind) for name in names for kind in (*["digit"] * 40, *["flipped"] * 20, "halved", "missing", "empty")
    ]
    outcome = Outcome("damage: one file of an audit", count)
    for name, kind in rng.choices(damages, k=count):
        remove(out, page)
        shutil.copytree(whole, out)
        (_change_digit if kind == "digit" else functools.partial(damage, kind=kind))(out / name, rng=rng)
        ended = run(REPORT, folder)
        outcome.count(f"{kind}: {'refused' if ended.code else 'reported'}")
        outcome.expect(not ended.wrong, f"{name} {kind}: {ended.wrong}")
        outcome.expect(ended.code == 2 or page.read_bytes() == expected, f"{name} {kind}: another page")
    return outcome


def _change_digit(file: Path, rng: Random) -> None:
    """Change a digit of a text, or a number of an array, in a file that is otherwise valid."""
    if file.suffix == ".npz":
        arrays = files.read_arrays(file)
        name = rng.choice([name for name, array in arrays.items() if array.dtype.kind in "fiu" and array.size])
        arrays[name].flat[rng.randrange(arrays[name].size)] += 1
        files.write_arrays(file, **arrays)
        return
    content = file.read_bytes()
    is_packed = file.suffix == ".gz"
    text = bytearray(gzip.decompress(content) if is_packed else content)
    at = rng.choice([number for number, byte in enumerate(text) if chr(byte).isdigit()])
    text[at] = rng.choice([digit for digit in b"123456789" if digit != text[at]])
    file.write_bytes(gzip.compress(text) if is_packed else text)


def fill_disks(folder: Path, count: int, rng: Random) -> Outcome:
    """No file may grow over a limit: just below the size of each file that a command writes, and half of it."""
    outcome = Outcome("full disk: train, audit, report")
    remove(folder / "run", folder / "audit", folder / "page.html")
    steps = ((TRAIN, folder / "run"), (AUDIT, folder / "audit"), (REPORT, folder / "page.html"))
    for arguments, _ in steps:
        run(arguments, folder)
    adapter, metrics = adapter_of(folder / "run"), results_of(folder / "audit")
    expected = {"train": (adapter, b""), "audit": (b"", metrics), "report": (b"", metrics)}
    limits = [
        (arguments, out, limit)
        for arguments, out in steps
        for size in sorted({file.stat().st_size for file in [out, *out.rglob("*")] if file.is_file()})
        for limit in (size - 1, size // 2)
        if limit > 0
    ]
    for arguments, out, limit in rng.sample(limits, min(count, len(limits))):
        outcome.attempts += 1
        remove(folder / "run", out)
        if arguments is REPORT:
            run([*AUDIT, "--overwrite"], folder)
        else:
            remove(folder / "audit")
        ended = run(arguments, folder, room=limit)
        what = f"{arguments[0]}, at most {limit} bytes a file"
        outcome.expect(not ended.wrong, f"{what}: {ended.wrong}")
        outcome.expect(ended.code == 2 and "E-OS" in ended.err, f"{what}: exit code {ended.code}: {ended.err[-200:]}")
        outcome.expect(str(out.name) in ended.err or ended.code != 2, f"{what}: no path: {ended.err[-200:]}")
        again = {"train": ["--resume"], "audit": ["--overwrite"]}.get(arguments[0], [])
        ended = run([*arguments, *again], folder)
        outcome.expect(ended.code == 0, f"{what}, then with room: exit code {ended.code}: {ended.err[-200:]}")
        result = (adapter_of(folder / "run"), results_of(folder / "audit"))
        outcome.expect(result == expected[arguments[0]], f"{what}, then with room: another result")
        outcome.expect(not debris(folder), f"{what}: left behind: {debris(folder)}")
    return outcome


def race(folder: Path, count: int, rng: Random) -> Outcome:
    """Two runs into one folder at once: one does it, the other one is refused."""
    outcome = Outcome("race: two audits or trainings in one folder", count)
    for number in range(count):
        remove(folder / "audit", folder / "run")
        arguments = AUDIT if number % 4 else TRAIN
        both = [Run(arguments, folder) for _ in range(2)]
        ended = [each.wait() for each in both]
        codes = sorted(each.code for each in ended)
        outcome.expect(codes == [0, 2], f"{arguments[0]}: exit codes {codes}: {[each.err[-200:] for each in ended]}")
        for each in ended:
            outcome.expect(not each.wrong, f"{arguments[0]}: {each.wrong}")
        outcome.expect(not debris(folder), f"left behind: {debris(folder)}")
    return outcome
