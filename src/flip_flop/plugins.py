"""Methods and metrics of installed packages, by entry points."""

import functools
import importlib
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from flip_flop.errors import InputError, Value, log, reason_of


def import_object(what: str, reference: str, kind: type[Value]) -> Value:
    """Import ``module:name``, an object of the given kind. ``what`` names it in errors.

    Raises:
        InputError: ``E-CONFIG`` if it cannot be imported or has another type.
    """
    module, _, name = reference.partition(":")
    hint = f"Give MODULE:NAME of a {kind.__name__}, in a module that Python finds (PYTHONPATH=. for this folder)."
    if not name:
        raise InputError("E-CONFIG", f"{what} is {reference!r}, without :NAME.", hint)
    try:
        value = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module can raise anything
        raise InputError("E-CONFIG", f"{what} is {reference!r}: {reason_of(error)}.", hint) from error
    if not isinstance(value, kind):
        raise InputError(
            "E-CONFIG", f"{what} is {reference!r}, which is a {type(value).__name__}.", f"Name a {kind.__name__}."
        )
    return value


@dataclass(eq=False, repr=False)
class PluginTable(UserDict[str, Value]):
    """A dictionary of our values by name, and those of installed packages.

    Packages are imported at the first access, because they import ours. A value of ours takes precedence. An entry
    point that fails is skipped with a warning.
    """

    group: str
    built_in: Mapping[str, Value]

    @property
    def added(self) -> dict[str, Value]:
        """The values of users and plugins."""
        return {name: value for name, value in self.items() if name not in self.built_in}

    @functools.cached_property
    def data(self) -> dict[str, Value]:  # type: ignore[override]
        """The values by name."""
        values = dict(self.built_in)
        for entry in entry_points(group=self.group):
            if entry.name in self.built_in:
                continue
            try:
                values[entry.name] = entry.load()
            except (Exception, SystemExit) as error:  # a module can raise anything
                log.warning("W-PLUGIN: cannot import %r (%s): %s", entry.name, entry.value, reason_of(error))
        return values
