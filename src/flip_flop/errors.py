"""Errors of the user, with a stable code, the wrong value and its place, and a fix."""

import difflib
import functools
import importlib.metadata
import importlib.util
import logging
import math
import numbers
import re
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")
log = logging.getLogger("flip_flop")  # of warnings and progress

MANY = 20  # names, above which a hint does not list them all
OTHER_ENDED = (
    "E-DISTRIBUTED",
    "another process has ended, or has not answered in time",
    "Look for the reason in its output. Add --resume to continue a training run.",
)


def reason_of(error: BaseException) -> str:
    """Return the class and the message of an error of other code, at most 200 characters without a final period."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error without its period. Errors of memory continue with statistics."""
    return " ".join(str(error).split(". ")[0].split()).rstrip(".")


def is_of_communication(error: BaseException) -> bool:
    """Return whether processes could not communicate: by gloo on CPUs, or by a class of torch on GPUs."""
    return isinstance(error, RuntimeError) and ("gloo" in str(error) or type(error).__name__.startswith("Dist"))


@functools.cache
def error_table() -> dict[str, dict[str, str]]:
    """Return ``what`` and ``fix`` of each code, from ``errors.yaml``."""
    import yaml

    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


class InputError(ValueError):
    """Invalid input. The default of ``hint`` is the fix of the code in ``errors.yaml``.

    The command line prints it as a line and exits with 2. Processes send it to each other, pickled by the arguments of
    its class.

    Example:
        >>> print(InputError("E-MODEL-KIND", "bart is an encoder-decoder model."))
        E-MODEL-KIND: bart is an encoder-decoder model. Use a causal language model.
    """

    def __init__(self, code: str, message: str, hint: str = ""):
        self.code = code
        self.message = message
        self.hint = hint or error_table().get(code, {}).get("fix", "")

    def __str__(self) -> str:
        text = f"{self.code}: {self.message} {self.hint}"
        return " ".join(text.encode(errors="backslashreplace").decode().split())  # lone surrogates cannot be printed


def require_whole(name: str, value: object, least: float = -math.inf) -> int:
    """Return an argument as an integer; refuse all but whole numbers of at least ``least`` (``E-CONFIG``)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        bound = "" if math.isinf(least) else f", at least {least}"
        raise InputError("E-CONFIG", f"{name} is {value!r}.", f"Give a whole number{bound}.")
    return int(value)


def install_command(name: str, *options: str) -> str:
    """Return the command that installs the packages of an extra, or a package, for the Python that runs.

    Example:
        >>> install_command("xlsx").partition(" -m ")[2]
        "pip install 'openpyxl>=3.1.5'"
    """
    try:
        declared = importlib.metadata.requires("flip-flop-consistency") or ()
    except importlib.metadata.PackageNotFoundError:  # a clone that is not installed
        declared = [f".[{name}]; extra == {name!r}"]
    packages = [line.split(";")[0] for line in declared if re.search(rf"extra == .{re.escape(name)}\W", line)]
    return shlex.join([sys.executable, "-m", "pip", "install", *options, *(packages or [name])])


def require_package(package: str, extra: str, code: str, what: str) -> None:
    """Refuse to go on without a package of an extra; ``what`` needs it."""
    if importlib.util.find_spec(package) is None:
        raise InputError(
            code,
            f"{what} needs the package {package}, which is not installed.",
            f"Install it: {install_command(extra)}.",
        )


def unsupported(what: str) -> InputError:
    """Return the error of a command or an option for tasks with answer choices only."""
    return InputError(
        "E-OPEN-ANSWER", f"{what} does not support tasks with open answers.", "Give the templates answer choices."
    )


def look_up(name: str, known: Mapping[str, Value], code: str, what: str) -> Value:
    """Return the value of a name, or refuse an unknown one with the nearest known name.

    Example:
        >>> look_up("tst", {"test": 1}, "E-TASK-UNKNOWN", "there is no split")
        Traceback (most recent call last):
            ...
        flip_flop.errors.InputError: E-TASK-UNKNOWN: there is no split 'tst'. Did you mean 'test'?
    """
    require_known([name], known, code, what)
    return known[name]


def require_known(names: Iterable[str], known: Collection[str], code: str, what: str) -> None:
    """Refuse unknown names, as :func:`look_up` does."""
    for name in names:
        if name not in known:
            raise InputError(code, f"{what} {name!r}.", nearest(name, known))


def first_repeated(values: Iterable[Value]) -> Value | None:
    """Return the first value that occurs again, or None.

    Example:
        >>> first_repeated("abcb")
        'b'
    """
    return next((value for value, times in Counter(values).items() if times > 1), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known word most similar to ``name``, or with the known words if none is similar.

    Example:
        >>> nearest("premis", ["premise", "hypothesis"])
        "Did you mean 'premise'?"
    """
    names = sorted(str(word) for word in known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if len(names) > MANY:
        return f"Of {len(names)}, the nearest are {', '.join(difflib.get_close_matches(name, names, n=3, cutoff=0.0))}."
    return f"Known: {', '.join(names)}." if names else ""


def nearest_file(path: Path, suffixes: Collection[str] = ()) -> str:
    """Return a hint with the file most similar to a missing path, or with the files of its folder."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    names = [file.name for file in beside if not file.name.startswith(".") and file.is_file()]
    hint = nearest(path.name, [name for name in names if not suffixes or name.lower().endswith(tuple(suffixes))])
    place = "" if path.parent == Path() else f"{path.parent}/"
    return hint.replace("Known: ", "Files there: ", 1).replace("mean '", f"mean '{place}", 1)
