"""The axes of a task: variants of its templates that differ in one way."""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flip_flop.console import warn_once
from flip_flop.errors import InputError, nearest
from flip_flop.files import derive_seed, generator
from flip_flop.prompts import Template
from flip_flop.strict_yaml import StrictModel, validate
from flip_flop.tasks import DIVIDER, Task
from flip_flop.variation.examples import Examples, ExamplesEntry
from flip_flop.variation.formats import TemplateParts, apply_format, draw_format, format_choices
from flip_flop.variation.typos import add_typos

UNCHANGED = "original"
NUM_CENTRES = 3  # variants around which an axis that is not crossed is varied
MAX_ORDERS = 24
DRAWS = 30  # sampled formats per requested format: a short template has few
NO_EXAMPLES = "none"
Group = Literal["order", "format", "examples", "typos"]


def _read_examples(content: Any) -> ExamplesEntry:
    if isinstance(content, int):
        content = {"number": content}
    return validate(ExamplesEntry, content, "examples", code="E-AXIS")


class AxesEntry(StrictModel):
    """The key ``axes`` of a task file."""

    order: Annotated[int, Field(ge=2)] | Literal["all"] | None = Field(default=None, examples=["4, or order: all"])
    format: int | None = Field(default=None, ge=1)
    examples: Annotated[ExamplesEntry | None, BeforeValidator(_read_examples)] = None
    typos: float | None = Field(default=None, gt=0, le=1)
    cross: list[Group] = Field(default=[], examples=["[order, format]"])
    held_out: dict[str, list[int | str]] = Field(default={}, examples=["{order: [3]}"])
    seed: int = 0


@dataclass(frozen=True)
class Axis:
    """A way in which a template can change.

    Attributes:
        name: One of :data:`flip_flop.metrics.AXES`.
        levels: From a template to its levels. The first is that of the template as it is.
        apply: From a template and a level to the template at this level, or None if it cannot change.
        why: The reason why templates cannot change, for a warning.
        first: The number of the first level. Names and ``held_out`` use the number.
        is_named: Whether the names of templates have the level, and not its number.
    """

    name: str
    levels: Callable[[Template], Sequence[str]]
    apply: Callable[[Template, str], Template | None]
    why: str
    first: int = 0
    is_named: bool = True


# ---- the axes ----


def _at(template: Template, axis: str, level: str) -> Template:
    return replace(template, levels={"wording": template.name, **template.levels, axis: level})


def order_axis(number: int | Literal["all"]) -> Axis:
    r"""Return the axis of the order of options: rotations, or all permutations.

    A level has the numbers of the labels, from 1, in the order in which the prompt lists them.

    Example:
        >>> plain = Template("plain", "{{ text }}\\nA. sports\\nB. world\\nC. science\\nLetter:", "B ||| A ||| C")
        >>> axis = order_axis(3)
        >>> axis.levels(plain)
        ['2 1 3', '1 3 2', '3 2 1']
        >>> variant = axis.apply(plain, "1 3 2")
        >>> variant.answer_choices, variant.jinja.splitlines()[1:4]
        ('A ||| C ||| B', ['A. world', 'B. science', 'C. sports'])
    """

    def levels(template: Template) -> list[str]:
        listed = TemplateParts(template).listed
        if not listed:
            return [_numbers(range(_num_answers(template)))]
        if number == "all":
            orders = list(itertools.islice(itertools.permutations(listed), MAX_ORDERS + 1))
            if len(orders) > MAX_ORDERS:
                raise InputError(
                    "E-AXIS",
                    f"template {template.name!r} has {len(listed)} options, which have more than {MAX_ORDERS} orders.",
                    f"Write order: {len(listed)} for the rotations.",
                )
        else:
            orders = [listed[shift:] + listed[:shift] for shift in range(min(number, len(listed)))]
        return [_numbers(order) for order in orders]

    def apply(template: Template, level: str) -> Template | None:
        order = [int(label) - 1 for label in level.split()]
        if sorted(TemplateParts(template).listed) != sorted(order):
            return None
        return _at(apply_format(template, {"order": order}), "order", level)

    why = "their options cannot be moved: the prompts do not list them, or refer to their marks"
    return Axis("order", levels, apply, why, first=1)


