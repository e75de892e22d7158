"""A task: rows, labels and templates; a rendered split; and loaders of tasks by name.

Installed packages add names with the entry-point group ``flip_flop.tasks``.
"""

import functools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np

from flip_flop.arrays import InstanceLabels
from flip_flop.errors import InputError, first_repeated, log, nearest, require_known, require_whole
from flip_flop.files import Json, StrPath, sha256_json
from flip_flop.lazy import from_wing
from flip_flop.metrics import AXES, TAGS, gold_of, resolve_average
from flip_flop.prompts import Chat, Fields, OpenAnswers, RenderedInstance, TemplateSet, render_instance
from flip_flop.reading import AnswerFormat, Reader, check_extract
from flip_flop.tasks.readers import MISSING, cell_text, label_text, label_words
from flip_flop.tasks.sources import FileSource, Rows, Source, as_source, deduplicate, load_file, sample_ids

Label = int | str
# Texts of inputs without content (Zhao et al. 2021, "Calibrate Before Use").
CONTENT_FREE = ("N/A", "", "[MASK]")
MAX_SHOWN = 200  # last characters of a right answer that cannot be read
GROUP = "flip_flop.tasks"
DIVIDER = " · "  # between the name of a template and the change of a variant
# Fields of a task that are lists, with the error code and the order of another type.
SEQUENCES = (
    ("labels", "E-LABEL", ", in the order of the answer choices"),
    ("label_names", "E-LABEL", ", in the order of the answer choices"),
    ("held_out_templates", "E-TASK-KEY", " of names"),
)
CATALOG = ("anli_r1", "anli_r2", "anli_r3", "cb", "copa", "hellaswag", "rte", "storycloze", "wic", "winogrande", "wsc")
# Imported when one is used: no package but the commands knows the paper's.
PAPER = dict.fromkeys(CATALOG, "flip_flop.paper.data.catalog:load") | {
    "promptsource": "flip_flop.paper.data.promptsource:load_set"
}


