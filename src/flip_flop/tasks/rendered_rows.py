"""Rows that come rendered: prompts and answers under each template, without the task that made them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance, Template, TemplateSet
from flip_flop.tasks.readers import cell_text
from flip_flop.tasks.sources import RowsSource
from flip_flop.tasks.task import RenderedSplit, Task

RenderedRows = Iterable[RenderedInstance | Mapping[str, Any]]
_SHAPE = 'A row is {"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int or None}.'


def render_row(row: RenderedInstance | Mapping[str, Any], number: int) -> RenderedInstance:
    """One row as a :class:`~flip_flop.prompts.RenderedInstance`; without an ``id`` it has its number.

    Raises:
        InputError: ``E-ROW``.
    """
    if isinstance(row, RenderedInstance):
        return row
    given: Mapping[str, Any] = row if isinstance(row, Mapping) else {}
    prompts: Any = given.get("prompts")
    choices: Any = given.get("choices")
    are_texts = _is_list_of(str, prompts) and _is_list_of(list | tuple, choices) and len(prompts) == len(choices)
    if not are_texts or not all(_is_list_of(str, labels) for labels in choices):
        message = f"Row {number}: 'prompts' and 'choices' must be lists with one entry per template."
        hint = f"{_SHAPE} For rows of fields give a task's templates: task.with_rows(rows)."
        raise InputError("E-ROW", message, hint)
    identifier = row.get("id")
    return RenderedInstance(
        id=str(number if identifier is None else identifier),
        prompts=tuple(prompts),
        choices=tuple(tuple(labels) for labels in choices),
        label=row["label"] if cell_text(row.get("label")) else None,
    )


def _is_list_of(kind: Any, value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(each, kind) for each in value)


def render_rows(rows: RenderedRows) -> list[RenderedInstance]:
    """The rows as instances, all of one shape: V templates of L labels each.

    Raises:
        InputError: ``E-ROW``.
    """
    instances = [render_row(row, number) for number, row in enumerate(rows)]
    shapes = sorted({tuple(len(choices) for choices in instance.choices) for instance in instances})
    if len(shapes) > 1:
        message = f"The rows differ in their numbers of choices under each template: {shapes[:3]}."
        raise InputError("E-ROW", message, "Give every row the same templates and labels.")
    if shapes and (len(set(shapes[0])) > 1 or min(shapes[0]) < 2):
        message = f"The templates of a row offer {shapes[0]} choices."
        raise InputError("E-ROW", message, "Give every template the same labels, at least two.")
    return instances


def split_of_rows(rows: RenderedRows) -> RenderedSplit:
    """Rendered rows as the test split of a task without a name of its own: its templates are numbered.

    Raises:
        InputError: ``E-ROW``; ``E-DATA-EMPTY`` without rows; ``E-DATA-DUPID`` where two rows have one id.
    """
    instances = render_rows(rows)
    _check(instances)
    fields = [{key: value for key, value in vars(each).items() if key != "chat"} for each in instances]
    source = RowsSource(fields, "rows").load()
    templates = [
        Template(template_name(number), f"{{{{ prompts[{number}] }}}}", f"{{{{ choices[{number}] | join(' ||| ') }}}}")
        for number in range(len(instances[0].prompts))
    ]
    return RenderedSplit(Task("rows", TemplateSet(tuple(templates)), {"test": source}), "test", source, instances)


def template_name(number: int) -> str:
    """What a template of rendered rows is called, counted from 0."""
    return f"template_{number + 1}"


def _check(instances: Sequence[RenderedInstance]) -> None:
    num_labels = len(instances[0].choices[0]) if instances else 0
    seen = set[str]()
    for instance in instances:
        if instance.id in seen:
            raise InputError("E-DATA-DUPID", f"Two rows have the id {instance.id!r}.", "Give every row its own id.")
        if instance.label is not None and not (type(instance.label) is int and 0 <= instance.label < num_labels):
            message = f"Row {instance.id!r}: the label is {instance.label!r}."
            raise InputError("E-ROW", message, f"It is an index from 0 to {num_labels - 1}, or None.")
        seen.add(instance.id)
