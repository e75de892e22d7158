"""Methods, metrics and audit sections of installed packages, by entry points."""

import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, TypeVar

import click

from flip_flop.errors import InputError

log = logging.getLogger("flip_flop")
AUDIT_SECTIONS = "flip_flop.audit_sections"
Value = TypeVar("Value")


def load_plugins(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each entry point of a group. An entry point that fails is skipped with a warning."""
    for each in entry_points(group=group):
        try:
            value = each.load()
        except Exception as error:  # a module can raise anything
            log.warning("W-PLUGIN: cannot import %r (%s): %s: %s", each.name, each.value, type(error).__name__, error)
        else:
            yield each.name, value


def import_object(what: str, reference: str, kind: type[Value]) -> Value:
    """Import ``module:name``, an object of the given kind. ``what`` names it in errors.

    Raises:
        InputError: ``E-CONFIG-VALUE`` if it cannot be imported or has another type.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
        hint = f"Give MODULE:NAME of a {kind.__name__}, in a module that Python finds (PYTHONPATH=. for this folder)."
        raise InputError("E-CONFIG-VALUE", f"{what} is {reference!r}: {reason}.", hint) from error
    if not isinstance(found, kind):
        message = f"{what} is {reference!r}, which is a {type(found).__name__}."
        raise InputError("E-CONFIG-VALUE", message, f"Name a {kind.__name__}.")
    return found


@dataclass(frozen=True)
class SectionOptions:
    """The value of the section's option, and the options of the audit."""

    value: Any
    split: str
    limit: int | None
    seed: int
    scoring: Any  # flip_flop.ScoringOptions
    quiet: bool


@dataclass(frozen=True)
class AuditSection:
    """A part of an audit: the value of an entry point in ``flip_flop.audit_sections``.

    The name of the entry point is the key of the section in ``metrics.json``.

    Attributes:
        option: Its option of ``flip-flop audit``. Without a value the section is not computed.
        compute: Computes plain values for ``metrics.json`` from a :class:`~flip_flop.scoring.Scorer`, a
            :class:`~flip_flop.Task` and these options.
        render: Renders them for the terminal.
    """

    option: click.Option
    compute: Callable[[Any, Any, SectionOptions], Mapping[str, Any]]
    render: Callable[[Mapping[str, Any]], str]


@functools.cache
def audit_sections() -> dict[str, AuditSection]:
    """Import the sections of installed packages, by name."""
    return dict(load_plugins(AUDIT_SECTIONS))


def compute_sections(
    scorer: Any, task: Any, options: SectionOptions, values: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Compute the sections whose options have a value, by the name of the option."""
    return {
        name: section.compute(scorer, task, replace(options, value=value))
        for name, section in audit_sections().items()
        if (value := values.get(str(section.option.name))) is not None
    }


class PluginTable(MutableMapping[str, Value]):
    """A dictionary of our values by name, and those of installed packages.

    Packages are imported at the first access, because they import ours. A value of ours takes precedence.
    """

    def __init__(self, group: str, own: Mapping[str, Value]):
        self.group, self.own = group, own

    @functools.cached_property
    def _values(self) -> dict[str, Value]:
        installed = {name: value for name, value in load_plugins(self.group) if name not in self.own}
        return {**self.own, **installed}

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
