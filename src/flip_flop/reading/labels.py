"""The label of an answer, among answer choices."""

import functools
import re
import unicodedata
from collections.abc import Sequence

import regex

from flip_flop.reading.reply import NAMES
from flip_flop.reading.texts import FULL_WIDTH, has_spaces

# A word or number that continues behind its first character.
CONTINUED = re.compile(r"[^\W_](?:[^\W_]|['’_‐‑-]\w)|\d[.,:/–]\d")
# A letter that begins a sentence as a word, such as an article. "A is right" is about option A.
WORD = re.compile(r"[AEIOUYaeiouyАВИКОСУЯавикосуя]\s+(?!(?:is|was|because|since|as)\b)[^\W\d_A-ZА-Я]")
# Between two answers: words, symbols, or only space.
JOINT = re.compile(
    r"\A(?:[\W_]*(?:\b(?:and/or|or|and|nor|as well as|along with|plus|to|till?|until|through|vs|versus|oder|und|bis|ou"
    r"|et|à|o|y|a|hasta|of|en|tot|veya|ya da|ile|أو|या|또는|или|и|до)(?!\w)"
    r"|或者?|还是|和|与|及|到|至|または|か|と|から|หรือ|และ)"
    r"|[\s*_\"'”’]*[-,;/&|+<>=~–—−→⇒、，；／〜～])?[\s*_\"'“‘(\[]*"
)
# Words that reverse or deny an answer, in languages with spaces between words.
NEGATION = re.compile(
    r"\b(?:no|not|never|neither|nor|none|hardly|without|cannot|nicht|kein\w*|nie|weder|ohne|ne|pas|jamais|sans|non|ni"
    r"|nunca|sin|né|mai|senza|не|нет|niet|geen|nooit|não|nem|sem|değil|yok|bukan|tidak|không|nie|ikke|inte|aldrig"
    r"|ليس\w*|لا|غير|नहीं|मत|안|못)(?!\w)|n['’]t\b|\bn['’]|않|없"
)
CLAUSE_ENDS = re.compile(r"[^\w\s]|\s*\Z")
IS_IT_NOT = re.compile(r"[不没]")  # 是不是 asks
# Behind an answer that is rejected: "A is worse", "Yes would be the wrong answer", "Entailment does not hold", "A? No".
REJECTED = re.compile(
    r"[*_\"'”’)]*(?:\?\s*\w|\s+(?:(?:is|are|was|would|could|should|does|do|did|can|has|seems|looks)(?:n['’]t"
    r"|(?:\s+\w+){0,2}?\s+(?:not|wrong|incorrect|false|worse|worst|inferior|less))|cannot|can['’]t|fails)(?!\w))"
)
# "Option A" and "Answer A" are A.
NAMED = re.compile(
    r"\A(?:answer|option|response|choice|candidate|assistant|model|output)\s+[\W_]*(?=(?:[^\W\d_]|\d+)(?!\w))"
)
LETTER = re.compile(r"[^\W_]|\d+")
# The answer is ..., Verdict: ..., and [[...]].
NOUNS = "|".join(name.replace("_", r"\s+") for name in NAMES)
STATED = re.compile(
    rf"(?i)(?P<final>\b(?:final|overall)\s+)?\b(?:{NOUNS}|antwort|réponse|respuesta|resposta|risposta|cevap|ответ)\b"
    r"(?:\s(?:to|for|of|in|on)\s[^.:\n]{1,40}?)?[*_\"'”’)\]]*"
    r"\s*(?:\b(?:is|are|was|would\sbe|should\sbe|ist|est|es|è|é)\b|:|：|=|→|->)[\s*_:\"'“‘]*"
    r"|\[\[|(?:答案|答え|정답)\s*(?:是|为|は|:|：)?\s*"
)
# Characters of a stated answer, and the last sentences that are read.
MAX_STATED = 100
MAX_STATEMENTS = 100
USUAL = FULL_WIDTH | dict.fromkeys(map(ord, "\ufe0f\ufe0e\u20e3"))  # without the frames of keycaps
# Punctuation, symbols, spaces and invisible characters, except the sign of a number.
BEFORE = regex.compile(r"(?:(?![-+−]\d)[\p{P}\p{S}\p{Z}\p{C}])*+")
BEHIND = regex.compile(r"[\p{P}\p{S}\p{Z}\p{C}]*+")  # read backwards


