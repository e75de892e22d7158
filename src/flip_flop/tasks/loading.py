"""A task by its name, from a YAML file, or from rendered rows."""

import contextlib
import gzip
import itertools
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from flip_flop.console import count, warn_once
from flip_flop.errors import (
    InputError,
    first_repeated,
    log,
    nearest,
    nearest_file,
    require_known,
    require_whole,
    unsupported,
)
from flip_flop.files import Json, StrPath
from flip_flop.lazy import from_wing
from flip_flop.metrics import prior_of_labels
from flip_flop.prompts import (
    MIN_VALUE_LIMIT,
    SEPARATOR,
    Fields,
    LintRow,
    RenderedInstance,
    Template,
    TemplateSet,
    lines_of,
    lint_templates,
)
from flip_flop.prompts.sandbox import check_characters
from flip_flop.reading import AnswerFormat
from flip_flop.strict_yaml import StrictModel, read_yaml, validate
from flip_flop.tasks.readers import READABLE, label_text, label_words
from flip_flop.tasks.sources import FileSource, HubSource, Rows, RowsSource, Source, as_source, sample_ids
from flip_flop.tasks.task import Label, RenderedSplit, Task, TaskRequest, find_loader, task_loaders

# The longest value that a prompt prints, in characters. The release has PromptSource's default.
VALUE_LIMITS = {"paper": None, "release": 2048}
_ROWS = (
    'A row is {"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int or None}. For rows of fields give '
    "a task: audit(model, task.with_rows(rows)), or F2CTrainer(model, task=task)."
)
# The embedded tasks: short hotel reviews, made by ``evidence/demo_reviews.py``. What differs from task.yaml.
EMBEDDED: dict[str, Mapping[str, Any]] = {
    "demo": {},
    "demo_remarks": {
        "name": "hotel_remarks",
        "description": "Is a hotel review of one remark negative (0) or positive (1)?",
    },
    "demo_clear": {
        "name": "clear_hotel_reviews",
        "description": "Is a short hotel review that leaves no doubt negative (0) or positive (1)?",
    },
}
CLEAR_TEMPLATES = ("sentiment", "true_or_false", "complaint", "feeling", "recommended")
RenderedRows = Iterable[RenderedInstance | Fields]
# A task, its name or its file; a split; or rendered rows, such as a datasets.Dataset.
Data = Task | RenderedSplit | StrPath | RenderedRows


# ---- task files ----

SUFFIXES = (".yaml", ".yml")


def _check_labels(labels: Any) -> list[Label]:
    if not isinstance(labels, list):
        raise InputError("E-LABEL", f"labels is {labels!r}, not a list.", "Write labels: [0, 1].")
    for number, label in enumerate(labels, 1):
        if isinstance(label, bool) or not isinstance(label, int | str):
            raise InputError("E-LABEL", f"label {number} was read as {label!r}, not as a text or an integer.")
    return labels


def _join_choices(choices: Any) -> str:
    items = choices if isinstance(choices, list) else [choices]
    for item in items:
        if not isinstance(item, str):
            raise InputError(
                "E-LABEL",
                f"an answer choice was read as {item!r}, not as a text.",
                'Quote it, as in ["No", "Yes"].',
            )
        if isinstance(choices, list) and SEPARATOR in item:
            raise InputError(
                "E-LABEL",
                f"the answer choice {item!r} of a list holds {SEPARATOR}.",
                "Write one answer per item.",
            )
    return f" {SEPARATOR} ".join(items)


def _check_json(values: Json) -> Json:
    try:
        json.dumps(values)
    except TypeError as error:
        raise InputError("E-TASK-KEY", f"chat_template_kwargs: {error}.", "Put a date in quotation marks.") from None
    return values


class TemplateEntry(StrictModel):
    """A template. The last three keys are those of PromptSource and are ignored."""

    name: str
    jinja: str
    answer_choices: Annotated[str | None, BeforeValidator(_join_choices)] = None
    levels: dict[str, str] = Field(default={}, examples=["{wording: ask, order: swapped}"])
    id: Any = None
    metadata: Any = None
    reference: Any = None


