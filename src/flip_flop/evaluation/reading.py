"""What a file of a run directory may be wrong with, in one line."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from flip_flop.errors import InputError

# JSON that is nested too deep is a RecursionError.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error)


def broken(path: Path, why: str) -> InputError:
    """That a file contradicts itself or another."""
    return InputError("E-RUN-BROKEN", f"{path} {why}.", "Run the audit again into a new folder.")


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn what goes wrong inside into one line.

    Raises:
        InputError: ``E-RUN-MISSING`` where the file is not there, ``E-RUN-BROKEN`` where it is not ``what``.
    """
    if not path.is_file():
        hint = "Name a folder that `flip-flop audit` wrote; a run directory is complete or it is not there."
        raise InputError("E-RUN-MISSING", f"{path.parent} has no {path.name}.", hint)
    try:
        yield
    except _UNREADABLE as error:
        raise broken(path, f"is not {what} ({type(error).__name__})") from error
