"""Values of a study's file and of its command line, each of the kind and in the range that it has to be."""

from collections.abc import Mapping
from typing import Any

from flip_flop.errors import InputError

# The largest seed that NumPy takes.
MAX_SEED = 2**32 - 1


def list_of(content: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """A key's list, each item once; empty where the key is not there.

    Raises:
        InputError: ``E-STUDY-KEY`` or ``E-STUDY-VALUE``.
    """
    value = content.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError("E-STUDY-KEY", f"{where}: {key} is {value!r}.", f"Write {key}: [..., ...].")
    if not value:
        raise InputError("E-STUDY-KEY", f"{where}: {key} is empty.", "List at least one, or leave it out.")
    for index, item in enumerate(value):
        if item in value[:index]:
            raise InputError("E-STUDY-VALUE", f"{where}: {key} has {item!r} twice.", "Remove one of them.")
    return value


def texts_of(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A key's list of names."""
    return tuple(str(text_of(item, f"{where}, {key}")) for item in list_of(content, key, where))


def text_of(value: Any, where: str) -> str:
    """A name.

    Raises:
        InputError: ``E-STUDY-KEY``.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError("E-STUDY-KEY", f"{where}: {value!r} is no name.", "Write a name, quoted where YAML needs it.")
    return value


def seed_of(value: Any, where: str) -> int:
    """A seed that NumPy takes.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    if whole_of(value, where, 0) > MAX_SEED:
        raise InputError("E-STUDY-VALUE", f"{where}: {value!r}.", f"Give a seed of at most {MAX_SEED}.")
    return int(value)


def whole_of(value: Any, where: str, least: int) -> int:
    """A whole number.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError("E-STUDY-VALUE", f"{where}: {value!r}.", f"Give a whole number of at least {least}.")
    return value
