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

import regex

from flip_flop.errors import InputError, install_command
from flip_flop.reading import limits
from flip_flop.reading.numbers import NUMBER, SCALE, numbers
from flip_flop.reading.reply import boxed

MATH = re.compile(r"\$|\\\[|\\\(")
# A word, which is no variable, no command of LaTeX and no text in one: "5 apples" is not 5 times a times p.
WORD = re.compile(r"(?<![\\A-Za-z\d{])[A-Za-z]{2,}")
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{[^{}]*\}")
OPERATOR = re.compile(r"[-+*/^=<>\\_{}|]")
# Between the members of a list: "4 and 6".
AND = re.compile(r"\s*(?:\\(?:text|mathrm)\{\s*)?\b(?:and|or)\b(?:\s*\})?\s*")
SCALED = regex.compile(rf"\d\$?\s*(?:\\(?:text|mathrm)\{{)?\s*(?i:{SCALE})".replace(r"|\\pi|\\sqrt", ""))

_LOCK = threading.Lock()


@functools.cache
def _parser() -> subprocess.Popen[str]:
    """Start the process, and wait until it has imported its libraries."""
    program = str(Path(__file__).with_name("latex_process.py"))
    # In a session of its own, Ctrl-C does not reach it: a process that ends means an answer that cannot be read.
    process = subprocess.Popen(
        [sys.executable, "-P", program, str(limits.MAX_SECONDS)],  # without the modules of the working folder
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_stop, process)
    if not cast(IO[str], process.stdout).readline():
        _stop(process)
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
    atexit.unregister(_stop)
    _parser.cache_clear()


def latex_key(text: str) -> str | None:
    """Return the key of the mathematical answer in a text: boxed, between ``$``, or announced, as math-verify reads it.

    Raises:
        InputError: ``E-TASK-KEY`` if math-verify cannot be started.
        TimeoutError: Reading it takes more than :data:`~flip_flop.reading.limits.MAX_SECONDS`, or too much memory.
    """
    if boxes := boxed(text):
        return expression_key(boxes[-1])
    if SCALED.search(text):
        return None
    return _parsed(text, bool(MATH.search(text)))


def expression_key(text: str) -> str | None:
    """Return the key of an expression without other text, such as a reference. A number may have a unit.

    Raises:
        InputError, TimeoutError: As :func:`latex_key`.

    Example:
        >>> expression_key("x+1"), expression_key("4 and 6"), expression_key("3.5 million"), expression_key("5 cm")
        ('x + 1', '{4, 6}', None, '5')
    """
    if boxes := boxed(text):
        text = boxes[-1]
    text = AND.sub(", ", re.sub(r"(?<!\\)\$|\\[\[\]()]", "", text))
    if SCALED.search(text):
        return None
    if WORD.search(TEXT.sub("", text)):
        keys = set(numbers(text))
        if len(keys) != 1 or None in keys or OPERATOR.search(NUMBER.sub("", text)):
            return None
        text = str(keys.pop())
    return _parsed(f"\\boxed{{{text}}}", True)


@functools.lru_cache(maxsize=10_000)
def _parsed(text: str, is_latex: bool) -> str | None:
    """Return the expression in a text as SymPy prints it, expanded and with exact decimals.

    None: there is none, it divides by zero, or only its last number can be read. ``is_latex``: it has marks of LaTeX.
    """
    with _LOCK:
        if _parser().poll() is not None:
            _stop(_parser())
        process = _parser()
        reply = ""
        try:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps([text, is_latex]), file=process.stdin, flush=True)
                reply = cast(IO[str], process.stdout).readline()
        finally:
            if not reply:  # also after an interrupt, which leaves a reply in the pipe
                _stop(process)
    if not reply:
        raise TimeoutError
    return cast(str | None, json.loads(reply))
