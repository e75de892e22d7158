"""A task by its name or its file, with the templates that are asked for."""

import logging
import os
from dataclasses import replace
from pathlib import Path

from flip_flop.console import count
from flip_flop.errors import InputError, nearest
from flip_flop.tasks.catalog import catalog_data, catalog_names
from flip_flop.tasks.embedded import EMBEDDED, embedded_task
from flip_flop.tasks.promptsource_set import PREFIX, set_task
from flip_flop.tasks.protocols import row_protocol
from flip_flop.tasks.rendered_rows import RenderedRows, split_of_rows
from flip_flop.tasks.task import RenderedSplit, Task
from flip_flop.tasks.task_file import read_task_file

log = logging.getLogger("flip_flop")

# A task, its name or its file; a split of one; or rows that are rendered, a datasets.Dataset of them too.
Data = Task | RenderedSplit | str | os.PathLike[str] | RenderedRows


def load_task(
    name_or_path: str | os.PathLike[str],
    *,
    templates: str | None = None,
    hub_mirror: str | os.PathLike[str] | None = None,
    story_cloze_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    protocol: str = "paper",
    splits: str | None = None,
    prompt_value_limit: int | None = None,
) -> Task:
    """Load a dataset of the paper (``rte``), a PromptSource set (``promptsource:ag_news``), ``demo``, or a task file.

    ``templates`` is ``"NAME,NAME,..."``, ``"all"`` or ``"held_out"``; None takes all but the held-out ones.
    ``hub_mirror`` is a folder to read instead of the hub, ``story_cloze_dir`` that of StoryCloze's two CSV files.
    ``seed`` divides a dataset's rows: not a run's seed, as one run must not train on what another is chosen by.
    ``protocol``, ``"paper"`` or ``"release"``, says which rows one of the paper's datasets has (``splits``: the
    release's are drawn by a seed of its own) and how long a value in a prompt may be (``prompt_value_limit``); each of
    the two can be given by itself. A task file's own limit stays.

    Raises:
        InputError: ``E-TASK-UNKNOWN``, ``E-TASK-FILE``, ``E-TPL-UNKNOWN``, or an error of the data or a template.

    Example:
        >>> load_task("demo", templates="held_out").templates.names
        ('happy', 'overall', 'thumbs')
    """
    name, rules = os.fspath(name_or_path), row_protocol(protocol)
    mirror = None if hub_mirror is None else Path(hub_mirror)
    limit = rules.prompt_value_limit if prompt_value_limit is None else prompt_value_limit
    if name in EMBEDDED:
        task = embedded_task(name, seed)
    elif name.startswith(PREFIX):
        task, _ = set_task(name.removeprefix(PREFIX), hub_mirror=mirror)
    elif name in catalog_names():
        task = catalog_data(
            name,
            hub_mirror=mirror,
            story_cloze_dir=None if story_cloze_dir is None else Path(story_cloze_dir),
            seed=seed,
            splits=splits or rules.splits,
            prompt_value_limit=limit,
        ).task
    elif Path(name).name == name and not Path(name).suffix and not Path(name).exists():
        known = sorted([*EMBEDDED, *catalog_names()])
        near, listed = nearest(name, known), f"Known: {', '.join(known)}."
        hint = near if near == listed else f"{near} {listed}"
        raise InputError("E-TASK-UNKNOWN", f"there is no task {name!r}, and no file of this name.", hint)
    else:
        task = read_task_file(Path(name), mirror)
    if task.templates.value_limit is None:
        task = replace(task, templates=replace(task.templates, value_limit=limit))
    if templates is None:
        return task.with_templates(task.training_templates.names)
    if templates == "all":
        return task
    if templates == "held_out":
        if not task.held_out_templates:
            message = f"task {task.name!r} has no held_out_templates."
            raise InputError("E-TPL-UNKNOWN", message, "Name some in the task file.")
        return task.with_templates(task.held_out_templates)
    named = task.with_templates([part.strip() for part in templates.split(",") if part.strip()])
    return replace(named, held_out_templates=())  # templates that are named are all used


def require_templates_for_training(task: Task) -> None:
    """Refuse to train on fewer than two templates (``E-TOO-FEW-TEMPLATES``): nothing could agree."""
    count = len(task.training_templates)
    if count < 2:
        held_out = f" ({len(task.held_out_templates)} held out)" if task.held_out_templates else ""
        message = f"task {task.name!r} has {count} template to train on{held_out}."
        raise InputError("E-TOO-FEW-TEMPLATES", message)


def as_task(given: Task | str | os.PathLike[str]) -> Task:
    """A task, or the one of this name or file (:func:`load_task`)."""
    return given if isinstance(given, Task) else load_task(given)


def log_label_counts(split: RenderedSplit) -> RenderedSplit:
    """Log the numbers of labelled and unlabelled rows if the data have both. Returns the split."""
    is_train, labelled = split.split == "train", int((split.gold >= 0).sum())
    numbers = (
        (labelled, "labelled row", {"train": "training", "test": "testing"}.get(split.split, split.split)),
        (len(split.gold) - labelled, "unlabelled row", "training" if is_train else "agreement only"),
        (not is_train and split.rows.provenance.get("unlabelled_for_training", 0), "unlabelled row", "training"),
    )
    texts = [f"{count(number, noun)} for {use}" for number, noun, use in numbers if number]
    if labelled and len(texts) > 1:
        log.info("%s: %s", split.rows.source.rstrip(","), ", ".join(texts))
    return split


def as_split(given: Data, *, seed: int = 0, need_labels: bool | None = None) -> RenderedSplit:
    """What Python hands over to be scored, rendered: see :data:`Data`. A task stands for its test split.

    Raises:
        InputError: ``E-DATA-EMPTY``, ``E-ROW``, or an error of the task's or the rendering's.
    """
    if isinstance(given, str | os.PathLike | Task):
        given = as_task(given).render("test", seed=seed, need_labels=need_labels)
    split = given if isinstance(given, RenderedSplit) else split_of_rows(given)
    if not split.instances:
        raise InputError("E-DATA-EMPTY", f"Split {split.split!r} of {split.task.name!r} has no rows.", "Add rows.")
    return split
