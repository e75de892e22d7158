"""A progress bar on a terminal; in a log a plain line each minute."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from flip_flop.terminal import echo, is_first_process
from flip_flop.text import duration

SECONDS_BETWEEN_LINES = 60.0


@contextlib.contextmanager
def track(label: str, total: int, unit: str, *, quiet: bool = False) -> Iterator[Callable[[int], object]]:
    """Show the progress of long work on standard error; gives a function to call with the number of units just done."""
    if quiet or total == 0 or not is_first_process():
        yield lambda done: None
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=f" {unit}", leave=False, dynamic_ncols=True) as bar:
            yield lambda done: bar.update(done)
    else:
        yield _LogProgress(label, total, unit).add


class EachMinute:
    """A log without a terminal: when a line is due, and how long the work will take yet."""

    def __init__(self) -> None:
        self.begun = self.shown = time.monotonic()

    def is_due(self) -> bool:
        """Whether a minute has passed since the last line."""
        now = time.monotonic()
        if now - self.shown < SECONDS_BETWEEN_LINES:
            return False
        self.shown = now
        return True

    def left(self, done: float, total: float) -> str:
        """The time that the rest takes at the pace so far, in words."""
        if done <= 0:
            return "time left unknown"
        return f"{duration((time.monotonic() - self.begun) * (total - done) / done)} left"


class _LogProgress:
    def __init__(self, label: str, total: int, unit: str):
        self.label, self.total, self.unit = label, total, unit
        self.finished, self.clock = 0, EachMinute()

    def add(self, done: int) -> None:
        self.finished += done
        line = f"{self.label}: {self.finished} of {self.total} {self.unit}"
        if self.finished < self.total:
            if self.clock.is_due():
                echo(f"{line}, {self.clock.left(self.finished, self.total)}", err=True)
        elif self.clock.shown > self.clock.begun:  # work of less than a minute has no lines
            echo(line, err=True)
