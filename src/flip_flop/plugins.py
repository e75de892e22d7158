"""Methods and metrics of installed packages, by entry points."""

import functools
import importlib
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from flip_flop.errors import InputError

log = logging.getLogger("flip_flop")
Value = TypeVar("Value")


def load_plugins(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each entry point of a group. An entry point that fails is skipped with a warning."""
    for entry in entry_points(group=group):
        try:
            value = entry.load()
        except Exception as error:  # a module can raise anything
            log.warning("W-PLUGIN: cannot import %r (%s): %s: %s", entry.name, entry.value, type(error).__name__, error)
        else:
            yield entry.name, value


def import_object(what: str, reference: str, kind: type[Value]) -> Value:
    """Import ``module:name``, an object of the given kind. ``what`` names it in errors.

    Raises:
        InputError: ``E-CONFIG`` if it cannot be imported or has another type.
    """
    module, _, name = reference.partition(":")
    try:
        value = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
        raise InputError(
            "E-CONFIG",
            f"{what} is {reference!r}: {reason}.",
            f"Give MODULE:NAME of a {kind.__name__}, in a module that Python finds (PYTHONPATH=. for this folder).",
        ) from error
    if not isinstance(value, kind):
        raise InputError(
            "E-CONFIG", f"{what} is {reference!r}, which is a {type(value).__name__}.", f"Name a {kind.__name__}."
        )
    return value


class PluginTable(MutableMapping[str, Value]):
    """A dictionary of our values by name, and those of installed packages.

    Packages are imported at the first access, because they import ours. A value of ours takes precedence.
    """

    def __init__(self, group: str, built_in: Mapping[str, Value]):
        self.group, self.built_in = group, built_in

    @functools.cached_property
    def _values(self) -> dict[str, Value]:
        installed = {name: value for name, value in load_plugins(self.group) if name not in self.built_in}
        return {**self.built_in, **installed}

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