class FileEntry(StrictModel):
    """A data file, relative to the task file."""

    path: str
    encoding: str = "utf-8"
    delimiter: str | None = None
    part: Literal["train", "test"] | None = None
    by: str | list[str] = ""


class HubEntry(StrictModel):
    """A dataset on the hub; ``split`` is by default the key of the entry."""

    repo: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None


class AnswerEntry(StrictModel):
    """The format of open answers."""

    kind: str
    extract: str | None = None
    stop: list[str] = Field(default=[], examples=['["."]'])
    max_tokens: int = Field(default=AnswerFormat.max_tokens, ge=1)


_READ_ANSWER = BeforeValidator(
    lambda content: AnswerFormat(**dict(validate(AnswerEntry, content, "answer", code="E-TASK-KEY")))
)


class TaskFile(StrictModel):
    """The keys of a task file."""

    name: str | None = None
    description: str = ""
    data: Json = Field(min_length=1, examples=["{test: reviews.csv}"])
    label_field: str | None = None
    labels: Annotated[list[Label] | None, BeforeValidator(_check_labels)] = None
    label_names: list[str] = Field(default=[], examples=["[negative, positive]"])
    f1: str = "auto"
    scale: bool = False
    answer: Annotated[AnswerFormat | None, _READ_ANSWER] = None
    extract: str | None = None
    id_field: str | None = None
    templates: Annotated[list[Any], Field(min_length=1)] | Annotated[dict[str, str], Field(min_length=1)] = Field(
        examples=['a list such as [{name: plain, jinja: "{{ text }}", answer_choices: "No ||| Yes"}]']
    )
    held_out_templates: list[str] = Field(default=[], examples=["[plain, formal]"])
    axes: Json = Field(default={}, examples=["{order: 4}"])
    prompt_value_limit: int | None = Field(default=None, ge=MIN_VALUE_LIMIT)
    system: str | None = None
    assistant_prefix: str | None = None
    chat_template_kwargs: Annotated[Json, AfterValidator(_check_json)] = Field(
        default={}, examples=["{enable_thinking: false}"]
    )


def read_task_file(path: Path, hub_mirror: Path | None = None) -> Task:
    """Read a task file with all its templates, without their variants along its axes."""
    return _read_file(path, hub_mirror)[0]


def _read_file(path: Path, hub_mirror: Path | None = None) -> tuple[Task, Json]:
    """Read a task file and its axes.

    Raises:
        InputError: ``E-TASK-FILE``, ``E-TASK-KEY``, ``E-LABEL``, or an
            error of a template.
    """
    if path.is_dir():
        raise InputError(
            "E-TASK-FILE", f"{path} is a folder, not a task file.", nearest_file(path / path.name, SUFFIXES)
        )
    if not path.is_file():
        raise InputError("E-TASK-FILE", f"there is no task file {path}.", nearest_file(path, SUFFIXES))
    if path.suffix.lower() in READABLE:
        raise InputError(
            "E-TASK-FILE", f"{path} is a data file, not a task file.", f"Run `flip-flop init {shlex.quote(str(path))}`."
        )
    where = str(path)
    file = validate(TaskFile, read_yaml(path), where, code="E-TASK-KEY")
    fields = {name: getattr(file, name) for name in TaskFile.model_fields}
    templates = fields.pop("templates")
    limit = fields.pop("prompt_value_limit")
    axes = fields.pop("axes")
    data = {
        split: _source(entry, split, path.parent, hub_mirror, file, f"{where}, data, {split}")
        for split, entry in file.data.items()
    }
    fields |= {"name": file.name or path.stem, "data": data}
    if isinstance(templates, dict):
        return _load_set(templates, TaskRequest(name="", value_limit=limit, fields=fields), where), axes
    members = []
    for number, content in enumerate(templates, 1):
        entry = validate(TemplateEntry, content, f"{where}, template {number}{_name_of(content)}", code="E-TASK-KEY")
        with _placed(f"{where}, template {number}"):
            members.append(Template(entry.name, entry.jinja, entry.answer_choices, entry.levels))
            if file.answer is None:
                members[-1].require_choices()
    with _placed(where):
        return Task(**fields, templates=TemplateSet(tuple(members), limit)), axes


