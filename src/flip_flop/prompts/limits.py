"""Limits of one render, and the values that a template may print.

A sandbox does not bound the work of untrusted templates. Two rules bound it without ending a process. First, no value
may be larger than :data:`MAX_SIZE` when written out, so ``str`` of it is harmless. Second, every loop step, call,
filter and operator pays for the sizes of its arguments, from one budget per render.

A missing value is never printed as "None", and a function never as its address.
"""

import contextlib
import datetime
import numbers
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from flip_flop.errors import InputError

MAX_SIZE = 1 << 20
"""The largest value, by :func:`size_of`, that a row may hold or a template may make."""

ITEM = 8
"""The size of an item without its characters: a walk over it takes about as long as over eight characters."""

MAX_OUTPUT = 256 * 1024
"""The longest prompt, in characters."""

MAX_RANGE = 10_000
MAX_INTEGER = 1 << 63
WORK_BUDGET = 1 << 23
WORK_PER_STEP = 128
SECONDS = 0.5
"""Processor time of one render: the backstop of the budget, which stops at the same step on every machine."""

_NUMBERS = (numbers.Number, np.bool_)
_DATES = (datetime.date, datetime.time, datetime.timedelta)  # printable, but not inside a list
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))


class RenderLimitExceeded(Exception):  # noqa: N818 - turned into E-TPL-TOO-BIG
    """A render went over a limit."""


def size_of(value: Any) -> int:
    """The size of a value written out, at most :data:`MAX_SIZE`: its characters, and eight per item.

    Example:
        >>> size_of("abc"), size_of([1, "ab"])
        (11, 26)
    """
    if isinstance(value, str):
        total, stack = ITEM + len(value), []
    else:
        total, stack = 0, [value]
    while stack:
        item = stack.pop()
        total += ITEM
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, _CONTAINERS):
            stack.extend(item)
        elif isinstance(item, Namespace):
            # Its text spells out its attributes, which can grow after it was measured.
            raise SecurityError("a namespace inside another value is not allowed")
        if total + ITEM * len(stack) > MAX_SIZE:
            break
    if total + ITEM * len(stack) > MAX_SIZE:
        raise RenderLimitExceeded(f"a value of more than {MAX_SIZE:,} characters, an item counting as {ITEM}")
    return total


@dataclass
class Render:
    """One render: its budget, its value limit and its random generator, made on demand."""

    make_generator: Callable[[], np.random.Generator]
    value_limit: int | None = None
    work_left: int = WORK_BUDGET
    deadline: float = field(default_factory=lambda: time.thread_time() + SECONDS)
    _calls: int = 0
    _generator: np.random.Generator | None = None

    def spend(self, work: int) -> None:
        """Pay for work, while the budget and the time last."""
        self.work_left -= work
        self._calls += 1
        if self.work_left < 0:
            raise RenderLimitExceeded("more work than one prompt can need")
        # The clock costs as much as the rest of a small step, so it is not read at every one.
        if (work > 4096 or self._calls % 32 == 0) and time.thread_time() > self.deadline:
            raise RenderLimitExceeded(f"more than {SECONDS:g} seconds of work")

    def draw(self, count: int) -> int:
        """A random index below ``count``."""
        if self._generator is None:
            self._generator = self.make_generator()
        return int(self._generator.integers(count))


_CURRENT: ContextVar[Render] = ContextVar("render")


def current_render() -> Render:
    """The current render."""
    return _CURRENT.get()


@contextlib.contextmanager
def rendering(make_generator: Callable[[], np.random.Generator], value_limit: int | None = None) -> Iterator[Render]:
    """One render, from its full budget."""
    render = Render(make_generator, value_limit)
    token = _CURRENT.set(render)
    try:
        yield render
    finally:
        _CURRENT.reset(token)


def spend_on(*values: Any) -> None:
    """Pay for reading values. An iterator costs one item here, and pays later for each item."""
    current_render().spend(WORK_PER_STEP + sum(size_of(value) for value in values))


def bounded(value: Any) -> Any:
    """Return a value within the limit."""
    spend_on(value)
    return value


def bounded_list(values: Iterable[Any]) -> list[Any]:
    """``list(values)``, refused as soon as it grows over the limit.

    Items are measured as they come: a generator of large ones would fill the memory before its list was measured.
    """
    items, total, render = [], 0, current_render()
    for item in values:
        size = size_of(item)
        total += size
        if total > MAX_SIZE:
            raise RenderLimitExceeded(f"a list of more than {MAX_SIZE:,} characters, an item counting as {ITEM}")
        render.spend(size)
        items.append(item)
    return items


def bounded_text(length: int) -> None:
    """Pay for a text before it is made, or reject it."""
    if length > MAX_SIZE:
        raise RenderLimitExceeded(f"a text of {length:,} characters")
    current_render().spend(WORK_PER_STEP + length)


def steps(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a ``for`` loop. Each step pays, also a step that the loop's ``if`` skips."""
    render = current_render()
    for item in values:
        render.spend(WORK_PER_STEP + size_of(item))
        yield item


class NotPrintable(Exception):  # noqa: N818 - turned into E-TPL-NULL or E-TPL-RENDER
    """A printed value, or a part of it, is not a text or a number."""

    def __init__(self, item: Any):
        super().__init__(type(item).__name__)
        self.item = item


def printable(value: Any) -> Any:
    """Return the value, unless its text would have "None", "nan", "Undefined" or "<...>".

    Printing, ``~``, filters, tests and methods check the values that they read as texts or numbers.
    """
    if isinstance(value, str | Undefined) or (isinstance(value, _DATES) and value == value):
        return value
    if isinstance(value, list | tuple | dict):
        bounded(value)  # the walk, and the text
    for item in _parts(value):
        if isinstance(item, Undefined):
            str(item)  # raises the error that names it
        elif not isinstance(item, str | list | tuple | dict) and (_is_missing(item) or not isinstance(item, _NUMBERS)):
            raise NotPrintable(item)
    return value


def text_of(value: Any) -> str:
    """``str`` of a value that is :func:`printable`."""
    return str(printable(value))


def not_printable_error(item: Any, fields: Mapping[str, Any], read: Collection[str], location: str) -> InputError:
    """Return ``E-TPL-NULL`` or ``E-TPL-RENDER`` with the names of the fields that hold the item."""
    owner = getattr(item, "__self__", item)
    names = [repr(name) for name, value in fields.items() if name in read and any(p is owner for p in _parts(value))]
    of = f" of {' or '.join(names)}" if names else ""
    if _is_missing(item):
        message = f"{location}: a missing value{of} is printed."
        return InputError("E-TPL-NULL", message, "Fill in the field or remove the row.")
    kind = type(item).__name__ if owner is item else f"method .{item.__name__}"
    message = f"{location}: a {kind}{of} is printed instead of a text."
    return InputError("E-TPL-RENDER", message, "Call a method with (); end a list of filters with |join or |list.")


def _is_missing(item: Any) -> bool:
    return item is None or (isinstance(item, (*_NUMBERS, *_DATES)) and bool(item != item))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the value and its parts, each once. A list may hold itself."""
    stack, seen = [value], set[int]()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
