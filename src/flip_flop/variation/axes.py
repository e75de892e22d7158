"""The axes of a task: variants of its templates that differ in one way."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flip_flop.console import warn_once
from flip_flop.errors import InputError, nearest
from flip_flop.files import derive_seed, generator
from flip_flop.prompts import Template
from flip_flop.strict_yaml import StrictModel, validate
from flip_flop.tasks import DIVIDER, Task, choose_templates
from flip_flop.variation.examples import Examples, ExamplesEntry
from flip_flop.variation.formats import TemplateParts, apply_format, format_choices
from flip_flop.variation.typos import add_typos

UNCHANGED = "original"
NO_EXAMPLES = "none"
NUM_CENTRES = 3  # templates around which an axis that is not crossed is varied
MAX_ORDERS = 24
Orders = Annotated[int, Field(ge=2)] | Literal["all"]


def _read_examples(content: Any) -> ExamplesEntry:
    if isinstance(content, int):
        content = {"number": content}
    return validate(ExamplesEntry, content, "examples", code="E-AXIS")


class AxesEntry(StrictModel):
    """The key ``axes`` of a task file."""

    order: Orders | None = Field(default=None, examples=["4, or order: all"])
    format: int | None = Field(default=None, ge=1)
    examples: Annotated[ExamplesEntry | None, BeforeValidator(_read_examples)] = None
    typos: float | None = Field(default=None, gt=0, le=1)
    cross: list[Literal["order", "format", "examples", "typos"]] = Field(default=[], examples=["[order, format]"])
    held_out: dict[str, list[int | str]] = Field(default={}, examples=["{order: [3]}"])
    seed: int = 0


@dataclass(frozen=True)
class Axis:
    """A way in which a template can change.

    Attributes:
        name: One of :data:`flip_flop.metrics.AXES`.
        levels: From a template to its levels, first the unchanged one.
        apply: From a template and a level to the changed template, or None if it cannot change.
        why: The reason why some templates cannot change, for a warning.
    """

    name: str
    levels: Callable[[Template], Sequence[str]]
    apply: Callable[[Template, str], Template | None]
    why: str

    def variants(self, template: Template) -> list[Template]:
        """Return the template with its own level, and its variants at the other levels."""
        own, *levels = self.levels(template)
        found = [replace(template, levels={**template.levels, self.name: own})]
        for number, level in enumerate(levels, 2):
            variant = self.apply(template, level)
            if variant is not None:
                words = number if self.name == "format" else level
                name = f"{template.name}{DIVIDER}{self.name.replace('_', ' ')} {words}"
                found.append(replace(variant, name=name, levels={**template.levels, self.name: level}))
        return found


# ---- the axes ----


def order_axis(number: int | Literal["all"]) -> Axis:
    r"""Return the axis of the order of options: rotations, or all permutations.

    A level has the numbers of the labels, from 1, in the order in which the prompt lists them.

    Example:
        >>> plain = Template("plain", "{{ text }}\nA. sports\nB. world\nC. science\nLetter:", "B ||| A ||| C")
        >>> axis = order_axis(3)
        >>> axis.levels(plain)
        ['2 1 3', '1 3 2', '3 2 1']
        >>> variant = axis.apply(plain, "1 3 2")
        >>> variant.answer_choices, variant.jinja.splitlines()[1:4]
        ('A ||| C ||| B', ['A. world', 'B. science', 'C. sports'])
    """

    def levels(template: Template) -> list[str]:
        parts = TemplateParts(template)
        listed = parts.listed
        if not listed:
            return [_numbers(range(len(parts.answers)))]
        if number != "all":
            return [_numbers(listed[shift:] + listed[:shift]) for shift in range(min(number, len(listed)))]
        if math.factorial(len(listed)) > MAX_ORDERS:
            what = f"template {template.name!r} has {len(listed)} options, which have more than {MAX_ORDERS} orders."
            raise InputError("E-AXIS", what, f"Write order: {len(listed)} for the rotations.")
        return [_numbers(order) for order in itertools.permutations(listed)]

    def apply(template: Template, level: str) -> Template:
        return apply_format(template, {"order": [int(label) - 1 for label in level.split()]})

    why = "their options cannot be moved: the prompts do not list them, or refer to their marks"
    return Axis("order", levels, apply, why)


def _numbers(labels: Iterable[int]) -> str:
    return " ".join(str(label + 1) for label in labels)


def format_axis(number: int, seed: int) -> Axis:
    """Return the axis of the layout: formats of FormatSpread's grammar that keep the punctuation.

    The seed and the wording sample them without replacement. A level has the changed parts as JSON.
    """

    @functools.lru_cache(maxsize=4096)
    def levels(template: Template) -> list[str]:
        choices = format_choices(template)
        formats = list(itertools.product(*choices.values()))
        random = generator(seed, "format", template.levels["wording"])
        found = {apply(template, "{}").jinja: UNCHANGED}
        for place in random.permutation(len(formats)).tolist():
            parts = zip(choices, formats[place], strict=True)
            level = json.dumps({name: value for name, value in parts if value is not None}, ensure_ascii=False)
            if len(found) <= number:
                found.setdefault(apply(template, level).jinja, level)
        return list(found.values())

    def apply(template: Template, level: str) -> Template:
        return apply_format(template, json.loads(level))

    return Axis("format", levels, apply, "their prompts have no other format")


def examples_axes(task: Task, entry: ExamplesEntry, seed: int) -> tuple[Axis, Axis]:
    """Return the axes of the set of demonstrations and of their order, by their places in the set, from 1."""
    examples = Examples(task, entry, seed)
    why = "their prompts draw at random, or cannot be inside a block of Jinja"
    return (
        Axis("examples", lambda _: [NO_EXAMPLES, *examples.sets], examples.add, why),
        Axis("example_order", lambda _: [*examples.orders], examples.reorder, why),
    )


def typos_axis(share: float, seed: int) -> Axis:
    """Return the axis of typos in this share of the words of a row. Prompts with demonstrations have none."""

    def apply(template: Template, _: str) -> Template | None:
        if template.levels.get("examples", NO_EXAMPLES) != NO_EXAMPLES:
            return None  # a row with typos would not be recognized among the examples
        return add_typos(template, share, seed)

    why = "their prompts print no field, or only options"
    return Axis("typos", lambda _: [UNCHANGED, str(share)], apply, why)


# ---- variants ----


def vary_task(task: Task, axes: Mapping[str, Any], templates: str = "all") -> Task:
    """Return the task with the variants of its templates along the axes; see :meth:`flip_flop.tasks.Task.with_axes`.

    ``templates`` selects templates with their variants, as in :func:`~flip_flop.load_task`.

    Raises:
        InputError: ``E-AXIS`` for an unknown or wrong key, an axis that the task has already or that no template has,
            and a held-out level that no template has.
    """
    where = f"task {task.name!r}"
    entry = validate(AxesEntry, axes, f"{where}, axes", code="E-AXIS")
    groups = _groups(task, entry)
    if not groups:
        raise InputError("E-AXIS", f"{where}: axes names no axis.", "Write, for example, order: 4.")
    known = {name for template in task.templates for name in template.levels}
    for axis in itertools.chain(*groups):
        if axis.name in known:
            raise InputError("E-AXIS", f"{where} has templates with levels of {axis.name!r}.", "Leave out this axis.")
    worded = [replace(template, levels={"wording": template.name, **template.levels}) for template in task.templates]
    task = replace(task, templates=replace(task.templates, templates=tuple(worded)))
    for group in groups:
        _require_variants(task, group[0])
    task = choose_templates(task, templates)
    variation = _Variation(entry, groups, set(task.held_out_templates))
    found = variation.make(task.training_templates)
    found += variation.make(task.templates.select(task.held_out_templates))
    for name, value in variation.missing if templates == "all" else ():
        levels = {template.levels.get(name, "") for template in found}
        raise InputError("E-AXIS", f"{where}: no template has the {name} {value!r}.", nearest(str(value), levels))
    held_out = tuple(template.name for template in found if template.name in variation.held_out)
    return replace(task, templates=replace(task.templates, templates=tuple(found)), held_out_templates=held_out)


def _groups(task: Task, entry: AxesEntry) -> list[tuple[Axis, ...]]:
    """Return the axes in the order in which they change a template. Axes of one group are always crossed."""
    groups = list[tuple[Axis, ...]]()
    if entry.order is not None:
        groups.append((order_axis(entry.order),))
    if entry.format is not None:
        groups.append((format_axis(entry.format, entry.seed),))
    if entry.examples is not None:
        groups.append(examples_axes(task, entry.examples, entry.seed))
    if entry.typos is not None:
        groups.append((typos_axis(entry.typos, entry.seed),))
    return groups


def _require_variants(task: Task, axis: Axis) -> None:
    """Warn of templates without variants along an axis, and refuse an axis along which no template has one."""
    fixed = [template.name for template in task.templates if len(axis.variants(template)) == 1]
    if len(fixed) == len(task.templates):
        raise InputError("E-AXIS", f"task {task.name!r}: no template has variants by {axis.name}: {axis.why}.")
    if fixed:
        warn_once(f"W-AXIS: {task.name}: no variants by {axis.name} of {', '.join(fixed)}: {axis.why}.")


class _Variation:
    """The variants of templates.

    ``held_out`` has the names of held-out ones, and ``missing`` the held-out levels that no template has.
    """

    def __init__(self, entry: AxesEntry, groups: Sequence[tuple[Axis, ...]], held_out: set[str]) -> None:
        self.entry = entry
        self.groups = groups
        self.held_out = held_out
        self.missing = {(axis, value) for axis, values in entry.held_out.items() for value in values}

    def make(self, bases: Iterable[Template]) -> list[Template]:
        """Return the templates with all their variants: those of crossed axes, then the stars of others."""
        found = []
        for template in bases:
            levels = {axis.name: axis.levels(template)[0] for axis in itertools.chain(*self.groups)}
            found.append(replace(template, levels={**template.levels, **levels}))
        stars = []
        for group in self.groups:
            if group[0].name in ("order", *self.entry.cross):
                found = [variant for template in found for variant in self.expand(template, group)]
            else:
                stars.append(group)
        around = []
        for group in stars:
            for centre in self.centres(found, group[0]):
                around += self.expand(centre, group)[1:]
        return found + around

    def centres(self, templates: Sequence[Template], axis: Axis) -> list[Template]:
        """Draw the templates around which an axis is varied, of different wordings as far as possible."""
        free = [template for template in templates if template.name not in self.held_out] or templates
        drawn = [template for template in free if len(axis.variants(template)) > 1]
        drawn.sort(key=lambda template: derive_seed(self.entry.seed, "centre", axis.name, template.name))
        first = {template.levels["wording"]: template for template in reversed(drawn)}
        drawn.sort(key=lambda template: template is not first[template.levels["wording"]])
        return drawn[:NUM_CENTRES]

    def expand(self, template: Template, group: Sequence[Axis]) -> list[Template]:
        """Return the template and its variants along the axes of a group."""
        found = [template]
        for axis in group:
            found = [variant for each in found for variant in self.along(each, axis)]
        return found

    def along(self, template: Template, axis: Axis) -> list[Template]:
        """Return the template and its variants along an axis. Variants at held-out levels are held out."""
        values = self.entry.held_out.get(axis.name, ())
        found = axis.variants(template)
        for variant in found:
            level = variant.levels[axis.name]
            number = list(axis.levels(template)).index(level) + 1
            held_out = {(axis.name, value) for value in values if value in (level, number)}
            self.missing -= held_out
            if held_out or template.name in self.held_out:
                self.held_out.add(variant.name)
        return found
