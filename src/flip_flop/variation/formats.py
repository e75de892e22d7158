"""Formatting variants of a template with the same question and the same correct answer.

The grammar is the part of FormatSpread (Sclar et al. 2024, arXiv 2310.11324, section 3.1 and appendix A) that preserves
meaning. It keeps descriptors (``Review:``) and the kind of option marks, because the text may refer to them. It changes
the literal text only, and keeps every Jinja expression and statement.
"""

import itertools
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2

from flip_flop.prompts import RESERVED_FIELD, SEPARATOR, Template

_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_MARKS = {
    "A": tuple(string.ascii_uppercase),
    "1": tuple(map(str, range(1, 27))),
    "a": tuple(string.ascii_lowercase),
    "i": _ROMAN,
    "I": tuple(map(str.upper, _ROMAN)),
}
_WRAPPERS = ("{}.", "{})", "({})", "{} )", "[{}]", "<{}>")
_LISTS = [*itertools.product(_MARKS, _WRAPPERS), ("", "-"), ("", "*")]
_CASINGS: dict[str, Callable[[str], str]] = {"title": string.capwords, "upper": str.upper, "lower": str.lower}
_PLAIN_WRAPPERS = ("{}.", "{})", "({})")
_SEPARATORS = (": ", ":", " : ")
_SPACES = ("\n", " ", "  ", " \n")

_FIRST = 0xF0000  # private characters replace pieces of code during a change
_PIECE = re.compile(f"[{chr(_FIRST)}-{chr(0xFFFFD)}]")
_DESCRIPTOR = re.compile(r"([^\W\d_](?:[^\W_]|[ '-]){0,28}?)(\s*:(?!\S)\s*)")
_CONSTANT = re.compile(r"""\{\{\s*(["'])([^"'{}|\\\n]*)\1\s*\}\}""")  # PromptSource prints such texts
_JOIN = re.compile(rf"(\{{\{{-?\s*){RESERVED_FIELD}(\s*\|\s*join\b.*)", re.DOTALL)
_BETWEEN = r"""["'”’]?\s*(?:,\s*(?:or\b|and\b)?|or\b|and\b|/|;)\s*["'“‘]?"""


@dataclass(frozen=True)
class _Options:
    """The options of a prompt: in a row, or in lines that begin with a mark or a dash."""

    start: int
    end: int
    items: tuple[str, ...]
    between: tuple[str, ...] = ()
    marks: str = ""
    wrapper: str = ""


