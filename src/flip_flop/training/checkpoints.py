"""Checkpoints that are complete or do not count: a manifest, written last, has the digest of every file."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from flip_flop.files import WRITE_ERRORS, fsync_folder, read_object, sha256_file, write_failure, write_json

MANIFEST = "MANIFEST.json"


def write_manifest(checkpoint: Path) -> None:
    """Flush every file of a checkpoint, then write its manifest. Without one the folder is no checkpoint.

    The folder of checkpoints is flushed too: only then is this one certain to outlive those that are deleted for it.
    """
    digests = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            digests[str(file.relative_to(checkpoint))] = _entry(file)
    fsync_folder(checkpoint)
    write_json(checkpoint / MANIFEST, digests)
    fsync_folder(checkpoint.parent)


def _entry(file: Path) -> dict[str, Any]:
    return {"size": file.stat().st_size, "sha256": sha256_file(file)}


def find_corruption(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; ``None`` where every file is as the manifest has it."""
    if not (checkpoint / MANIFEST).exists():
        return "it was not finished"
    manifest = read_object(checkpoint / MANIFEST)
    if not manifest:
        return "its manifest cannot be read"
    files = {str(file.relative_to(checkpoint)): file for file in checkpoint.rglob("*") if file.is_file()}
    for name, expected in manifest.items():
        if name not in files:
            return f"{name} is missing"
        if _entry(files[name]) != expected:
            return f"{name} is damaged"
    return None


def checkpoint_step(checkpoint: Path) -> int:
    """The optimizer steps done."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, with a manifest or without, newest first."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch("checkpoint-[0-9]+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: -checkpoint_step(path))


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


@contextlib.contextmanager
def named_write_errors(folder: Path) -> Iterator[None]:
    """Name the folder where a write fails, as on a full disk: not every library raises an ``OSError`` then.

    Raises:
        InputError: ``E-OS``.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error)
        by_library = "while serializing" in reason or "inline_container.cc" in reason  # safetensors, torch
        if not by_library and getattr(error, "errno", None) not in WRITE_ERRORS:
            raise
        raise write_failure(error, folder, "Make room, and go on with --resume.") from error
