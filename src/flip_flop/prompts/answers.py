"""Answers in generated texts: the key by which equal open answers are grouped, and the label among answer choices."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import regex

from flip_flop.errors import InputError, log, look_up, require_package
from flip_flop.prompts.latex import expression_key, latex_key

KINDS = ("text", "number", "latex")
LAST_NUMBER, AFTER = "last_number", "after "
MAX_SECONDS = 5  # to find an answer in a generated text
MAX_SLOW = 5  # texts that take longer
SLOW_HINT = "Remove repetitions within repetitions."
_num_slow = Counter[str]()  # by regular expression, in this process
# A sign is not the hyphen of "10-12" or "(1)-2". A number does not continue a word, as in "x2" or "m^2", or another
# number. The words of Thai, Chinese, Japanese and Korean have no spaces around them.
NO_WORD = r"(?<![^\W_\u0e00-\u0e4f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u05d0-\u05ea\u0620-\u064a])"
SIGN = r"(?<![)\]%°/])[-+−－﹣‐‑]|(?<![^\s:=(\[$])–"
FRACTIONS = "¼-¾⅐-⅞"
NUMBER = re.compile(
    rf"(?:{NO_WORD}(?P<sign>{SIGN})|{NO_WORD}(?<!\d[.,:])(?<!/)(?<![^\W_]\^))[$€£¥]?"
    rf"(?P<digits>(?:(?<!\.)\.)?[\d{FRACTIONS}][\d.,/:'’_^{{}}²³¹⁰-⁹⁄／٫٬．，{FRACTIONS}]*"
    rf"(?:(?:[ \u00a0\u2009\u202f]|\\[,;: ])\d{{3}}(?!\d)| ?[{FRACTIONS}])*)"
    r"(?P<exponent>[eE][-+]?\d{1,3}(?![^\W_]))?"
)
# The number also has another sign, a root or a scale: minus 5, √2, (x)^2, 1.5 million, 5 and a half.
BEFORE_NUMBER = re.compile(
    r"(?i)(?:\b(?:minus|negative|negativ|moins|menos|meno|eksi|минус)\s|[负負]|マイナス|마이너스\s?|√|\\sqrt\{|\^\{?)\Z"
)
SCALE = (  # in the languages of the Group of 20, and Thai
    r"hundred|thousand|lakh|million|crore|billion|trillion|dozen|and an? (?:half|quarter|third)"
    r"|tausend|milliar|mio\b|mrd\b|dutzend|mill[oó]n|mille\b|mila?\b|mil[jh]|mily|bin\b|juta|ribu|тыс|милл|млн|млрд"
    r"|[百千万萬億亿兆만억조천백π]|พัน|หมื่น|แสน|ล้าน|हज़ार|लाख|करोड़|ألف|آلاف|ملايين|مليون|مليار|\\pi|\\sqrt"
)
AFTER_NUMBER = re.compile(rf"(?:[kKMB]|bn|mn|tn)(?![^\W_])|[eE][-+]?\d|[xX][\da-fA-F]|\s?(?i:{SCALE})")
# Other forms can be read in several ways: 1,5 and 1/2 and 10:30 and 1 000 and 10^3.
PLAIN = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = regex.compile(r"[\p{P}\p{Cf}$+<=>^`|~]")  # also invisible characters
FULL_WIDTH = {code + 0xFEE0: code for code in range(0x21, 0x7F)}


@dataclass(frozen=True)
class AnswerFormat:
    """The answers of a task without answer choices, and how they are read from generated texts.

    Attributes:
        kind: ``text``, ``number``, or ``latex`` for mathematical expressions (needs math-verify).
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
        look_up(self.kind, dict.fromkeys(KINDS), "E-TASK-KEY", "the kind of answer is")
        if self.kind == "latex":
            require_package("math_verify", "latex", "E-TASK-KEY", "the kind of answer latex")
        if self.extract == LAST_NUMBER and self.kind != "number":
            raise InputError(
                "E-TASK-KEY", f"extract is last_number, but the kind is {self.kind}.", "Use the kind number."
            )
        if self.extract in ("", AFTER) or "" in self.stop or self.max_tokens < 1:
            raise InputError("E-TASK-KEY", "extract or stop is empty, or max_tokens is below 1.", "Correct the answer.")
        try:
            regex.compile(self.extract or "")
        except regex.error as error:
            raise InputError(
                "E-TASK-KEY",
                f"extract is {self.extract!r}: {error}.",
                "Use a regular expression, last_number, or after TEXT.",
            ) from None

    def before_stop(self, text: str, prompt: str = "") -> str:
        """Return a text up to the first of the stop texts after its reasoning, which a ``prompt`` may have begun.

        A stop text of white space does not end an answer that has not begun.
        """
        *reasoning, answer = ANSWER_BEGINS.split(text)
        before = text.removesuffix(answer)
        if re.match(rf"\s*{REASONING}", answer) or (not reasoning and begins_reasoning(prompt)):
            return text
        for stop in self.stop:
            begin = len(answer) - len(answer.lstrip()) if stop.isspace() else 0
            end = answer.find(stop, begin)
            answer = answer if end < 0 else answer[:end]
        return before + answer

    def answer(self, text: str, prompt: str = "") -> str:
        """Return a generated text without its reasoning, up to a stop text. Reasoning without an end has no answer.

        Example:
            >>> form = AnswerFormat("text", stop=(".",))
            >>> form.answer("<think>In. France</think>Paris. It"), form.answer("<think>I"), form.answer("I", "<think>")
            ('Paris', '', '')
        """
        *reasoning, answer = ANSWER_BEGINS.split(self.before_stop(text, prompt))
        has_begun = re.search(REASONING, answer) or (not reasoning and begins_reasoning(prompt))
        return "" if has_begun else TURN_ENDS.sub("", answer).strip()

    def key(self, text: str, prompt: str = "") -> str | None:
        """Return the key of a generated text. Equal keys are equal answers. None: the answer cannot be read.

        A ``prompt`` may have begun the reasoning. A text is unreadable if its regular expression takes more than five
        seconds.

        Raises:
            InputError: ``E-TASK-KEY`` if it takes that long for five texts of this process.
        """
        text, extract = self.answer(text, prompt), self.extract
        if extract is not None and extract.startswith(AFTER):
            mark = extract.removeprefix(AFTER).strip()
            text = text.rpartition(mark)[2].strip().partition("\n")[0] if mark in text else ""
        elif extract not in (None, LAST_NUMBER):
            try:
                match = regex.search(extract, text, timeout=MAX_SECONDS)
            except TimeoutError:
                what = f"the regular expression {extract!r} takes more than {MAX_SECONDS} s for"
                _num_slow[extract] += 1
                if _num_slow[extract] >= MAX_SLOW:
                    raise InputError("E-TASK-KEY", f"{what} {MAX_SLOW} texts.", SLOW_HINT) from None
                log.warning("W-ANSWER-SLOW: %s %r. %s", what, text[:60], SLOW_HINT)
                return None
            text = match[min(len(match.groups()), 1)] or "" if match else ""
        elif self.kind == "number":
            return (numbers(text) or [None])[-1]
        elif self.kind == "latex":
            return latex_key(text)
        return self.reference_key(text)

    def reference_key(self, text: str) -> str | None:
        """Return the key of an answer without other text, such as a reference. A number may have a unit."""
        if self.kind == "text":
            return text_key(text)
        if self.kind == "latex":
            return expression_key(text)
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
        digits = match["digits"].rstrip(".,/:'’_{}，．").replace("．", ".")
        sign = regex.sub("[−－﹣–‐‑]", "-", match["sign"] or "")
        start, end = match.span()
        has_more = BEFORE_NUMBER.search(text, max(0, start - 10), start) or AFTER_NUMBER.match(text, end)
        if has_more or not PLAIN.fullmatch(digits):
            keys.append(None)
            continue
        number = Decimal(f"{sign}{digits.replace(',', '')}{match['exponent'] or ''}")
        exact = number.normalize(Context(prec=len(digits))) or Decimal(0)  # one zero, without a sign
        keys.append(f"{exact:f}")
    return keys


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
    answered, expected = (key or "").split(), reference.split()
    return 2 * sum((Counter(answered) & Counter(expected)).values()) / (len(answered) + len(expected))


