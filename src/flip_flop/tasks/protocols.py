"""The two protocols that a task's rows and prompts can follow: the paper's text, and the authors' release."""

import functools
from dataclasses import dataclass
from pathlib import Path

from flip_flop.errors import InputError, nearest
from flip_flop.strict_yaml import read_yaml


@dataclass(frozen=True)
class RowProtocol:
    """What a protocol says of rows and prompts, and what is reported of it.

    Attributes:
        splits: Which splits the paper's datasets have, one of :data:`flip_flop.tasks.splits.SPLITS`.
        prompt_value_limit: The longest value that a prompt prints, in characters; None prints all of it.
        source: Where its numbers are published, in words.
        reported_hours: The least and the most hours of a run, where they are reported.
        reported_for: What took these hours, in words.
    """

    name: str
    splits: str
    prompt_value_limit: int | None
    source: str
    reported_hours: tuple[int, int] | None = None
    reported_for: str = ""


@functools.cache
def row_protocols() -> dict[str, RowProtocol]:
    """Every protocol by name.

    Example:
        >>> [(each.name, each.prompt_value_limit) for each in row_protocols().values()]
        [('paper', None), ('release', 2048)]
    """
    content = read_yaml(Path(__file__).with_suffix(".yaml"))
    for values in content.values():
        if hours := values.get("reported_hours"):
            values["reported_hours"] = tuple(hours)
    return {name: RowProtocol(name, **values) for name, values in content.items()}


def row_protocol(name: str) -> RowProtocol:
    """The protocol of this name (``E-TASK-KEY``)."""
    if name not in row_protocols():
        raise InputError("E-TASK-KEY", f"there is no protocol {name!r}.", nearest(name, row_protocols()))
    return row_protocols()[name]
