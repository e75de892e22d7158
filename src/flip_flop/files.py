"""Check paths of outputs, write files completely or not at all, lock and hash them, and derive random seeds."""

import contextlib
import errno
import glob
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import sys
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from filelock import FileLock, Timeout

from flip_flop.errors import InputError, log

# Errors of a full, failing or read-only disk.
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# Errors of file systems without locks, which some clusters have.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
Json = dict[str, Any]  # an object of a JSON file
StrPath = str | os.PathLike[str]
MAX_JSON = 2**24  # bytes of a JSON file or a server's reply; metrics of 100 templates and 100 labels need 0.2 MB
MAX_ARRAYS = 2**28  # bytes of all arrays in a file; a large file may hold up to 100 times its size
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


def inputs_of_command() -> set[Path]:
    """Return the task, study and data files that the command has named or read, which no output may replace.

    A Python program may replace its own: without a command the set is new.
    """
    context = click.get_current_context(silent=True)
    paths: set[Path] = set() if context is None else context.find_root().meta.setdefault("inputs", set())
    return paths


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
    if path.resolve() in inputs_of_command():
        raise InputError("E-OUT-PATH", f"{path} is a file that this command reads.", "Give the output another name.")


def _node(path: Path) -> str | None:
    """Return the kind of node that a path names or links to, or ``None`` if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if _stream(path) is not None:
            return "a stream"
        return NODES.get(kind, "a special file")
    return None


def _stream(path: Path) -> int | None:
    """Return the descriptor of a stream."""
    descriptor = re.fullmatch("/(?:dev|proc/self)/fd/([0-9]+)", STREAMS.get(str(path), str(path)))
    return int(descriptor[1]) if descriptor else None


def temporary_name(path: Path, suffix: str) -> Path:
    """Return a hidden, unique name next to a path."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{suffix}")


def write_failure(error: Exception, where: Path, hint: str = "") -> InputError:
    """Return ``E-OS`` for a failed write, with its file or folder and the free space."""
    path = Path(getattr(error, "filename", None) or where)
    folder = next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free / 1e6
    named = str(path) if getattr(error, "filename", None) else f"A file in {path}"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return InputError("E-OS", f"{named} could not be written, with {free:.0f} MB free there: {reason}.", hint)


@contextlib.contextmanager
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Put the name of the final file or folder into errors of the disk, instead of a temporary name."""
    try:
        yield
    except OSError as error:
        error.filename = str(error.filename or path).replace(str(temporary), str(path))
        raise


@contextlib.contextmanager
def lock(file: Path, out: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold a lock file as long as this process lives, before it writes to ``out``. Yield the number of its locks.

    Raises:
        InputError: ``E-OUT-BUSY``: another process holds it, without ``wait``.
    """
    held = FileLock(file, is_singleton=True, fallback_to_soft=False)  # a soft lock would outlive a killed process
    try:
        held.acquire(blocking=wait)
    except Timeout:
        raise InputError("E-OUT-BUSY", f"Another process is writing to {out}.") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.info("%s: its file system has no locks; make sure that no other run writes there", out)
    try:
        yield held.lock_counter
    finally:
        held.release()


@contextlib.contextmanager
def make_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents, and afterwards remove those of them that are empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty
            for path in new:
                path.rmdir()


@contextlib.contextmanager
def lock_output(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a file or folder before it is written, and remove the leftovers of killed processes.

    Raises:
        InputError: ``E-OUT-BUSY``: another process holds it, without ``wait``. ``E-OUT-PATH``: its
            folder cannot be written.
    """
    check_output(path, is_folder=path.is_dir())
    typed = path
    path = path.resolve()
    if path.is_dir() and (path.is_mount() or not os.access(path.parent, os.W_OK)):
        why = "it is a mount point" if path.is_mount() else f"{path.parent} cannot be written"
        raise InputError(
            "E-OUT-PATH", f"{typed} cannot be replaced: {why}.", f"Give a new folder, such as {typed}/run."
        )
    file = path.parent / f".{path.name}.lock"
    with make_folder(path.parent), lock(file, typed, wait=wait) as number:
        try:
            _remove_leftovers(path)
            yield
        finally:
            if number < 2:
                file.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of ended writers, and restore a folder that one has moved and not replaced."""
    name = f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"  # as in temporary_name
    for previous in path.parent.glob(f"{name}.old"):
        if not path.exists():
            previous.rename(path)
    for leftover in [*path.parent.glob(f"{name}.tmp"), *path.parent.glob(f"{name}.old")]:
        remove(leftover)


def user_cache() -> Path:
    """``flip-flop`` in the user's cache (``E-OS`` for a user without a home directory)."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flip-flop"
    except RuntimeError:
        raise InputError("E-OS", "This user has no home directory.", "Set XDG_CACHE_HOME to a folder.") from None


def read_answers(path: Path | None) -> Json:
    """Return the stored answers by key. A line without the right digest of key and answer is ignored."""
    answers: Json = {}
    if path is None or not path.is_file():
        return answers
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            key, answer, digest = json.loads(line)
            if digest == sha256_json([key, answer]):
                answers[key] = answer
    return answers


def write_answer(path: Path | None, key: str, answer: Any) -> None:
    """Append an answer as a line, if there is a file. Several processes may write to it."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([key, answer, sha256_json([key, answer])])}\n")


