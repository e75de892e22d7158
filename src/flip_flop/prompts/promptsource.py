"""PromptSource's template files, read as data, and which of their templates are used, by one rule for all datasets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flip_flop.errors import InputError, nearest
from flip_flop.prompts.archive import FILE_NAME, check_unchanged, dataset_files, has_dataset
from flip_flop.prompts.template import Template, TemplateSet, check_rendering
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

    @property
    def is_usable(self) -> bool:
        """Whether it asks for the set's own task, compiles, and has answers: what is known without rows."""
        return self.original_task and isinstance(self.template, Template) and bool((self.answer_choices or "").strip())


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
    if not has_dataset(folder, name):
        hint = nearest(name, promptsource_names(folder))
        raise InputError("E-TPL-UNKNOWN", f"PromptSource has no templates for {name!r}.", hint)
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


@dataclass(frozen=True)
class TemplateFilter:
    """The templates that are used, in the order of the candidates, and name and reason of each other candidate."""

    kept: TemplateSet
    dropped: tuple[tuple[str, str], ...]


def filter_templates(
    candidates: Sequence[SourceTemplate],
    rows: Iterable[Mapping[str, Any]],
    *,
    label_field: str | None,
    num_labels: int | None = None,
) -> TemplateFilter:
    """Keep the templates that ask for the dataset's own task and render for every row.

    A template renders where its prompt is not empty and every label has an answer that is not empty. One that fails on
    a row is not rendered for the next. Where ``num_labels`` is None, any number of at least two will do.
    """
    reasons: dict[str, str] = {}
    left: list[Template] = []
    for candidate in candidates:
        if not candidate.original_task:
            reasons[candidate.name] = "it does not ask for the dataset's own task"
        elif isinstance(candidate.template, InputError):
            reasons[candidate.name] = _reason(candidate.template, candidate.name)
        elif candidate.answer_choices is None or not candidate.answer_choices.strip():
            reasons[candidate.name] = "it has no answer choices"
        else:
            left.append(candidate.template)
    for number, row in enumerate(rows, start=1):
        for template in left:
            try:
                prompt, choices = template.render(row, label_field, instance_id=f"row {number}", row=f"row {number}")
                check_rendering(template, prompt, choices, num_labels or max(len(choices), 2), f"row {number}")
            except InputError as error:
                # Two equal answers are a problem of the row: every template has it.
                if error.code != "E-LABEL-DUP":
                    reasons[template.name] = _reason(error, template.name)
        left = [template for template in left if template.name not in reasons]
        if not left:
            break
    dropped = tuple((each.name, reasons[each.name]) for each in candidates if each.name in reasons)
    return TemplateFilter(TemplateSet(tuple(left)), dropped)


def _reason(error: InputError, name: str) -> str:
    """An error without the template's name, which stands beside it in a table."""
    return f"{error.message.removeprefix(f'template {name!r}, ').rstrip('.')} ({error.code})"
