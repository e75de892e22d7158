"""Format and print text, show progress, and describe this process: its command, versions and hardware."""

import contextlib
import datetime
import functools
import importlib.metadata
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from markupsafe import Markup
from tqdm import tqdm

from flip_flop.errors import InputError, log

MISSING = "–"
Interval = tuple[float, float]  # its ends
DEMO_NOTE = (
    "The model is a toy of 0.16 million parameters, pretrained on generated reviews. Its numbers show that the program "
    "works; they are not evidence for the paper's claim or for your model."
)
# Joiners carry meaning in emoji and in several scripts, and do not reorder text.
_JOINERS = "\u200c\u200d"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Return untrusted text with control, bidirectional and lone surrogate characters as escapes.

    HTML escaping does not change U+202E, which reverses a name on the screen, and terminals execute ESC sequences.
    ``one_line`` also escapes newlines and tabs, for names and table cells. Markup is not changed.

    Example:
        >>> print(visible("gpt\u202e4"))
        gpt\u202e4
        >>> print(visible("two\nlines", one_line=True))
        two\nlines
    """
    if isinstance(text, Markup):
        return text
    kept = _JOINERS if one_line else _JOINERS + "\n\t"
    if (text if one_line else text.replace("\n", "").replace("\t", "")).isprintable():
        return text  # most texts
    return "".join(
        character
        if character in kept or unicodedata.category(character) not in _INVISIBLE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def on_one_line(text: str) -> str:
    """Return a name or a table cell as :func:`visible` does, with newlines and tabs as escapes."""
    return visible(text, one_line=True)


def is_blank(value: object) -> bool:
    r"""Return whether a value, or each value of a list or dictionary, is None or has spaces, controls and fillers only.

    Example:
        >>> is_blank("\u200b\xa0 "), is_blank({"text": [None, ""]}), is_blank("☺"), is_blank(0)
        (True, True, False, False)
    """
    if isinstance(value, dict | list | tuple):
        return all(map(is_blank, value.values() if isinstance(value, dict) else value))
    return value is None or all(
        unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs", "Mn", "Me")
        or character in "\u115f\u1160\u2800\u3164\uffa0"
        for character in str(value)
    )


def align_columns(
    lines: Sequence[Sequence[str]], *, num_left: int | None = None, indent: str = "", rule: int = False
) -> str:
    """Align the columns of lines of cells. ``rule`` is the number of lines of the heading, with dashes below them.

    The first ``num_left`` columns are flush left, by default all.

    Example:
        >>> print(align_columns([["run", "F1"], ["base", "8.1"]], num_left=1, rule=True))
        run    F1
        ----  ---
        base  8.1
    """
    cells = [list(map(on_one_line, line)) for line in lines]
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    if rule:
        cells.insert(rule, ["-" * width for width in widths])
    left = len(widths) if num_left is None else num_left

    def padded(line: Sequence[str]) -> Iterator[str]:
        for place, (cell, width) in enumerate(zip(line, widths, strict=True)):
            gap = " " * (width - text_width(cell))
            yield cell + gap if place < left else gap + cell

    return "\n".join((indent + "  ".join(padded(line))).rstrip() for line in cells)


def fit_columns(lines: Sequence[Sequence[str]], *, num_left: int, rule: int, width: int) -> str:
    """Align columns as :func:`align_columns` does. Columns that exceed the width follow below, after the first ones.

    Example:
        >>> print(fit_columns([["run", "F1", "vote"], ["base", "8.1", "9.0"]], num_left=1, rule=1, width=12))
        run    F1
        ----  ---
        base  8.1
        <BLANKLINE>
        run   vote
        ----  ----
        base   9.0
    """
    for size in range(len(lines[0]), num_left, -1):
        grid = align_columns([line[:size] for line in lines], num_left=num_left, rule=rule)
        if max(map(text_width, grid.splitlines())) <= width:
            break
    rest = [[*line[:num_left], *line[size:]] for line in lines]
    if len(rest[0]) == num_left:
        return grid
    return f"{grid}\n\n{fit_columns(rest, num_left=num_left, rule=rule, width=width)}"


def terminal_width() -> int | None:
    """Return the columns of the terminal to which the command prints; None for a file or a pipe."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def text_width(text: str) -> int:
    """Return the columns of a text on a terminal: two for a wide character, none for a combining mark.

    Example:
        >>> text_width("F1"), text_width("评论"), text_width("u\u0308")
        (2, 4, 1)
    """
    marks = sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def markdown_cell(cell: str) -> str:
    """Escape a cell so that it cannot end its table or begin an HTML tag."""
    for character in "\\|`*_[]":
        cell = cell.replace(character, f"\\{character}")
    return cell.replace("&", "&amp;").replace("<", "&lt;")


