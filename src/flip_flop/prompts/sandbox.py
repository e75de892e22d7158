"""Templates are untrusted text: they render in Jinja's immutable sandbox, as chat templates do in transformers.

Three rules are added. An unknown name is an error. A missing value of a row is never printed. Only a separator ``|||``
in the text of the template separates; the same characters in the text of a row do not.
"""
# ruff: noqa: N802, N815, D102 - a visitor finds its methods by the names of the node classes

import datetime
import functools
import numbers
import re
import statistics
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jinja2
import numpy as np
from jinja2 import meta, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError, UndefinedError
from jinja2.filters import do_truncate
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, missing
from jinja2.visitor import NodeTransformer

from flip_flop.errors import InputError, nearest
from flip_flop.files import generator

SEPARATOR = "|||"
RandomKey = tuple[int, str, str, str]
RESERVED_FIELD = "answer_choices"
Fields = Mapping[str, Any]  # of a row
MAX_OUTPUT = 10_000_000
"""The longest prompt, in characters."""

# Words of Jinja that are identifiers of Python, in small letters.
NO_NAMES = (
    "and",
    "elif",
    "else",
    "false",
    "for",
    "if",
    "in",
    "is",
    "loop",
    "none",
    "not",
    "or",
    "self",
    "super",
    "true",
)
# The comments that divide a prompt of a decision model, each with the noncharacter that then replaces it.
INSTRUCTIONS = ("{# instructions #}", "\ufdd2")
OPTIONS = ("{# options #}", "\ufdd3")
_STATE = "\0state"  # the name of a render's state, which no template can write
_BOUNDARY = f"\ufdd0{SEPARATOR}\ufdd1"  # a marked separator; noncharacters, which no text of a row may have
_NUMBERS = (numbers.Number, np.bool_)
_DATES = (datetime.date, datetime.time, datetime.timedelta)  # printable, but like decimals not inside a list


class NotPrintable(Exception):  # noqa: N818 - turned into E-TPL-EMPTY or E-TPL-RENDER
    """A printed value, or a part of it, is not a text or a number. The argument is that value or part."""


class MissingNameError(Exception):
    """An unknown name: the row has no such field, and the template does not set it.

    The arguments are the name, its owner and Jinja's message.
    """


class StrictName(StrictUndefined):
    """An undefined name whose error has the name."""

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = UndefinedError
    ) -> None:
        if exc is UndefinedError:
            exc = functools.partial(MissingNameError, name, obj)
        super().__init__(hint, obj, name, exc)


class MissingValue:
    """A missing value of a row. It can be tested and compared like None, and not be read as a text or a number."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, MissingValue)

    def __hash__(self) -> int:
        return hash(None)

    def __str__(self) -> str:
        raise NotPrintable(self)

    def __float__(self) -> float:
        raise NotPrintable(self)

    __repr__ = __str__
    __int__ = __float__


class _Whole(str):
    """A text that is printed without a limit."""

    def __new__(cls, value: Any) -> "_Whole":
        return super().__new__(cls, text_of(value))


class Separators(NodeTransformer):
    """Marks each separator in the text of the template, and checks the operands of ``~`` like printed values."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.TemplateData:
        node.data = node.data.replace(SEPARATOR, _BOUNDARY)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:
        self.generic_visit(node)
        node.nodes = [nodes.Filter(operand, "string", [], [], None, None) for operand in node.nodes]
        return node


class ChoiceSeparators(Separators):
    """Marks also the separators in strings that the template prints or joins.

    A string that is compared, searched or replaced stays as it is.
    """

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if isinstance(node.value, str):
            node.value = node.value.replace(SEPARATOR, _BOUNDARY)
        return node

    def visit_Compare(self, node: Any) -> Any:
        return node

    visit_Test = visit_Compare

    def visit_Call(self, node: nodes.Call) -> nodes.Call:
        node.node = self.visit(node.node)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        if node.name == "join":
            self.generic_visit(node)
        elif node.node is not None:
            node.node = self.visit(node.node)
        return node


