"""Files that are complete or absent: written under a temporary name, flushed, renamed; and their digests."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def _temporary(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{suffix}")


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside ``path``, flush it, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, "tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people: indented, one newline at the end, and no NaN, which JSON does not have."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays by name, as ``.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; ``None`` where it cannot be read, or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name when all that was written into it is on disk, or not at all.

    An existing folder is replaced: it stays readable until the new one is complete.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, "tmp")
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        fsync_folder(temporary)
        previous = _temporary(path, "old") if path.exists() else None
        if previous is not None:
            path.rename(previous)
        try:
            temporary.rename(path)
        except BaseException:
            if previous is not None:
                previous.rename(path)
            raise
        fsync_folder(path.parent)
        if previous is not None:
            shutil.rmtree(previous)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def sha256_text(text: str) -> str:
    """The SHA-256 of UTF-8 text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_json(value: Any) -> str:
    """The SHA-256 of a JSON value in canonical form: sorted keys, no white space."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
