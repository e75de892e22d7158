"""One row under every template, checked: what is scored, voted on and trained on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError
from flip_flop.prompts.limits import MAX_SIZE, RenderLimitExceeded, size_of
from flip_flop.prompts.template import Template, TemplateSet


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

    The templates do not see the ``label_field``; their random choices depend on ``id`` and ``seed``. Where
    ``num_labels`` is None, the first template's number of answers counts. ``row`` names the row in an error, such as
    ``tickets.csv line 3``.

    Raises:
        InputError: ``E-ROW-TOO-BIG``, or an error of :meth:`Template.render` or :func:`check_rendering`.

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
    except RenderLimitExceeded:
        raise InputError("E-ROW-TOO-BIG", f"{row} holds more than {MAX_SIZE:,} characters.") from None
    prompts, all_choices = [], []
    for template in templates:
        prompt, choices = template.render(fields, label_field, instance_id=id, seed=seed, row=row)
        num_labels = num_labels or len(choices)
        check_rendering(template, prompt, choices, num_labels, row)
        prompts.append(prompt)
        all_choices.append(choices)
    return RenderedInstance(id, tuple(prompts), tuple(all_choices), label)


def check_rendering(template: Template, prompt: str, choices: Sequence[str], num_labels: int, row: str) -> None:
    """Refuse an empty prompt, and answers that are not one for each label, all different.

    Raises:
        InputError: ``E-TPL-EMPTY``, ``E-TPL-LABELCOUNT``, ``E-LABEL-EMPTY`` or ``E-LABEL-DUP``.
    """
    where = f"template {template.name!r}, {row}"
    if not prompt:
        raise InputError("E-TPL-EMPTY", f"{where}: the prompt is empty.")
    if len(choices) != num_labels:
        raise InputError("E-TPL-LABELCOUNT", f"{where}: {len(choices)} answer choices for {num_labels} labels.")
    for index, choice in enumerate(choices):
        if not choice:
            raise InputError("E-LABEL-EMPTY", f"{where}: answer choice {index + 1} is empty.")
        if choice in choices[:index]:
            raise InputError("E-LABEL-DUP", f"{where}: two labels have the same answer {choice!r}.")


def templates_differ_in_answer_words(instances: Iterable[RenderedInstance]) -> bool:
    """Whether some instance's templates answer the same label in different words.

    If they do, a divergence over the vocabulary pulls each template toward the others' words.

    Example:
        >>> same = RenderedInstance("1", ("p", "q"), (("No", "Yes"), ("No", "Yes")), None)
        >>> other = RenderedInstance("2", ("p", "q"), (("No", "Yes"), ("False", "True")), None)
        >>> templates_differ_in_answer_words([same]), templates_differ_in_answer_words([same, other])
        (False, True)
    """
    return any(len(set(instance.choices)) > 1 for instance in instances)
