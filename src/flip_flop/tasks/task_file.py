"""The user's own task file, read and checked before anything else is loaded."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest_file
from flip_flop.prompts import Template, TemplateSet
from flip_flop.prompts.safety import SEPARATOR
from flip_flop.prompts.template import MIN_VALUE_LIMIT
from flip_flop.strict_yaml import mapping_of, read_yaml, text_of
from flip_flop.tasks.promptsource_set import set_task
from flip_flop.tasks.readers import SEPARATED
from flip_flop.tasks.sources import PARTS, FileSource, HubSource, Source
from flip_flop.tasks.task import Label, Task

SUFFIXES = (".yaml", ".yml")
_TASK_KEYS = [*(field.name for field in dataclasses.fields(Task)), "prompt_value_limit"]
_TEMPLATE_KEYS = ("name", "jinja", "answer_choices", "id", "metadata", "reference")  # the last three are PromptSource's
_FILE_KEYS = ("path", "encoding", "delimiter", "part", "by")
_HUB_KEYS = ("repo", "config", "split", "revision")

_NO_LIST = "Begin each template with a dash, or write {promptsource: NAME}."

_mapping = functools.partial(mapping_of, code="E-TASK-KEY")
_text = functools.partial(text_of, code="E-TASK-KEY")


def read_task_file(path: Path, hub_mirror: Path | None = None) -> Task:
    """Read a task file, with all its templates; data files in it stand beside it.

    Raises:
        InputError: ``E-TASK-FILE``, ``E-TASK-YAML``, ``E-TASK-KEY``, ``E-LABEL-TYPE``, ``E-TPL-CHOICE-TYPE``, or an
            error of a template's.
    """
    if path.is_dir():
        hint = nearest_file(path / path.name, SUFFIXES)
        raise InputError("E-TASK-FILE", f"{path} is a folder, not a task file.", hint)
    if not path.is_file():
        raise InputError("E-TASK-FILE", f"there is no task file {path}.", nearest_file(path, SUFFIXES))
    where = str(path)
    document = _mapping(read_yaml(path), where, _TASK_KEYS)
    for key in ("templates", "data"):
        if not document.get(key):
            raise InputError("E-TASK-KEY", f"{where} has no {key}.", f"Add {key}: with at least one entry.")
    label_field, labels = _text(document, "label_field", where), _labels(document.get("labels"), where)
    data = {
        split: _source(entry, split, path.parent, hub_mirror, label_field, f"{where}, data, {split}")
        for split, entry in _mapping(document["data"], f"{where}, data").items()
    }
    templates, limit = document["templates"], _number(document, "prompt_value_limit", where)
    keys: dict[str, Any] = {
        "name": _text(document, "name", where) or path.stem,
        "labels": labels,
        "label_names": _names(document, "label_names", where),
        "label_field": label_field,
        "f1": _text(document, "f1", where) or "auto",
        "id_field": _text(document, "id_field", where),
        "held_out_templates": _names(document, "held_out_templates", where),
        "description": _text(document, "description", where) or "",
        "system": _text(document, "system", where),
        "assistant_prefix": _text(document, "assistant_prefix", where),
        "chat_template_kwargs": _json(document.get("chat_template_kwargs") or {}, f"{where}, chat_template_kwargs"),
    }
    if isinstance(templates, dict):
        name = _text(_mapping(templates, f"{where}, templates", ["promptsource"]), "promptsource", where)
        if not name:
            raise InputError(
                "E-TASK-KEY",
                f"{where}, templates: promptsource: names no set.",
                "`flip-flop templates search` lists them.",
            )
        return set_task(name, data, value_limit=limit, **keys)[0]
    return Task(data=data, templates=_templates(templates, limit, where), **keys)


def _json(value: Any, where: str) -> Mapping[str, Any]:
    try:
        json.dumps(value)
    except TypeError as error:
        raise InputError("E-TASK-KEY", f"{where}: {error}.", "Put a date in quotation marks.") from None
    return _mapping(value, where)


def _names(document: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = document.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("E-TASK-KEY", f"{where}: {key} is not a list of names.", 'Write [name, "name"].')
    return tuple(names)


def _labels(value: Any, where: str) -> tuple[Label, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError("E-LABEL-TYPE", f"{where}: labels is {value!r}, not a list.", "Write labels: [0, 1].")
    for index, label in enumerate(value):
        # YAML reads no and yes as false and true, and 2020-01-01 as a date.
        if isinstance(label, bool) or not isinstance(label, int | str):
            message = f"{where}: label {index + 1} was read as {label!r}, neither a text nor an integer."
            raise InputError("E-LABEL-TYPE", message)
    return tuple(value)


def _number(mapping: Mapping[str, Any], key: str, where: str) -> int | None:
    value = mapping.get(key)
    if value is not None and (type(value) is not int or value < MIN_VALUE_LIMIT):
        hint = f"Write a whole number of at least {MIN_VALUE_LIMIT}, such as 2048."
        raise InputError("E-TASK-KEY", f"{where}: {key} is {value!r}.", hint)
    return value


def _templates(value: Any, value_limit: int | None, where: str) -> TemplateSet:
    if not isinstance(value, list):
        raise InputError("E-TASK-KEY", f"{where}: templates is not a list.", _NO_LIST)
    templates = []
    for index, entry in enumerate(value, start=1):
        here = f"{where}, template {index}"
        mapping = _mapping(entry, here, _TEMPLATE_KEYS)
        name, jinja = _text(mapping, "name", here), _text(mapping, "jinja", here)
        if name is None or jinja is None:
            missing = "name" if name is None else "jinja"
            raise InputError("E-TASK-KEY", f"{here} has no {missing}.", f"Add {missing}: to it.")
        choices = _answer_choices(mapping.get("answer_choices"), f"{here} ({name!r})")
        templates.append(Template(name, jinja, choices))
    return TemplateSet(tuple(templates), value_limit)


def _answer_choices(value: Any, where: str) -> str:
    if value in (None, "", []):
        raise InputError("E-TPL-NOCHOICES", f"{where} has no answer_choices, so there is nothing to score.")
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str):
            raise InputError("E-TPL-CHOICE-TYPE", f"{where}: an answer choice was read as {item!r}, not as a text.")
        if isinstance(value, list) and SEPARATOR in item:
            message = f"{where}: the answer choice {item!r} of a list holds {SEPARATOR}."
            raise InputError("E-TPL-CHOICE-TYPE", message, "Write one answer per item.")
    return f" {SEPARATOR} ".join(items)


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _source(
    entry: Any, split: str, folder: Path, hub_mirror: Path | None, label_field: str | None, where: str
) -> Source:
    """A file, ``{path:, encoding:, delimiter:, part:, by:}``, ``{repo:, config:, split:, revision:}``, ``{hub:}``."""
    if isinstance(entry, str):
        return FileSource(folder / entry)
    mapping = _mapping(entry, where)
    if set(mapping) == {"hub"}:
        mapping = _mapping(mapping["hub"], f"{where}, hub")
    if "repo" not in mapping and "path" not in mapping:
        message = f"{where} has neither path nor repo."
        raise InputError("E-TASK-KEY", message, "Write a file's path, or {repo:, config:, split:}.")
    _mapping(mapping, where, _HUB_KEYS if "repo" in mapping else _FILE_KEYS)
    texts = {key: _text(mapping, key, where) for key in mapping}
    if "path" in texts:
        path, delimiter, part = folder / (texts["path"] or ""), texts.get("delimiter"), texts.get("part")
        if delimiter is not None and (not re.fullmatch('[^"\r\n]', delimiter) or path.suffix.lower() not in SEPARATED):
            hint = 'Write one character, such as ";" or "\\t", for a .csv or .tsv file.'
            raise InputError("E-TASK-KEY", f"{where}: delimiter is {delimiter!r}.", hint)
        if part is not None and part not in PARTS:
            raise InputError("E-TASK-KEY", f"{where}: part is {part!r}.", f"Choose one of {', '.join(PARTS)}.")
        return FileSource(
            path,
            texts.get("encoding") or "utf-8",
            delimiter,
            part,
            by=_columns(texts.get("by")),
            label_field=label_field if part else None,
        )
    return HubSource(
        texts["repo"] or "", texts.get("config"), texts.get("split") or split, texts.get("revision"), hub_mirror
    )
