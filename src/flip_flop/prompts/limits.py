"""How much one render may do: the size of every value it makes, and the work it spends.

A template may come from a stranger, and a sandbox does not bound work. Two rules do, without killing a
process: no value is ever made whose size, written out, is over :data:`MAX_SIZE` (so ``str`` of it is
harmless), and every loop step, call, filter and operator pays, out of one budget per render, for the sizes
of what it reads.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_SIZE = 1 << 20
"""The largest value, by :func:`size_of`, that a row may hold or a template may make."""

ITEM = 8
"""What an item costs beside its characters: about as long to walk over as that many characters."""

MAX_OUTPUT = 256 * 1024
"""The longest prompt, in characters."""

MAX_RANGE = 10_000
MAX_INTEGER = 1 << 63
WORK_BUDGET = 1 << 23
WORK_PER_STEP = 128
SECONDS = 0.5
"""Processor time of one render: the backstop of the budget, which stops at the same step on every machine."""

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
    """One render: its budget, the longest value it prints, and the source of its random choices, made on demand."""

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
    """Pay for reading values; an iterator pays as it is read, so it costs one here."""
    current_render().spend(WORK_PER_STEP + sum(size_of(value) for value in values))


def bounded(value: Any) -> Any:
    """The value, where its size is within the limit."""
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
    """Pay for a text about to be made, or refuse it before it is."""
    if length > MAX_SIZE:
        raise RenderLimitExceeded(f"a text of {length:,} characters")
    current_render().spend(WORK_PER_STEP + length)


def steps(values: Iterable[Any]) -> Iterator[Any]:
    """The items of a ``for`` loop; each step pays, also those that the loop's own ``if`` leaves out."""
    render = current_render()
    for item in values:
        render.spend(WORK_PER_STEP + size_of(item))
        yield item
