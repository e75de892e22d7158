"""A progress bar on a terminal, plain lines in a log."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm


@contextlib.contextmanager
def track(label: str, total: int, unit: str, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show how far a piece of long work is, on standard error.

    Args:
        label: What is being done.
        total: How many units there are.
        unit: One unit's name.
        quiet: Show nothing.

    Yields:
        A function to call with the number of units just done.
    """
    if quiet or total == 0:
        yield lambda done: None
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=f" {unit}", leave=False, dynamic_ncols=True) as bar:

            def advance(done: int) -> None:
                bar.update(done)

            yield advance
    else:
        yield _Lines(label, total, unit).update


class _Lines:
    """A line for each quarter of the work: enough to see that it goes on, few enough to read."""

    def __init__(self, label: str, total: int, unit: str):
        self.label, self.total, self.unit = label, total, unit
        self.done = 0

    def update(self, done: int) -> None:
        quarter = 4 * self.done // self.total
        self.done += done
        if 4 * self.done // self.total > quarter:
            print(f"{self.label}: {self.done} of {self.total} {self.unit}", file=sys.stderr, flush=True)
