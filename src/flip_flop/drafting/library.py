"""The library of phrasings, and the templates made from them."""

import ast
import functools
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import jinja2
import yaml

from flip_flop.errors import InputError, require_known
from flip_flop.files import Json
from flip_flop.prompts import SEPARATOR, Template, names_of, reference
from flip_flop.tasks.readers import read_text

TaskKind = Literal["sentiment", "topic", "yes_no", "entailment", "choice", "judge", "open"]
KINDS = get_args(TaskKind)
_FIELD = r'\{([^{}"\n]*)\}'  # not a brace of JSON
_ORDERED = ("sentiment", "yes_no", "judge")  # kinds with ordered numbers as labels: the first means no


@dataclass(frozen=True)
class Phrasings:
    """The phrasings of one kind of task.

    Attributes:
        needs: A requirement besides the text: ``question``, ``other`` (a second text), ``pair`` (two others to compare)
            or ``options``.
        roles: The meanings of the labels in the order of the answers, each with known words; or empty.
        phrasings: ``name``, ``jinja``, and ``answers``: one for each role, or ``$names``, ``$letters``, ``$options``.
        question: A question about ``$word``, the name of the label column.
    """

    kind: str
    phrasings: tuple[Json, ...]
    needs: str = ""
    roles: dict[str, list[str]] = field(default_factory=dict)
    language: str = "English"
    question: str = ""

    def order(self, words: Sequence[str], *, by_place: bool) -> tuple[int, ...] | None:
        """Return the label of each role, by words or ``by_place``; None if the labels do not fit."""
        roles = list(self.roles.values())
        if len(words) != len(roles):
            return None
        plain = [word.strip().lower() for word in words]
        order = []
        is_known_elsewhere = False
        for role, role_words in enumerate(roles):
            labels = [label for label, word in enumerate(plain) if word in role_words]
            if len(labels) == 1:
                order += labels
            if labels not in ([], [role]):
                is_known_elsewhere = True
        if len(order) == len(roles):
            return tuple(order)
        if by_place and not is_known_elsewhere:
            return tuple(range(len(words)))
        return None

    def shared_words(self, texts: Iterable[str]) -> int:
        """Count the words of the texts that the phrasings have too: they tell Spanish and Italian apart."""
        known = {*_words(" ".join(entry["jinja"] for entry in self.phrasings))}
        return sum(word in known for text in texts for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@functools.cache
def library() -> tuple[Phrasings, ...]:
    """Return the entries of ``library.yaml`` in order."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return tuple(Phrasings(**entry) for entry in yaml.safe_load(text))


def guess_kind(words: Sequence[str], *, is_pair: bool, has_options: bool, has_question: bool) -> str | None:
    """Guess the kind of a task from its columns and the words of its labels; None if unknown.

    ``is_pair`` means two texts without a question.
    """
    if has_options:
        return "choice"
    are_words = not any(word.strip().lstrip("-").isdigit() for word in words)
    for phrasings in library():
        fits = phrasings.roles and (phrasings.needs == "other") == is_pair and are_words and phrasings.kind != "judge"
        if fits and phrasings.order(words, by_place=False) is not None:
            return phrasings.kind
    if not are_words:
        if has_question and len(words) == 2:
            return "yes_no"
        return None
    return None if is_pair else "topic"


def know_sentiment(words: Sequence[str]) -> bool:
    """Return whether a label is a number or has a known word of a sentiment, such as ``very positive``."""
    entries = (phrasings for phrasings in library() if phrasings.kind == "sentiment")
    known = {word for entry in entries for words in entry.roles.values() for word in words}
    return any(word.lstrip("-").isdigit() or known & {*_words(word)} for word in words)


def choose_phrasings(
    kind: str,
    words: Sequence[str],
    given: set[str],
    *,
    by_place: bool,
    texts: Iterable[str] = (),
    among: Sequence[Phrasings] = (),
) -> tuple[Phrasings, tuple[int, ...]]:
    """Return the entry of the kind that knows the labels, or the first that fits, and the label of each answer.

    Args:
        kind: One of ``KINDS``.
        words: The labels in words.
        given: The available ones of ``question``, ``other``, ``pair`` and ``options``.
        by_place: Use the order of the labels if their words are unknown.
        texts: Texts of the task, in the language of the templates if the labels are words of several languages.
        among: The entries; by default the library.

    Raises:
        InputError: ``E-INIT`` if no entry fits.
    """
    entries = [entry for entry in among or library() if entry.kind == kind]
    possible = [entry for entry in entries if not entry.needs or entry.needs in given]
    if not possible:
        more = {
            "other": "a second column of text",
            "options": "columns of options, such as choice1 and choice2",
            "pair": "a column of questions and one or two of answers",
        }
        raise InputError(
            "E-INIT",
            f"the kind {kind} needs {more[entries[0].needs]}.",
            "Name them so in the file." if entries[0].needs == "options" else "Give them with --text, one each.",
        )
    are_numbers = kind in _ORDERED and all(word.strip().lstrip("-").isdigit() for word in words)
    knowing = [entry for entry in possible if entry.order(words, by_place=False)]
    language = max(knowing, key=lambda entry: entry.shared_words(texts), default=possible[0]).language
    for phrasings in [entry for entry in knowing if entry.language == language] or possible:
        if not phrasings.roles:
            return phrasings, tuple(range(len(words)))
        order = phrasings.order(words, by_place=by_place or are_numbers)
        if order is not None:
            return phrasings, order
    roles = " or ".join(dict.fromkeys(", ".join(entry.roles) for entry in possible))
    raise InputError(
        "E-INIT",
        f"the labels {', '.join(map(repr, words))} are not {roles}.",
        "Give their words in the labels' order with --labels, or another --kind.",
    )


def read_prompt(path: Path, columns: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Read a prompt. Returns its Jinja, and the columns that it prints.

    In a file without code of Jinja, ``{message}`` prints the column ``message``.

    Raises:
        InputError: ``E-INIT`` for an unknown column or none, ``E-TPL-SYNTAX``, or an error of the file.
    """
    text = read_text(path).strip()
    if not re.search(r"\{[{%#]", text):
        named = map(str.strip, re.findall(_FIELD, text))
        require_known(named, columns, "E-INIT", f"{path}: there is no column")
        text = re.sub(_FIELD, lambda found: f"{{{{ {reference(found[1].strip(), columns)} }}}}", text)
    names = names_of(Template(path.stem, text, None).jinja)
    printed = tuple(name for name in columns if name in names)
    if not printed:
        raise InputError("E-INIT", f"{path} prints no column.", f"Write one in braces: {', '.join(columns)}.")
    return text, printed


def prompt_phrasings(path: Path, text: str, kind: str | None, needs: str) -> list[Phrasings]:
    """Return entries with a prompt, one for the roles of each entry of the library, or of each with ``kind``.

    The answers are the labels, or the answers of the library's entry if the prompt names only these.
    """
    entries = []
    for entry in library():
        if kind is None or (entry.kind == kind and (entry.needs == "pair") == (needs == "pair")):
            answers = entry.phrasings[0].get("answers", "$names")
            phrasing = {"name": path.stem, "jinja": text.replace("$", "$$"), "answers": answers}
            entries.append(Phrasings(kind or f"prompt {path.name}", (phrasing,), needs, entry.roles, language=""))
    return entries


def _names_all(text: str, words: Iterable[str]) -> bool:
    """Whether a text has all of these words."""
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)


