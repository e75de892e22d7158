"""The folder of a training run, which is checked before torch is imported."""

from pathlib import Path

from flip_flop.console import is_first_process
from flip_flop.errors import InputError
from flip_flop.files import lock
from flip_flop.record import MANIFEST, RUN_FILE, find_corruption

PLAN = "plan.json"
LOCK = ".lock"


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse an unusable folder before any other work, and leave it unchanged.

    Raises:
        InputError: ``E-OUT-BUSY`` if another process writes there, ``E-OUT-USED`` as in :func:`check_plan`.
    """
    # The processes have not joined yet, so only the launcher's environment has the rank.
    if (out / LOCK).exists() and is_first_process():
        with lock(out / LOCK, out):
            pass
    holds_run(out, resume=resume)


def holds_run(out: Path, *, resume: bool) -> bool:
    """Whether the folder has a result or a checkpoint. A run without either restarts."""
    if not (out / PLAN).exists():
        allowed = (LOCK, "checkpoints") if not any((out / "checkpoints").glob("*")) else (LOCK,)
        others = sorted(item.name for item in {*out.glob("*")} - leftovers(out) if item.name not in allowed)
        if others:
            raise InputError(
                "E-OUT-USED", f"{out} is not empty: {', '.join(others[:3])}.", "Choose another --out, or empty it."
            )
        return False
    if not (out / RUN_FILE).exists() and not complete_checkpoints(out / "checkpoints"):
        return False
    if not resume:
        raise InputError(
            "E-OUT-USED", f"{out} already contains a run.", "Add --resume to continue it, or choose another --out."
        )
    return True


def find_damage(out: Path) -> str | None:
    """Name the missing or changed file of a finished run; ``None`` if the run is complete or has not finished."""
    if (out / RUN_FILE).exists():
        return find_corruption(out)
    return None


def leftovers(out: Path) -> set[Path]:
    """Return the temporary files of processes that were killed while writing."""
    return {*out.glob(".*.tmp"), *out.glob(".*.old")}


def list_checkpoints(folder: Path) -> list[Path]:
    """List checkpoint folders, newest first, complete or not."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*") if path.is_dir()}
    return sorted((path for path in steps if steps[path].isdecimal()), key=lambda path: int(steps[path]), reverse=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints with a manifest, which is written last. The newest is first."""
    return [path for path in list_checkpoints(folder) if (path / MANIFEST).exists()]
