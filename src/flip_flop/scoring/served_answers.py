"""Labels of generated answers, and scores of answers from the most probable first tokens."""

import itertools
import math
import re
import unicodedata
from collections.abc import Sequence

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance

# The end of the reasoning of DeepSeek, Qwen, Claude, Magistral, GPT-OSS (harmony, also without its special tokens),
# Seed-OSS, Kimi, Command A and Sky-T1.
ANSWER_BEGINS = re.compile(
    r"(?i)</(?:think|thinking|thought|seed:think)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>\s*final\b[^<>]*(?:<\|constrain\|>[^<>]*)?<\|message\|>|\Aanalysis.*?assistantfinal",
    re.DOTALL,
)
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
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
# A letter that begins a sentence as a word, such as an article. "A is right" is about option A.
WORD = re.compile(r"[AEIOUYaeiouyАВИКОСУЯавикосуя]\s+(?!(?:is|was|because|since|as)\b)[^\W\d_A-ZА-Я]")
# Between two answers: words, symbols, or only space.
JOINT = re.compile(
    r"\A(?:[\W_]*(?:\b(?:and/or|or|and|nor|oder|und|ou|et|o|y)\b|或者?|和)|[\s*_\"'”’]*[,;/&|、，；／])?[\s*_\"'“‘(\[]*"
)
# Words that reverse or deny an answer, in English, German, French, Spanish, Italian and Russian.
NEGATION = re.compile(
    r"\b(?:no|not|never|neither|nor|none|hardly|without|cannot|nicht|kein\w*|nie|weder|ohne|ne|pas|jamais|sans|non|ni"
    r"|nunca|sin|né|mai|senza|не|нет)\b|n['’]t\b|\bn['’]"
)
HINT_LABELS = "Use answers that begin differently, or --by generation."


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
    if len(set(words)) < len(words) or any(len(word) < 2 or not _has_spaces(word) for word in words):
        return None
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w'’‐‑-])(?:{longest_first})(?!\w|['’‐‑-]\w)")
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


def _has_spaces(text: str) -> bool:
    """Whether the script of a text has spaces between its words."""
    return not any(unicodedata.name(char, "").startswith(NO_SPACES) for char in text)


def _first(text: str, answers: Sequence[str]) -> tuple[int | None, str]:
    """The answer at the beginning of a text, and the rest."""
    begun = [word for word in answers if word and text.startswith(word) and not _goes_on(word[-1], text[len(word) :])]
    longest = max(begun, key=len, default="")
    # Equal answers cannot be told apart.
    return (answers.index(longest), text[len(longest) :]) if answers.count(longest) == 1 and longest else (None, "")


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word or number is longer than the answer."""
    return _has_spaces(last + rest[:1]) and bool(CONTINUED.match(last + rest[:2]))


def _bare(text: str) -> str:
    """Return a text without punctuation, symbols and spaces around it, but with the sign of a number."""

    def is_inside(place: int) -> bool:
        is_sign = text[place] in "+-−" and text[place + 1 : place + 2].isdigit()
        return is_sign or unicodedata.category(text[place])[0] not in "PSZ"

    inside = [place for place in range(len(text)) if is_inside(place)]
    return text[inside[0] : inside[-1] + 1] if inside else ""


def require_different(instances: Sequence[RenderedInstance]) -> None:
    """Refuse answers that a generated text cannot distinguish (``E-ENDPOINT``)."""
    for group in dict.fromkeys(group for instance in instances for group in instance.choices):
        if [label_of(choice, group) for choice in group] != list(range(len(group))):
            raise InputError(
                "E-ENDPOINT",
                f"Generated texts cannot distinguish the answers {', '.join(map(repr, group))}.",
                "Use other words.",
            )


def require_different_beginnings(instances: Sequence[RenderedInstance], names: Sequence[str]) -> None:
    """Refuse answers whose first words begin alike (``E-ENDPOINT-LOGPROBS``)."""
    for template, group in dict.fromkeys(pair for instance in instances for pair in enumerate(instance.choices)):
        words = sorted((*unicodedata.normalize("NFC", choice).split(), "")[0] for choice in group)
        if any(after.startswith(word) for word, after in itertools.pairwise(words)):
            name = names[template] if names else template + 1
            raise InputError(
                "E-ENDPOINT-LOGPROBS",
                f"Template {name!r}: the answers {', '.join(map(repr, group))} begin alike.",
                HINT_LABELS,
            )


def first_token_scores(top: Sequence[tuple[str, float]], choices: Sequence[str], place: str) -> list[float]:
    """Return the log-probability of each answer's first token, from the most probable tokens.

    The first token of an answer is the longest token that begins this answer and no other. An answer without such a
    token gets an upper bound: the probability of an unlisted token, or of a token that begins several answers. Without
    any token that begins an answer, all scores are ``-inf``.

    Raises:
        InputError: ``E-ENDPOINT-LOGPROBS`` if a token that begins several answers is the most probable.

    Example:
        >>> first_token_scores([("Yes", -0.1), ("Y", -4.0), ("Maybe", -5.0)], ["No", "Yes"], "")
        [-5.0, -0.1]
    """
    answers = [unicodedata.normalize("NFC", choice) for choice in choices]
    tokens = [(unicodedata.normalize("NFC", token.strip()), log_prob) for token, log_prob in top if token.strip()]
    unique: dict[int, float] = {}
    shared = [-math.inf] * len(choices)  # of each answer, the most probable token that begins other answers too
    for token, log_prob in sorted(tokens, key=lambda pair: (len(pair[0]), pair[1])):
        labels = [label for label, answer in enumerate(answers) if answer.startswith(token)]
        if len(labels) == 1:
            unique[labels[0]] = log_prob
        else:
            shared = [max(value, log_prob) if label in labels else value for label, value in enumerate(shared)]
    if not unique and max(shared) == -math.inf:
        return shared
    if max(shared) >= max(unique.values(), default=-math.inf):
        raise InputError(
            "E-ENDPOINT-LOGPROBS",
            f"{place}: the first token does not identify one of {', '.join(map(repr, choices))}.",
            HINT_LABELS,
        )
    unlisted = max(1.0 - sum(math.exp(log_prob) for _, log_prob in top), 1e-9)
    bound = min(math.log(unlisted), *(log_prob for _, log_prob in top))
    return [unique.get(label, max(bound, value)) for label, value in enumerate(shared)]