class Choices:
    """Answer choices in the forms in which they are found in texts."""

    def __init__(self, choices: tuple[str, ...]) -> None:
        self.num_lines = 1 + max((choice.strip().count("\n") for choice in choices), default=0)
        folded = [_folded(choice) for choice in choices]
        turkish = [_turkish(choice) for choice in folded]
        # In Turkish, I and İ are the capitals of ı and i. Choices that differ in nothing else are compared as written.
        self.is_dotless = len(set(turkish)) == len(set(folded))
        self.plain = turkish if self.is_dotless else folded
        self.bare = [_bare(choice) for choice in self.plain]
        self.letters = [_letter(choice) for choice in self.bare]
        self.top = max(map(int, self.bare)) if all(map(str.isdecimal, self.bare)) else None
        self.words = self._words()

    def _words(self) -> regex.Pattern[str] | None:
        """Return a pattern of the answers as whole words. None: they are equal, of one character, or without spaces."""
        if len(set(self.bare)) < len(self.bare) or any(len(word) < 2 or not has_spaces(word) for word in self.bare):
            return None
        longest_first = "|".join(re.escape(word) for word in sorted(self.bare, key=len, reverse=True))
        return regex.compile(rf"(?<![\w'’‐‑-])(?:{longest_first})(?!\w|\p{{M}}|['’‐‑-]\w)")

    def folded(self, text: str) -> str:
        """Return a text in one Unicode form, without case and line breaks, and a grade without its scale."""
        folded = _turkish(_folded(text)) if self.is_dotless else _folded(text)
        if self.top is not None:
            folded = re.sub(rf"(?<![\d.,/])(\d+)(?:\.0+)?\s?(?:/|out of)\s?{self.top}(?![\d.,/]\d|\d)", r"\1", folded)
            folded = re.sub(r"(?<![\d.,/])(\d+)\.0+(?![\d.,/]\d|\d)", r"\1", folded)
        return folded

    def begun(self, text: str) -> tuple[int | None, str]:
        """Return the label of the longest answer at the beginning of a folded text, and the rest."""
        bare = _bare(text)
        letter = NAMED.sub("", bare)
        for written, answers in ((text, self.plain), (bare, self.bare), (letter, self.letters)):
            label, rest = _first(written, answers)
            if label is not None:
                return label, rest
        return None, ""


@functools.lru_cache(maxsize=1000)
def choices_of(choices: tuple[str, ...]) -> Choices:
    """Return the forms of answer choices, once for all texts."""
    return Choices(choices)


def label_begun(text: str, choices: Sequence[str]) -> tuple[int | None, bool]:
    """Return the index of the answer that a text begins with as whole words, and whether it is the whole text.

    The longest answer counts. A text that joins it to another answer ("Yes or No", "8 to 9", "Yes, no doubt") or
    rejects it ("A is worse", "A? No") has no label. As many lines count as the answers have. Case, white space and the
    Unicode form do not count. The article "a" is not the option A. If no answer is found, punctuation and symbols
    around text and answers are removed, and names of options: "Option A" and "A" are "Answer A".

    Example:
        >>> label_begun(" Yes, I think.", ["No", "Yes"]), label_begun("Notably so", ["No", "Yes"])
        ((1, False), (None, False))
        >>> label_begun("B)", ["A", "B"]), label_begun("8/10", ["8", "9", "10"]), label_begun("是的", ["是", "否"])
        ((1, True), (0, True), (0, False))
    """
    forms = choices_of(tuple(choices))
    text = unicodedata.normalize("NFC", text).strip()
    lines = " ".join(text.split("\n")[: forms.num_lines])
    label, rest = forms.begun(forms.folded(lines))
    if label is None:
        return None, False
    other = JOINT.sub("", rest, count=1)
    is_joined = any(_first(other, answers)[0] not in (None, label) for answers in (forms.plain, forms.letters))
    is_article = len(forms.letters[label]) == 1 and WORD.match(_bare(lines))
    is_question = IS_IT_NOT.match(rest) and rest[1:].startswith(forms.plain[label])
    # "No doubt: yes."
    is_negation = NEGATION.fullmatch(forms.bare[label]) and not CLAUSE_ENDS.match(rest)
    is_reversed = is_negation and labels_inside(rest, choices) - {label}
    if is_joined or is_article or is_question or is_reversed or REJECTED.match(rest):
        return None, False
    return label, not _bare(rest) and text.count("\n") < forms.num_lines