@dataclass(frozen=True)
class Task:
    """A classification task and its templates.

    Each split of ``data`` is a source, a ``datasets.Dataset``, a ``pandas.DataFrame``, a list of dicts, or the path of
    a file. ``data`` that are not divided are the test split. ``templates`` may be a list, or a dictionary by name. A
    template that is a text has the label names as answers.

    Attributes:
        labels: The label field's values, in the order of the answer choices; None without gold labels.
        label_names: The names of the labels in reports, in their order; by default the values.
        f1: ``"binary"`` (F1 of label 1), ``"macro"``, or ``"auto"``: binary for two labels.
        scale: Whether the labels are grades in order: Cohen's kappa then has quadratic weights.
        answer: The format of open answers, which a model writes: templates have no answer choices then. The
            ``label_field`` holds a right answer or a list of them, if there are any.
        extract: The part of a generated text that has the answer choice, as in
            :class:`~flip_flop.reading.AnswerFormat`. Of a task with ``answer``, it is a key of that.
        id_field: The field with the ids of instances; by default an id is the split and the number of the row.
        system, assistant_prefix, chat_template_kwargs: The fields of :class:`flip_flop.prompts.Chat`.
        dropped_templates: Name and reason of each template of the source that the task does not use.

    Raises:
        InputError: ``E-TASK-KEY``, ``E-TASK-UNKNOWN`` or ``E-LABEL-DUP``.

    Example:
        >>> from flip_flop.prompts import Template
        >>> rows = [{"drink": "tea", "warm": "yes"}, {"drink": "ice", "warm": "no"}]
        >>> templates = TemplateSet((Template("plain", "Is {{ drink }} warm?", "No ||| Yes"),))
        >>> task = Task("drinks", templates, {"test": rows}, labels=("no", "yes"), label_field="warm")
        >>> [(instance.id, instance.prompts, instance.label) for instance in task.instances("test")]
        [('test-1', ('Is tea warm?',), 1), ('test-2', ('Is ice warm?',), 0)]
    """

    name: str
    templates: TemplateSet
    data: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[Label] | None = None
    label_field: str | None = None
    f1: str = "auto"
    id_field: str | None = None
    held_out_templates: tuple[str, ...] = ()
    description: str = ""
    label_names: tuple[str, ...] = ()
    system: str | None = None
    assistant_prefix: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dropped_templates: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    scale: bool = False
    answer: AnswerFormat | None = None
    extract: str | None = None

    def __post_init__(self) -> None:
        task = f"task {self.name!r}"
        for name, code, order in SEQUENCES:
            if (values := getattr(self, name)) is not None:
                if isinstance(values, Set | Mapping | str):
                    raise InputError(code, f"{task}: {name} is a {type(values).__name__}.", f"Give a list{order}.")
                plain = [label.item() if isinstance(label, np.generic) else label for label in values]
                object.__setattr__(self, name, tuple(plain))
        templates = TemplateSet.of(self.templates, self.label_names or self.labels or ())
        object.__setattr__(self, "templates", replace(templates, has_choices=self.answer is None))
        data = self.data if isinstance(self.data, Mapping) else {"test": self.data}
        sources = {split: as_source(rows, f"{self.name}, {split},") for split, rows in data.items()}
        object.__setattr__(self, "data", sources)
        if not self.name.strip():
            raise InputError("E-TASK-KEY", "the task has an empty name.", "Name it.")
        if len(self.templates) == 0:
            raise InputError("E-TASK-KEY", f"{task} has no templates.", "Add at least one.")
        for template in self.templates:
            what = f"template {template.name!r}: there is no axis"
            require_known(template.levels, (*AXES, *TAGS), "E-TASK-KEY", what)
        self._check_answer(task)
        if self.label_field is not None and self.labels is None and self.answer is None:
            raise InputError(
                "E-TASK-KEY",
                f"{task} has a label_field but no labels.",
                "List the field's values under labels, in the order of the answer choices.",
            )
        for name in ("label_field", "id_field"):
            if (column := getattr(self, name)) is not None:
                object.__setattr__(self, name, str(column))  # the name of a column of a table can be a number
        texts = [unicodedata.normalize("NFC", str(label)) for label in self.labels or ()]
        if self.labels is not None and len(texts) < 2:
            raise InputError("E-TASK-KEY", f"{task} has {len(texts)} label.", "List at least two labels.")
        require_known([self.f1], ("auto", "binary", "macro"), "E-TASK-KEY", f"{task}: f1 is")
        resolve_average(self.f1, len(texts) or 2)
        if (twice := first_repeated(texts)) is not None:
            raise InputError("E-LABEL-DUP", f"{task} lists the label {twice!r} twice.", "Remove one of them.")
        if not all(map(cell_text, self.labels or ())):
            raise InputError(
                "E-LABEL",
                f"{task} lists a missing value or a label without a visible character, which means an unlabelled row.",
                "Give such rows another label, for example `none`.",
            )
        if self.scale and all(map(str.isdecimal, texts)) and not are_grades(texts):
            raise InputError(
                "E-TASK-KEY",
                f"{task} has a scale of the grades {', '.join(texts)}, whose steps differ.",
                "List all grades in order, also those that no row has.",
            )
        if self.label_names and len(set(self.label_names)) != len(texts):
            raise InputError(
                "E-TASK-KEY",
                f"{task} has {len(texts)} labels and {len(set(self.label_names))} different label_names.",
                "Give one name for each label, or none.",
            )
        self.templates.select(self.held_out_templates)

    def _check_answer(self, task: str) -> None:
        labelled = [name for name in ("labels", "label_names", "scale", "extract") if getattr(self, name)]
        labelled += [f"answer_choices in template {item.name!r}" for item in self.templates if item.answer_choices]
        if self.answer is not None and labelled:
            raise InputError("E-TASK-KEY", f"{task} has open answers and {labelled[0]}.", "Remove one of the two.")
        check_extract(self.extract, "label")

    @property
    def training_templates(self) -> TemplateSet:
        """The templates that are not held out."""
        return self.templates.select(name for name in self.templates.names if name not in self.held_out_templates)

    def with_templates(self, names: Iterable[str]) -> "Task":
        """The task with these templates only, in the order of the names (``E-TASK-UNKNOWN``)."""
        selected = self.templates.select(names)
        held_out = tuple(name for name in self.held_out_templates if name in selected.names)
        return replace(self, templates=selected, held_out_templates=held_out)

    def with_axes(self, axes: Mapping[str, Any]) -> "Task":
        r"""Add variants of the templates that differ in the order of their options, in layout, and more.

        Each variant has its level on each axis in ``levels``, and the name of the template with the changes. Orders
        are crossed with all templates. Each other axis varies around three random variants, or around all if there are
        fewer. Axes in ``cross`` vary around all.

        Args:
            axes: The key ``axes`` of a task file (docs/how-to/axes.md).

        Raises:
            InputError: ``E-AXIS``.

        Example:
            >>> from flip_flop.prompts import Template
            >>> task = Task("moods", [Template("plain", "{{ text }}\nGood or bad?", "bad ||| good")])
            >>> task.with_axes({"order": 2}).templates.names
            ('plain', 'plain · order 1 2')
        """
        varied: Task = from_wing("vary_task")(self, axes)
        return varied

    def with_rows(self, rows: StrPath | Iterable[Fields] | Source, split: str = "test") -> "Task":
        """Replace the data by these rows: one split of ``data``."""
        return replace(self, data={split: as_source(rows)})

    def digest(self) -> str:
        """Return the SHA-256 of the task without its data."""
        content = {key: getattr(self, key) for key in ("name", "labels", "label_field", "f1", "held_out_templates")}
        answer = {} if self.answer is None else {"answer": asdict(self.answer)}
        extract = {} if self.extract is None else {"extract": self.extract}
        return sha256_json(content | answer | extract | {"templates": self.templates.digest()} | self.chat.given)

    @property
    def num_labels(self) -> int | None:
        """The number of labels; None in a task without gold labels."""
        return None if self.labels is None else len(self.labels)

    @property
    def chat(self) -> Chat:
        """The task's additions to chat templates."""
        return Chat(self.system, self.assistant_prefix, self.chat_template_kwargs)

    def label_values(self, num_labels: int) -> tuple[Label, ...]:
        """Return the declared labels, or their indices in a task without gold labels."""
        if self.labels is None:
            return tuple(range(num_labels))
        return tuple(self.labels)

    def rows(self, split: str) -> Rows:
        """The rows of a split; ``E-TASK-UNKNOWN``, or an error of the source's."""
        if split not in self.data:
            hint = f"Add {split}: FILE to its data." if split == "train" else nearest(split, self.data)
            raise InputError("E-TASK-UNKNOWN", f"task {self.name!r} has no split {split!r}.", hint)
        rows: Rows = self.data[split].load()
        limit = self.templates.value_limit
        if limit is None:
            return rows
        return replace(rows, provenance={**rows.provenance, "prompt_value_limit": limit})

    def render(
        self, split: str, *, limit: int | None = None, seed: int = 0, need_labels: bool | None = None
    ) -> "RenderedSplit":
        """A split under every template, checked.

        Args:
            split: A key of ``data``.
            limit: The size of a uniform sample by ids and ``seed``, in the order of the rows. A larger sample includes
                a smaller one.
            seed: The seed of the sample, and of templates with random choices.
            need_labels: Whether the label field must exist; by default in every split except ``train``. A blank label
                means an unlabelled row. Other labels are always checked.

        Raises:
            InputError: An error of the source or the rendering, ``E-DATA-ROWS``, ``E-DATA-COLUMN`` or ``E-LABEL``.
        """
        seed = require_whole("seed", seed)
        rows = self.rows(split)
        if not len(rows):
            raise InputError("E-DATA-ROWS", f"split {split!r} of task {self.name!r} has no rows.")
        need_labels = split != "train" if need_labels is None else need_labels
        gold = self.gold_labels(rows, need_labels)
        references = self.references(rows)
        if not rows.ids and self.id_field:
            rows = replace(rows, ids=rows.ids_from(self.id_field))
        ids = rows.ids or tuple(f"{split}-{number}" for number in range(1, len(rows) + 1))
        sample = {*ids} if limit is None else sample_ids(ids, limit, seed)
        indices = [index for index, identity in enumerate(ids) if identity in sample]
        num_labels = self.num_labels
        instances = []
        for index in indices:
            label = len(self.templates) if references[index] else gold[index]  # no open answer yet: the last slot
            instance = render_instance(
                rows.rows[index].fields,
                self.templates,
                id=ids[index],
                label=label,
                num_labels=num_labels,
                label_field=self.label_field,
                seed=seed,
                row=rows.location(rows.rows[index]),
            )
            num_labels = num_labels or len(instance.choices[0])
            answers = OpenAnswers(self.answer, self.extract, references[index])
            instances.append(replace(instance, chat=self.chat, open=answers if self.answer or self.extract else None))
        return RenderedSplit(self, split, replace(rows, ids=ids), instances)

    def instances(
        self, split: str, *, limit: int | None = None, seed: int = 0, need_labels: bool | None = None
    ) -> Sequence[RenderedInstance]:
        """The instances of :meth:`render`."""
        return self.render(split, limit=limit, seed=seed, need_labels=need_labels).instances

    def render_file(self, path: StrPath) -> "RenderedSplit":
        """Render a file as the split ``input``, without reading gold labels."""
        rows = self.read_file(Path(path))
        unlabelled = []
        for row in rows.rows:
            fields = {name: value for name, value in row.fields.items() if name != self.label_field}
            unlabelled.append(row._replace(fields=fields))
        task = replace(self, data={"input": replace(rows, rows=tuple(unlabelled))})
        rendered = task.render("input", need_labels=False)
        return replace(rendered, task=self, rows=replace(rows, ids=rendered.rows.ids))

    def read_file(self, path: Path) -> Rows:
        """Read a file in UTF-8 with a comma, or with the encodings and delimiters of the task's files."""
        files = [source for source in self.data.values() if isinstance(source, FileSource)]
        delimiters = dict.fromkeys(source.delimiter for source in files if source.delimiter)
        try:
            return load_file(path, delimiters, dict.fromkeys(["utf-8", *(source.encoding for source in files)]))
        except InputError as error:
            if error.code != "E-DATA-ENCODING":
                raise
            raise InputError(
                error.code, error.message, "Save it in UTF-8 and with commas, or like the task's own files."
            ) from None

    def gold_labels(self, rows: Rows, need_labels: bool = True) -> list[int | None]:
        """Return the label index of each row, None for an unlabelled one.

        Raises:
            InputError: ``E-DATA-COLUMN`` or ``E-LABEL``.
        """
        if need_labels and self.label_field is not None:
            rows.require_columns([self.label_field], "the task's label_field")
        if self.labels is None or self.label_field is None:
            return [None] * len(rows)
        # Cells of a CSV file are texts, so labels are compared as texts, in one Unicode form.
        index_of = {unicodedata.normalize("NFC", str(label)): index for index, label in enumerate(self.labels)}
        gold = []
        reader = Reader("label", self.extract, tuple(index_of))
        for row in rows.rows:
            value = row.fields.get(self.label_field)
            text = label_text(value, self.labels)
            texts = [
                unicodedata.normalize("NFC", str(value)),
                text,
                text.lower() if isinstance(value, bool | np.bool_) else text,
            ]
            if text:
                index = next((index_of[name] for name in texts if name in index_of), None)
            else:
                index = None
            if index is None and text and self.extract:
                read = reader.reference(text).answer
                index = read if isinstance(read, int) else None
            if index is None and text:
                raise InputError(
                    "E-LABEL",
                    f"{rows.location(row)}: {self.label_field!r} is {value!r}, which is not among the labels.",
                    f"Declared: {', '.join(map(repr, self.labels))}.",
                )
            gold.append(index)
        return gold

    def references(self, rows: Rows) -> list[tuple[str, ...]]:
        """Return the keys of each row's right open answers.

        Raises:
            InputError: ``E-LABEL`` for an answer that cannot be read.
        """
        if self.answer is None or self.label_field is None:
            return [()] * len(rows)
        references = []
        words = set[str]()
        for row in rows.rows:
            values = right_answers(row.fields.get(self.label_field))
            nested = {str(item) for item in values if isinstance(item, Mapping | list | tuple | set | np.ndarray)}
            texts = [label_text(item, label_words((), self.answer)) for item in values]
            keys = dict[str, None]()
            for text in filter(None, dict.fromkeys([*texts, *nested])):
                read = self.answer.reader.reference(text)
                if read.answer is None or text in nested:
                    raise InputError(
                        "E-LABEL",
                        f"{rows.location(row)}: {self.label_field!r} is {text[-MAX_SHOWN:]!r}, which is not a "
                        f"{self.answer.kind}: {read.unread}.",
                        "Correct the row, leave the cell empty, or name the part with the answer in `extract`.",
                    )
                keys[str(read.answer)] = None
            words |= MISSING.intersection(texts) - {""}
            references.append(tuple(keys))
        if words:
            shown = ", ".join(map(repr, sorted(words)))
            log.info("%s: %s in %r: right answers. Leave other cells empty", rows.source, shown, self.label_field)
        return references


