"""A training run's folder: who may write into it, and whether it is free. No torch, but for who holds a lock."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from flip_flop import files
from flip_flop.errors import InputError
from flip_flop.record import RUN_FILE
from flip_flop.training.checkpoints import MANIFEST, list_checkpoints

PLAN, LOCK = "plan.json", ".lock"


@contextlib.contextmanager
def lock(out: Path) -> Iterator[None]:
    """Lock the folder as long as this process lives; of several that train together, rank 0 holds it for all.

    Raises:
        InputError: ``E-OUT-BUSY`` where another process holds it.
    """
    from flip_flop.scoring.distributed import rank  # torch, for which a folder that is not locked does not wait

    if rank() > 0:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with files.lock(out / LOCK, out):
        for leftover in [*out.glob(".*.tmp"), *out.glob(".*.old")]:  # of a process that was killed while it wrote
            files.remove(leftover)
        yield


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse a folder before anything is read or computed, and leave it as it is.

    Raises:
        InputError: ``E-OUT-PATH`` for a file, ``E-OUT-BUSY`` where another process writes there, and ``E-OUT-USED`` as
            :func:`~flip_flop.training.plan.check_plan`.
    """
    if out.is_file():
        raise InputError("E-OUT-PATH", f"{out} is a file.", "Give a folder.")
    # Before torch is imported, a process that a launcher started knows its rank from the environment alone.
    if (out / LOCK).exists() and os.environ.get("RANK", "0") == "0":
        with files.lock(out / LOCK, out):
            pass
    holds_run(out, resume=resume)


def holds_run(out: Path, *, resume: bool) -> bool:
    """Whether the folder holds a run that a resumed one must be the same as."""
    if not (out / PLAN).exists():
        own = (LOCK, "checkpoints") if not any((out / "checkpoints").glob("*")) else (LOCK,)
        others = sorted(item.name for item in out.glob("*") if item.name not in own)
        if others:
            message = f"{out} is not empty: {', '.join(others[:3])}."
            raise InputError("E-OUT-USED", message, "Give another --out, or empty it.")
        return False
    checkpoints = list_checkpoints(out / "checkpoints")
    if not (out / RUN_FILE).exists() and not any((path / MANIFEST).exists() for path in checkpoints):
        return False
    if not resume:
        hint = "Add --resume to go on with it, or give another --out."
        raise InputError("E-OUT-USED", f"{out} holds a run already.", hint)
    return True
