"""Checkpoints that are whole or do not count: a manifest, written last, with the digest of every file."""

import json
import os
import shutil
from pathlib import Path

from flip_flop.files import fsync_folder, sha256_file, write_json

MANIFEST = "MANIFEST.json"


def seal(checkpoint: Path) -> None:
    """Flush every file of a checkpoint, then write its manifest. Without one the folder is no checkpoint."""
    digests = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            digests[str(file.relative_to(checkpoint))] = {
                "size": file.stat().st_size,
                "sha256": sha256_file(file),
            }
    fsync_folder(checkpoint)
    write_json(checkpoint / MANIFEST, digests)


def fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be trusted; ``None`` where every file is as it was sealed."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not finished"
    except (OSError, ValueError):
        return "its manifest cannot be read"
    for name, expected in manifest.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["size"] or sha256_file(file) != expected["sha256"]:
            return f"{name} is damaged"
    return None


def steps(folder: Path) -> list[Path]:
    """Checkpoint folders, sealed or not, newest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: -int(path.name.removeprefix("checkpoint-")))


def newest_good(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one."""
    faults: dict[Path, str] = {}
    for checkpoint in steps(folder):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint, faults
        faults[checkpoint] = reason
    return None, faults


def rotate(folder: Path, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints but ``keep``; never the newest whole one, nor the best."""
    if not keep or keep < 1:
        return
    protected = {Path(best).name} if best else set()
    found = steps(folder)
    sealed = [path for path in found if (path / MANIFEST).is_file()]
    for unfinished in found[found.index(sealed[0]) :] if sealed else []:
        if unfinished not in sealed:
            shutil.rmtree(unfinished)
    protected.update(path.name for path in sealed[:1])
    for checkpoint in reversed(sealed):
        if len(sealed) <= max(keep, len(protected)):
            return
        if checkpoint.name not in protected:
            (checkpoint / MANIFEST).unlink()  # first, so that a half-deleted folder is none
            shutil.rmtree(checkpoint)
            sealed.remove(checkpoint)
