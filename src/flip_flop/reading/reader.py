"""One reader for every answer: of a model, of a reference, and of other tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from flip_flop.errors import InputError, require_known, require_package
from flip_flop.reading import limits
from flip_flop.reading.labels import label_begun, label_inside, labels_stated
from flip_flop.reading.latex import expression_key, latex_key
from flip_flop.reading.numbers import numbers
from flip_flop.reading.reply import (
    AFTER,
    JSON_KEY,
    MARK,
    REASONING,
    after_reasoning,
    begins_reasoning,
    extracted,
    json_objects,
    split_reasoning,
    tidy,
    unwrap,
)
from flip_flop.reading.texts import text_key

KINDS = ("text", "number", "latex")
LAST_NUMBER = "last_number"


def check_extract(extract: str | None, kind: str) -> None:
    """Refuse an ``extract`` that finds nothing (``E-TASK-KEY``)."""
    if extract == LAST_NUMBER and kind != "number":
        raise InputError("E-TASK-KEY", f"extract is last_number, but the kind is {kind}.", "Use the kind number.")
    if extract is not None and extract.strip() in ("", AFTER.strip(), JSON_KEY.strip()):
        raise InputError("E-TASK-KEY", "extract is empty.", "Correct the answer.")
    try:
        regex.compile(extract or "")
    except regex.error as error:
        raise InputError(
            "E-TASK-KEY",
            f"extract is {extract!r}: {error}.",
            "Use a regular expression, last_number, after TEXT, or json: KEY.",
        ) from None


@dataclass(frozen=True)
class AnswerFormat:
    """The answers of a task without answer choices, and how they are read from generated texts.

    Attributes:
        kind: ``text``, ``number``, or ``latex`` for mathematical expressions (needs math-verify).
        extract: The part of a generated text that is the answer. A regular expression: its first match, or its first
            group. ``after ANSWER:``: the rest of the line after the last ``ANSWER:``. ``json: KEY``: a value of an
            object. ``last_number``, the default of numbers. By default, the answer of a text is all of it.
        stop: Texts that end an answer.
        max_tokens: The maximum number of generated tokens.

    Raises:
        InputError: ``E-TASK-KEY``.
    """

    kind: str = "text"
    extract: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        require_known([self.kind], KINDS, "E-TASK-KEY", "the kind of answer is")
        if self.kind == "latex":
            require_package("math_verify", "latex", "E-TASK-KEY", "the kind of answer latex")
        check_extract(self.extract, self.kind)
        if "" in self.stop or self.max_tokens < 1:
            raise InputError("E-TASK-KEY", "stop is empty, or max_tokens is below 1.", "Correct the answer.")

    @property
    def reader(self) -> "Reader":
        """The reader of these answers."""
        return Reader(self.kind, self.extract)

    def before_stop(self, text: str, prompt: str = "") -> str:
        """Return a text up to the first of the stop texts after its reasoning, which a ``prompt`` may have begun.

        A stop text of white space does not end an answer that has not begun.
        """
        reasoning, answer = split_reasoning(text)
        if REASONING.match(answer.lstrip()) or (not reasoning and begins_reasoning(prompt)):
            return text
        for stop in self.stop:
            begin = len(answer) - len(answer.lstrip()) if stop.isspace() else 0
            end = answer.find(stop, begin)
            answer = answer if end < 0 else answer[:end]
        return reasoning + answer

    def answer(self, text: str, prompt: str = "") -> str:
        """Return a generated text without its reasoning, up to a stop text. Reasoning without an end has no answer.

        Example:
            >>> form = AnswerFormat("text", stop=(".",))
            >>> form.answer("<think>In. France</think>Paris. It"), form.answer("<think>I"), form.answer("I", "<think>")
            ('Paris', '', '')
        """
        answer = after_reasoning(self.before_stop(text, prompt), prompt)
        return "" if answer is None else tidy(answer)

    def key(self, text: str, prompt: str = "") -> str | None:
        """Return the key of a generated text. Equal keys are equal answers. None: the answer cannot be read."""
        answer = self.reader.read(self.before_stop(text, prompt), prompt).answer
        return None if answer is None else str(answer)


@dataclass(frozen=True)
class Read:
    """What was read in a text.

    Attributes:
        answer: The index of a label, or the key of an open answer. Equal keys are equal answers. None: unread.
        unread: Why there is no answer.
        how: ``whole``, ``begins``, ``stated`` or ``inside``: where a label was found. ``extracted``: in the part that
            ``extract`` finds.
    """

    answer: int | str | None = None
    unread: str | None = None
    how: str | None = None


@dataclass(frozen=True)
class Reader:
    r"""Reads the answer of a text. A text that can be read in several ways is unread.

    The steps are the same for every kind: the ends of turns, the reasoning up to its last mark, wrappers (a fence, an
    object of JSON, tags, ``\boxed``, quotes, Markdown), ``extract``, and then the kind's own: a label, a number, an
    expression or a text. Reading takes linear time, or ends after five seconds.

    Attributes:
        kind: ``label``, or that of an :class:`AnswerFormat`.
        extract: As in :class:`AnswerFormat`.
        choices: The answer choices of labels.

    Example:
        >>> judge = Reader("label", choices=("Answer A", "Answer B"))
        >>> judge.read("**Verdict:** B").answer, judge.read("A+B").unread
        (1, 'no answer choice, or several')
        >>> Reader("number").read("She has 3 friends and 1,250.0 shells."), Reader("number").read("It is 2**5").unread
        (Read(answer='1250', unread=None, how='whole'), 'the number is a piece of an expression or a range')
        >>> Reader("text", "after Answer:").read("Hmm. Answer: The  Eiffel tower!").answer
        'eiffel tower'
    """

    kind: str
    extract: str | None = None
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Any, choices: Sequence[str] | None = None) -> "Reader":
        """Return the reader of a task's answers, and of these ``choices`` instead of its first template's."""
        if task.answer is not None:
            reader: Reader = task.answer.reader
            return reader
        return cls("label", task.extract, tuple(choices or task.templates[0].plain_choices or map(str, task.labels)))

    def read(self, text: str, prompt: str = "") -> Read:
        """Return the answer of a generated text, whose reasoning a ``prompt`` may have begun.

        Raises:
            InputError: ``E-TASK-KEY`` if reading takes more than five seconds for five texts of this process.
        """
        answer = after_reasoning(tidy(text), prompt)
        if answer is None:
            return Read(unread="the reasoning has no end")
        return self._timed(answer.strip(), is_reference=False)

    def reference(self, text: str) -> Read:
        """Return the answer of a text without other text, such as a right answer, or of what ``extract`` finds in it.

        It is unread if another answer could be read in it, unless ``extract`` is ``last_number``.
        """
        return self._timed(tidy(text), is_reference=True)

    def _timed(self, text: str, is_reference: bool) -> Read:
        if len(text) > limits.MAX_LENGTH:
            return Read(unread=f"the answer has more than {limits.MAX_LENGTH:,} characters")
        try:
            return self._part(text, is_reference)
        except TimeoutError:
            limits.count_slow(f"reading {self.kind} with extract {self.extract!r}", text)
            return Read(unread=f"reading takes more than {limits.MAX_SECONDS} s")

    def _part(self, text: str, is_reference: bool) -> Read:
        inner = unwrap(text, has_boxes=self.kind != "latex")
        if self.extract in (None, LAST_NUMBER):
            return self._answer(inner, is_reference and self.extract is None)
        part = extracted(self.extract, text) or extracted(self.extract, inner)
        if part:
            read = self._answer(unwrap(part, has_boxes=self.kind != "latex"), is_whole=True)
            if read.answer is None:
                return read
            return Read(read.answer, how="extracted")
        if is_reference:
            return self._answer(inner, True)
        return Read(unread=f"extract {self.extract!r} finds nothing")

    def _answer(self, text: str, is_whole: bool) -> Read:
        if not text.strip():
            return Read(unread="the answer is empty")
        if text.startswith("{") and any(json_objects(text)):
            return Read(unread="an object of JSON in which no key names the answer")
        if self.kind == "label":
            return read_label(text, self.choices)
        if self.kind == "number":
            return read_number(text, is_whole)
        key_of: Callable[[str], str | None] = text_key
        if self.kind == "latex":
            key_of = expression_key if is_whole else latex_key
        key = key_of(text)
        if key is None:
            return Read(unread=f"no {self.kind}")
        return Read(key, how="whole")


def read_number(text: str, is_whole: bool) -> Read:
    """Return the last number of a text, or the only one of a whole answer. It may have a unit."""
    keys = numbers(text)
    if not keys:
        return Read(unread="no number")
    if is_whole and len(set(keys)) > 1:
        return Read(unread="several numbers")
    if keys[-1] is None:
        return Read(unread="the number is a piece of an expression or a range")
    return Read(keys[-1], how="whole")


def read_label(text: str, choices: Sequence[str]) -> Read:
    """Return the label of a text: all of it, stated in it, at its beginning, or its only one."""
    if mark := MARK.search(text):
        return Read(unread=f"unknown mark {mark[0]}")
    begun, is_whole = label_begun(text, choices)
    stated, is_final = labels_stated(text, choices)
    how = "stated"
    if begun is not None and not is_final:
        how = "whole" if is_whole else "begins"
        stated = [begun, *stated]
    if len(set(stated)) > 1:
        return Read(unread="two different answers")
    if stated:
        return Read(stated[0], how=how)
    inside = label_inside(text, choices)
    if inside is None:
        return Read(unread="no answer choice, or several")
    return Read(inside, how="inside")