def spreadsheet_cell(value: Any) -> Any:
    """Return the value, with an apostrophe before text that spreadsheets run as a formula (CWE-1236).

    Example:
        >>> spreadsheet_cell("=1+1"), spreadsheet_cell("-1.5"), spreadsheet_cell("+49 170")
        ("'=1+1", '-1.5', '+49 170')
    """
    # The last four are full-width forms of the first four, for spreadsheets in East Asian locales.
    is_formula = isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n＝＋－＠"))
    if is_formula and not re.fullmatch(r"[+-][\d ,.]+", value):
        return f"'{value}"
    return value


def percent(fraction: float | None, decimals: int = 1, *, scale: int = 100) -> str:
    """Format a fraction in percent without the sign, or a number in another scale.

    Example:
        >>> percent(0.7531), percent(None), percent(1.0), percent(1.25, 2, scale=1), percent(-0.035), percent(-0.0002)
        ('75.3', '–', '100.0', '1.25', '−3.5', '0.0')
    """
    if fraction is None:
        return MISSING
    return f"{scale * fraction:z.{decimals}f}".replace("-", "−")


def points(difference: float | None, decimals: int = 1, *, scale: int = 100) -> str:
    """Format a difference of two fractions in percentage points, with its sign and a true minus.

    Example:
        >>> points(0.198), points(-0.092), points(-0.0001)
        ('+19.8', '−9.2', '±0.0')
    """
    if difference is None:
        return MISSING
    digits = f"{abs(scale * difference):.{decimals}f}"
    if float(digits) == 0:
        return f"±{digits}"
    return f"+{digits}" if difference > 0 else f"−{digits}"


def _ends(write: Callable[..., str], interval: Interval | None, decimals: int = 1, *, scale: int = 100) -> str:
    """Format both ends of an interval."""
    if interval is None:
        return MISSING
    return " to ".join(write(end, decimals, scale=scale) for end in interval)


percent_interval = functools.partial(_ends, percent)  # of a metric: 72.0 to 78.5
point_interval = functools.partial(_ends, points)  # of a difference: +17.6 to +22.0


def count(number: int, noun: str) -> str:
    """Format a number with its noun in singular or plural.

    Example:
        >>> count(1, "template"), count(1200, "instance")
        ('1 template', '1,200 instances')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    Example:
        >>> duration(0.4), duration(90), duration(5400)
        ('0.4 s', '1.5 min', '1.5 h')
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


@functools.cache
def warn_once(line: str) -> None:
    """Log a warning, once in a process."""
    log.warning("%s", line)


def is_first_process() -> bool:
    """Return whether this process is the only process or the first process of a launcher."""
    return os.environ.get("WORLD_SIZE", "1") in ("", "1") or os.environ.get("RANK", "0") == "0"


def num_processes() -> int:
    """Return the number of processes that a launcher has started; 1 without a launcher.

    Raises:
        InputError: ``E-DISTRIBUTED`` if a launcher's variables are incomplete.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    others = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in others if size != "1" and not os.environ.get(name)]
    if missing or not re.fullmatch("[1-9][0-9]*", size):
        raise InputError(
            "E-DISTRIBUTED",
            f"The variable WORLD_SIZE is {size!r}{f', but {missing[0]} is not set' if missing else ''}.",
            "Unset it, or start the processes with torchrun or accelerate launch.",
        )
    return int(size)


def stop_signals() -> set[int]:
    """Return SIGTERM, and SIGHUP of a closed terminal where the platform has it and ``nohup`` does not ignore it."""
    hangup = getattr(signal, "SIGHUP", signal.SIGTERM)
    if signal.getsignal(hangup) == signal.SIG_IGN:
        return {signal.SIGTERM}
    return {signal.SIGTERM, hangup}


