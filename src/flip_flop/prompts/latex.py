"""Keys of mathematical answers, parsed by math-verify in a process of its own, which is killed if it takes too long.

``python -m flip_flop.prompts.latex`` is that process. It reads one text as JSON in each line and writes its key.
"""

import atexit
import contextlib
import functools
import importlib.util
import json
import re
import subprocess
import sys
import threading
from typing import IO, Any

from flip_flop.errors import InputError, install_command

MAX_SECONDS = 5  # to parse a text
MAX_BYTES = 4 << 30  # address space of the process
# A word, which is no variable, no command of LaTeX and no text in one: "x cm" is not x times c times m.
WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}")


class _Parser:
    """The process, started again after it was killed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        atexit.register(self.stop)

    def stop(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def start(self) -> subprocess.Popen[str]:
        """Start the process, and wait until it has imported its libraries."""
        command = [sys.executable, "-m", "flip_flop.prompts.latex"]
        pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # In a session of its own, Ctrl-C does not reach it: a killed process means an answer that cannot be read.
        self.process = subprocess.Popen(command, text=True, start_new_session=True, **pipe)
        if not _pipe(self.process.stdout).readline():
            self.stop()
            hint = f"{install_command('latex')}."
            raise InputError("E-TASK-KEY", "answers of the kind latex need math-verify, which does not start.", hint)
        return self.process

    def key(self, text: str) -> str | None:
        with self.lock:
            process = self.process or self.start()
            timer = threading.Timer(MAX_SECONDS, process.kill)
            timer.start()
            try:
                _pipe(process.stdin).write(json.dumps(text) + "\n")
                _pipe(process.stdin).flush()
                reply = _pipe(process.stdout).readline()
            finally:
                timer.cancel()
            if not reply:
                self.stop()
            key: str | None = json.loads(reply) if reply else None
            return key


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


_parser = functools.cache(_Parser)


def require_math_verify() -> None:
    """Refuse answers of the kind ``latex`` without the library (``E-TASK-KEY``)."""
    if importlib.util.find_spec("math_verify") is None:
        message = "answers of the kind latex need math-verify, which is not installed."
        raise InputError("E-TASK-KEY", message, f"{install_command('latex')}.")


@functools.lru_cache(maxsize=10_000)
def latex_key(text: str) -> str | None:
    """Return the mathematical answer in a text as SymPy prints it, expanded and with exact decimals.

    The last boxed expression or the one announced as the answer counts, as math-verify reads it. None: there is none,
    or reading it takes more than :data:`MAX_SECONDS` or too much memory.

    Raises:
        InputError: ``E-TASK-KEY`` if math-verify cannot be started.
    """
    return _parser().key(text)


def expression_key(text: str) -> str | None:
    """Return the key of an expression without other text, such as a reference: ``x+1`` is not its last number."""
    return latex_key(text if "$" in text or "\\boxed" in text or WORD.search(text) else f"${text}$")


def _read(text: str) -> str | None:
    import sympy
    from math_verify import parse

    try:
        parsed = parse(text, parsing_timeout=None)
        expression = next((item for item in parsed if isinstance(item, sympy.Basic)), None)
        if isinstance(expression, sympy.Equality) and expression.lhs.is_Symbol:
            expression = expression.rhs  # x = 5
        if expression is None:
            return None
        decimals = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
        exact = expression.xreplace(decimals).doit()
        return str(sympy.expand(exact) if isinstance(exact, sympy.Expr) else exact)
    except Exception:  # a text of a model can break the parser anywhere
        return None


def main() -> None:
    """Answer each line of the standard input, until it ends."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    replies, sys.stdout = sys.stdout, sys.stderr  # a library's own prints are no replies
    _read("1")
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_read(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
