"""From the text that a model writes to the label that it means."""

import re
import unicodedata
from collections.abc import Sequence


def label_of(text: str, choices: Sequence[str]) -> int | None:
    """The answer that a text is, or else the longest that it begins with as whole words; None where there is none.

    A text is read as far as the answers have lines. Case and white space do not count; where no answer is found so,
    punctuation and symbols around both do not either. None too where two answers are then the same.

    Example:
        >>> label_of(" Yes, I think.", ["No", "Yes"]), label_of("Notably so", ["No", "Yes"]), label_of("B)", ["A", "B"])
        (1, None, 1)
        >>> label_of("C++.", ["C", "C++"]), label_of("-1", ["1", "-1"]), label_of("1.5", ["1", "2"])
        (1, 1, None)
    """
    num_lines = 1 + max(each.strip().count("\n") for each in choices)
    written = " ".join(" ".join(text.strip().split("\n")[:num_lines]).split()).casefold()
    plain = [" ".join(each.split()).casefold() for each in choices]
    found = _begins(written, plain)
    return found if found is not None else _begins(_bare(written), [_bare(each) for each in plain])


def _begins(text: str, answers: Sequence[str]) -> int | None:
    begun = [each for each in answers if each and text.startswith(each) and not _goes_on(each[-1], text[len(each) :])]
    longest = max(begun, key=len, default="")
    return answers.index(longest) if answers.count(longest) == 1 and longest else None


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word, or a number, is longer than what was read of it."""
    return bool(last.isalnum() and rest[:1].isalnum()) or bool(last.isdigit() and re.match(r"[.,:/]\d", rest))


def _bare(text: str) -> str:
    def is_around(at: int) -> bool:
        is_sign = text[at] in "+-−" and text[at + 1 : at + 2].isdigit()
        return unicodedata.category(text[at])[0] in "PSZ" and not is_sign

    first = next((at for at in range(len(text)) if not is_around(at)), len(text))
    last = next((at for at in range(len(text) - 1, first - 1, -1) if not is_around(at)), first - 1)
    return text[first : last + 1]
