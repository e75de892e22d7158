"""Open answers: how an answer is read from a generated text, and the key by which equal answers are grouped."""

import re
import string
import unicodedata
from collections import Counter
from dataclasses import dataclass
from decimal import Context, Decimal

import regex

from flip_flop.errors import InputError

KINDS = ("text", "number")
LAST_NUMBER, AFTER = "last_number", "after "
MAX_SECONDS = 5  # to find an answer in a generated text
# A sign is not the hyphen of "10-12" or "(1)-2". A number does not continue a word, as in "x2".
NUMBER = re.compile(
    r"(?<![^\W_])(?<![.,/:])(?P<sign>(?<![)\]%])[-+−])?[$€£¥]?"
    r"(?P<digits>\.?\d[\d.,/:]*(?:[ \u00a0\u202f]\d{3}(?!\d))*)(?P<exponent>[eE][-+]?\d{1,3}(?![^\W_]))?"
)
# Other forms can be read in several ways: 1,5 and 1/2 and 10:30 and 1 000.
PLAIN = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class AnswerFormat:
    """The answers of a task without answer choices, and how they are read from generated texts.

    Attributes:
        kind: ``text`` or ``number``.
        extract: The part of a generated text that is the answer. A regular expression: its first match, or its first
            group. ``after ANSWER:``: the rest of the line after the last ``ANSWER:``. ``last_number``, the default of
            numbers. By default, the answer of a text is all of it.
        stop: Texts that end an answer.
        max_tokens: The maximum number of generated tokens.

    Raises:
        InputError: ``E-TASK-KEY``.

    Example:
        >>> AnswerFormat("number").key("She had 3 friends and 1,250.0 shells.")
        '1250'
        >>> AnswerFormat("text", "after Answer:").key("Hmm. Answer: The  Eiffel tower!")
        'eiffel tower'
    """

    kind: str = "text"
    extract: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        if self.kind not in KINDS:
            hint = "LaTeX answers are not supported yet." if self.kind == "latex" else f"Use {' or '.join(KINDS)}."
            raise InputError("E-TASK-KEY", f"the kind of answer is {self.kind!r}.", hint)
        if self.extract == LAST_NUMBER and self.kind == "text":
            raise InputError("E-TASK-KEY", "extract is last_number, but the kind is text.", "Use the kind number.")
        if self.extract in ("", AFTER) or "" in self.stop or self.max_tokens < 1:
            raise InputError("E-TASK-KEY", "extract or stop is empty, or max_tokens is below 1.", "Correct the answer.")
        try:
            regex.compile(self.extract or "")
        except regex.error as error:
            hint = "Use a regular expression, last_number, or after TEXT."
            raise InputError("E-TASK-KEY", f"extract is {self.extract!r}: {error}.", hint) from None

    def before_stop(self, text: str) -> str:
        """Return a text up to the first of the stop texts."""
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text

    def key(self, text: str) -> str | None:
        """Return the key of a generated text. Equal keys are equal answers. None: the answer cannot be read.

        Raises:
            InputError: ``E-TASK-KEY`` if the regular expression takes too long.
        """
        text, extract = self.before_stop(text), self.extract
        if extract is not None and extract.startswith(AFTER):
            mark = extract.removeprefix(AFTER).strip()
            text = text.rpartition(mark)[2].strip().partition("\n")[0] if mark in text else ""
        elif extract not in (None, LAST_NUMBER):
            try:
                match = regex.search(extract, text, timeout=MAX_SECONDS)
            except TimeoutError:
                what = f"the regular expression {extract!r} takes more than {MAX_SECONDS} s for {text[:60]!r}"
                raise InputError("E-TASK-KEY", f"{what}.", "Remove repetitions within repetitions.") from None
            text = match[min(len(match.groups()), 1)] or "" if match else ""
        elif self.kind == "number":
            return (numbers(text) or [None])[-1]
        return self.reference_key(text)

    def reference_key(self, text: str) -> str | None:
        """Return the key of an answer without other text, such as a reference. A number may have a unit."""
        if self.kind == "text":
            return text_key(text)
        distinct = set(numbers(text))
        return distinct.pop() if len(distinct) == 1 else None


def numbers(text: str) -> list[str | None]:
    """Return the decimal digits of each number of a text, and None for a number that can be read in several ways.

    Example:
        >>> numbers("-$5.50, 1,200 and 2e3; x2, 1/2"), numbers("10-12 or 3,5")
        (['-5.5', '1200', '2000', None], ['10', '12', None])
    """
    keys: list[str | None] = []
    for match in NUMBER.finditer(text):
        digits, sign = match["digits"].rstrip(".,/:"), (match["sign"] or "").replace("−", "-")
        if not PLAIN.fullmatch(digits):
            keys.append(None)
            continue
        number = Decimal(f"{sign}{digits.replace(',', '')}{match['exponent'] or ''}")
        exact = number.normalize(Context(prec=len(digits))) or Decimal(0)  # one zero, without a sign
        keys.append(f"{exact:f}")
    return keys


def text_key(text: str) -> str | None:
    """Return SQuAD's normalization of a text: no case, punctuation, articles, and repeated spaces. None if it is empty.

    An answer of articles only is kept: it may be the option "A". Rajpurkar et al., "SQuAD", EMNLP 2016.

    Example:
        >>> text_key("The  Eiffel-Tower."), text_key("A."), text_key("?!")
        ('eiffeltower', 'a', None)
    """
    plain = unicodedata.normalize("NFC", text.lower().translate(NO_PUNCTUATION))
    return " ".join(ARTICLES.sub(" ", plain).split()) or " ".join(plain.split()) or None


def token_f1(key: str | None, reference: str) -> float:
    """Return the F1 of the words of two keys, 0 for an answer that cannot be read.

    Example:
        >>> token_f1("eiffel tower", "tower in paris"), token_f1("paris", "paris"), token_f1(None, "paris")
        (0.4, 1.0, 0.0)
    """
    answered, expected = (key or "").split(), reference.split()
    return 2 * sum((Counter(answered) & Counter(expected)).values()) / (len(answered) + len(expected))


def unsupported(what: str) -> InputError:
    """Return the error of a command or an option for tasks with answer choices only."""
    return InputError(
        "E-OPEN-ANSWER", f"{what} does not support tasks with open answers.", "Give the templates answer choices."
    )
