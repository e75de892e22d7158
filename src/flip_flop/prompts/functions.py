"""The filters, tests, functions and methods that templates may call, each within the limits.

The lists cover PromptSource's templates. They exclude methods that change a value (``append``, ``update``, ``pop``)
and the ``format`` filter, whose width makes a text of any length.
"""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import Environment, pass_context, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace

from flip_flop.prompts.limits import (
    MAX_INTEGER,
    MAX_RANGE,
    RenderLimitExceeded,
    bounded,
    bounded_list,
    bounded_text,
    current_render,
    printable,
    size_of,
    spend_on,
    text_of,
)


def join_texts(separator: str, values: Iterable[Any]) -> str:
    """``separator.join(values)``, within the limits."""
    texts = [text_of(value) for value in bounded_list(values)]
    bounded_text(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def replace_text(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    """``str(text).replace(old, new, count)``, within the limits."""
    text, old, new, limit = text_of(text), text_of(old), text_of(new), -1 if count is None else int(count)
    found = text.count(old)
    found = found if limit < 0 else min(found, limit)
    bounded_text(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, limit)


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return join_texts(text_of(d), value)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not (isinstance(precision, int) and 0 <= precision <= 12):
        raise SecurityError("round takes 0 to 12 places")
    return JINJA_FILTERS["round"](value, precision, method)


@pass_environment
def _sort(environment: Environment, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    return JINJA_FILTERS["sort"](environment, bounded_list(value), *args, **kwargs)


def _most_frequent(items: Iterable[Any]) -> list[Any] | None:
    counts = Counter(bounded_list(items)).most_common()
    return [item for item, count in counts if count == counts[0][1]] if counts else None


@pass_context
def _choose(context: Context, items: Any) -> Any:
    # pass_context keeps Jinja from drawing once, while it compiles, for every row.
    return choose(items)


def choose(items: Any) -> Any:
    """Return a random item. The sequence of choices depends on the instance, the template and the seed."""
    return items[current_render().draw(len(items))]


def small_range(*bounds: int) -> range:
    """``range``, of a length that a prompt can need."""
    values = range(*bounds)
    if len(values) > MAX_RANGE:
        raise RenderLimitExceeded(f"a range of {len(values):,} numbers")
    return values


def bounded_zip(*values: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """``zip``, every tuple within the limits."""
    return (bounded(items) for items in zip(*values, strict=False))


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    return Namespace(bounded(dict(*args, **kwargs)))


def _metered(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    """Meter the arguments of a filter."""

    @functools.wraps(filter_function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        spend_on(*(value for value in given if isinstance(value, str | list | tuple | dict)))
        return filter_function(*args, **kwargs)

    return paying


def _of_printable(function: Any) -> Any:
    """Reject missing values and objects for a filter or test that reads a text or a number."""

    @functools.wraps(function)
    def reading(value: Any, *args: Any, **kwargs: Any) -> Any:
        return function(printable(value), *args, **kwargs)

    return reading


_READ_AS_TEXT_OR_NUMBER = "capitalize float int lower string title trim upper".split()  # noqa: SIM905
_PLAIN_FILTERS = (  # noqa: SIM905 - quotes round forty words hide the words
    "abs count d default first last length map max min reject rejectattr select selectattr unique"
).split()
_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: JINJA_FILTERS[name] for name in _PLAIN_FILTERS},
    **{name: _of_printable(JINJA_FILTERS[name]) for name in _READ_AS_TEXT_OR_NUMBER},
    "join": _join,
    "list": bounded_list,
    "replace": replace_text,
    "round": _round,
    "sort": _sort,
    "most_frequent": _most_frequent,
    "choice": _choose,
    "random": _choose,
}
FILTERS = {name: _metered(function) for name, function in _FILTERS.items()}
TESTS = {
    name: JINJA_TESTS[name]
    for name in (  # noqa: SIM905
        "boolean defined divisibleby eq equalto even false float ge greaterthan gt in integer iterable le "
        "lessthan lt mapping ne none number odd sequence string true undefined == != > >= < <="
    ).split()
} | {name: _of_printable(JINJA_TESTS[name]) for name in ("lower", "upper")}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "choice": choose,
    "namespace": _namespace,
    "range": small_range,
    "zip": bounded_zip,
}
METHODS = frozenset(
    (  # noqa: SIM905
        "capitalize count endswith find get index items join keys lower lstrip replace rfind rsplit rstrip "
        "split splitlines startswith strip swapcase title upper values"
    ).split()
)


def call_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a bound method of a text, list or dict, one of :data:`METHODS`, within the limits."""
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if type(method) is not type("".join) or type(owner) not in (str, list, tuple, dict) or name not in METHODS:
        raise SecurityError("a template may call no such function")
    spend_on(owner, *args, *kwargs.values())
    if isinstance(owner, str) and name == "join":
        return join_texts(owner, *args)
    if isinstance(owner, str) and name == "replace":
        return replace_text(owner, *args, **kwargs)
    return method(*args, **kwargs)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def apply_operator(symbol: str, left: Any, right: Any) -> Any:
    """``left symbol right``, refused before a number or a text grows without bound."""
    if symbol not in OPERATORS or (symbol == "%" and isinstance(left, str | bytes)):
        raise SecurityError(f"the operator {symbol} is not allowed here")
    for value in (left, right):
        if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise SecurityError("an integer of more than 63 bits")
    spend_on(left, right)
    if symbol == "+" and not isinstance(left, int | float):
        bounded_text(size_of(left) + size_of(right))
    if symbol == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | bytes | list | tuple) and isinstance(times, int):
                bounded_text(size_of(many) * max(times, 0))
    return OPERATORS[symbol](left, right)
