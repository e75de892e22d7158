"""Templates compiled as untrusted text: an immutable sandbox, strict names, allow-list and limits."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import numpy as np
from jinja2 import nodes, pass_environment
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError, UndefinedError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from flip_flop.errors import InputError, nearest
from flip_flop.prompts.functions import (
    FILTERS,
    FUNCTIONS,
    OPERATORS,
    TESTS,
    apply_operator,
    call_method,
    join_texts,
)
from flip_flop.prompts.limits import (
    MAX_OUTPUT,
    MAX_SIZE,
    WORK_PER_STEP,
    NotPrintable,
    RenderLimitExceeded,
    bounded,
    current_render,
    not_printable_error,
    rendering,
    steps,
    text_of,
)
from flip_flop.prompts.safety import (
    CHOICE_BOUNDARY,
    MAX_SOURCE,
    SEPARATOR,
    Guards,
    check_characters,
    check_parts,
    check_tree,
)


class EndOfPrompt(Exception):  # noqa: N818 - control flow: the prompt is complete
    """The render has reached the separator."""


class MissingNameError(UndefinedError):
    """An unknown name: the row has no such field, and the template does not set it."""

    def __init__(self, message: str | None, name: Any, owner: Any):
        super().__init__(message)
        self.name = name
        self.owner = owner


class StrictName(StrictUndefined):
    """An undefined name whose error has the name."""

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = UndefinedError
    ) -> None:
        if exc is UndefinedError:
            exc = functools.partial(MissingNameError, name=name, owner=obj)
        super().__init__(hint, obj, name, exc)


def _end_of_prompt() -> None:
    raise EndOfPrompt


def _concatenate(*values: Any) -> str:
    return join_texts("", values)


def _held(value: Any) -> Any:
    """Limit a value in a namespace, and reject another namespace."""
    return value if isinstance(value, int | float) else bounded(value)


@pass_environment
def _finalize(environment: jinja2.Environment, value: Any) -> str:
    """Print a value. If the render has a limit, shorten it like PromptSource, at a space and with three dots."""
    text, limit = text_of(value), current_render().value_limit
    return text if limit is None else JINJA_FILTERS["truncate"](environment, text, limit)


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's defaults, as PromptSource has them, with strict names, the listed functions only, and the limits."""

    intercepted_binops = frozenset([*OPERATORS, "**"])
    end_of_prompt = staticmethod(_end_of_prompt)
    concatenate = staticmethod(_concatenate)
    held = staticmethod(_held)
    bounded = staticmethod(bounded)
    steps = staticmethod(steps)

    def __init__(self) -> None:
        super().__init__(undefined=StrictName, finalize=_finalize, cache_size=0)
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = dict(FUNCTIONS)
        self._callable = {*FUNCTIONS.values(), _end_of_prompt, _concatenate, _held, bounded, steps}

    def getitem(self, obj: Any, argument: Any) -> Any:
        """A lookup by a template, or by each part of a filter's attribute path; each pays."""
        current_render().spend(WORK_PER_STEP)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A lookup after a dot; each pays."""
        current_render().spend(WORK_PER_STEP)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operator, within the limits."""
        return apply_operator(operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Check every call of a template. A template may give a function another name."""
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        try:
            known = function in self._callable
        except TypeError:
            known = False
        return function(*args, **kwargs) if known else call_method(function, args, kwargs)


_ENVIRONMENT = PromptEnvironment()


def _no_draws() -> np.random.Generator:
    raise SecurityError("a random choice outside a row")


@functools.lru_cache(maxsize=4096)
def compile_source(source: str, is_prompt: bool, where: str) -> jinja2.Template:
    """Compile a template without running it; ``E-TPL-SYNTAX``, ``E-TPL-UNSAFE`` or ``E-TPL-PARTS``."""
    if len(source) > MAX_SOURCE:
        raise InputError("E-TPL-UNSAFE", f"{where}: longer than {MAX_SOURCE:,} characters.", "Shorten it.")
    check_characters(source, where)
    try:
        tree = _ENVIRONMENT.parse(source)
    except TemplateSyntaxError as error:
        message = f"{where}, line {error.lineno}: {error.message}"
        raise InputError("E-TPL-SYNTAX", f"{message.rstrip('.')}.", "Fix the Jinja syntax at this line.") from None
    except (ValueError, RecursionError) as error:
        message = f"{where}: too deep or too large to read ({type(error).__name__})."
        raise InputError("E-TPL-SYNTAX", message, "Simplify the template.") from None
    check_tree(tree, where)
    if is_prompt:
        check_parts(tree, where)
    guarded = Guards(is_prompt).visit(tree).set_environment(_ENVIRONMENT)
    with rendering(_no_draws):
        try:
            code = _ENVIRONMENT.compile(guarded)
        except (TemplateSyntaxError, SyntaxError, RecursionError) as error:
            raise InputError("E-TPL-SYNTAX", f"{where}: {error}.", "Fix the Jinja syntax.") from None
    return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.globals)


def _run(template: jinja2.Template, fields: Mapping[str, Any]) -> str:
    pieces, length = [], 0
    try:
        for piece in template.root_render_func(template.new_context(dict(fields))):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT:
                raise RenderLimitExceeded(f"more than {MAX_OUTPUT:,} characters of text")
    except EndOfPrompt:
        pass
    return "".join(pieces)


def render_text(
    source: str,
    fields: Mapping[str, Any],
    *,
    is_prompt: bool,
    hidden: str | None,
    where: str,
    row: str,
    make_generator: Callable[[], np.random.Generator],
    value_limit: int | None = None,
) -> list[str]:
    """Render a template for one row: a prompt up to the separator, or answer choices, split there; both stripped.

    ``hidden`` is the gold label's field, which a template must not read and which is not among the ``fields``.
    ``where`` and ``row`` name the template and the row in an error. Each printed value is cut to ``value_limit``
    characters (None: never).

    Raises:
        InputError: Any of the ``E-TPL`` codes.
    """
    template = compile_source(source, is_prompt, where)
    location = f"{where}, {row}"
    with rendering(make_generator, value_limit):
        try:
            text = _run(template, fields)
        except NotPrintable as error:
            raise not_printable_error(error.item, fields, names_of(source), location) from None
        except MissingNameError as error:
            raise _missing_name(error, fields, hidden, location) from None
        except TemplateRuntimeError as error:
            message = f"{location}: {str(error).rstrip('.')}."
            raise InputError("E-TPL-UNSAFE", message, "Write the template without it.") from None
        except RenderLimitExceeded as error:
            hint = f"Shorten it: a prompt has at most {MAX_OUTPUT:,} characters, a value {MAX_SIZE:,}."
            raise InputError("E-TPL-TOO-BIG", f"{location}: it makes {error}.", hint) from None
        except Exception as error:  # a template may raise anything on a row of the wrong shape
            message = f"{location}: {type(error).__name__}: {str(error)[:200]}."
            raise InputError("E-TPL-RENDER", message) from None
    parts = [text] if is_prompt else text.split(CHOICE_BOUNDARY)
    return [part.strip() for part in parts]


def names_of(source: str) -> frozenset[str]:
    """The names that a template reads."""
    return frozenset(name.name for name in _ENVIRONMENT.parse(source).find_all(nodes.Name))


def _missing_name(error: MissingNameError, fields: Mapping[str, Any], hidden: str | None, location: str) -> InputError:
    if error.owner is missing and error.name is not None and error.name == hidden:
        message = f"{location}: the prompt reads the label field {hidden!r}."
        return InputError("E-TPL-LABEL-LEAK", message, f"Move it behind {SEPARATOR}, or leave it out.")
    known = fields if error.owner is missing else error.owner
    words = nearest(str(error.name), known) if isinstance(known, Mapping) and error.name is not None else ""
    if not isinstance(error.name, str):
        return InputError("E-TPL-UNDEFINED", f"{location}: {str(error.message).rstrip('.')}.", words)
    return InputError("E-TPL-UNDEFINED", f"{location}: there is no field {error.name!r}.", words)
