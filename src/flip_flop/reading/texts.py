"""Keys of texts, and the words that two keys share."""

import re
import unicodedata
from collections import Counter

import regex

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = regex.compile(r"[\p{P}\p{Cf}$+<=>^`|~]")  # also invisible characters
FULL_WIDTH = {code + 0xFEE0: code for code in range(0x21, 0x7F)}
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "FULLWIDTH", "IDEOGRAPHIC")


def text_key(text: str) -> str | None:
    """Return SQuAD's normalization of a text: no case, punctuation, articles, and repeated spaces. None if it is empty.

    Punctuation is that of all languages. Full-width letters are the usual ones. An answer of articles only is kept: it
    may be the option "A". Rajpurkar et al., "SQuAD", EMNLP 2016.

    Example:
        >>> text_key("The  Eiffel-Tower."), text_key("A."), text_key("?!")
        ('eiffeltower', 'a', None)
    """
    usual = unicodedata.normalize("NFC", text).translate(FULL_WIDTH).lower()
    plain = unicodedata.normalize("NFC", PUNCTUATION.sub("", usual))
    return " ".join(ARTICLES.sub(" ", plain).split()) or " ".join(plain.split()) or None


def token_f1(key: str | None, reference: str) -> float:
    """Return the F1 of the words of two keys, 0 for an answer that cannot be read.

    Example:
        >>> token_f1("eiffel tower", "tower in paris"), token_f1("paris", "paris"), token_f1(None, "paris")
        (0.4, 1.0, 0.0)
    """
    answered = (key or "").split()
    expected = reference.split()
    return 2 * sum((Counter(answered) & Counter(expected)).values()) / (len(answered) + len(expected))


def has_spaces(text: str) -> bool:
    """Whether the scripts of a text have spaces between their words. Full-width punctuation has none after it."""
    return not any(unicodedata.name(char, "").startswith(NO_SPACES) for char in text)
