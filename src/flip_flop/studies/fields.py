"""The values of a study's file and of its command line, read strictly: a mistake is one line that says where it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError, nearest

# The largest seed that NumPy takes.
MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class Fields:
    """A mapping, and where it stands.

    Raises:
        InputError: Every method: ``E-STUDY-KEY`` for a wrong kind of value, ``E-STUDY-VALUE`` for a value out of range.
    """

    content: Any
    where: str

    def __post_init__(self):
        if not isinstance(self.content, dict):
            raise InputError("E-STUDY-KEY", f"{self.where}: {self.content!r}.", "Write `field: value` lines.")

    def refuse(self, key: str, hint: str, code: str = "E-STUDY-KEY") -> InputError:
        """The error for the value of a key."""
        return InputError(code, f"{self.where}: {key} is {self.content.get(key)!r}.", hint)

    def text(self, key: str, default: str | None = None) -> str | None:
        """A name."""
        value = self.content.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.refuse(key, "Write a name or a sentence, quoted where YAML needs it.")
        return default if value is None else value

    def items(self, key: str) -> list[Any]:
        """A list without repetitions; empty where the key is missing."""
        value = self.content.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(key, f"Write {key}: [..., ...].")
        if not value:
            raise self.refuse(key, "List at least one, or leave it out.")
        for index, item in enumerate(value):
            if item in value[:index]:
                raise self.refuse(key, f"Remove one {item!r}: it is there twice.", "E-STUDY-VALUE")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names."""
        for item in self.items(key):
            if not isinstance(item, str) or not item.strip():
                raise self.refuse(key, f"{item!r} is no name: quote it.")
        return tuple(self.items(key))

    def number(self, key: str, minimum: int) -> int | None:
        """A whole number."""
        value = self.content.get(key)
        return None if value is None else whole_number(value, f"{self.where}: {key}", minimum)

    def mapping(self, key: str) -> "Fields":
        """A mapping; empty where the key is missing."""
        value = self.content.get(key)
        return Fields({} if value is None else value, f"{self.where}, {key}")


def whole_number(value: Any, where: str, minimum: int = 0, maximum: int = MAX_SEED) -> int:
    """A whole number of this range; by default a seed.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return value
    hint = f"Give a whole number of at least {minimum} and at most {maximum}."
    raise InputError("E-STUDY-VALUE", f"{where} is {value!r}.", hint)


def require_known(names: Iterable[str], known: Sequence[str], where: str) -> None:
    """Refuse a name that is not known.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    for name in names:
        if name not in known:
            raise InputError("E-STUDY-VALUE", f"{where}: there is no {name!r}.", nearest(name, known))