def _name_of(entry: Any) -> str:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        return f" ({entry['name']!r})"
    return ""


@contextlib.contextmanager
def _placed(where: str) -> Iterator[None]:
    """Add the place to an error of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(error.code, f"{where}: {error.message}", error.hint) from error


def _load_set(templates: Mapping[str, str], request: TaskRequest, where: str) -> Task:
    (source, name), *more = templates.items()
    loader = None if more else find_loader(source)
    if loader is None:
        raise InputError(
            "E-TASK-KEY",
            f"{where}: templates is {templates!r}.",
            "Write a list of templates, or {promptsource: SET}, such as {promptsource: ag_news}.",
        )
    return loader(replace(request, name=name))


def _source(entry: Any, split: str, folder: Path, hub_mirror: Path | None, task: TaskFile, where: str) -> Source:
    if isinstance(entry, str):
        return FileSource(folder / entry)
    if isinstance(entry, dict) and "repo" in entry:
        hub = validate(HubEntry, entry, where, code="E-TASK-KEY")
        return HubSource(hub.repo, hub.config, hub.split or split, hub.revision, hub_mirror)
    file = validate(FileEntry, entry, where, code="E-TASK-KEY")
    by = split_names(file.by) if isinstance(file.by, str) else file.by
    source = FileSource(folder / file.path, file.encoding, file.delimiter, file.part, tuple(by))
    if file.part is None:
        return source
    labels = tuple(label_words(task.labels or (), task.answer))
    return replace(source, label_field=task.label_field, labels=labels)


# ---- tasks by name ----


def load_task(  # noqa: PLR0913  a public function
    name_or_path: StrPath,
    *,
    templates: str | None = None,
    hub_mirror: StrPath | None = None,
    story_cloze_dir: StrPath | None = None,
    seed: int = 0,
    protocol: str = "paper",
    splits: str | None = None,
    prompt_value_limit: int | None = None,
    axes: Mapping[str, Any] | None = None,
) -> Task:
    """Load a task file, ``demo``, a dataset of the paper (``rte``) or a PromptSource set (``promptsource:ag_news``).

    Args:
        name_or_path: A name or a file. Installed packages may add names (:mod:`flip_flop.tasks.task`).
        templates: ``"NAME,NAME,..."``, ``"all"`` or ``"held_out"``. None selects all templates that are not held out.
            A template is selected with its variants.
        hub_mirror: A folder to read instead of the hub.
        story_cloze_dir: The folder of StoryCloze's two CSV files.
        seed: The seed of a dataset's splits. Use one seed for all runs: otherwise one run trains on the rows that
            select the checkpoints of another run.
        protocol: ``"paper"`` or ``"release"``: the rows of the paper's datasets, and the length of values in prompts.
        splits: The rows of this protocol only.
        prompt_value_limit: The length of values only. The limit of a task file takes precedence.
        axes: The axes along which templates vary, as in :meth:`Task.with_axes`, beside those of a task file.

    Raises:
        InputError: ``E-TASK-UNKNOWN``, ``E-TASK-FILE``, or an error of the data or a template.

    Example:
        >>> load_task("demo", templates="held_out").templates.names
        ('happy', 'overall', 'thumbs')
    """
    for key, value in (("protocol", protocol), ("splits", splits or protocol)):
        require_known([value], VALUE_LIMITS, "E-TASK-KEY", f"{key} is")
    name = os.fspath(name_or_path)
    limit = VALUE_LIMITS[protocol] if prompt_value_limit is None else prompt_value_limit
    request = TaskRequest(
        name=name.partition(":")[2] or name,
        hub_mirror=None if hub_mirror is None else Path(hub_mirror),
        story_cloze_dir=None if story_cloze_dir is None else Path(story_cloze_dir),
        seed=seed,
        splits=splits or protocol,
        value_limit=limit,
    )
    all_axes = Json()
    if name in EMBEDDED:
        task = embedded_task(name)
    elif loader := find_loader(name):
        task = loader(request)
    elif Path(name).name == name and not Path(name).suffix and not Path(name).exists():
        known = sorted([*EMBEDDED, *task_loaders()])
        hint = f"Known: {', '.join(known)}."
        near = nearest(name, known)
        if near != hint:
            hint = f"{near} {hint}"
        raise InputError("E-TASK-UNKNOWN", f"there is no task {name!r}, and no file of this name.", hint)
    else:
        task, all_axes = _read_file(Path(name), request.hub_mirror)
    if task.templates.value_limit is None:
        task = replace(task, templates=replace(task.templates, value_limit=limit))
    all_axes |= axes or {}
    if all_axes:
        names = split_names(templates or "")
        if names and set(names) <= set(task.templates.names):
            task = from_wing("vary_task")(task, all_axes, templates)
            templates = None
        else:
            task = task.with_axes(all_axes)
    return choose_templates(task, templates)


def choose_templates(task: Task, templates: str | None) -> Task:
    """Return the task with the templates of :func:`load_task`."""
    if templates is None:
        return task.with_templates(task.training_templates.names)
    if templates == "all":
        return task
    if templates == "held_out":
        if not task.held_out_templates:
            raise InputError(
                "E-TASK-UNKNOWN", f"task {task.name!r} has no held_out_templates.", "Name some in the task file."
            )
        return task.with_templates(task.held_out_templates)
    return replace(task.with_templates(split_names(templates)), held_out_templates=())


def split_names(text: str) -> list[str]:
    """Return the names in ``NAME,NAME,...``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def embedded_task(name: str = "demo") -> Task:
    """Return one of :data:`EMBEDDED`: 500 rows for training, 200 for validation and 300 for testing."""
    folder = Path(__file__).parent / "embedded"
    task = read_task_file(folder / "task.yaml")
    rows: dict[str, list[Json]] = {split: [] for split in task.data}
    with gzip.open(folder / "rows.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row.pop("task") == name:
                rows[row.pop("split")].append(row)
    data = {split: RowsSource(rows[split], f"demo reviews, {split}") for split in task.data}
    task = replace(task, **{"data": data, **EMBEDDED[name]})
    if name == "demo_clear":
        return task.with_templates([*CLEAR_TEMPLATES, *task.held_out_templates])
    return task


def require_templates_for_training(task: Task) -> None:
    """Refuse to train on fewer than two templates (``E-NO-CONSENSUS``)."""
    number = len(task.training_templates)
    if number < 2:
        held_out = f" ({len(task.held_out_templates)} held out)" if task.held_out_templates else ""
        raise InputError("E-NO-CONSENSUS", f"task {task.name!r} has {number} template to train on{held_out}.")


def as_task(task: Task | StrPath) -> Task:
    """Return a task, or load it by its name or file."""
    if isinstance(task, Task):
        return task
    return load_task(task)


def prior_from(task: Task, path: StrPath) -> tuple[float, ...]:
    """Compute label shares from the labelled rows of a file, with one added to the count of each label.

    Raises:
        InputError: ``E-LABEL-PRIOR`` if the task has no labels or no row is labelled, ``E-OPEN-ANSWER``, or an error of
            the file.
    """
    gold = task.gold_labels(_labelled_rows(task, Path(path)))
    return prior_of_labels(np.array(gold, dtype=np.int64), len(task.labels or ()))


def labelled_file(task: Task, path: StrPath) -> RenderedSplit:
    """Render the labelled rows of a file as the split ``few_labels``.

    Raises:
        InputError: ``E-LABEL-PRIOR`` if the task has no labels or no row is labelled, ``E-OPEN-ANSWER``, or an error of
            the file.
    """
    return replace(task, data={"few_labels": _labelled_rows(task, Path(path))}).render("few_labels")


def _labelled_rows(task: Task, path: Path) -> Rows:
    if task.answer is not None:
        raise unsupported("--few-labels")
    if task.label_field is None:
        raise InputError(
            "E-LABEL-PRIOR",
            f"task {task.name!r} has no label_field, so the labels of {path} are unknown.",
            "Add label_field and labels, or give --label-prior.",
        )
    rows = task.read_file(path)
    labelled = [row for row, label in zip(rows.rows, task.gold_labels(rows), strict=True) if label is not None]
    if not labelled:
        raise InputError("E-LABEL-PRIOR", f"{path} has no labels in {task.label_field!r}.", "Label some rows.")
    return replace(rows, rows=tuple(labelled))


def log_label_counts(split: RenderedSplit) -> RenderedSplit:
    """Log the numbers of labelled and unlabelled rows if the data have both. Returns the split."""
    labelled = int((split.gold >= 0).sum())
    unlabelled = len(split.gold) - labelled
    known = split.rows.provenance
    is_train = split.split == "train"
    use = {"train": "training", "test": "testing"}.get(split.split, split.split)
    texts = [f"{count(labelled, 'labelled row')} for {use}"]
    if unlabelled:
        texts.append(f"{count(unlabelled, 'unlabelled row')} for {'training' if is_train else 'agreement only'}")
    if known.get("rows_for_training") and not is_train:
        blank = f"{known.get('unlabelled_for_training')} of them unlabelled"
        texts.append(f"{count(known['rows_for_training'], 'row')} for training ({blank})")
    if labelled and len(texts) > 1:
        log.info("%s: %s", split.rows.source.rstrip(","), ", ".join(texts))
    return split


def log_findings(split: RenderedSplit) -> RenderedSplit:
    """Log the findings of lint on 100 instances of a split, and the blank prompts of all. Returns the split.

    A warning is logged once in a process, also if several splits or models have it.

    Raises:
        InputError: The first error.
    """
    task = split.task
    row_of = dict(zip(split.rows.ids, split.rows.rows, strict=True))
    linted = []
    for instance in split.instances:
        row = row_of[instance.id]
        # Given instances can have outer white space.
        prompts = [prompt.strip() for prompt in instance.prompts]
        choices = [tuple(map(str.strip, answers)) for answers in instance.choices]
        gold = instance.label
        if task.answer is not None:
            choices = [()] * len(prompts)
            gold = None
        renderings = list(zip(prompts, choices, strict=True))
        linted.append(LintRow(split.rows.location(row), row.fields, gold, renderings))
    findings = lint_templates(task.templates, linted, label_field=task.label_field, limit=100)
    for code, template, message in lines_of(findings):
        if code.startswith("E-"):
            raise InputError(code, f"{task.name}, template {template}: {message}")
        warn_once(f"{code}: {task.name}, template {template}: {message}")
    return split


# ---- rendered rows ----


def as_split(data: Data, *, limit: int | None = None, seed: int = 0, need_labels: bool | None = None) -> RenderedSplit:
    """Render the data of a Python call (:data:`Data`). A task means its test split.

    ``limit`` takes a sample, as in :meth:`Task.render`.

    Raises:
        InputError: ``E-DATA-ROWS``, or an error of the task or its rendering.
    """
    seed = require_whole("seed", seed)
    if isinstance(data, str | os.PathLike | Task):
        data = as_task(data).render("test", limit=limit, seed=seed, need_labels=need_labels)
    split = data if isinstance(data, RenderedSplit) else _split_of_rows(data)
    if limit is not None:
        drawn = sample_ids([instance.id for instance in split.instances], limit, seed)
        split = replace(split, instances=[instance for instance in split.instances if instance.id in drawn])
    if not split.instances:
        raise InputError("E-DATA-ROWS", f"Split {split.split!r} of {split.task.name!r} has no rows.", "Add rows.")
    return split


def render_rows(rows: RenderedRows) -> list[RenderedInstance]:
    """Return rows as instances of one shape: V templates with L labels each.

    Raises:
        InputError: ``E-DATA-ROWS``; ``E-TPL-SYNTAX`` for half of a character.
    """
    if not isinstance(rows, Iterable) or isinstance(rows, str):
        raise InputError("E-DATA-ROWS", f"The rows are of type {type(rows).__name__}.", _ROWS)
    source: Any = as_source(rows)  # a table of pandas as dicts
    instances = [_render_row(row, number) for number, row in enumerate(source.fields)]
    for instance in instances:
        for text in (*instance.prompts, *itertools.chain(*instance.choices)):
            check_characters(text, f"row {instance.id!r}")
    shapes = sorted({tuple(map(len, instance.choices)) for instance in instances})
    numbers = {number for shape in shapes for number in shape}
    if len(shapes) > 1 or len(numbers) > 1 or numbers & {0, 1}:
        raise InputError(
            "E-DATA-ROWS",
            f"The numbers of choices under the templates of a row are {' or '.join(map(str, shapes[:3]))}.",
            "Give every row the same templates and labels, at least two.",
        )
    return instances


def _render_row(row: RenderedInstance | Fields, number: int) -> RenderedInstance:
    if isinstance(row, RenderedInstance):
        return row
    fields: Fields = row if isinstance(row, Mapping) else {}
    prompts: Any = fields.get("prompts")
    choices: Any = fields.get("choices")
    are_texts = _is_list_of(str, prompts) and _is_list_of(_LIST, choices) and len(prompts) == len(choices)
    if not are_texts or not all(_is_list_of(str, labels) for labels in choices):
        raise InputError(
            "E-DATA-ROWS", f"Row {number}: 'prompts' and 'choices' must be lists with one entry per template.", _ROWS
        )
    name = str(number if fields.get("id") is None else fields["id"])
    if "labels" in fields and "label" not in fields:
        raise InputError("E-DATA-ROWS", f"Row {name!r} has the key 'labels'.", f"Did you mean 'label'? {_ROWS}")
    label = fields.get("label")
    if not label_text(label):
        label = None
    elif label not in range(len(choices[0])):
        hint = f"It is an index from 0 to {len(choices[0]) - 1}, or None."
        raise InputError("E-DATA-ROWS", f"Row {name!r}: the label is {label!r}.", hint)
    return RenderedInstance(
        id=name,
        prompts=tuple(map(str, prompts)),
        choices=tuple(tuple(map(str, labels)) for labels in choices),
        label=None if label is None else int(label),
    )


_LIST = list | tuple | np.ndarray


def _is_list_of(kind: Any, value: Any) -> bool:
    return isinstance(value, _LIST) and len(value) > 0 and all(isinstance(item, kind) for item in value)


def _split_of_rows(rows: RenderedRows) -> RenderedSplit:
    """Return rendered rows as the test split of a task whose templates are numbered."""
    instances = render_rows(rows)
    ids = tuple(instance.id for instance in instances)
    if (twice := first_repeated(ids)) is not None:
        raise InputError("E-DATA-ROWS", f"Two rows have the id {twice!r}.", "Give every row its own id.")
    fields = [dict(vars(instance)) for instance in instances]
    for row in fields:
        del row["chat"], row["open"]
    source = replace(RowsSource(fields, "rows").load(), ids=ids)
    templates = []
    for number in range(len(instances[0].prompts)):
        prompt = f"{{{{ prompts[{number}] }}}}"
        answers = f"{{{{ choices[{number}] | join(' ||| ') }}}}"
        templates.append(Template(template_name(number), prompt, answers))
    task = Task("rows", TemplateSet(tuple(templates)), {"test": source})
    return RenderedSplit(task, "test", source, instances)


def template_name(number: int) -> str:
    """Return the name of a template of rendered rows, counted from 0."""
    return f"template_{number + 1}"