def unsupported(what: str) -> InputError:
    """Return the error of a command or an option for tasks with answer choices only."""
    return InputError(
        "E-OPEN-ANSWER", f"{what} does not support tasks with open answers.", "Give the templates answer choices."
    )


# ---- the label of a generated text, among answer choices ----

# The end of the reasoning of DeepSeek, Qwen, Claude, Magistral, GPT-OSS (harmony, also without its special tokens),
# Seed-OSS, Kimi, Command A and Sky-T1.
ANSWER_BEGINS = re.compile(
    r"(?i)</(?:think|thinking|thought|seed:think)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>\s*final\b[^<>]*(?:<\|constrain\|>[^<>]*)?<\|message\|>|\Aanalysis.*?assistantfinal",
    re.DOTALL,
)
REASONING = r"(?i:<(?:think|thinking|thought|seed:think)>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|channel\|>)"
# The end of a turn, which some servers do not remove.
TURN_ENDS = re.compile(
    r"(?i)(?:\s|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|END_OF_TURN_TOKEN|END_RESPONSE)\|>)+\Z"
)
# What may begin reasoning or end it, except formatting in HTML.
MARK = re.compile(
    r"(?i)<(?:think|thinking|thought|seed:think)>|\[THINK\]|◁[^◁▷\n]{1,40}▷|<[|｜][^<>\n]{1,40}>|<[^<>\n]{1,40}[|｜]>"
    r"|</(?!(?:b|i|u|em|strong|p|br|code|span|li|ul|ol|div|a|h\d)>)[^<>\n]{1,40}>|\[/[^\[\]\n]{1,40}\]"
)
# A word or number that continues behind its first character.
CONTINUED = re.compile(r"[^\W_](?:[^\W_]|['’_‐‑-]\w)|\d[.,:/–]\d")
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "FULLWIDTH", "IDEOGRAPHIC")
# A letter that begins a sentence as a word, such as an article. "A is right" is about option A.
WORD = re.compile(r"[AEIOUYaeiouyАВИКОСУЯавикосуя]\s+(?!(?:is|was|because|since|as)\b)[^\W\d_A-ZА-Я]")
# Between two answers: words, symbols, or only space.
JOINT = re.compile(
    r"\A(?:[\W_]*(?:\b(?:and/or|or|and|nor|oder|und|ou|et|o|y|of|en|veya|ya da|أو|या|또는|или|и)(?!\w)"
    r"|或者?|还是|和|または|か|หรือ)"
    r"|[\s*_\"'”’]*[,;/&|、，；／])?[\s*_\"'“‘(\[]*"
)
# Words that reverse or deny an answer, in languages with spaces between words.
NEGATION = re.compile(
    r"\b(?:no|not|never|neither|nor|none|hardly|without|cannot|nicht|kein\w*|nie|weder|ohne|ne|pas|jamais|sans|non|ni"
    r"|nunca|sin|né|mai|senza|не|нет|niet|geen|nooit|não|nem|sem|değil|yok|bukan|tidak|không|nie|ikke|inte|aldrig"
    r"|ليس\w*|لا|غير|नहीं|मत|안|못)(?!\w)|n['’]t\b|\bn['’]|않|없"
)