@dataclass(frozen=True)
class RenderedSplit:
    """A split under every template: all ``rows`` with their ids, and the rendered ``instances`` in use."""

    task: Task
    split: str
    rows: Rows = field(repr=False)
    instances: Sequence[RenderedInstance] = field(repr=False)

    @property
    def gold(self) -> InstanceLabels:
        """The label indices, -1 for an unlabelled instance."""
        return gold_of(self.instances)

    @functools.cached_property
    def distinct(self) -> "RenderedSplit":
        """The split with one of several instances that render alike. Copies would narrow the intervals."""
        instances, dropped = deduplicate(self.instances)
        if not dropped:
            return self
        total = len(self.instances)
        log.info("%s: %d of %d rows render like an earlier one and are left out", self.rows.source, dropped, total)
        return replace(self, instances=instances)

    def content_free(self) -> list[RenderedInstance]:
        """Render the first row with its texts replaced by "N/A", "" and "[MASK]".

        A text that makes a prompt empty is skipped.

        Raises:
            InputError: ``E-CALIBRATION`` if the answers depend on the row, or no text can be rendered.
        """
        task = self.task
        row = self.rows.rows[0]
        instances = []
        why = ""
        for text in CONTENT_FREE:
            fields = {name: text if isinstance(value, str) else value for name, value in row.fields.items()}
            try:
                instance = render_instance(
                    fields,
                    task.templates,
                    id=f"content-free {text!r}",
                    label=None,
                    num_labels=len(self.instances[0].choices[0]),
                    label_field=task.label_field,
                )
                instances.append(replace(instance, chat=task.chat, fields={}))
            except InputError as error:
                why = error.message.rstrip(".")
        prompts_by_template = zip(*(instance.prompts for instance in instances), strict=True)
        if len(instances) > 1 and any(len(set(prompts)) == 1 for prompts in prompts_by_template):
            instances = []
            why = "a prompt has no text of a row's fields"
        if instances and len({instance.choices for instance in [*instances, *self.instances]}) > 1:
            instances = []
            why = "the answers are each row's own"
        if not instances:
            raise InputError(
                "E-CALIBRATION",
                f"task {task.name!r} has no inputs without content: {why}.",
                "Use batch calibration, or the prior.",
            )
        return instances

    @functools.cached_property
    def record(self) -> Json:
        """For a run's record: the task, its templates' texts and its data, by digest."""
        task = self.task
        num_labels = len(self.instances[0].choices[0])
        record: Json = {
            "name": task.name,
            "labels": list(task.label_values(num_labels)),
            "label_names": list(task.label_names),
            "digest": task.digest(),
            "split": self.split,
            "num_instances": len(self.instances),
            "has_gold": any(instance.label is not None for instance in self.instances),
        }
        record |= {
            "f1": resolve_average(task.f1, num_labels),
            "held_out_templates": list(task.held_out_templates),
            "scale": task.scale or None,
            "answer": task.answer and {**asdict(task.answer), "stop": list(task.answer.stop)},
            "extract": task.extract,
        }
        record |= {
            "id_field": task.id_field,
            "templates": [template.entry | {"digest": template.digest()} for template in task.templates],
            "data": dict(self.rows.provenance),
            "instances_digest": instances_digest(self.instances),  # tells two samples of one file apart
        }
        return record | task.chat.given