def labels_stated(text: str, choices: Sequence[str]) -> tuple[list[int], bool]:
    """Return the labels of the sentences that name an answer, and whether one of them is final.

    Only the last final answer counts.

    Example:
        >>> labels_stated("A is short. Verdict: B", ["A", "B"]), labels_stated("[[A]]? No: [[B]]", ["A", "B"])
        (([1], False), ([0, 1], False))
        >>> labels_stated("The answer is not A.", ["A", "B"])
        ([], False)
    """
    line = " ".join(unicodedata.normalize("NFC", text).split())
    labels = []
    final = []
    for match in list(STATED.finditer(line))[-MAX_STATEMENTS:]:
        label, _ = label_begun(line[match.end() : match.end() + MAX_STATED], choices)
        if label is None:
            continue
        labels.append(label)
        if match["final"]:
            final = [label]
    return final or labels, bool(final)


def labels_inside(text: str, choices: Sequence[str]) -> set[int]:
    """Return the labels of the answers that a text contains as whole words."""
    forms = choices_of(tuple(choices))
    words = forms.words.findall(forms.folded(text)) if forms.words else []
    return set(map(forms.bare.index, words))


def label_inside(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the only answer that a text contains as whole words, or None.

    A text with another answer, a negation or a question has no label. An answer that is a negation, such as "no", must
    end a clause. Answers of one character, and of scripts without spaces, are not words.

    Example:
        >>> choices = ["negative", "positive"]
        >>> label_inside("I think it is positive.", choices), label_inside("It is not positive.", choices)
        (1, None)
        >>> label_inside("The answer is no.", ["no", "yes"]), label_inside("There is no doubt.", ["no", "yes"])
        (0, None)
    """
    forms = choices_of(tuple(choices))
    answer = forms.folded(text)
    labels = labels_inside(text, choices)
    if len(labels) != 1 or not forms.words or NEGATION.search(forms.words.sub("", answer)) or "?" in answer:
        return None
    (label,) = labels
    ends = [match.end() for match in forms.words.finditer(answer)]
    if any(REJECTED.match(answer, end) for end in ends):
        return None
    is_clause = all(CLAUSE_ENDS.match(answer, end) for end in ends)
    if is_clause or not NEGATION.fullmatch(forms.bare[label]):
        return label
    return None


def _folded(text: str) -> str:
    """Return a text in one Unicode form, without case, line breaks, full width and the frames of keycaps."""
    return " ".join(unicodedata.normalize("NFC", text).translate(USUAL).split()).casefold()


def _turkish(folded: str) -> str:
    """Return a folded text whose dotless and dotted i are one letter."""
    return folded.replace("i\u0307", "i").replace("ı", "i")


def _first(text: str, answers: Sequence[str]) -> tuple[int | None, str]:
    """The answer at the beginning of a text, and the rest."""
    begun = [word for word in answers if word and text.startswith(word) and not _goes_on(word[-1], text[len(word) :])]
    longest = max(begun, key=len, default="")
    # Equal answers cannot be told apart.
    if answers.count(longest) == 1 and longest:
        return (answers.index(longest), text[len(longest) :])
    return (None, "")


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word or number is longer than the answer."""
    # The marks of Indic scripts, such as vowels, are parts of words.
    word = "".join("x" if unicodedata.category(char)[0] == "M" else char for char in last + rest[:2])
    return has_spaces(last + rest[:1]) and bool(CONTINUED.match(word))


def _letter(choice: str) -> str:
    """Return the letter or number of a named option, "a" of "answer a", or the choice itself."""
    letter = NAMED.sub("", choice)
    return letter if LETTER.fullmatch(letter) else choice


def _bare(text: str) -> str:
    """Return a text without punctuation, symbols and spaces around it, but with the sign of a number."""
    behind = BEHIND.match(text[::-1])
    before = BEFORE.match(text)
    assert behind
    assert before
    return text[before.end() : max(before.end(), len(text) - behind.end())]
