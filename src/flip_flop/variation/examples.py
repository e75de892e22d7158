"""Demonstrations: labelled rows of a split that a prompt shows with their answers, before the row itself."""

import itertools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from flip_flop.errors import InputError, unsupported
from flip_flop.files import generator
from flip_flop.prompts import INSTRUCTIONS, OPTIONS, Fields, LintRow, Template, names_of
from flip_flop.prompts.sandbox import draws_at_random
from flip_flop.reading import has_spaces
from flip_flop.strict_yaml import StrictModel
from flip_flop.tasks import Task
from flip_flop.variation.formats import TemplateParts

# The demonstrations are constants, which are never read as Jinja. If one has the prompt of the row itself, the spare
# one takes its place. All other rows begin with the same text.
_WITH_EXAMPLES = """\
{{% set own_prompt %}}{body}{{% endset -%}}
{{% set unmarked = own_prompt | reject("in", {marks}) | join | trim -%}}
{{% set examples = {examples} | rejectattr(0, "equalto", unmarked) | list -%}}
{{% for at in {order} %}}{{{{ examples[at] | join | whole }}}}

{{% endfor %}}{{{{ own_prompt | trim | whole }}}}{target}"""
_MARKS = json.dumps(INSTRUCTIONS[1] + OPTIONS[1])  # a prompt of a decision model has these characters
_ORDER = "{{% for at in {} %}}"
VOTE = "vote"  # the column of `flip-flop predict`


class ExamplesEntry(StrictModel):
    """Demonstrations in a task file: ``sets`` of ``number`` rows of the split ``from``, each in some ``orders``."""

    number: int = Field(default=4, ge=1)
    sets: int = Field(default=3, ge=1)
    orders: int = Field(default=2, ge=1)
    source: str = Field(default="train", alias="from")
    labels: Literal["gold", "votes"] = "gold"


class Examples:
    """The sets of demonstrations of a task, and the orders in which prompts show a set.

    Each set has about the same number of rows of each label, and one row more than prompts show. No row of a set is
    also in another split of the task, by the fields that the templates read.

    Raises:
        InputError: ``E-AXIS`` for too few rows, ``E-OPEN-ANSWER``, or an error of the data.
    """

    def __init__(self, task: Task, entry: ExamplesEntry, seed: int) -> None:
        if task.answer is not None:
            raise unsupported("The axis examples")
        self.task = task
        rows = list(_labelled_rows(task, entry))
        self.sets: dict[str, list[LintRow]] = {}
        for index in range(1, entry.sets + 1):
            drawn = self._draw(rows, entry.number + 1, generator(seed, "examples", index))
            if len(drawn) <= entry.number:
                what = f"split {entry.source!r} has {len(drawn)} labelled rows for examples that no other split has"
                hint = f"{entry.number + 1} are needed. Add labelled rows, or give a smaller number."
                raise InputError("E-AXIS", f"task {task.name!r}: {what}.", hint)
            self.sets[f"set {index}"] = drawn
        random = generator(seed, "example order")
        self.own = list(range(entry.number))
        self.orders: dict[str, list[int]] = {}
        for order in [self.own, *(random.permutation(entry.number).tolist() for _ in range(10 * entry.orders))]:
            level = " ".join(str(place + 1) for place in order)
            if len(self.orders) < entry.orders:
                self.orders.setdefault(level, order)

    def _draw(self, rows: Sequence[LintRow], number: int, random: np.random.Generator) -> list[LintRow]:
        """Draw rows with different prompts under every template, from each label in turn. The last one is spare."""
        by_label: dict[int | None, list[LintRow]] = {}
        for place in random.permutation(len(rows)).tolist():
            by_label.setdefault(rows[place].gold, []).append(rows[place])
        drawn = list[LintRow]()
        shown = set[tuple[str, str]]()
        for row in itertools.chain(*itertools.zip_longest(*by_label.values())):
            if row is None or len(drawn) == number:
                continue
            prompts = {(template.name, self._show(template, row)[0]) for template in self.task.templates}
            if not prompts & shown:
                shown |= prompts
                drawn.append(row)
        order = random.permutation(max(0, len(drawn) - 1)).tolist()
        return [drawn[place] for place in order] + drawn[-1:]

    def _show(self, template: Template, row: LintRow) -> tuple[str, str]:
        """Return the prompt of a row, and its answer after the white space between them."""
        limit = self.task.templates.value_limit
        prompt, choices = template.render(row.fields, self.task.label_field, row=row.location, value_limit=limit)
        assert row.gold is not None
        delimiter = " " if has_spaces(prompt[-1:]) else ""
        return prompt, delimiter + choices[row.gold]

    def add(self, template: Template, level: str) -> Template | None:
        """Return the template with a set of demonstrations.

        None if its prompt cannot be inside a block of Jinja, or draws at random: a row is not recognized then.
        """
        if draws_at_random(f"{template.jinja} {template.answer_choices}"):
            return None
        parts = TemplateParts(template)
        shown = [self._show(template, row) for row in self.sets[level]]
        jinja = _WITH_EXAMPLES.format(
            body=parts.source(parts.text),
            examples=json.dumps(shown, ensure_ascii=False),
            order=self.own,
            marks=_MARKS,
            target=parts.target,
        )
        try:
            return replace(template, jinja=jinja)
        except InputError:
            return None

    def reorder(self, template: Template, level: str) -> Template | None:
        """Return the template with its demonstrations in another order; None if it has none."""
        own = _ORDER.format(self.own)
        if own not in template.jinja:
            return None
        return replace(template, jinja=template.jinja.replace(own, _ORDER.format(self.orders[level])))


def _labelled_rows(task: Task, entry: ExamplesEntry) -> Iterator[LintRow]:
    """Yield the labelled rows of the split that are in no other split."""
    rows = task.rows(entry.source)
    columns = set(rows.columns()) - {task.label_field, task.id_field, VOTE}
    sources = " ".join(f"{template.jinja} {template.answer_choices}" for template in task.templates)
    names = sorted(columns & names_of(sources) or columns)
    labelled = task
    if entry.labels == "votes":
        rows.require_columns([VOTE], "which `flip-flop predict` writes into a table")
        labels = task.labels or range(len(task.templates[0].plain_choices))
        labelled = replace(task, label_field=VOTE, labels=tuple(labels))
    others = set[tuple[str, ...]]()
    for split in task.data.keys() - {entry.source}:
        others.update(_content(row.fields, names) for row in task.rows(split).rows)
    for row, label in zip(rows.rows, labelled.gold_labels(rows, need_labels=False), strict=True):
        if label is not None and _content(row.fields, names) not in others:
            yield LintRow(rows.location(row), row.fields, label)


def _content(fields: Fields, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", str(fields.get(name))).strip() for name in names)