def text_of(value: Any) -> str:
    """Return ``str`` of a value, unless its text would have "None", "nan", "Undefined" or "<...>"."""
    if isinstance(value, str) or (isinstance(value, _DATES) and not is_missing(value)):
        return str(value)
    for item in _parts(value):
        if isinstance(item, Undefined):
            str(item)  # raises the error that names it
        elif not isinstance(item, str | list | tuple | dict) and (
            is_missing(item) or not isinstance(item, _NUMBERS if item is value else int | float)
        ):
            raise NotPrintable(item)
    return str(value)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or NaT."""
    return (
        value is None
        or isinstance(value, MissingValue)
        or (isinstance(value, (*_NUMBERS, *_DATES)) and bool(value != value))
    )


@pass_context
def _finalize(context: Context, value: Any) -> str:
    """Print a value. If the render has a limit, shorten it like PromptSource, at a space and with three dots."""
    text = text_of(value)
    limit = context[_STATE].value_limit
    if limit is None or isinstance(value, _Whole):
        return text
    return do_truncate(context.environment, text, limit)


@pass_context
def _choose(context: Context, items: Any) -> Any:
    """Return a random item. The sequence of choices depends on the instance, the template and the seed."""
    return items[int(context[_STATE].generator().integers(len(items)))]


@pass_context
def _with_typos(context: Context, value: Any, share: float, seed: int = 0) -> Any:
    """Exchange two inner letters of a share of the words of a text.

    The choice depends on the seed, the share, the id of the row and the text, and not on the template.
    """
    if not isinstance(value, str):
        return value
    random = generator(seed, "typos", str(share), context[_STATE].instance_id, value)

    def exchange(found: re.Match[str]) -> str:
        word = found[0]
        index = int(random.integers(1, len(word) - 2))
        if random.random() >= share:
            return word
        return word[:index] + word[index + 1] + word[index] + word[index + 2 :]

    return re.sub(r"[^\W\d_]{4,}", exchange, value)


def _most_frequent(items: Iterable[Any]) -> list[Any] | None:
    return statistics.multimode(items) or None


# Jinja's defaults, as PromptSource has them, with strict names and seeded random choices.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictName, finalize=_finalize, loader=jinja2.DictLoader({}), cache_size=0
)
_ENVIRONMENT.globals = {"namespace": Namespace, "range": safe_range, "zip": zip, "choice": _choose}
_RANDOM = {"choice": _choose, "random": _choose}
_ENVIRONMENT.filters |= {**_RANDOM, "most_frequent": _most_frequent, "string": text_of}
_ENVIRONMENT.filters |= {"typos": _with_typos, "whole": _Whole}
_ENVIRONMENT.tests |= {"none": is_missing}


@functools.lru_cache(maxsize=4096)
def compile_source(source: str, is_prompt: bool, where: str) -> jinja2.Template:
    """Compile a template without running it; ``E-TPL-SYNTAX``."""
    check_characters(source, where)
    try:
        tree = _ENVIRONMENT.parse(source)
        count = _most_separators(tree) if is_prompt else 0
        separators = Separators() if is_prompt else ChoiceSeparators()
        code = _ENVIRONMENT.compile(separators.visit(tree).set_environment(_ENVIRONMENT))
    except TemplateSyntaxError as error:
        raise InputError(
            "E-TPL-SYNTAX",
            f"{where}, line {error.lineno}: {str(error.message).rstrip('.')}.",
            "Fix the Jinja syntax at this line.",
        ) from None
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(
            "E-TPL-SYNTAX",
            f"{where}: too deep or too large to read ({type(error).__name__}).",
            "Simplify the template.",
        ) from None
    names = {node.name for node in tree.find_all(nodes.Name)}
    forms = {unicodedata.normalize("NFKC", name): name for name in sorted(names)}
    if len(forms) < len(names):  # Jinja compiles to Python, where they are one variable
        form = unicodedata.normalize("NFKC", min(names - {*forms.values()}))
        raise InputError(
            "E-TPL-SYNTAX",
            f"{where}: {forms[form]!r} and another name are both {form!r} after Unicode normalization.",
            f"Write row[{forms[form]!r}].",
        )
    if count > 1:
        raise InputError(
            "E-TPL-SYNTAX",
            f"{where}: {count} separators {SEPARATOR} in the same text.",
            "Keep one, between the prompt and its target.",
        )
    return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.globals)


def check_characters(text: str, where: str) -> None:
    """Refuse a lone surrogate, which no tokenizer reads and no file holds (``E-TPL-SYNTAX``)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        column = error.start - text.rfind("\n", 0, error.start)
        raise InputError(
            "E-TPL-SYNTAX",
            f"{where}, line {line}, column {column}: {text[error.start]!r} is half of a character.",
            "Write the whole character.",
        ) from None