def begins_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with a mark that begins reasoning, as some chat templates do.

    Example:
        >>> begins_reasoning("Good?<think> "), begins_reasoning("Good?<think></think>")
        (True, False)
    """
    return re.search(rf"{REASONING}\s*\Z", prompt) is not None


def after_reasoning(text: str) -> tuple[str, str]:
    """Return the answer of a generated text, and a mark that makes it unreadable or an empty text.

    The answer follows the last mark that ends reasoning. Reasoning without an end has no answer, and no other mark is
    known to end it.

    Example:
        >>> after_reasoning("No complaint.</think>Yes"), after_reasoning("<think>No"), after_reasoning("No[/PLAN]Yes")
        (('Yes', ''), ('', '<think>'), ('', '[/PLAN]'))
    """
    answer = TURN_ENDS.sub("", ANSWER_BEGINS.split(text)[-1]).strip()
    mark = MARK.search(answer)
    return ("", mark[0]) if mark else (answer, "")


def unread(text: str) -> str:
    """Return what to list of a text without a label: its mark, or the text without line breaks."""
    answer, mark = after_reasoning(text)
    return f"mark {mark}" if mark else " ".join(answer.split())


def label_of(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the answer that a text begins with as whole words, or None.

    The longest answer counts. A text that joins it to another answer ("Yes or No", "Yes, no doubt") has no label.
    The answer of a reasoning model is that of :func:`after_reasoning`. As many lines count as the answers have. Case,
    white space and the Unicode form do not count. The article "a" is not the option A. If no answer is found,
    punctuation and symbols around text and answers are removed.

    Example:
        >>> label_of(" Yes, I think.", ["No", "Yes"]), label_of("Notably so", ["No", "Yes"]), label_of("B)", ["A", "B"])
        (1, None, 1)
        >>> label_of("C++.", ["C", "C++"]), label_of("-1", ["1", "-1"]), label_of("1.5", ["1", "2"])
        (1, 1, None)
        >>> label_of("can't", ["can", "cannot"]), label_of("Yes or no", ["No", "Yes"]), label_of("是的", ["是", "否"])
        (None, None, 0)
    """
    num_lines = 1 + max(choice.strip().count("\n") for choice in choices)
    answer = unicodedata.normalize("NFC", after_reasoning(text)[0])
    written = _folded(" ".join(answer.split("\n")[:num_lines]))
    plain = [_folded(choice) for choice in choices]
    bare = [_bare(choice) for choice in plain]
    label, rest = _first(written, plain)
    if label is None:
        label, rest = _first(_bare(written), bare)
    others = {_first(JOINT.sub("", rest, 1), answers)[0] for answers in (plain, bare)} - {None, label}
    is_word = label is not None and len(bare[label]) == 1 and WORD.match(_bare(answer))
    return None if others or is_word else label


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
    words = [_bare(_folded(choice)) for choice in choices]
    if len(set(words)) < len(words) or any(len(word) < 2 or not has_spaces(word) for word in words):
        return None
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    pattern = regex.compile(rf"(?<![\w'’‐‑-])(?:{longest_first})(?!\w|\p{{M}}|['’‐‑-]\w)")
    answer = _folded(after_reasoning(text)[0])
    matches = list(pattern.finditer(answer))
    labels = {match[0] for match in matches}
    if len(labels) != 1 or NEGATION.search(pattern.sub("", answer)) or "?" in answer:
        return None
    (label,) = labels
    ends = [re.match(r"[^\w\s]|\s*\Z", answer[match.end() :]) for match in matches]
    return words.index(label) if all(ends) or not NEGATION.fullmatch(label) else None


