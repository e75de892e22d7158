"""Paths of outputs: a check before they are written, and pipes, devices and streams, which are written in place."""

import contextlib
import errno
import os
import re
import stat
import uuid
from pathlib import Path
from typing import BinaryIO

from flip_flop.errors import InputError

# The kinds of nodes in a file system, and those that are written in place.
NODES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a disk",
    stat.S_IFSOCK: "a socket",
}
IN_PLACE = ("a pipe", "a device", "a stream")
STREAMS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


def check_output(path: Path, *, is_folder: bool = False) -> None:
    """Refuse the path of an output that cannot be written, before anything is computed.

    A folder may replace a folder. A file may replace a file, or be written into a pipe, a device such as a terminal, or
    a stream of this process such as ``/dev/stdout``.

    Raises:
        InputError: ``E-OUT-PATH``.
    """
    try:
        node = _node(path)
        if node in (None, "a file"):
            temporary = temporary_name(path.resolve(), "tmp")
            with contextlib.suppress(FileNotFoundError):
                temporary.stat()  # its name is longer
            if not os.access(next(parent for parent in temporary.parents if parent.is_dir()), os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError("E-OUT-PATH", f"Cannot write to {path}: {error.strerror}.") from error
    if node not in ((None, "a folder") if is_folder else (None, "a file", *IN_PLACE)):
        raise InputError("E-OUT-PATH", f"{path} is {node}.", "Give a folder." if is_folder else "Give a file's name.")


def _node(path: Path) -> str | None:
    """Return the kind of node that a path names or links to, or ``None`` if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        return "a stream" if _stream(path) is not None else NODES.get(kind, "a special file")
    return None


def _stream(path: Path) -> int | None:
    """Return the descriptor of a stream."""
    descriptor = re.fullmatch("/(?:dev|proc/self)/fd/([0-9]+)", STREAMS.get(str(path), str(path)))
    return int(descriptor[1]) if descriptor else None


def temporary_name(path: Path, suffix: str) -> Path:
    """Return a hidden, unique name next to a path."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{suffix}")


def is_in_place(path: Path) -> bool:
    """Whether a path is not replaced, but written in place: a pipe, a device or a stream of this process."""
    return _node(path) in IN_PLACE


def open_in_place(path: Path) -> BinaryIO:
    """Open a pipe, a device or a stream to write.

    Raises:
        InputError: ``E-OUT-PATH``, also for a pipe that no process reads.
    """
    number = _stream(path)
    try:  # opening a pipe that no process reads would wait for ever
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK) if number is None else os.dup(number)
    except OSError as error:
        raise InputError(
            "E-OUT-PATH", f"Cannot write to {path}: {error.strerror}.", "A pipe needs a process that reads it."
        ) from error
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb")
