"""What a template may make a text of: a missing value never reads "None" in a prompt, nor a function its address."""

import datetime
import numbers
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from jinja2.runtime import Undefined

from flip_flop.errors import InputError
from flip_flop.prompts.limits import bounded

_NUMBERS = (numbers.Number, np.bool_)
_DATES = (datetime.date, datetime.time, datetime.timedelta)  # texts by themselves, but not inside a list


class NotPrintable(Exception):  # noqa: N818 - turned into E-TPL-NULL or E-TPL-RENDER
    """A value that a text was to be made of, or a part of one, is neither a text nor a number."""

    def __init__(self, item: Any):
        super().__init__(type(item).__name__)
        self.item = item


def printable(value: Any) -> Any:
    """The value, unless some part of its text would read "None", "nan", "Undefined" or "<...>".

    Whatever reads a value as a text or a number asks this first: printing, ``~``, filters, tests and methods.
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
    """``E-TPL-NULL`` or ``E-TPL-RENDER``, with those of the ``fields`` that the template has ``read`` and hold it."""
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
    """The value and all that it holds, once each, also of a list that holds itself."""
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
