"""Loaders of tasks by name: the paper's, and those of installed packages (entry-point group ``flip_flop.tasks``)."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.tasks.task import Task

GROUP = "flip_flop.tasks"
CATALOG = ("anli_r1", "anli_r2", "anli_r3", "cb", "copa", "hellaswag", "rte", "storycloze", "wic", "winogrande", "wsc")
# Imported when one is used: no package but the commands knows the paper's.
PAPER = dict.fromkeys(CATALOG, "flip_flop.paper.data.catalog:load") | {
    "promptsource": "flip_flop.paper.data.promptsource:load_set"
}


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
def task_loaders() -> dict[str, EntryPoint]:
    """Return the loaders of the paper's datasets, of PromptSource's sets and of installed packages, by name."""
    installed = {loader.name: loader for loader in entry_points(group=GROUP)}
    return installed | {name: EntryPoint(name, value, GROUP) for name, value in PAPER.items()}


def find_loader(name: str) -> Loader | None:
    """Return the loader of ``NAME`` or ``NAME:SET``, or None.

    Raises:
        InputError: ``E-TASK-UNKNOWN``: its package cannot be imported.
    """
    entry = task_loaders().get(name.partition(":")[0])
    if entry is None:
        return None
    try:
        loader: Loader = entry.load()
    except ImportError as error:
        raise InputError(
            "E-TASK-UNKNOWN",
            f"cannot import the task {name!r} ({entry.value}): {error}.",
            "Install the package of this task again.",
        ) from error
    return loader