def right_answers(cell: Any) -> list[Any]:
    """Return the right open answers in a cell: one, a list, or the texts in a record of SQuAD or TriviaQA.

    Example:
        >>> right_answers({"text": ["1891", "in 1891"], "answer_start": [5, 2]})
        ['1891', 'in 1891']
        >>> right_answers({"value": "Peru", "aliases": ["Perú"], "type": "WikipediaEntity"})
        ['Peru', 'Perú']
    """
    match cell:
        case {"text": texts}:
            return right_answers(texts)
        case {"value": value, "aliases": [*aliases]}:
            return [value, *aliases]
        case [*answers]:
            return answers
    if isinstance(cell, np.ndarray):
        return list(cell)
    return [cell]


def are_grades(labels: Sequence[str]) -> bool:
    """Whether the labels are whole numbers in equal steps.

    Example:
        >>> are_grades(["1", "2", "3"]), are_grades(["1", "2", "4"]), are_grades(["low", "high"])
        (True, False, False)
    """
    return all(map(str.isdecimal, labels)) and len(set(np.diff(list(map(int, labels))))) == 1


def instances_digest(instances: Iterable[RenderedInstance]) -> str:
    """Return the SHA-256 of ids, prompts, answer choices and additions to the chat. Open answers are of a model."""
    rows = []
    for instance in instances:
        chat = [instance.chat.given] if instance.chat.given else []
        rows.append([instance.id, instance.prompts, () if instance.is_open else instance.choices, *chat])
    return sha256_json(rows)