def _numbers(labels: Sequence[int]) -> str:
    return " ".join(str(label + 1) for label in labels)


def _num_answers(template: Template) -> int:
    return len(TemplateParts(template).answers)


def format_axis(number: int, seed: int) -> Axis:
    """Return the axis of the layout: formats that are drawn from FormatSpread's grammar and keep the punctuation.

    A level has the changed parts as JSON. Formats depend on the seed and the wording.
    """

    @functools.lru_cache(maxsize=4096)
    def levels(template: Template) -> list[str]:
        choices = format_choices(template, keep_punctuation=True)
        found = {_texts(apply_format(template, {})): UNCHANGED}
        tried = set[str]()
        for draw in range(DRAWS * number):
            random = generator(seed, "format", template.levels.get("wording", template.name), draw)
            level = json.dumps(draw_format(choices, random), ensure_ascii=False)
            if level not in tried:
                tried.add(level)
                found.setdefault(_texts(apply_format(template, json.loads(level))), level)
            if len(found) > number:
                break
        return list(found.values())

    def apply(template: Template, level: str) -> Template | None:
        return _at(apply_format(template, json.loads(level)), "format", level)

    return Axis("format", levels, apply, "their prompts have no other format", is_named=False)


def _texts(template: Template) -> tuple[str, str | None]:
    return template.jinja, template.answer_choices


def examples_axes(task: Task, entry: ExamplesEntry, seed: int) -> tuple[Axis, Axis]:
    """Return the axes of the set of demonstrations and of their order, by their places in the set, from 1."""
    examples = Examples(task, entry, seed)
    sets = [NO_EXAMPLES, *(f"set {index + 1}" for index in range(entry.sets))]
    orders = {_numbers(order): order for order in examples.orders}

    def add(template: Template, level: str) -> Template | None:
        variant = examples.add(template, sets.index(level) - 1)
        return variant and _at(variant, "examples", level)

    def reorder(template: Template, level: str) -> Template | None:
        variant = examples.reorder(template, orders[level])
        return variant and _at(variant, "example_order", level)

    why = "their prompts cannot be inside a block of Jinja"
    of_set = Axis("examples", lambda template: sets, add, why)
    return of_set, Axis("example_order", lambda template: list(orders), reorder, why, first=1)


def typos_axis(share: float, seed: int) -> Axis:
    """Return the axis of typos in this share of the words of a row. Prompts with demonstrations have none."""

    def apply(template: Template, level: str) -> Template | None:
        if template.levels.get("examples", NO_EXAMPLES) != NO_EXAMPLES:
            return None  # a row with typos would not be recognized among the examples
        variant = add_typos(template, float(level), seed)
        return variant and _at(variant, "typos", level)

    why = "their prompts print no field, or only options"
    return Axis("typos", lambda template: [UNCHANGED, str(share)], apply, why)


# ---- variants ----


def vary_task(task: Task, axes: Mapping[str, Any]) -> Task:
    """Return the task with the variants of its templates along the axes; see :meth:`flip_flop.tasks.Task.with_axes`.

    Raises:
        InputError: ``E-AXIS`` for an unknown or wrong key, an axis that the task has already or that no template has,
            and a held-out level that no template has.
    """
    where = f"task {task.name!r}"
    entry = validate(AxesEntry, axes, f"{where}, axes", code="E-AXIS")
    groups = _groups(task, entry)
    names = [axis.name for group in groups for axis in group]
    if not names:
        raise InputError("E-AXIS", f"{where}: axes names no axis.", "Write, for example, order: 4.")
    for template in task.templates:
        for name in names:
            if name in template.levels:
                raise InputError(
                    "E-AXIS", f"{where}: template {template.name!r} has a level of {name!r}.", "Leave out this axis."
                )
    for group in groups:
        _require_variants(task, group[0])
    templates = list[Template]()
    held_out = set(task.held_out_templates)
    matched = set[tuple[str, int | str]]()
    for bases in (task.training_templates, task.templates.select(task.held_out_templates)):
        variants = _Variants(entry, groups)
        made = variants.make(bases)
        templates += made
        held_out |= variants.held_out
        if held_out.intersection(bases.names):
            held_out.update(template.name for template in made)
        matched |= variants.matched
    for name, values in entry.held_out.items():
        for value in values:
            if (name, value) not in matched:
                levels = [template.levels.get(name, "") for template in templates]
                what = f"{where}: no template has the {name} {value!r}."
                raise InputError("E-AXIS", what, nearest(str(value), dict.fromkeys(levels)))
    listed = replace(task.templates, templates=tuple(templates))
    return replace(
        task,
        templates=listed,
        held_out_templates=tuple(name for name in listed.names if name in held_out),
    )


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