def _most_separators(tree: nodes.Template) -> int:
    """Return the most separators that one text of a prompt has. Each branch of an ``if`` is a text of its own."""
    branches: list[nodes.For | nodes.If] = [*tree.find_all(nodes.For), *tree.find_all(nodes.If)]
    counts = []
    for body in [tree.body, *(node.body for node in branches), *(node.else_ for node in branches)]:
        texts = [part for node in body if isinstance(node, nodes.Output) for part in node.nodes]
        counts.append(sum(text.data.count(SEPARATOR) for text in texts if isinstance(text, nodes.TemplateData)))
    return max(counts)


def render_text(
    source: str,
    fields: Fields,
    *,
    is_prompt: bool,
    hidden: str | None,
    where: str,
    row: str,
    random_key: RandomKey,
    value_limit: int | None = None,
) -> list[str]:
    """Render a template for one row: a prompt up to the separator, or answer choices, split there; all stripped.

    ``hidden`` is the gold label's field, which a template must not read and which is not among the ``fields``.
    ``where`` and ``row`` name the template and the row in an error. ``random_key`` has the seed, a purpose, the id of
    the instance and the name of the template. Each printed value is cut to ``value_limit`` characters (None: never).

    Raises:
        InputError: Any of the ``E-TPL`` codes.
    """
    template = compile_source(source, is_prompt, where)
    location = f"{where}, {row}"
    pieces = []
    length = 0
    try:
        marked = _with_missing(fields)
        state = SimpleNamespace(
            generator=functools.cache(lambda: generator(*random_key)),
            instance_id=random_key[2],
            value_limit=value_limit,
        )
        values = {"row": marked, "fields": marked, **marked, _STATE: state}
        for piece in template.root_render_func(template.new_context(values)):
            pieces.append(piece)
            length += len(piece)
            # Before the target is evaluated, except in a macro or a block.
            if length > MAX_OUTPUT or (is_prompt and _BOUNDARY in piece):
                break
    except NotPrintable as error:
        raise _not_printable(error.args[0], fields, names_of(source), location) from None
    except MissingNameError as error:
        raise _missing_name(error, marked, hidden, location) from None
    except SecurityError as error:
        raise InputError(
            "E-TPL-RENDER", f"{location}: {str(error).rstrip('.')}.", "Write the template without it."
        ) from None
    except Exception as error:  # a template may raise anything on a row of the wrong shape
        raise InputError("E-TPL-RENDER", f"{location}: {type(error).__name__}: {str(error)[:200]}.") from None
    if length > MAX_OUTPUT:
        raise InputError(
            "E-TPL-RENDER",
            f"{location}: the text is too long.",
            f"Shorten it: a prompt has at most {MAX_OUTPUT:,} characters.",
        )
    text = "".join(pieces)
    check_characters(text, location)
    parts = text.split(_BOUNDARY)
    if {_BOUNDARY[0], _BOUNDARY[-1]} & {*"".join(parts)}:
        raise InputError("E-TPL-RENDER", f"{location}: a filter changes a separator.", "Apply it to other text only.")
    return [part.strip() for part in (parts[:1] if is_prompt else parts)]


