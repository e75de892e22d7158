"""The YAML file of a task."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from flip_flop.errors import InputError, nearest_file
from flip_flop.prompts import AnswerFormat, Template, TemplateSet
from flip_flop.prompts.sandbox import SEPARATOR
from flip_flop.prompts.template import MIN_VALUE_LIMIT
from flip_flop.strict_yaml import StrictModel, read_yaml, validate
from flip_flop.tasks.sources import FileSource, HubSource, Source
from flip_flop.tasks.task import Label, Task, TaskRequest, find_loader

SUFFIXES = (".yaml", ".yml")


def _check_labels(labels: Any) -> list[Label]:
    if not isinstance(labels, list):
        raise InputError("E-LABEL", f"labels is {labels!r}, not a list.", "Write labels: [0, 1].")
    for number, label in enumerate(labels, 1):
        if isinstance(label, bool) or not isinstance(label, int | str):
            raise InputError("E-LABEL", f"label {number} was read as {label!r}, not as a text or an integer.")
    return labels


def _join_choices(choices: Any) -> str:
    if choices in ("", []):
        raise InputError(
            "E-TPL-LABELS",
            "it has no answer_choices, so no answer can be scored.",
            "Write them in the order of the labels: No ||| Yes.",
        )
    items = choices if isinstance(choices, list) else [choices]
    for item in items:
        if not isinstance(item, str):
            raise InputError(
                "E-LABEL",
                f"an answer choice was read as {item!r}, not as a text.",
                'Quote it, as in ["No", "Yes"].',
            )
        if isinstance(choices, list) and SEPARATOR in item:
            raise InputError(
                "E-LABEL",
                f"the answer choice {item!r} of a list holds {SEPARATOR}.",
                "Write one answer per item.",
            )
    return f" {SEPARATOR} ".join(items)


def _check_templates(templates: Any) -> Any:
    if not isinstance(templates, list | dict) or not templates:
        raise InputError(
            "E-TASK-KEY",
            "it has no templates." if not templates else f"templates is {templates!r}, not a list.",
            "Begin each template with a dash, or write {promptsource: SET}.",
        )
    return templates


def _check_json(values: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(values)
    except TypeError as error:
        raise InputError("E-TASK-KEY", f"chat_template_kwargs: {error}.", "Put a date in quotation marks.") from None
    return values


class TemplateEntry(StrictModel):
    """A template. The last three keys are those of PromptSource and are ignored."""

    name: str
    jinja: str
    answer_choices: Annotated[str, BeforeValidator(_join_choices)] = Field(default="", validate_default=True)
    wording: str | None = None
    order: str | None = None
    id: Any = None
    metadata: Any = None
    reference: Any = None


class OpenTemplateEntry(TemplateEntry):
    """A template of a task with open answers."""

    answer_choices: None = None  # type: ignore[assignment]


class FileEntry(StrictModel):
    """A data file, relative to the task file."""

    path: str
    encoding: str = "utf-8"
    delimiter: str | None = None
    part: Literal["train", "test"] | None = None
    by: str | list[str] = ""


class HubEntry(StrictModel):
    """A dataset on the hub; ``split`` is by default the key of the entry."""

    repo: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None


class AnswerEntry(StrictModel):
    """The format of open answers."""

    kind: str
    extract: str | None = None
    stop: list[str] = Field(default=[])
    max_tokens: int = Field(default=AnswerFormat.max_tokens, ge=1)


def _read_answer(content: Any) -> AnswerFormat:
    return AnswerFormat(**dict(validate(AnswerEntry, content, "answer", code="E-TASK-KEY")))


class TaskFile(StrictModel):
    """The keys of a task file."""

    name: str | None = None
    description: str = ""
    data: dict[str, Any] = Field(min_length=1)
    label_field: str | None = None
    labels: Annotated[list[Label] | None, BeforeValidator(_check_labels)] = None
    label_names: list[str] = Field(default=[])
    f1: str = "auto"
    scale: bool = False
    answer: Annotated[AnswerFormat | None, BeforeValidator(_read_answer)] = None
    id_field: str | None = None
    templates: Annotated[Any, AfterValidator(_check_templates)]
    held_out_templates: list[str] = Field(default=[])
    prompt_value_limit: int | None = Field(default=None, ge=MIN_VALUE_LIMIT)
    system: str | None = None
    assistant_prefix: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_json)] = Field(default={})


def read_task_file(path: Path, hub_mirror: Path | None = None) -> Task:
    """Read a task file with all its templates.

    Raises:
        InputError: ``E-TASK-FILE``, ``E-TASK-KEY``, ``E-LABEL``, or an
            error of a template.
    """
    if path.is_dir():
        raise InputError(
            "E-TASK-FILE", f"{path} is a folder, not a task file.", nearest_file(path / path.name, SUFFIXES)
        )
    if not path.is_file():
        raise InputError("E-TASK-FILE", f"there is no task file {path}.", nearest_file(path, SUFFIXES))
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"):
        raise InputError("E-TASK-FILE", f"{path} is a data file, not a task file.", f"Run `flip-flop init {path}`.")
    where = str(path)
    file = validate(TaskFile, read_yaml(path), where, code="E-TASK-KEY")
    fields = {name: getattr(file, name) for name in TaskFile.model_fields}
    templates, limit = fields.pop("templates"), fields.pop("prompt_value_limit")
    for name in ("label_names", "held_out_templates"):
        fields[name] = tuple(fields[name])
    fields["name"] = file.name or path.stem
    fields["data"] = {
        split: _source(entry, split, path.parent, hub_mirror, file, f"{where}, data, {split}")
        for split, entry in file.data.items()
    }
    if isinstance(templates, dict):
        return _load_set(templates, TaskRequest(name="", value_limit=limit, fields=fields), where)
    kind = OpenTemplateEntry if file.answer else TemplateEntry
    entries = (
        validate(kind, entry, f"{where}, template {number}{_name_of(entry)}", code="E-TASK-KEY")
        for number, entry in enumerate(templates, 1)
    )
    members = tuple(
        Template(entry.name, entry.jinja, entry.answer_choices, entry.wording, entry.order) for entry in entries
    )
    return Task(**fields, templates=TemplateSet(members, limit))


def _name_of(entry: Any) -> str:
    return f" ({entry['name']!r})" if isinstance(entry, dict) and isinstance(entry.get("name"), str) else ""


def _load_set(templates: dict[str, Any], request: TaskRequest, where: str) -> Task:
    (source, name), *more = templates.items()
    loader = find_loader(source) if isinstance(name, str) and not more else None
    if loader is None:
        raise InputError(
            "E-TASK-KEY",
            f"{where}: templates is {templates!r}.",
            "Write a list of templates, or {promptsource: SET}; `flip-flop templates search` lists the sets.",
        )
    return loader(replace(request, name=name))


def _source(entry: Any, split: str, folder: Path, hub_mirror: Path | None, task: TaskFile, where: str) -> Source:
    if isinstance(entry, str):
        return FileSource(folder / entry)
    if isinstance(entry, dict) and set(entry) == {"hub"}:
        entry = entry["hub"]
    if isinstance(entry, dict) and "repo" in entry:
        hub = validate(HubEntry, entry, where, code="E-TASK-KEY")
        return HubSource(hub.repo, hub.config, hub.split or split, hub.revision, hub_mirror)
    file = validate(FileEntry, entry, where, code="E-TASK-KEY")
    by = file.by if isinstance(file.by, list) else [name.strip() for name in file.by.split(",") if name.strip()]
    return FileSource(
        folder / file.path,
        file.encoding,
        file.delimiter,
        file.part,
        tuple(by),
        task.label_field if file.part else None,
        tuple(task.labels or ()) if file.part else (),
    )
