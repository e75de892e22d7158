"""A progress bar on a terminal, plain lines in a log."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm

from flip_flop.terminal import echo


@contextlib.contextmanager
def track(label: str, total: int, unit: str, *, quiet: bool = False) -> Iterator[Callable[[int], object]]:
    """Show the progress of long work on standard error; gives a function to call with the number of units just done."""
    if quiet or total == 0:
        yield lambda done: None
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=f" {unit}", leave=False, dynamic_ncols=True) as bar:
            yield lambda done: bar.update(done)
    else:
        finished = 0

        def print_quarters(done: int) -> None:
            nonlocal finished
            quarter = 4 * finished // total
            finished += done
            if 4 * finished // total > quarter:
                echo(f"{label}: {finished} of {total} {unit}", err=True)

        yield print_quarters
