"""What the user did wrong, in one line: a stable code, what and where, and how to mend it."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The input is at fault. The command line prints it as one line and exits with 2.

    Args:
        code: A stable code such as ``E-TPL-EMPTY``; documented in ``docs/errors.md``.
        message: What is wrong, and where: the file, row, column or template by name.
        hint: How to mend it, as an imperative sentence.

    Example:
        >>> print(InputError("E-DATA-EMPTY", "tickets.csv has no rows.", "Add at least one row."))
        E-DATA-EMPTY: tickets.csv has no rows. Add at least one row.
    """

    def __init__(self, code: str, message: str, hint: str = ""):
        self.code = code
        self.message = message
        self.hint = hint
        super().__init__(" ".join(f"{code}: {message} {hint}".split()))


def nearest(name: str, known: Iterable[str]) -> str:
    """Words that name the known word nearest to ``name``, or list the known ones where none is near.

    Example:
        >>> nearest("premis", ["premise", "hypothesis"])
        "Did you mean 'premise'?"
    """
    names = sorted(str(word) for word in known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else ""
