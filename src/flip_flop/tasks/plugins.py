"""Tasks of installed packages, by the entry-point group ``flip_flop.tasks``."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.tasks.task import Task

GROUP = "flip_flop.tasks"
COMPUTED_LABEL = "target_index"  # the label field of a task whose loader computes the labels


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """The argument of a task loader.

    An entry point ``NAME`` loads ``--task NAME`` and ``--task NAME:SET``. Its value is a function from a request to a
    :class:`Task`.

    Attributes:
        name: ``NAME``, or ``SET`` for ``NAME:SET``.
        hub_mirror: A folder to read instead of the hub.
        story_cloze_dir: The folder of StoryCloze's two CSV files.
        seed: The seed of the splits.
        splits: ``"paper"`` or ``"release"``.
        value_limit: The longest value that a prompt prints, in characters.
        fields: The fields of :class:`Task` that a task file with ``templates: {NAME: SET}`` sets.
    """

    name: str
    hub_mirror: Path | None = None
    story_cloze_dir: Path | None = None
    seed: int = 0
    splits: str = "paper"
    value_limit: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


Loader = Callable[[TaskRequest], Task]


@functools.cache
def plugin_tasks() -> dict[str, EntryPoint]:
    """Return the entry points by name."""
    return {each.name: each for each in entry_points(group=GROUP)}


def find_loader(name: str) -> Loader | None:
    """Return the loader of ``NAME`` or ``NAME:SET``, or None.

    Raises:
        InputError: ``E-TASK-UNKNOWN``: its package cannot be imported.
    """
    found = plugin_tasks().get(name.partition(":")[0])
    if found is None:
        return None
    try:
        loader: Loader = found.load()
    except ImportError as error:
        message = f"cannot import the task {name!r} ({found.value}): {error}."
        raise InputError("E-TASK-UNKNOWN", message, "Install the package of this task again.") from error
    return loader
