"""Which of a dataset's templates are used: one rule, whatever the dataset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError
from flip_flop.prompts.promptsource import SourceTemplate
from flip_flop.prompts.render import check_rendering
from flip_flop.prompts.template import Template, TemplateSet


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

    Example:
        >>> def source(name, jinja):
        ...     return SourceTemplate(name, jinja, "No ||| Yes", True, Template(name, jinja, "No ||| Yes"))
        >>> plain, some = source("plain", "{{ x }}?"), source("some", "{% if x %}{{ x }}!{% endif %}")
        >>> found = filter_templates([plain, some], [{"x": "tea"}, {"x": ""}], label_field=None)
        >>> found.kept.names, found.dropped
        (('plain',), (('some', 'row 2: the prompt is empty (E-TPL-EMPTY)'),))
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
