"""The time limit for reading an answer, whatever its kind."""

from collections import Counter

from flip_flop.errors import InputError, log

MAX_SECONDS = 5  # to read a text
MAX_SLOW = 5  # texts that take longer
MAX_LENGTH = 100_000  # characters of an answer, without its reasoning
_num_slow = Counter[str]()  # by what was slow, in this process


def count_slow(what: str, text: str) -> None:
    """Warn of a text that takes too long to read (``W-ANSWER-SLOW``).

    Raises:
        InputError: ``E-TASK-KEY`` for the fifth text of this process.
    """
    _num_slow[what] += 1
    slow = f"{what} takes more than {MAX_SECONDS} s for"
    hint = "Simplify extract, or let it find a shorter part of the answer."
    if _num_slow[what] >= MAX_SLOW:
        raise InputError("E-TASK-KEY", f"{slow} {MAX_SLOW} texts.", hint)
    log.warning("W-ANSWER-SLOW: %s %r. %s", slow, text[:60], hint)