def discard(path: Path) -> None:
    """Remove a file of the cache, if possible."""
    with contextlib.suppress(OSError):
        path.unlink()


def discard_after_command(path: Path) -> None:
    """Remove a file of the cache when the command ends without an error; in a Python program, now."""

    def discard_if_complete() -> None:
        if sys.exception() is None:
            discard(path)

    context = click.get_current_context(silent=True)
    if context is None:
        discard(path)
    else:
        context.find_root().call_on_close(discard_if_complete)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush(folder: Path) -> None:
    """Flush every file of a folder, and its entries. Files that a library has written for their owner are for all."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            if stat.S_IMODE(file.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR:  # safetensors ignores the umask
                file.chmod(folder.stat().st_mode & 0o666)
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    fsync_folder(folder)


def write_bytes(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, in one or several parts, under a temporary name, flush it, and rename it.

    A pipe, a device or a stream is written in place. A link stays a link.

    Raises:
        InputError: As :func:`check_output`.
    """
    check_output(path)
    parts = [content] if isinstance(content, bytes) else content
    if _node(path) in IN_PLACE:
        _write_in_place(path, parts)
        return
    path = path.resolve()
    temporary = temporary_name(path, "tmp")
    with _named(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            try:
                temporary.replace(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                shutil.copyfile(temporary, path)  # a single file that a container mounts
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(path.parent)


def _write_in_place(path: Path, parts: Iterable[bytes]) -> None:
    """Write to a pipe, a device or a stream (``E-OUT-PATH``, also for a pipe that no process reads)."""
    number = _stream(path)
    try:  # opening a pipe that no process reads would wait for ever
        if number is None:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        else:
            descriptor = os.dup(number)
    except OSError as error:
        raise InputError(
            "E-OUT-PATH", f"Cannot write to {path}: {error.strerror}.", "A pipe needs a process that reads it."
        ) from error
    os.set_blocking(descriptor, True)
    with open(descriptor, "wb") as file:
        file.writelines(parts)


def utf8(text: str) -> bytes:
    r"""Encode a text, with ? for lone surrogates, which the name of a file that is not UTF-8 has. JSON has none.

    Example:
        >>> utf8("caf\udce9")
        b'caf?'
    """
    return text.encode("utf-8", "replace")


def compress(texts: Iterable[str]) -> Iterator[bytes]:
    """Compress concatenated texts as gzip. Equal texts give equal bytes."""
    packer = zlib.compressobj(wbits=31)  # a gzip header without the time
    for text in texts:
        if part := packer.compress(utf8(text)):
            yield part
    yield packer.flush()


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of UTF-8 text."""
    write_bytes(path, utf8(text))


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with a final newline. NaN, which is not JSON, raises a ValueError."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Return None for NaN and infinities, which JSON lacks, and any other value unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays by name, as ``.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays that :func:`write_arrays` wrote, by name. Pickled arrays, which run code, are refused.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is damaged, or needs too much memory.
    """
    content = path.read_bytes()
    try:  # the error of numpy, zipfile or zlib depends on the damaged bit
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            size = sum(item.file_size for item in file.zip.infolist())
            if size > max(MAX_ARRAYS, 100 * len(content)) or file.zip.testzip():  # numpy may not reach the checksum
                raise ValueError("its arrays are too large, or do not match their checksums")
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read_limited(path: Path, limit: int = MAX_JSON) -> bytes:
    """Read a file that may be untrusted.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It has more than ``limit`` bytes, or is a pipe or a device, which may have no end.
    """
    if (node := _node(path)) not in (None, "a file"):
        raise ValueError(f"{path} is {node}")
    if path.stat().st_size > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file of at most :data:`MAX_JSON` bytes; raises as :func:`read_limited`."""
    return json.loads(read_limited(path))


def read_object(path: Path, limit: int = MAX_JSON) -> Json | None:
    """Return the JSON object in a file, or ``None`` if the file is missing, invalid or another JSON value."""
    try:
        value = json.loads(read_limited(path, limit))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it when all of its files are on disk. After an error, remove it.

    An existing folder is replaced. It stays readable until the new folder is complete.

    Raises:
        InputError: As :func:`lock_output`.
    """
    check_output(path, is_folder=True)
    path = path.resolve()
    temporary = temporary_name(path, "tmp")
    with lock_output(path), _named(path, temporary):
        temporary.mkdir()
        try:
            yield temporary
            flush(temporary)
            if path.exists():
                path.rename(temporary_name(path, "old"))
            temporary.rename(path)
            fsync_folder(path.parent)
        finally:
            _remove_leftovers(path)


def sha256_text(text: str) -> str:
    """Return the SHA-256 of UTF-8 text, in hexadecimal."""
    return hashlib.sha256(utf8(text)).hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form: sorted keys, no white space."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def derive_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """Return a 63-bit seed for one random choice. It is the same on all machines and in any order of calls.

    ``purpose`` names the choice, such as ``"order"``. ``keys`` are the objects of the choice, such as an epoch or an
    instance id.

    Example:
        >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
        True
    """
    text = "\x1f".join([str(seed), purpose, *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a numpy generator for one random choice, with the arguments of :func:`derive_seed`."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, *keys)))
