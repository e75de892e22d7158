"""From the text that a model writes to the label that it means."""

import string
from collections.abc import Sequence

AROUND = string.whitespace + string.punctuation


def label_of(text: str, choices: Sequence[str]) -> int | None:
    """The answer that a text is, or else the longest that it begins with as whole words; None where there is none.

    Case, white space, and punctuation around both do not count. None too where two answers are then the same.

    Example:
        >>> label_of(" Yes, I think.", ["No", "Yes"]), label_of("Notably so", ["No", "Yes"]), label_of("B)", ["A", "B"])
        (1, None, 1)
    """
    text, *plain = (each.strip(AROUND).casefold() for each in (text, *choices))
    begun = [each for each in plain if each and text.startswith(each) and not text[len(each) : len(each) + 1].isalnum()]
    longest = max(begun, key=len, default="")
    return plain.index(longest) if plain.count(longest) == 1 and longest else None
