"""PromptSource's template files, read as data: each template is read, or refused with a code and a reason."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flip_flop.errors import InputError, nearest
from flip_flop.prompts.archive import FILE_NAME, check_unchanged, dataset_files
from flip_flop.prompts.template import Template
from flip_flop.strict_yaml import StrictLoader, read_yaml

_TEXTS = {"name": str, "jinja": str, "answer_choices": str | None}
_TEMPLATE_KEYS = (*_TEXTS, "id", "reference", "metadata", "task_template")
_METADATA_KEYS = ("original_task", "choices_in_prompt", "metrics")


@dataclass(frozen=True)
class SourceTemplate:
    """A template with the texts of PromptSource's file; ``template`` is it compiled, or why it cannot be used."""

    name: str
    jinja: str
    answer_choices: str | None
    original_task: bool
    template: Template | InputError


class _Metadata(NamedTuple):
    original_task: bool


class _PromptSourceLoader(StrictLoader):
    """The strict loader with exactly two more tags; what they hold is checked where its line is known."""

    def construct_template(self, node: yaml.Node) -> SourceTemplate:
        fields = self._known_fields(node, _TEMPLATE_KEYS)
        for key, kind in _TEXTS.items():
            if not isinstance(fields.get(key), kind):
                raise self._at(node, key, f"{key} was read as {fields.get(key)!r}, not as a text")
        metadata = fields.get("metadata")
        if not isinstance(metadata, _Metadata):
            raise self._at(node, "metadata", "metadata is no !TemplateMetadata")
        texts = (fields["name"], fields["jinja"], fields.get("answer_choices"))
        try:
            return SourceTemplate(*texts, metadata.original_task, Template(*texts))
        except InputError as refusal:
            return SourceTemplate(*texts, metadata.original_task, refusal)

    def construct_metadata(self, node: yaml.Node) -> _Metadata:
        original = self._known_fields(node, _METADATA_KEYS).get("original_task")
        if not isinstance(original, bool | None):
            raise self._at(node, "original_task", f"original_task is {original!r}, neither true nor false")
        return _Metadata(bool(original))

    def _known_fields(self, node: Any, known: tuple[str, ...]) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem=f"{node.tag} holds no keys", problem_mark=node.start_mark)
        fields = self.construct_mapping(node, deep=True)
        for key in fields:
            if key not in known:
                raise self._at(node, key, f"{node.tag} has an unknown key {key!r}")
        return fields

    @staticmethod
    def _at(node: Any, key: Any, problem: str) -> yaml.MarkedYAMLError:
        """The problem, with the line of the key that it is about."""
        marks = [value.start_mark for name, value in node.value if name.value == key]
        return yaml.MarkedYAMLError(problem=problem, problem_mark=marks[0] if marks else node.start_mark)


_PromptSourceLoader.add_constructor("!Template", _PromptSourceLoader.construct_template)
_PromptSourceLoader.add_constructor("!TemplateMetadata", _PromptSourceLoader.construct_metadata)


def promptsource_names(folder: Path) -> tuple[str, ...]:
    """The names of the datasets that have templates, such as ``anli`` and ``super_glue/rte``."""
    return tuple(name for name, _ in dataset_files(folder))


def read_promptsource(folder: Path, name: str) -> list[SourceTemplate]:
    """Read a dataset's templates, by name, from :func:`flip_flop.prompts.archive.templates_folder`.

    Raises:
        InputError: ``E-TPL-YAML``, with file and line, ``E-TPL-UNKNOWN``, ``E-TPL-NAME-DUP``, ``E-TPL-ARCHIVE``.
    """
    names = promptsource_names(folder)
    if name not in names:
        raise InputError("E-TPL-UNKNOWN", f"PromptSource has no templates for {name!r}.", nearest(name, names))
    check_unchanged(folder, name)
    path = folder / name / FILE_NAME
    document = read_yaml(path, loader=_PromptSourceLoader, code="E-TPL-YAML", file_code="E-TPL-YAML")
    templates = document.get("templates") if isinstance(document, dict) else None
    if not isinstance(templates, dict) or not all(isinstance(each, SourceTemplate) for each in templates.values()):
        raise InputError("E-TPL-YAML", f"{path} holds no templates.", "Write templates: with a !Template for each id.")
    ordered = sorted(templates.values(), key=lambda each: each.name)
    for first, second in pairwise(ordered):
        if first.name == second.name:
            raise InputError("E-TPL-NAME-DUP", f"{path}: two templates are named {first.name!r}.")
    return ordered