def _folded(text: str) -> str:
    """Return a text in one Unicode form, without case and line breaks."""
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()


def has_spaces(text: str) -> bool:
    """Whether the scripts of a text have spaces between their words. Full-width punctuation has none after it."""
    return not any(unicodedata.name(char, "").startswith(NO_SPACES) for char in text)


def _first(text: str, answers: Sequence[str]) -> tuple[int | None, str]:
    """The answer at the beginning of a text, and the rest."""
    begun = [word for word in answers if word and text.startswith(word) and not _goes_on(word[-1], text[len(word) :])]
    longest = max(begun, key=len, default="")
    # Equal answers cannot be told apart.
    return (answers.index(longest), text[len(longest) :]) if answers.count(longest) == 1 and longest else (None, "")


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word or number is longer than the answer."""
    # The marks of Indic scripts, such as vowels, are parts of words.
    word = "".join("x" if unicodedata.category(char)[0] == "M" else char for char in last + rest[:2])
    return has_spaces(last + rest[:1]) and bool(CONTINUED.match(word))


def _bare(text: str) -> str:
    """Return a text without punctuation, symbols and spaces around it, but with the sign of a number."""

    def is_inside(place: int) -> bool:
        is_sign = text[place] in "+-−" and text[place + 1 : place + 2].isdigit()
        return is_sign or unicodedata.category(text[place])[0] not in "PSZ"

    inside = [place for place in range(len(text)) if is_inside(place)]
    return text[inside[0] : inside[-1] + 1] if inside else ""
