"""A task: what its rows are, what its labels are, and how its templates ask for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_json
from flip_flop.metrics import resolve_average
from flip_flop.prompts import RenderedInstance, TemplateSet, render_instance
from flip_flop.randomness import derive_seed
from flip_flop.tasks.readers import NumberedRow
from flip_flop.tasks.sources import Rows, Source

Label = int | str
F1_KINDS = ("auto", "binary", "macro")


@dataclass(frozen=True)
class Task:
    """A classification task and its templates.

    Attributes:
        name: Its name, in tables.
        templates: Its templates, in order.
        data: The source of each split.
        labels: The label field's values, in the order of the answer choices; None without gold labels.
        label_field: The field that holds the gold label.
        f1: ``"binary"`` (F1 of label 1), ``"macro"``, or ``"auto"``: binary for two labels.
        id_field: The field that names an instance; without it a row is named by its split and number.
        held_out_templates: Templates that training leaves out.
        description: One sentence for lists.

    Raises:
        InputError: ``E-TASK-KEY``, ``E-TPL-UNKNOWN`` or ``E-LABEL-DUP``.

    Example:
        >>> from flip_flop.prompts import Template
        >>> from flip_flop.tasks.sources import RowsSource
        >>> rows = RowsSource([{"drink": "tea", "warm": "yes"}, {"drink": "ice", "warm": "no"}], "drinks")
        >>> templates = TemplateSet((Template("plain", "Is {{ drink }} warm?", "No ||| Yes"),))
        >>> task = Task("drinks", templates, {"test": rows}, labels=("no", "yes"), label_field="warm")
        >>> [(instance.id, instance.prompts, instance.label) for instance in task.instances("test")]
        [('test-1', ('Is tea warm?',), 1), ('test-2', ('Is ice warm?',), 0)]
    """

    name: str
    templates: TemplateSet
    data: Mapping[str, Source] = field(default_factory=dict)
    labels: tuple[Label, ...] | None = None
    label_field: str | None = None
    f1: str = "auto"
    id_field: str | None = None
    held_out_templates: tuple[str, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("E-TASK-KEY", "the task has an empty name.", "Name it.")
        if len(self.templates) == 0:
            raise InputError("E-TASK-KEY", f"task {self.name!r} has no templates.", "Add at least one.")
        if self.f1 not in F1_KINDS:
            message = f"task {self.name!r}: f1 is {self.f1!r}."
            raise InputError("E-TASK-KEY", message, f"Choose one of {', '.join(F1_KINDS)}.")
        if self.label_field is not None and self.labels is None:
            message = f"task {self.name!r} has a label_field but no labels."
            hint = "List the field's values under labels, in the order of the answer choices."
            raise InputError("E-TASK-KEY", message, hint)
        if self.labels is not None:
            self._check_labels(self.labels)
        self.templates.select(self.held_out_templates)

    def _check_labels(self, labels: tuple[Label, ...]) -> None:
        if len(labels) < 2:
            message = f"task {self.name!r} has {len(labels)} label."
            raise InputError("E-TASK-KEY", message, "List at least two labels.")
        texts = [str(label) for label in labels]
        for index, text in enumerate(texts):
            if text in texts[:index]:
                message = f"task {self.name!r} lists the label {text!r} twice."
                raise InputError("E-LABEL-DUP", message, "Remove one of them.")

    @property
    def training_templates(self) -> TemplateSet:
        """The templates that are not held out."""
        return self.templates.select(name for name in self.templates.names if name not in self.held_out_templates)

    def with_templates(self, names: Iterable[str]) -> "Task":
        """The task with these templates only, in the order of the names.

        Raises:
            InputError: ``E-TPL-UNKNOWN``.
        """
        chosen = self.templates.select(names)
        held_out = tuple(name for name in self.held_out_templates if name in chosen.names)
        return replace(self, templates=chosen, held_out_templates=held_out)

    def digest(self) -> str:
        """The SHA-256 of what the task asks, whatever data it is asked on."""
        return sha256_json(
            {
                "name": self.name,
                "labels": None if self.labels is None else list(self.labels),
                "label_field": self.label_field,
                "f1": self.f1,
                "held_out_templates": list(self.held_out_templates),
                "templates": self.templates.digest(),
            }
        )

    def f1_kind(self, num_labels: int) -> str:
        """``"binary"`` or ``"macro"``, for this number of labels."""
        return resolve_average(self.f1, num_labels)

    def label_values(self, num_labels: int) -> tuple[Label, ...]:
        """What the labels are called: the declared values, or their indices in a task without gold labels."""
        return tuple(range(num_labels)) if self.labels is None else self.labels

    def rows(self, split: str) -> Rows:
        """The rows of a split.

        Raises:
            InputError: ``E-TASK-SPLIT``, or an error of the source's.
        """
        if split not in self.data:
            message = f"task {self.name!r} has no split {split!r}."
            raise InputError("E-TASK-SPLIT", message, nearest(split, self.data))
        return self.data[split].load()

    def instances(
        self, split: str, *, limit: int | None = None, seed: int = 0, need_labels: bool | None = None
    ) -> list[RenderedInstance]:
        """The instances of a split, rendered under every template and checked.

        Args:
            split: The split's name.
            limit: Take a uniform sample of this size. Ids and the seed decide what is in it: a smaller sample
                lies within a larger one. The order stays that of the rows.
            seed: The user's seed.
            need_labels: Refuse a split without the label field. By default so for every split but ``train``,
                which may be unlabelled; where the field is there, its values are always checked.

        Raises:
            InputError: An error of the source's or of the rendering's, ``E-DATA-COLUMN``, ``E-DATA-DUPID``,
                ``E-LABEL-NULL`` or ``E-LABEL-UNDECLARED``.
        """
        return self.render_rows(self.rows(split), split, limit=limit, seed=seed, need_labels=need_labels)

    def render_rows(
        self,
        rows: Rows,
        split: str,
        *,
        limit: int | None = None,
        seed: int = 0,
        need_labels: bool | None = None,
    ) -> list[RenderedInstance]:
        """:meth:`instances` of rows that are loaded already."""
        if limit is not None and limit < 1:
            raise InputError("E-TASK-KEY", f"the limit is {limit}.", "Take at least one instance.")
        need_labels = split != "train" if need_labels is None else need_labels
        gold = self.gold_labels(rows, need_labels)
        identities = self._identities(rows, split)
        chosen = list(range(len(rows)))
        if limit is not None:
            by_chance = sorted(chosen, key=lambda index: derive_seed(seed, "limit", identities[index]))
            chosen = sorted(by_chance[:limit])
        num_labels = len(self.labels) if self.labels is not None else None
        instances = []
        for index in chosen:
            row = rows.rows[index]
            instance = render_instance(
                row.fields,
                self.templates,
                id=identities[index],
                label=gold[index],
                num_labels=num_labels,
                label_field=self.label_field,
                seed=seed,
                row=rows.place(row),
            )
            num_labels = num_labels or len(instance.choices[0])
            instances.append(instance)
        return instances

    def _identities(self, rows: Rows, split: str) -> Sequence[str]:
        if rows.ids is not None:
            return rows.ids
        if self.id_field is None:
            return [f"{split}-{index}" for index in range(1, len(rows) + 1)]
        seen: dict[str, NumberedRow] = {}
        for row in rows.rows:
            value = row.fields.get(self.id_field)
            if value is None or not str(value).strip():
                message = f"{rows.place(row)} has no {self.id_field!r}, the task's id_field."
                raise InputError("E-DATA-COLUMN", message, nearest(self.id_field, rows.columns()))
            first = seen.setdefault(str(value), row)
            if first is not row:
                message = f"{rows.place(row)} has the id {value!r} of {rows.unit} {first.number}."
                raise InputError("E-DATA-DUPID", message, "Give every row an id of its own.")
        return list(seen)

    def gold_labels(self, rows: Rows, need_labels: bool = True) -> list[int | None]:
        """Each row's label index; None throughout where the task or the split has no labels.

        Raises:
            InputError: ``E-DATA-COLUMN``, ``E-LABEL-NULL`` or ``E-LABEL-UNDECLARED``.
        """
        if self.labels is None or self.label_field is None:
            return [None] * len(rows)
        columns = rows.columns()
        if self.label_field not in columns:
            if need_labels:
                message = f"{rows.source} has no column {self.label_field!r}, the task's label_field."
                raise InputError("E-DATA-COLUMN", message, nearest(self.label_field, columns))
            return [None] * len(rows)
        # Cells of a CSV file are text, whatever they look like: a label is compared as it is written.
        index_of = {str(label): index for index, label in enumerate(self.labels)}
        gold: list[int | None] = []
        for row in rows.rows:
            value: Any = row.fields.get(self.label_field)
            if value is None or not str(value).strip():
                if not need_labels:
                    gold.append(None)
                    continue
                message = f"{rows.place(row)}: the label {self.label_field!r} is blank."
                raise InputError("E-LABEL-NULL", message, "Fill it, or drop the row.")
            if str(value) not in index_of:
                message = f"{rows.place(row)}: {self.label_field!r} is {value!r}, which is not among the labels."
                raise InputError("E-LABEL-UNDECLARED", message, f"Declared: {', '.join(map(repr, self.labels))}.")
            gold.append(index_of[str(value)])
        return gold
