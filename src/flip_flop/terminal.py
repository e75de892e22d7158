"""Where lines are printed: what a terminal would obey, or what would turn a name around, is shown as an escape."""

import logging
import os
import sys

from flip_flop.text import visible


def is_first_process() -> bool:
    """Whether no launcher has started this process, or it is the first of those that one has."""
    return os.environ.get("RANK", "0") == "0"


def echo(text: object = "", *, err: bool = False) -> None:
    """Print lines to standard output, or with ``err`` to standard error."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(visible(str(text)).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


class LogLines(logging.Formatter):
    """Notes as plain lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, and a traceback where there is one."""
        return visible(super().format(record))