def _can_vary(template: Template, axis: Axis) -> bool:
    levels = axis.levels(template)
    return len(levels) > 1 and axis.apply(template, levels[1]) is not None


def _require_variants(task: Task, axis: Axis) -> None:
    """Warn of templates without variants along an axis, and refuse an axis along which no template has one."""
    fixed = [template.name for template in task.templates if not _can_vary(template, axis)]
    if len(fixed) == len(task.templates):
        raise InputError("E-AXIS", f"task {task.name!r}: no template has variants by {axis.name}: {axis.why}.")
    if fixed:
        warn_once(f"W-AXIS: {task.name}: no variants by {axis.name} of {', '.join(fixed)}: {axis.why}.")


@dataclass
class _Variants:
    """The variants of templates, the names of held-out ones, and the values of ``held_out`` that they have."""

    entry: AxesEntry
    groups: Sequence[tuple[Axis, ...]]
    held_out: set[str] = field(default_factory=set)
    matched: set[tuple[str, int | str]] = field(default_factory=set)

    def make(self, bases: Iterable[Template]) -> list[Template]:
        """Return the templates with all their variants: those of crossed axes, then the stars of others."""
        crossed = list[Template]()
        for template in bases:
            levels = {axis.name: axis.levels(template)[0] for axis in itertools.chain(*self.groups)}
            crossed.append(replace(template, levels={"wording": template.name, **template.levels, **levels}))
        stars = list[Template]()
        for group in self.groups:
            if group[0].name in ("order", *self.entry.cross):
                crossed = list(itertools.chain.from_iterable(self.expand(template, group) for template in crossed))
        for group in self.groups:
            if group[0].name not in ("order", *self.entry.cross):
                for centre in self.centres(crossed, group[0]):
                    stars += self.expand(centre, group)[1:]
        return crossed + stars

    def centres(self, templates: Sequence[Template], axis: Axis) -> list[Template]:
        """Draw the templates around which an axis is varied, of different wordings as far as possible."""
        free = [each for each in templates if each.name not in self.held_out and _can_vary(each, axis)]
        free.sort(key=lambda template: derive_seed(self.entry.seed, "centre", axis.name, template.name))
        first: dict[str, Template] = {}
        for template in free:
            first.setdefault(template.levels["wording"], template)
        others = [template for template in free if template not in first.values()]
        return [*first.values(), *others][:NUM_CENTRES]

    def expand(self, template: Template, group: Sequence[Axis]) -> list[Template]:
        """Return the template and its variants along the crossed axes of a group."""
        found = [template]
        for axis in group:
            found = list(itertools.chain.from_iterable(self.along(each, axis) for each in found))
        return found

    def along(self, template: Template, axis: Axis) -> list[Template]:
        """Return the template and its variants along an axis. Variants at held-out levels are held out."""
        values = self.entry.held_out.get(axis.name, [])
        levels = axis.levels(template)
        found = variants_along(template, axis)
        for variant in found:
            level = variant.levels[axis.name]
            number = levels.index(level) + axis.first
            matched = {(axis.name, value) for value in values if value in (number, level)}
            self.matched |= matched
            if matched or template.name in self.held_out:
                self.held_out.add(variant.name)
        return found


def variants_along(template: Template, axis: Axis) -> list[Template]:
    """Return the template at its own level of an axis, and its variants at the other levels."""
    own, *levels = axis.levels(template)
    found = [replace(template, levels={"wording": template.name, **template.levels, axis.name: own})]
    for number, level in enumerate(levels, axis.first + 1):
        variant = axis.apply(template, level)
        if variant is not None:
            words = level if axis.is_named else number
            name = f"{template.name}{DIVIDER}{axis.name.replace('_', ' ')} {words}"
            found.append(replace(variant, name=name))
    return found