class TemplateParts:
    """The prompt of a template as ``text`` with a private character per piece of code, its target and its answers."""

    def __init__(self, template: Template):
        self.pieces: list[str] = []
        self.answers = [part.strip() for part in self._masked(template.answer_choices or "").split(SEPARATOR)]
        prompt, bar, target = self._masked(template.jinja).partition(SEPARATOR)
        self.text, self.target = prompt.strip(), self.source(f" {bar}{target}" if bar else "")
        self.options = self._lines() or self._row()

    def _masked(self, source: str) -> str:
        out = ""
        code = ""
        for _, kind, value in jinja2.Environment().lex(source):
            if kind == "data":
                out += "".join(self._piece(character) if _PIECE.match(character) else character for character in value)
                continue
            code += value
            if kind.endswith("_end") or kind == "raw_begin":
                constant = _CONSTANT.fullmatch(code)
                out += constant[2] if constant else self._piece(code)
                code = ""
        return out

    def _piece(self, code: str) -> str:
        plain = re.sub(r"(?<![-+\s])\s*\}\}$", " }}", re.sub(r"^\{\{(?![-+])\s*", "{{ ", code))
        if plain not in self.pieces:
            self.pieces.append(plain)
        return chr(_FIRST + self.pieces.index(plain))

    def source(self, text: str) -> str:
        """The text with its code back."""
        return _PIECE.sub(lambda found: self.pieces[ord(found[0]) - _FIRST], text)

    def holds(self, text: str) -> list[str]:
        """The code in a text, in its order."""
        return [self.source(piece) for piece in _PIECE.findall(text)]

    def names(self, answer: str, text: str) -> bool:
        """Whether a text names an answer as a whole word."""
        return bool(answer) and bool(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE))

    def _lines(self) -> _Options | None:
        for marks, wrapper in _LISTS:
            items = []
            start = None
            index = 0
            for mark in _MARKS.get(marks, [""] * 99):
                line = re.compile(rf"^[ \t]*{re.escape(wrapper.format(mark))}[ \t]+(\S.*)\n?", re.MULTILINE)
                if (found := line.search(self.text) if start is None else line.match(self.text, index)) is None:
                    break
                start = found.start() if start is None else start
                index = found.end()
                items.append(found[1].rstrip())
            if len(items) > 1 and start is not None and not any("{%" in code for code in self.holds("".join(items))):
                end = start + len(self.text[start:index].rstrip())
                return _Options(start, end, tuple(items), marks=marks, wrapper=wrapper)
        return None

    def _row(self) -> _Options | None:
        if (number := len(self.answers)) < 2 or not all(self.answers):
            return None
        one = "|".join(re.escape(answer) for answer in sorted(self.answers, key=len, reverse=True))
        row = re.compile(rf"(?<!\w)({one})" + rf"({_BETWEEN})({one})" * (number - 1) + r"(?!\w)", re.IGNORECASE)
        rows = [found for found in row.finditer(self.text) if self.are_answers(found.groups()[::2])]
        if len(rows) != 1:  # two lists could get different orders
            return None
        return _Options(rows[0].start(), rows[0].end(), rows[0].groups()[::2], rows[0].groups()[1::2])

    def are_answers(self, items: Sequence[str]) -> bool:
        """Whether items are the answers, in any order."""
        return sorted(map(str.casefold, items)) == sorted(map(str.casefold, self.answers))

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks of the options, without the wrapper."""
        if self.options:
            return _MARKS.get(self.options.marks, ())[: len(self.options.items)]
        return ()

    @property
    def listed(self) -> tuple[int, ...]:
        """The labels, from 0, in the order in which the prompt lists them; empty if the options cannot be moved.

        The options are the answers, or the answers are their marks. They cannot be moved if the text refers to a mark
        or a position, or if the number of answers depends on the row.
        """
        if any(code.startswith("{%") or SEPARATOR in code for code in self.holds("".join(self.answers))):
            return ()
        if (options := self.options) is None:
            if any(map(_JOIN.match, self.pieces)):
                return tuple(range(len(self.answers)))
            return ()
        others = "\n".join([self.text[: options.start], *options.items, self.text[options.end :]])
        spoken = any(re.search(rf"\b{re.escape(mark)}\b", others) for mark in self.marks)
        if spoken or re.search(r"\b(above|below)\b", "\n".join(options.items), re.IGNORECASE):
            return ()
        if self.are_answers(options.items):
            answers = [answer.casefold() for answer in self.answers]
            return tuple(answers.index(item.casefold()) for item in options.items)
        if sorted(self.answers) == sorted(self.marks):
            return tuple(map(self.answers.index, self.marks))
        return ()

    def recased(self, descriptor: str) -> bool:
        """Whether the case of a descriptor can change. It does not name an answer and is not an acronym."""
        return not descriptor.isupper() and not any(self.names(answer, descriptor) for answer in self.answers)

    def is_fixed(self, line: str) -> bool:
        """Whether the line breaks around a line stay: it has options, or may be empty in a prompt."""
        return any(code.startswith(("{%", "{#")) or "\n" in code for code in self.holds(line))

    def fields(self, text: str) -> list[tuple[str, str, str, str]]:
        """Return the leading space, the descriptor, the separator and the text of each line."""
        lines = re.split(r"(\s*\n\s*)", text)
        out = list[tuple[str, str, str, str]]()
        for space, line in zip(["", *lines[1::2]], lines[::2], strict=True):
            found = _DESCRIPTOR.match(line)
            name, separator = found.groups() if found and len(found[1].split()) < 5 else ("", "")
            if out and out[-1][1] and not out[-1][3] and not name:  # a descriptor on a separate line
                out[-1] = (*out[-1][:2], out[-1][2] + space, line)
            else:
                out.append((space, name, separator, line[len(name + separator) :]))
        return out


def format_choices(template: Template) -> dict[str, tuple[Any, ...]]:
    """Return the variable parts of a template's format with their values. None keeps a part unchanged.

    ``separator`` is between a descriptor (``Review:``) and its field, ``space`` between fields. ``casing`` applies to
    descriptors, ``wrapper`` to the marks of options.

    A colon stays a colon, fields have only space between them, and marks are usual ones.
    """
    parts = TemplateParts(template)
    found = dict[str, tuple[Any, ...]]()
    fields = parts.fields(parts.text)
    options = parts.options
    names = [name for _, name, *_ in fields if name]
    if names:
        found["separator"] = _SEPARATORS
    if any(map(parts.recased, names)):
        found["casing"] = (None, *_CASINGS)
    if len(fields) > 1:
        found["space"] = _SPACES
    if options is not None and parts.marks:
        rest = "\n".join([*parts.answers, parts.text[: options.start], parts.text[options.end :]])
        if not any(options.wrapper.format(mark) in rest for mark in parts.marks):  # the text refers to "(A)"
            found["wrapper"] = _PLAIN_WRAPPERS
    return found


def apply_format(template: Template, change: Mapping[str, Any]) -> Template:
    r"""Return the template in another format, or with its options in another ``order``. Code and target stay.

    ``order`` has the labels, from 0, in the order in which the prompt will list them (:attr:`TemplateParts.listed`).
    If the answers are the marks of options, they become the new marks of the same options.

    Example:
        >>> plain = Template("plain", "Review: {{ text }}\nGood or bad?", "bad ||| good")
        >>> other = apply_format(plain, {"separator": " - ", "casing": "upper", "space": " || ", "order": (0, 1)})
        >>> other.jinja, other.answer_choices
        ('REVIEW - {{ text }} || Bad or good?', 'bad ||| good')
    """
    parts = TemplateParts(template)
    out = ""
    before = True
    text, answers = _with_options(parts, change)
    for space, descriptor, separator, rest in parts.fields(text):
        fixed = parts.is_fixed(rest)
        out += space if fixed or before else change.get("space", space)
        if descriptor:
            casing = _CASINGS.get(change.get("casing", ""), str)
            out += casing(descriptor) if parts.recased(descriptor) else descriptor
            stays = fixed and "\n" in separator  # a list of options follows
            out += separator if stays else change.get("separator", separator)
        out = out + rest
        before = fixed
    text = parts.source(out.strip()) + parts.target
    return replace(template, jinja=text, answer_choices=answers or template.answer_choices)


def _with_options(parts: TemplateParts, change: Mapping[str, Any]) -> tuple[str, str]:
    """Return the prompt with reordered or rewrapped options, and the answers if they are marks."""
    options = parts.options
    if "order" in change:
        order = [parts.listed.index(label) for label in change["order"]]
    else:
        order = []
    if options is None:
        if order:
            chosen = ", ".join(f"{RESERVED_FIELD}[{index}]" for index in order)
            parts.pieces = [_JOIN.sub(rf"\1[{chosen}]\2", piece) for piece in parts.pieces]
        return parts.text, ""
    answers = ""
    order = order or list(range(len(options.items)))
    items = [options.items[index] for index in order]
    if options.wrapper:
        marks = parts.marks or ("",) * len(items)
        wrapper = change.get("wrapper", options.wrapper)
        listed = "\n".join(f"{wrapper.format(mark)} {item}" for mark, item in zip(marks, items, strict=True))
        if sorted(parts.answers) == sorted(marks):
            answers = f" {SEPARATOR} ".join(marks[order.index(marks.index(answer))] for answer in parts.answers)
        parts.pieces.append(parts.source(listed))  # hides its lines from the fields
        listed = chr(_FIRST + len(parts.pieces) - 1)
    else:
        if options.items[0][0].isupper() and not any(item[0].isupper() for item in options.items[1:]):
            small = [item[0].lower() + item[1:] if item[1:].islower() else item for item in items[1:]]
            items = [items[0][0].upper() + items[0][1:], *small]
        listed = "".join(itertools.chain(*zip(items, (*options.between, ""), strict=True)))
    return parts.text[: options.start] + listed + parts.text[options.end :], answers