def reference(field: str, columns: Iterable[str] = ()) -> str:
    """Return the expression for a field: its name, or ``row['...']`` if the name is not an identifier of Jinja.

    Python reads a name in its NFKC form, so two names of one form would be one variable.

    If ``row`` is one of the columns, ``fields`` is the name of the whole row.

    Example:
        >>> reference("本文"), reference("Text der Bewertung"), reference("1st"), reference("in")
        ('本文', "row['Text der Bewertung']", "row['1st']", "row['in']")
        >>> reference("the text", columns=["row", "the text"])
        "fields['the text']"
    """
    is_name = field.isidentifier() and unicodedata.is_normalized("NFKC", field)
    if is_name and field[:2] != "__" and field.lower() not in NO_NAMES:
        return field
    return f"{'fields' if 'row' in columns else 'row'}[{field!r}]"


@functools.lru_cache(maxsize=4096)
def names_of(source: str, *, printed: bool = False) -> frozenset[str]:
    """The names and texts in the code of a template, with the fields that it reads; ``printed`` excludes conditions."""
    tree = _ENVIRONMENT.parse(source)
    for node in tree.find_all((nodes.If, nodes.For, nodes.CondExpr)) if printed else ():
        node.test = None  # type: ignore[attr-defined]
    mentioned = tree.find_all((nodes.Name, nodes.Const))
    return frozenset(str(getattr(node, "value" if isinstance(node, nodes.Const) else "name")) for node in mentioned)


def fields_of(source: str) -> set[str]:
    """Return the fields that the code of a template reads by name."""
    return meta.find_undeclared_variables(_ENVIRONMENT.parse(source)) - {RESERVED_FIELD}


def without_constants(source: str) -> str:
    """Return a template without the texts in its code."""
    return "".join(value for _, kind, value in _ENVIRONMENT.lex(source) if kind != "string")


def draws_at_random(source: str) -> bool:
    """Return whether the code of a template names a random function."""
    filters = {node.name for node in _ENVIRONMENT.parse(source).find_all(nodes.Filter)}
    return bool(_RANDOM.keys() & (filters | names_of(source)))


def _with_missing(value: Any) -> Any:
    """Copy a value of a row with its missing values marked."""
    if isinstance(value, str):
        if _BOUNDARY in value:
            raise ValueError("the row has the text that divides answer choices")
        return value
    if isinstance(value, dict):
        return {key: _with_missing(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_with_missing, value))
    return MissingValue() if is_missing(value) else value


def _missing_name(error: MissingNameError, fields: Fields, hidden: str | None, location: str) -> InputError:
    name, owner, message = error.args
    if (owner is missing or owner is fields) and name is not None and name == hidden:
        return InputError(
            "E-TPL-LABEL-LEAK",
            f"{location}: the prompt reads the label field {hidden!r}.",
            f"Move it behind {SEPARATOR}, or leave it out.",
        )
    if owner is missing:
        known = dict.fromkeys(reference(field, fields) for field in fields if field != RESERVED_FIELD)
    else:
        known = owner
    if isinstance(known, Mapping) and name is not None:
        words = nearest(str(name), known)
    else:
        words = ""
    what = f"there is no field {name!r}" if isinstance(name, str) else str(message).rstrip(".")
    return InputError("E-TPL-RENDER", f"{location}: {what}.", words)


def _not_printable(item: Any, fields: Fields, read: frozenset[str], location: str) -> InputError:
    """Return ``E-TPL-EMPTY`` or ``E-TPL-RENDER`` with the names of the fields that hold the item."""
    if is_missing(item):
        names = [repr(name) for name, value in fields.items() if name in read and any(map(is_missing, _parts(value)))]
        of = f" of {' or '.join(names)}" if names else ""
        return InputError(
            "E-TPL-EMPTY", f"{location}: a missing value{of} is printed.", "Fill in the field or remove the row."
        )
    kind = f"method .{item.__name__}" if hasattr(item, "__self__") else type(item).__name__
    return InputError(
        "E-TPL-RENDER",
        f"{location}: a {kind} is printed instead of a text.",
        "Call a method with (); end a list of filters with |join or |list.",
    )


def _parts(value: Any) -> Iterator[Any]:
    """Yield the value and its parts, each once: a template can nest a list in itself many times."""
    stack = [value]
    seen = set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict | list | tuple):
            stack += item
        if isinstance(item, dict):
            stack += item.values()
