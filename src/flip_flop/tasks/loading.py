"""The user's own task file, read and checked before anything else is loaded."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.prompts import Template, TemplateSet
from flip_flop.prompts.safety import SEPARATOR
from flip_flop.prompts.strict_yaml import read_yaml
from flip_flop.tasks.sources import FileSource, HubSource, Source
from flip_flop.tasks.task import Label, Task

_TASK_KEYS = (
    "name",
    "description",
    "data",
    "label_field",
    "labels",
    "id_field",
    "f1",
    "templates",
    "held_out_templates",
)
_TEMPLATE_KEYS = ("name", "jinja", "answer_choices")
_PROMPTSOURCE_KEYS = ("id", "metadata", "reference")
_FILE_KEYS = ("path", "encoding")
_HUB_KEYS = ("repo", "config", "split", "revision")


def load_task(path: str | os.PathLike[str], *, known_names: Iterable[str] = (), hub_mirror: Path | None = None) -> Task:
    """Read a task file.

    Args:
        path: The YAML file; data files in it stand beside it.
        known_names: The names of tasks that need no file, for the error where ``path`` is a name and no file.
        hub_mirror: A folder to read instead of the hub.

    Raises:
        InputError: ``E-TASK-FILE``, ``E-TASK-UNKNOWN``, ``E-TASK-YAML``, ``E-TASK-KEY``, ``E-LABEL-TYPE``,
            ``E-TPL-CHOICE-TYPE``, or an error of a template's.
    """
    file = Path(path)
    if not file.is_file():
        raise _no_such_task(file, known_names)
    where = str(file)
    document = _mapping(read_yaml(file), where)
    _check_keys(document, _TASK_KEYS, where)
    for key in ("templates", "data"):
        if not document.get(key):
            raise InputError("E-TASK-KEY", f"{where} has no {key}.", f"Add {key}: with at least one entry.")
    folder = file.parent
    data = {
        split: _source(entry, split, folder, hub_mirror, f"{where}, data, {split}")
        for split, entry in _mapping(document["data"], f"{where}, data").items()
    }
    label_field = _text(document, "label_field", where)
    labels = _labels(document.get("labels"), where)
    held_out = document.get("held_out_templates") or []
    if not isinstance(held_out, list) or not all(isinstance(name, str) for name in held_out):
        raise InputError("E-TASK-KEY", f"{where}: held_out_templates is no list of names.", "Write [name, name].")
    return Task(
        name=_text(document, "name", where) or file.stem,
        templates=_templates(document["templates"], where),
        data=data,
        labels=labels,
        label_field=label_field,
        f1=_text(document, "f1", where) or "auto",
        id_field=_text(document, "id_field", where),
        held_out_templates=tuple(held_out),
        description=_text(document, "description", where) or "",
    )


def require_templates_for_training(task: Task) -> None:
    """Refuse to train on fewer than two templates: there would be nothing to agree.

    Raises:
        InputError: ``E-TOO-FEW-TEMPLATES``.
    """
    count = len(task.training_templates)
    if count < 2:
        held_out = f" ({len(task.held_out_templates)} held out)" if task.held_out_templates else ""
        message = f"task {task.name!r} has {count} template to train on{held_out}."
        raise InputError("E-TOO-FEW-TEMPLATES", message, "Write at least three, so that there can be a majority.")


def _no_such_task(file: Path, known_names: Iterable[str]) -> InputError:
    is_name = len(file.parts) == 1 and not file.suffix
    if is_name and not file.exists():
        known = sorted(known_names)
        near = nearest(str(file), known)
        listed = near if near.startswith("Known") or not known else f"{near} Known: {', '.join(known)}."
        hint = listed or "Give the path of a task file."
        return InputError("E-TASK-UNKNOWN", f"there is no task {str(file)!r}, and no file of this name.", hint)
    if file.is_dir():
        hint = nearest(file.name, (entry.name for entry in file.glob("*.y*ml")))
        return InputError("E-TASK-FILE", f"{file} is a folder, not a task file.", hint)
    beside = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
    return InputError("E-TASK-FILE", f"there is no task file {file}.", nearest(file.name, beside))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError("E-TASK-KEY", f"{where} does not hold keys and values.", "Write key: value lines.")
    return value


def _check_keys(mapping: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise InputError("E-TASK-KEY", f"{where} has an unknown key {key!r}.", nearest(key, known))


def _text(mapping: Mapping[str, Any], key: str, where: str) -> str | None:
    """The text under a key, or None where the key is absent or empty."""
    value = mapping.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError("E-TASK-KEY", f"{where}: {key} is {value!r}, not a text.", "Quote it.")
    return value


def _labels(value: Any, where: str) -> tuple[Label, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError("E-LABEL-TYPE", f"{where}: labels is {value!r}, not a list.", "Write labels: [0, 1].")
    for index, label in enumerate(value):
        # YAML reads no and yes as false and true, and 2020-01-01 as a date.
        if isinstance(label, bool) or not isinstance(label, int | str):
            message = f"{where}: label {index + 1} was read as {label!r}, neither a text nor a whole number."
            raise InputError("E-LABEL-TYPE", message, 'Quote it, as in labels: ["no", "yes"].')
    return tuple(value)


def _templates(value: Any, where: str) -> TemplateSet:
    if not isinstance(value, list):
        raise InputError("E-TASK-KEY", f"{where}: templates is not a list.", "Begin each template with a dash.")
    templates = []
    for index, entry in enumerate(value, start=1):
        place = f"{where}, template {index}"
        mapping = _mapping(entry, place)
        _check_keys(mapping, (*_TEMPLATE_KEYS, *_PROMPTSOURCE_KEYS), place)
        name, jinja = _text(mapping, "name", place), _text(mapping, "jinja", place)
        if name is None or jinja is None:
            missing = "name" if name is None else "jinja"
            raise InputError("E-TASK-KEY", f"{place} has no {missing}.", f"Add {missing}: to it.")
        choices = _answer_choices(mapping.get("answer_choices"), f"{place} ({name!r})")
        templates.append(Template(name, jinja, choices))
    return TemplateSet(tuple(templates))


def _answer_choices(value: Any, where: str) -> str:
    """The answer choices as one text; a list of texts is a friendlier way to write them."""
    if value is None or value == "" or value == []:
        message = f"{where} has no answer_choices, so there is nothing to score."
        raise InputError("E-TPL-NOCHOICES", message, 'Write them in the order of the labels: "No ||| Yes".')
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str):
            message = f"{where}: an answer choice was read as {item!r}, not as a text."
            raise InputError("E-TPL-CHOICE-TYPE", message, 'Quote it, as in ["No", "Yes"].')
        if isinstance(value, list) and SEPARATOR in item:
            message = f"{where}: the answer choice {item!r} of a list holds {SEPARATOR}."
            raise InputError("E-TPL-CHOICE-TYPE", message, "Write one answer per item.")
    return f" {SEPARATOR} ".join(items)


def _source(entry: Any, split: str, folder: Path, hub_mirror: Path | None, where: str) -> Source:
    """A path, ``{path:, encoding:}``, or ``{repo:, config:, split:, revision:}``, also under ``hub:``."""
    if isinstance(entry, str):
        return FileSource(folder / entry)
    mapping = _mapping(entry, where)
    if set(mapping) == {"hub"}:
        mapping = _mapping(mapping["hub"], f"{where}, hub")
    if "repo" not in mapping and "path" not in mapping:
        message = f"{where} has neither path nor repo."
        raise InputError("E-TASK-KEY", message, "Write a file's path, or {repo:, config:, split:}.")
    _check_keys(mapping, _HUB_KEYS if "repo" in mapping else _FILE_KEYS, where)
    texts = {key: _text(mapping, key, where) for key in mapping}
    if "repo" in mapping:
        return HubSource(
            texts["repo"] or "",
            texts.get("config"),
            texts.get("split") or split,
            texts.get("revision"),
            hub_mirror,
        )
    return FileSource(folder / (texts["path"] or ""), texts.get("encoding") or "utf-8")