def _exchange(source: str, columns: Sequence[str], first: str, second: str) -> str:
    """Exchange two columns in the code of a template."""
    other = {first: second, second: first}
    exchanged = ""
    for _, kind, value in jinja2.Environment().lex(source):
        text = ast.literal_eval(value) if kind == "string" else None
        if kind == "name" and value in other:
            value = reference(other[value], columns)
        elif text in other:
            value = repr(other[text])
        exchanged += value
    return exchanged


def make_templates(
    phrasings: Phrasings,
    *,
    columns: Sequence[str],
    texts: Sequence[str],
    words: Sequence[str],
    options: Sequence[str],
    question: str,
) -> list[Template]:
    """Make the templates of an entry for the columns ``texts`` and ``options``, and the labels in ``words``.

    Options, and answers to compare, are printed without outer spaces, which often mark the right one.
    """
    count = len(options) or len(words)
    pair = tuple(texts[-2:]) if phrasings.needs == "pair" else ()
    compared = options or pair

    def printed(name: str) -> str:
        return f"{{{{ {reference(name, columns)}{'|trim' if name in compared else ''} }}}}"

    letters = list(string.ascii_uppercase[:count])
    if count > len(letters):
        letters = [str(index + 1) for index in range(count)]
    choices = list(map(printed, options)) or list(map(_literal, words))
    lettered = [f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=True)]
    text = list(map(printed, texts))
    other = second = ""
    if phrasings.needs == "pair":
        *text, other, second = text
    if phrasings.needs == "other" or (phrasings.needs == "question" and len(text) > 1 and not question):
        *text, other = text
    values = {
        "text": "\n".join(text),
        "other": other,
        "second": second,
        "question": _literal(question) or other,
        "names": ", ".join(choices[:-1]) + f" and {choices[-1]}" if choices else "",
        "letters": "\n".join(lettered),
        "options": "\n".join(f"- {choice}" for choice in choices),
    }
    answers = {"$names": choices, "$options": choices, "$letters": letters}
    templates = []
    for entry in phrasings.phrasings:
        name = entry["name"]
        chosen = entry.get("answers", ())
        if isinstance(chosen, str):
            chosen = answers[chosen]
        jinja = string.Template(entry["jinja"]).substitute(values)
        if not phrasings.language and (_names_all(jinja, choices) or not _names_all(jinja, chosen)):
            chosen = choices
        levels = {"wording": name} if phrasings.kind == "judge" else {}
        template = Template(name, jinja, f" {SEPARATOR} ".join(chosen) or None, levels)
        if pair:
            reverse = f" {SEPARATOR} ".join([chosen[1], chosen[0], *chosen[2:]])
            swapped = Template(
                f"{name} swapped", _exchange(jinja, columns, *pair), reverse, levels | {"order": "swapped"}
            )
            templates += [replace(template, levels=levels | {"order": "given"}), swapped]
        else:
            templates.append(template)
    return templates


def _literal(text: str) -> str:
    """Escape a text for a template."""
    return "{{ " + repr(text) + " }}" if any(mark in text for mark in ("{{", "{%", "{#", SEPARATOR)) else text