def echo(text: object = "", *, err: bool = False) -> None:
    """Print lines to standard output, or with ``err`` to standard error."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(visible(str(text)).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def echo_prose(text: str, *, strong: str = "") -> None:
    """Print a paragraph, and on a terminal wrap it; ``strong`` is its beginning in bold, unless NO_COLOR is set."""
    paragraph = on_one_line(f"{strong} {text}".strip())
    width = terminal_width()
    if width is None:
        echo(paragraph)
        return
    wrapped = textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)
    if os.environ.get("NO_COLOR"):
        strong = ""
    size = len(on_one_line(strong))
    print((click.style(wrapped[:size], bold=True) if size else "") + wrapped[size:], flush=True)


class LogLines(logging.Formatter):
    """Log messages as plain lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message and its traceback, if any."""
        return visible(super().format(record))


SECONDS_TO_FIRST_LINE = 4.0
SECONDS_BETWEEN_LINES = 60.0


@contextlib.contextmanager
def track(label: str, total: int, unit: str, *, quiet: bool = False) -> Iterator[Callable[..., object]]:
    """Show progress on standard error. Yields a function that adds a number of finished units, with a note if any.

    A terminal shows a bar. A log has a line after some seconds, then one each minute.
    """
    if quiet or total == 0 or not is_first_process():
        yield lambda *_: None
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=f" {unit}", leave=False, dynamic_ncols=True) as bar:

            def advance(done: int, note: str = "") -> None:
                bar.set_postfix_str(note, refresh=False)
                bar.update(done)

            yield advance
    else:
        yield _LogProgress(label, total, unit, time.monotonic()).add


@dataclass
class _LogProgress:
    label: str
    total: int
    unit: str
    begun: float
    finished: int = 0
    due: float = SECONDS_TO_FIRST_LINE  # seconds to the next line

    def add(self, done: int, note: str = "") -> None:
        self.finished += done
        line = f"{self.label}: {self.finished} of {self.total} {self.unit}"
        seconds = time.monotonic() - self.begun
        line += f", {note}" * bool(note)
        if self.finished < self.total and seconds >= self.due:
            self.due = seconds + SECONDS_BETWEEN_LINES
            echo(f"{line}, {duration(seconds * (self.total / self.finished - 1))} left", err=True)
        elif self.finished == self.total and self.due > SECONDS_TO_FIRST_LINE:  # short tasks have no lines
            echo(line, err=True)


PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "numpy", "jinja2")
# Only at the beginning of a word, unlike the "sk-" of "task-tickets".
SECRET = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|[0-9a-f]{40}\b)|(?<=://)[^/@\s]+(?=@)")
# Flags whose values are secrets.
SECRET_FLAG = re.compile(r"(--[\w-]*(?:token|password|secret|api[-_]key))(?:=.*)?", re.DOTALL)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of the libraries that may change results."""
    base = {"python": platform.python_version(), "flip_flop": _version("flip-flop-consistency")}
    return base | {name: _version(name) for name in PACKAGES}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hardware() -> dict[str, Any]:
    """Return the processor, the number of cores, and the GPU if any."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor()


def command() -> str:
    """Return the command line with tokens and keys replaced. The commit of ``--revision`` is not replaced."""
    words = [Path(sys.argv[0]).name.replace("main.py", "flip-flop")]
    for argument in sys.argv[1:]:
        is_commit = words[-1] == "--revision" or argument.startswith("--revision=")
        if SECRET_FLAG.fullmatch(words[-1]) and "=" not in words[-1]:
            words.append("***")
        elif "=" in argument and (flag := SECRET_FLAG.fullmatch(argument)):
            words.append(f"{flag[1]}=***")
        else:
            words.append(argument if is_commit else SECRET.sub("***", argument))
    return shlex.join(words)


def now(seconds_ago: float = 0) -> str:
    """Return the time in UTC, in seconds."""
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    return time.isoformat(timespec="seconds")


def today() -> str:
    """Return the date in UTC, which is the same on machines in different time zones."""
    return now()[:10]
