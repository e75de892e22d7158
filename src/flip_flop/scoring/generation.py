"""Labels of generated answers."""

import re
import unicodedata
from collections.abc import Sequence

THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
# A word or number that continues behind its first character.
CONTINUED = re.compile(r"[^\W_](?:[^\W_]|['’_‐‑-]\w)|\d[.,:/–]\d")
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
# Between two answers: words, symbols, or only space.
JOINT = re.compile(
    r"\A(?:[\W_]*(?:\b(?:and/or|or|and|nor|oder|und|ou|et|o|y)\b|或者?|和)|[\s*_\"'”’]*[,;/&|、，；／])?[\s*_\"'“‘(\[]*"
)


def label_of(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the answer that a text begins with as whole words, or None.

    The longest answer counts. A text that joins it to another answer ("Yes or No", "Yes, no doubt") has no label.
    A `<think>` block at the beginning is skipped. As many lines count as the answers have. Case and
    white space do not count. If no answer is found, punctuation and symbols around text and answers are removed.

    Example:
        >>> label_of(" Yes, I think.", ["No", "Yes"]), label_of("Notably so", ["No", "Yes"]), label_of("B)", ["A", "B"])
        (1, None, 1)
        >>> label_of("C++.", ["C", "C++"]), label_of("-1", ["1", "-1"]), label_of("1.5", ["1", "2"])
        (1, 1, None)
        >>> label_of("can't", ["can", "cannot"]), label_of("Yes or no", ["No", "Yes"]), label_of("是的", ["是", "否"])
        (None, None, 0)
    """
    num_lines = 1 + max(each.strip().count("\n") for each in choices)
    written = " ".join(" ".join(THOUGHT.sub("", text, 1).strip().split("\n")[:num_lines]).split()).casefold()
    plain = [" ".join(each.split()).casefold() for each in choices]
    bare = [_bare(each) for each in plain]
    found, rest = _first(written, plain)
    if found is None:
        found, rest = _first(_bare(written), bare)
    others = {_first(JOINT.sub("", rest, 1), each)[0] for each in (plain, bare)} - {None, found}
    return None if others else found


def _first(text: str, answers: Sequence[str]) -> tuple[int | None, str]:
    """The answer at the beginning of a text, and the rest."""
    begun = [each for each in answers if each and text.startswith(each) and not _goes_on(each[-1], text[len(each) :])]
    longest = max(begun, key=len, default="")
    # Equal answers cannot be told apart.
    return (answers.index(longest), text[len(longest) :]) if answers.count(longest) == 1 and longest else (None, "")


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word or number is longer than the answer."""
    has_spaces = not any(unicodedata.name(each, "").startswith(NO_SPACES) for each in last + rest[:1])
    return has_spaces and bool(CONTINUED.match(last + rest[:2]))


def _bare(text: str) -> str:
    def is_around(at: int) -> bool:
        is_sign = text[at] in "+-−" and text[at + 1 : at + 2].isdigit()
        return unicodedata.category(text[at])[0] in "PSZ" and not is_sign

    first = next((at for at in range(len(text)) if not is_around(at)), len(text))
    last = next((at for at in range(len(text) - 1, first - 1, -1) if not is_around(at)), first - 1)
    return text[first : last + 1]
