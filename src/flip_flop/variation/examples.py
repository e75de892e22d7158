"""Demonstrations: labelled rows of a split that a prompt shows with their answers, before the row itself."""

import itertools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from flip_flop.errors import InputError, unsupported
from flip_flop.files import generator
from flip_flop.prompts import Template, names_of
from flip_flop.reading import has_spaces
from flip_flop.strict_yaml import StrictModel
from flip_flop.tasks import Rows, Task
from flip_flop.variation.formats import TemplateParts

# The demonstrations are constants, which are never read as Jinja. If one has the prompt of the row itself, the spare
# one takes its place. All other rows begin with the same text.
_WITH_EXAMPLES = """\
{{% set own_prompt %}}{body}{{% endset -%}}
{{% set examples = {examples} | rejectattr(0, "equalto", own_prompt | trim) | list -%}}
{{% for at in {order} %}}{{{{ examples[at] | join | whole }}}}

{{% endfor %}}{{{{ own_prompt | trim | whole }}}}{target}"""
VOTE = "vote"  # the column of `flip-flop predict`


class ExamplesEntry(StrictModel):
    """Demonstrations in a task file: ``sets`` of ``number`` rows of the split ``from``, each in some ``orders``."""

    number: int = Field(default=4, ge=1)
    sets: int = Field(default=3, ge=1)
    orders: int = Field(default=2, ge=1)
    source: str = Field(default="train", alias="from")
    labels: Literal["gold", "votes"] = "gold"


class Demonstration(NamedTuple):
    """A row, its name in errors, its id, and the index of its label."""

    fields: dict[str, Any]
    where: str
    id: str
    label: int


class Examples:
    """The sets of demonstrations of a task.

    Each set has about the same number of rows of each label, and one row more than prompts show. No row of a set is
    also in another split of the task, by the fields that the templates read.

    Raises:
        InputError: ``E-AXIS`` for too few rows, ``E-OPEN-ANSWER``, or an error of the data.
    """

    def __init__(self, task: Task, entry: ExamplesEntry, seed: int) -> None:
        if task.answer is not None:
            raise unsupported("The axis examples")
        self.task = task
        self.entry = entry
        rows = list(self._labelled())
        needed = entry.number + 1
        self.sets = [self._draw(rows, needed, generator(seed, "examples", index)) for index in range(entry.sets)]
        least = min(map(len, self.sets))
        if least < needed:
            raise InputError(
                "E-AXIS",
                f"task {task.name!r}: split {entry.source!r} has {least} labelled rows for examples that no other "
                f"split has, and {needed} are needed.",
                "Add labelled rows, or give a smaller number.",
            )
        self.orders = [tuple(range(entry.number))]
        random = generator(seed, "example order")
        for _ in range(10 * entry.orders):
            order = tuple(random.permutation(entry.number).tolist())
            if order not in self.orders and len(self.orders) < entry.orders:
                self.orders.append(order)

    def _labelled(self) -> Iterator[Demonstration]:
        """Yield the labelled rows that are in no other split."""
        task = self.task
        rows = task.rows(self.entry.source)
        if self.entry.labels == "votes":
            rows.require_columns([VOTE], "which `flip-flop predict` writes into a table")
            labels = task.labels or range(len(task.templates[0].plain_choices))
            task = replace(task, label_field=VOTE, labels=tuple(labels))
        gold = task.gold_labels(rows, need_labels=False)
        names = self._names(rows)
        others = set[tuple[str, ...]]()
        for split in task.data.keys() - {self.entry.source}:
            others.update(_content(row.fields, names) for row in task.rows(split).rows)
        ids = rows.ids or (rows.ids_from(task.id_field) if task.id_field else ())
        for index, (row, label) in enumerate(zip(rows.rows, gold, strict=True)):
            if label is not None and _content(row.fields, names) not in others:
                identity = ids[index] if ids else f"{self.entry.source}-{index + 1}"
                yield Demonstration(dict(row.fields), rows.location(row), identity, label)

    def _names(self, rows: Rows) -> list[str]:
        """Return the columns that the templates read; all, if one of them names no column."""
        columns = set(rows.columns()) - {self.task.label_field, self.task.id_field, VOTE}
        found = set[str]()
        for template in self.task.templates:
            read = names_of(template.jinja.partition("|||")[0]) | names_of(template.answer_choices or "")
            found |= (columns & read) or columns
        return sorted(found)

    def _draw(self, rows: Sequence[Demonstration], number: int, random: np.random.Generator) -> list[Demonstration]:
        """Draw rows with different prompts under every template, from each label in turn."""
        by_label: dict[int, list[Demonstration]] = {}
        for place in random.permutation(len(rows)).tolist():
            by_label.setdefault(rows[place].label, []).append(rows[place])
        drawn = list[Demonstration]()
        shown = set[tuple[str, str]]()
        for row in filter(None, itertools.chain(*itertools.zip_longest(*by_label.values()))):
            prompts = {(template.name, self._show(template, row)[0]) for template in self.task.templates}
            if not prompts & shown:
                shown |= prompts
                drawn.append(row)
            if len(drawn) == number:
                break
        order = random.permutation(max(0, len(drawn) - 1)).tolist()
        return [drawn[place] for place in order] + drawn[-1:]

    def _show(self, template: Template, row: Demonstration) -> tuple[str, str]:
        """Return the prompt of a row, and its answer after the white space between them."""
        prompt, choices = template.render(
            row.fields,
            self.task.label_field,
            instance_id=row.id,
            row=row.where,
            value_limit=self.task.templates.value_limit,
        )
        delimiter = " " if has_spaces(prompt[-1:]) else ""
        return prompt, delimiter + choices[row.label]

    def add(self, template: Template, index: int) -> Template | None:
        """Return the template with a set of demonstrations; None if its prompt cannot be inside a block of Jinja."""
        parts = TemplateParts(template)
        jinja = _WITH_EXAMPLES.format(
            body=parts.source(parts.text),
            examples=json.dumps([self._show(template, row) for row in self.sets[index]], ensure_ascii=False),
            order=list(self.orders[0]),
            target=parts.target,
        )
        try:
            return replace(template, jinja=jinja)
        except InputError:
            return None

    def reorder(self, template: Template, order: Sequence[int]) -> Template | None:
        """Return the template with its demonstrations in another order; None if it has none."""
        own = f"{{% for at in {list(self.orders[0])} %}}"
        if own not in template.jinja:
            return None
        return replace(template, jinja=template.jinja.replace(own, f"{{% for at in {list(order)} %}}"))


def _content(fields: Any, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", str(fields.get(name))).strip() for name in names)