# ---- tasks by name ----


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """The argument of a task loader.

    An entry point ``NAME`` loads ``--task NAME`` and ``--task NAME:SET``. Its value is a function from a request to a
    :class:`Task`.

    Attributes:
        name: ``NAME``, or ``SET`` for ``NAME:SET``.
        hub_mirror: A folder to read instead of the hub.
        story_cloze_dir: The folder of StoryCloze's two CSV files.
        seed: The seed of the splits.
        splits: ``"paper"`` or ``"release"``.
        value_limit: The longest value that a prompt prints, in characters.
        fields: The fields of :class:`Task` that a task file with ``templates: {NAME: SET}`` sets.
    """

    name: str
    hub_mirror: Path | None = None
    story_cloze_dir: Path | None = None
    seed: int = 0
    splits: str = "paper"
    value_limit: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


Loader = Callable[[TaskRequest], Task]


@functools.cache
def task_loaders() -> dict[str, EntryPoint]:
    """Return the loaders of the datasets, of PromptSource sets and of installed packages, by name."""
    installed = {loader.name: loader for loader in entry_points(group=GROUP)}
    return installed | {name: EntryPoint(name, value, GROUP) for name, value in PAPER.items()}


def find_loader(name: str) -> Loader | None:
    """Return the loader of ``NAME`` or ``NAME:SET``, or None.

    Raises:
        InputError: ``E-TASK-UNKNOWN``: its package cannot be imported.
    """
    entry = task_loaders().get(name.partition(":")[0])
    if entry is None:
        return None
    try:
        loader: Loader = entry.load()
    except ImportError as error:
        raise InputError(
            "E-TASK-UNKNOWN",
            f"cannot import the task {name!r} ({entry.value}): {error}.",
            "Install the package of this task again.",
        ) from error
    return loader
