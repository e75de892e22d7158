"""What is doubtful about a set of templates on real rows: found before a model spends hours on it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flip_flop.errors import InputError
from flip_flop.prompts.label_order import reversed_words, target_index
from flip_flop.prompts.render import check_rendering
from flip_flop.prompts.template import Template
from flip_flop.prompts.template_set import TemplateSet

LONG = 8192
"""Characters from which a prompt counts as long: about the context of a small model, in characters."""

_ROWS_FOR_DRAWS = 5
_ROWS_FOR_TOKENS = 200
_ROWS_FOR_TWINS = 20

Encode = Callable[[str, tuple[str, ...]], Sequence[Sequence[int]]]
Rendering = tuple[str, tuple[str, ...]]


class LintRow(NamedTuple):
    """One row: the words that name it, its fields, and its gold label's index where it has one."""

    place: str
    fields: Mapping[str, Any]
    gold: int | None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (``E-``) or doubtful (``W-``).

    Attributes:
        code: As in ``docs/errors.md``.
        template: The template's name.
        row: The words that name the first row where it was seen; empty where it is about no row.
        message: What it is.
        num_rows: In how many rows it was seen.
    """

    code: str
    template: str
    row: str
    message: str
    num_rows: int = 1

    @property
    def is_error(self) -> bool:
        """Whether the template cannot be used as it is."""
        return self.code.startswith("E-")


@dataclass
class _Notebook:
    """Findings by code and template: the first row tells what it is, the others are counted."""

    entries: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def add(self, code: str, template: str, row: str, message: str) -> None:
        first = self.entries.setdefault((code, template), Finding(code, template, row, message, 0))
        self.entries[code, template] = Finding(code, template, first.row, first.message, first.num_rows + 1)


@dataclass
class _Seen:
    """What a template did over the rows."""

    renderings: list[Rendering | None] = field(default_factory=list)
    targets: set[int] = field(default_factory=set)

    def answers(self) -> tuple[str, ...] | None:
        """The answers, where they are the same in every row."""
        found = {rendering[1] for rendering in self.renderings if rendering is not None}
        return found.pop() if len(found) == 1 else None


def lint_templates(
    templates: TemplateSet,
    rows: Sequence[LintRow],
    *,
    label_field: str | None,
    num_labels: int | None,
    seed: int = 0,
    encode: Encode | None = None,
) -> list[Finding]:
    """Look at templates on rows.

    Args:
        templates: The templates.
        rows: The rows.
        label_field: The gold label's field.
        num_labels: The number of labels; None takes it from the first rendering.
        seed: The user's seed.
        encode: The answers' tokens, given prompt and answers, in the words of a model's tokenizer.

    Returns:
        Errors first, then by template.

    Example:
        >>> plain = Template("plain", "Is {{ x }} good? ||| {{ answer_choices[y] }}", "No ||| Yes")
        >>> odd = Template("odd", "{{ x }}? ||| {{ answer_choices[1 - y] }}", "Yes ||| No")
        >>> rows = [LintRow(f"row {y}", {"x": f"tea {y}", "y": y}, y) for y in (0, 1)]
        >>> found = lint_templates(TemplateSet((plain, odd)), rows, label_field="y", num_labels=2)
        >>> [(finding.code, finding.template, finding.num_rows) for finding in found]
        [('E-TPL-LABEL-ORDER', 'odd', 2)]
    """
    notes, seen = _Notebook(), {template.name: _Seen() for template in templates}
    for number, row in enumerate(rows):
        for template in templates:
            rendering = _render(template, row, label_field, num_labels, seed, notes)
            seen[template.name].renderings.append(rendering)
            if rendering is not None:
                num_labels = num_labels or len(rendering[1])
                _check_rendering(template, row, rendering, notes)
                if encode is not None and number < _ROWS_FOR_TOKENS:
                    _check_tokens(template, row, rendering, encode, notes)
                _check_target(template, row, rendering, seed, seen[template.name], notes)
    for template in templates:
        _check_draws(template, rows, label_field, seed, seen[template.name], notes)
        _check_constant(template, rows, seen[template.name], notes)
    _check_twins(templates, rows, label_field, notes)
    _check_doubles(seen, notes)
    _check_words(seen, num_labels, notes)
    order = {name: index for index, name in enumerate(templates.names)}
    return sorted(notes.entries.values(), key=lambda each: (not each.is_error, order[each.template], each.code))


def _render(
    template: Template, row: LintRow, label_field: str | None, num_labels: int | None, seed: int, notes: _Notebook
) -> Rendering | None:
    try:
        prompt, choices = template.render(row.fields, label_field, instance_id=row.place, seed=seed, row=row.place)
        check_rendering(template, prompt, choices, num_labels or len(choices), row.place)
    except InputError as error:
        notes.add(error.code, template.name, row.place, _words(error, row.place))
        return None
    return prompt, choices


def _words(error: InputError, place: str) -> str:
    return f"{error.message.split(f'{place}: ', 1)[-1]} {error.hint}".strip()


def _check_rendering(template: Template, row: LintRow, rendering: Rendering, notes: _Notebook) -> None:
    prompt, choices = rendering
    if len(prompt) > LONG:
        notes.add("W-TPL-LONG", template.name, row.place, f"the prompt has {len(prompt):,} characters.")
    for short, long in _pairs(choices):
        if long.casefold().startswith(short.casefold()):
            message = f"the answer {short!r} is how the answer {long!r} begins."
            notes.add("W-TPL-CHOICE-PREFIX", template.name, row.place, message)


def _check_tokens(template: Template, row: LintRow, rendering: Rendering, encode: Encode, notes: _Notebook) -> None:
    """Whether a model can tell the answers apart."""
    prompt, choices = rendering
    try:
        tokens = [tuple(answer) for answer in encode(prompt, choices)]
    except InputError as error:
        notes.add(error.code, template.name, row.place, _words(error, row.place))
        return
    for index, answer in enumerate(tokens):
        if answer in tokens[:index]:
            message = f"the answers {choices[tokens.index(answer)]!r} and {choices[index]!r} are the same tokens."
            notes.add("E-LABEL-TOKENS", template.name, row.place, message)


def _pairs(choices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every pair of answers, the shorter one first."""
    ordered = sorted(choices, key=len)
    return ((short, long) for index, short in enumerate(ordered) for long in ordered[index + 1 :])


