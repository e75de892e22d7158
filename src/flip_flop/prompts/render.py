"""One row under every template, checked: what is scored, voted on and trained on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError
from flip_flop.prompts.limits import MAX_SIZE, TooMuch, size_of
from flip_flop.prompts.template import Template
from flip_flop.prompts.template_set import TemplateSet


@dataclass(frozen=True)
class RenderedInstance:
    """One instance under V templates.

    Attributes:
        id: Unique within a split.
        prompts: One per template.
        choices: One answer per label, per template: answers are compared by index, whatever their words.
        label: The gold label's index, or None.
    """

    id: str
    prompts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    label: int | None


def render_instance(
    fields: Mapping[str, Any],
    templates: TemplateSet,
    *,
    id: str,
    label: int | None,
    num_labels: int | None,
    label_field: str | None,
    seed: int = 0,
    row: str | None = None,
) -> RenderedInstance:
    """Render one row under every template.

    Args:
        fields: The row.
        templates: The task's templates.
        id: The instance's id; random choices depend on it.
        label: The gold label's index, or None.
        num_labels: The number of labels; None takes it from the first template.
        label_field: The gold label's field, which is kept from the templates.
        seed: The user's seed.
        row: Words that name the row in an error, such as ``tickets.csv line 3``.

    Raises:
        InputError: ``E-TPL-EMPTY``, ``E-LABEL-EMPTY``, ``E-LABEL-DUP``, ``E-TPL-LABELCOUNT``,
            ``E-ROW-TOO-BIG``, or an error of :meth:`Template.render`.

    Example:
        >>> plain = Template("plain", "Is {{ x }} good?", "No ||| Yes")
        >>> terse = Template("terse", "{{ x }}:", "bad ||| good")
        >>> where = {"id": "test-1", "label": 1, "num_labels": 2, "label_field": None}
        >>> tea = render_instance({"x": "tea"}, TemplateSet((plain, terse)), **where)
        >>> tea.prompts, tea.choices
        (('Is tea good?', 'tea:'), (('No', 'Yes'), ('bad', 'good')))
    """
    row = row or f"instance {id!r}"
    try:
        size_of(fields)
    except TooMuch:
        message = f"{row} holds more than {MAX_SIZE:,} characters."
        raise InputError("E-ROW-TOO-BIG", message, "Shorten the row.") from None
    prompts, all_choices = [], []
    for template in templates:
        prompt, choices = template.render(fields, label_field, instance_id=id, seed=seed, row=row)
        num_labels = num_labels or len(choices)
        check_rendering(template, prompt, choices, num_labels, row)
        prompts.append(prompt)
        all_choices.append(choices)
    return RenderedInstance(id, tuple(prompts), tuple(all_choices), label)


def check_rendering(template: Template, prompt: str, choices: Sequence[str], num_labels: int, row: str) -> None:
    """Refuse an empty prompt, and answers that are not one for each label, each with words of its own.

    Raises:
        InputError: ``E-TPL-EMPTY``, ``E-TPL-LABELCOUNT``, ``E-LABEL-EMPTY`` or ``E-LABEL-DUP``.
    """
    where = f"template {template.name!r}, {row}"
    if not prompt:
        raise InputError("E-TPL-EMPTY", f"{where}: the prompt is empty.", "Give the template text for every row.")
    if len(choices) != num_labels:
        message = f"{where}: {len(choices)} answer choices for {num_labels} labels."
        raise InputError("E-TPL-LABELCOUNT", message, "Write one answer per label, in the order of the labels.")
    for index, choice in enumerate(choices):
        if not choice:
            message = f"{where}: answer choice {index + 1} is empty."
            raise InputError("E-LABEL-EMPTY", message, "Give every label at least one word.")
        if choice in choices[:index]:
            message = f"{where}: two labels have the same answer {choice!r}."
            raise InputError("E-LABEL-DUP", message, "Give every label an answer of its own.")


def templates_differ_in_answer_words(instances: Iterable[RenderedInstance]) -> bool:
    """Whether some instance's templates answer the same label in different words.

    Where they do, a divergence over the vocabulary pulls each template toward the others' words.

    Example:
        >>> same = RenderedInstance("1", ("p", "q"), (("No", "Yes"), ("No", "Yes")), None)
        >>> other = RenderedInstance("2", ("p", "q"), (("No", "Yes"), ("False", "True")), None)
        >>> templates_differ_in_answer_words([same]), templates_differ_in_answer_words([same, other])
        (False, True)
    """
    return any(len(set(instance.choices)) > 1 for instance in instances)
