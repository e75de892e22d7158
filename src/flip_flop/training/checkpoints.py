"""Checkpoints that are complete or do not count: a manifest, written last, has the digest of every file."""

import json
import os
import shutil
from pathlib import Path

from flip_flop.files import fsync_folder, sha256_file, write_json

MANIFEST = "MANIFEST.json"


def write_manifest(checkpoint: Path) -> None:
    """Flush every file of a checkpoint, then write its manifest. Without one the folder is no checkpoint."""
    digests = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            digests[str(file.relative_to(checkpoint))] = {"size": file.stat().st_size, "sha256": sha256_file(file)}
    fsync_folder(checkpoint)
    write_json(checkpoint / MANIFEST, digests)


def find_corruption(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; ``None`` where every file is as the manifest has it."""
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


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, with a manifest or without, newest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: -int(path.name.removeprefix("checkpoint-")))


def latest_valid(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint, and what is wrong with each newer one."""
    corrupt: dict[Path, str] = {}
    for checkpoint in list_checkpoints(folder):
        reason = find_corruption(checkpoint)
        if reason is None:
            return checkpoint, corrupt
        corrupt[checkpoint] = reason
    return None, corrupt


def rotate(folder: Path, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints down to ``keep``; never the newest complete one, nor the best."""
    if not keep or keep < 1:
        return
    protected = {Path(best).name} if best else set()
    found = list_checkpoints(folder)
    complete = [path for path in found if (path / MANIFEST).is_file()]
    for unfinished in found[found.index(complete[0]) :] if complete else []:
        if unfinished not in complete:
            shutil.rmtree(unfinished)
    protected.update(path.name for path in complete[:1])
    for checkpoint in reversed(complete):
        if len(complete) <= max(keep, len(protected)):
            return
        if checkpoint.name not in protected:
            (checkpoint / MANIFEST).unlink()  # first, so that a half-deleted folder does not count
            shutil.rmtree(checkpoint)
            complete.remove(checkpoint)