def _check_target(
    template: Template, row: LintRow, rendering: Rendering, seed: int, seen: _Seen, notes: _Notebook
) -> None:
    """Whether the template's own target is the gold label's answer, in the order of the task's labels."""
    if row.gold is None:
        return
    try:
        index = target_index(template, row.fields, rendering[1], place=row.place, seed=seed)
    except InputError as error:
        notes.add("W-TPL-TARGET", template.name, row.place, f"its target fails: {_words(error, row.place)}")
        return
    if index is None:
        return
    seen.targets.add(index)
    if index != row.gold:
        message = f"its target is answer {index + 1}, {rendering[1][index]!r}; the gold label is number {row.gold + 1}."
        notes.add("E-TPL-LABEL-ORDER", template.name, row.place, message)


def _check_draws(
    template: Template, rows: Sequence[LintRow], label_field: str | None, seed: int, seen: _Seen, notes: _Notebook
) -> None:
    """Whether another seed gives another text."""
    for row, rendering in zip(rows[:_ROWS_FOR_DRAWS], seen.renderings, strict=False):
        if rendering is None:
            continue
        for other in (seed + 1, seed + 2, seed + 3):
            try:
                again = template.render(row.fields, label_field, instance_id=row.place, seed=other, row=row.place)
            except InputError:
                again = ("", ())
            if again != rendering:
                what = "prompt changes" if again[0] != rendering[0] else "answers change"
                notes.add("W-TPL-RANDOM", template.name, row.place, f"the {what} with the seed.")
                return


def _check_constant(template: Template, rows: Sequence[LintRow], seen: _Seen, notes: _Notebook) -> None:
    """Whether the template says the same of rows that differ."""
    same = len(rows) > 1 and len(set(seen.renderings)) == 1 and seen.renderings[0] is not None
    if same and any(row.fields != rows[0].fields for row in rows):
        notes.add("W-TPL-CONSTANT", template.name, "", "the prompt is the same for every row.")


def _check_twins(templates: TemplateSet, rows: Sequence[LintRow], label_field: str | None, notes: _Notebook) -> None:
    """Whether a prompt reads a field that stands for the gold label in other words."""
    labelled = [row for row in rows if row.gold is not None]
    if len(labelled) < _ROWS_FOR_TWINS:
        return
    for name in labelled[0].fields:
        values = {repr(row.fields.get(name)) for row in labelled}
        pairs = {(repr(row.fields.get(name)), row.gold) for row in labelled}
        golds = {row.gold for row in labelled}
        if name == label_field or len(golds) < 2 or not len(values) == len(pairs) == len(golds):
            continue
        for template in templates:
            try:
                template.render(labelled[0].fields, name, row=labelled[0].place)
            except InputError as error:
                if error.code == "E-TPL-LABEL-LEAK":
                    message = f"it reads the field {name!r}, which tells the gold label in all {len(labelled):,} rows."
                    notes.add("W-TPL-LABEL-TWIN", template.name, "", message)


def _check_doubles(seen: Mapping[str, _Seen], notes: _Notebook) -> None:
    """Whether two templates are one, which would have two votes."""
    first: dict[tuple[Rendering | None, ...], str] = {}
    for name, one in seen.items():
        if any(one.renderings):
            earlier = first.setdefault(tuple(one.renderings), name)
            if earlier != name:
                notes.add("E-TPL-DUP", name, "", f"it renders as the template {earlier!r} does in every row.")


def _check_words(seen: Mapping[str, _Seen], num_labels: int | None, notes: _Notebook) -> None:
    """Whether the answers stand in another order than another template's, where no target says which is right."""
    confirmed = {name for name, one in seen.items() if len(one.targets) == num_labels}
    answers = {name: found for name, one in seen.items() if (found := one.answers()) is not None}
    for name, other in reversed_words(answers):
        if name not in confirmed or other not in confirmed:
            message = f"its answers {answers[name]} are in the reverse order of {other!r}, {answers[other]}."
            notes.add("W-TPL-LABEL-ORDER", name, "", message)
