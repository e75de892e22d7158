"""Which of a dataset's templates are used: one rule, whatever the dataset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError
from flip_flop.prompts.promptsource import SourceTemplate
from flip_flop.prompts.render import check_rendering
from flip_flop.prompts.template import Template
from flip_flop.prompts.template_set import TemplateSet


@dataclass(frozen=True)
class Selection:
    """The templates that are used, and why the others are not.

    Attributes:
        kept: In the order of the candidates.
        dropped: Name and reason of each other candidate, in the same order.
    """

    kept: TemplateSet
    dropped: tuple[tuple[str, str], ...]


def select_templates(
    candidates: Sequence[SourceTemplate],
    rows: Iterable[Mapping[str, Any]],
    *,
    label_field: str | None,
    num_labels: int | None = None,
) -> Selection:
    """Keep the templates that ask for the dataset's own task and render for every row.

    A template renders where its prompt is not empty and there is an answer, not empty, for every label.

    Args:
        candidates: What :func:`read_promptsource` gives.
        rows: The rows; a template that fails on one is not rendered for the next.
        label_field: The gold label's field, which is kept from the templates.
        num_labels: The number of labels; None takes any number of at least two.

    Example:
        >>> def source(name, jinja):
        ...     template = Template(name, jinja, "No ||| Yes")
        ...     return SourceTemplate(name, jinja, "No ||| Yes", template, None, True, None, (), "", "")
        >>> plain, some = source("plain", "{{ x }}?"), source("some", "{% if x %}{{ x }}!{% endif %}")
        >>> selection = select_templates([plain, some], [{"x": "tea"}, {"x": ""}], label_field=None)
        >>> selection.kept.names, selection.dropped
        (('plain',), (('some', 'row 2: the prompt is empty (E-TPL-EMPTY)'),))
    """
    reasons: dict[str, str] = {}
    alive: list[Template] = []
    for candidate in candidates:
        if not candidate.original_task:
            reasons[candidate.name] = "it does not ask for the dataset's own task"
        elif candidate.template is None:
            reasons[candidate.name] = _reason(candidate.refusal, candidate.name)
        elif candidate.answer_choices is None or not candidate.answer_choices.strip():
            reasons[candidate.name] = "it has no answer choices"
        else:
            alive.append(candidate.template)
    for number, row in enumerate(rows, start=1):
        failed = {
            template.name: reason
            for template in alive
            if (reason := _failure(template, row, label_field, num_labels, f"row {number}")) is not None
        }
        if failed:
            reasons |= failed
            alive = [template for template in alive if template.name not in failed]
        if not alive:
            break
    dropped = tuple((each.name, reasons[each.name]) for each in candidates if each.name in reasons)
    return Selection(TemplateSet(tuple(alive)), dropped)


def _failure(
    template: Template, row: Mapping[str, Any], label_field: str | None, num_labels: int | None, place: str
) -> str | None:
    """Why a template does not render for a row, or None."""
    try:
        prompt, choices = template.render(row, label_field, instance_id=place, row=place)
        check_rendering(template, prompt, choices, num_labels or max(len(choices), 2), place)
    except InputError as error:
        # Two equal answers are the row's fault, and every template's alike: the rule is about the template.
        return None if error.code == "E-LABEL-DUP" else _reason(error, template.name)
    return None


def _reason(error: InputError | None, name: str = "") -> str:
    """An error in the words of a table's cell: without the template's name, which stands beside it."""
    if error is None:
        return "it cannot be read"
    words = error.message.removeprefix(f"template {name!r}, ").rstrip(".")
    return f"{words} ({error.code})"
