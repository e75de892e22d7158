"""Keys of mathematical answers, parsed by math-verify in a process of its own, which may hang or fill the memory."""

import atexit
import contextlib
import functools
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, cast

from flip_flop.errors import InputError, install_command

MAX_SECONDS = 5.0  # of the processor, to parse a text
# A word, which is no variable, no command of LaTeX and no text in one: "x cm" is not x times c times m.
WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}")
DIGITS = re.compile(r"[-+−]?[\d.,\s]+")


_LOCK = threading.Lock()


@functools.cache
def _parser() -> subprocess.Popen[str]:
    """Start the process, and wait until it has imported its libraries."""
    program = str(Path(__file__).with_name("latex_process.py"))
    # In a session of its own, Ctrl-C does not reach it: a process that ends means an answer that cannot be read.
    process = subprocess.Popen(
        [sys.executable, "-P", program, str(MAX_SECONDS)],  # without the modules of the working folder
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(process.kill)
    if not cast(IO[str], process.stdout).readline():
        process.communicate()
        raise InputError(
            "E-TASK-KEY",
            "answers of the kind latex need math-verify, which does not start.",
            f"{install_command('latex')}.",
        )
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    """End the process. The next text starts another."""
    process.kill()
    process.communicate()
    atexit.unregister(process.kill)
    _parser.cache_clear()


@functools.lru_cache(maxsize=10_000)
def latex_key(text: str) -> str | None:
    """Return the mathematical answer in a text as SymPy prints it, expanded and with exact decimals.

    The last boxed expression or the one announced as the answer counts, as math-verify reads it. None: there is none,
    it divides by zero, or reading it takes more than :data:`MAX_SECONDS` or too much memory.

    Raises:
        InputError: ``E-TASK-KEY`` if math-verify cannot be started.
    """
    with _LOCK:
        if _parser().poll() is not None:
            _stop(_parser())
        process, reply = _parser(), ""
        try:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(text), file=process.stdin, flush=True)
                reply = cast(IO[str], process.stdout).readline()
        finally:
            if not reply:  # also after an interrupt, which leaves a reply in the pipe
                _stop(process)
    return cast(str | None, json.loads(reply)) if reply else None


def expression_key(text: str) -> str | None:
    """Return the key of an expression without other text, such as a reference: ``x+1`` is not its last number."""
    is_read = "$" in text or "\\boxed" in text or WORD.search(text) or DIGITS.fullmatch(text)
    return latex_key(text if is_read else f"${text}$")
