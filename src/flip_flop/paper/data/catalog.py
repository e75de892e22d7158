"""The paper's datasets: one data file per dataset in ``datasets/``, the task made of it, and the published sizes."""

import contextlib
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from flip_flop.console import is_blank, track
from flip_flop.errors import InputError, log, require_known
from flip_flop.files import Json, read_object, sha256_json, write_json
from flip_flop.paper.data.promptsource import (
    SourceTemplate,
    TemplateFilter,
    cache_folder,
    filter_templates,
    read_promptsource,
    record_templates,
    templates_folder,
)
from flip_flop.paper.data.splits import Duplicates, SplitPolicy, divide, find_duplicates, name_rows
from flip_flop.prompts import Template, TemplateSet
from flip_flop.strict_yaml import StrictModel, read_yaml
from flip_flop.tasks import FileSource, HubSource, Label, Rows, Source, Task, TaskRequest

_FOLDER = Path(__file__).parent
# The publications of the two protocols.
ROW_PROTOCOLS = {
    "paper": "the paper's appendix, table of datasets (ACL 2026, long paper 71; arXiv 2510.14242)",
    "release": "the authors' release (docs/release.md has its address; commit 061347c)",
}
COLUMNS = ("train", "validation", "test", "templates", "labels")
STORY_CLOZE_VARIABLE = "FLIP_FLOP_STORY_CLOZE"
STORY_CLOZE_OWNERS = "https://cs.rochester.edu/nlp/rocstories"
# The columns of the CSV files, and the names that templates use.
STORY_CLOZE_FIELDS = {
    "InputStoryid": "story_id",
    "InputSentence1": "input_sentence_1",
    "InputSentence2": "input_sentence_2",
    "InputSentence3": "input_sentence_3",
    "InputSentence4": "input_sentence_4",
    "RandomFifthSentenceQuiz1": "sentence_quiz1",
    "RandomFifthSentenceQuiz2": "sentence_quiz2",
    "AnswerRightEnding": "answer_right_ending",
}


class OfficialSplit(StrictModel):
    """A published split: its name and number of rows."""

    split: str
    rows: int


class CatalogEntry(StrictModel, strict=False):
    """The data file of a dataset.

    Attributes:
        repo: The repository on the hub; None for rows in files.
        files: The file of each official split, if its owners distribute it.
        train_from: The official split that is divided into train and validation.
        id_field: A field that names a row within its split; without it, the content names the row.
        named_by: The fields of that content, without the label; by default all.
        labels: The values of ``label_field``, in the order of the answer choices.
        validation: The number of rows held out of ``train_from``; None for the size of ``test_from``.
        paper: The paper's table: ``train``, ``validation``, ``test``, ``templates``, ``labels``.
        release: The sizes of the authors' release: ``train``, ``validation``, ``test``.
        table_note: The reason why the official rows cannot give the paper's table.
    """

    name: str
    description: str
    repo: str | None = None
    config: str | None = None
    files: dict[str, str] = Field(default={})
    train_from: OfficialSplit
    test_from: OfficialSplit
    templates: str
    fields: tuple[str, ...]
    id_field: str | None = None
    named_by: tuple[str, ...] = ()
    label_field: str
    labels: tuple[Label, ...]
    label_names: tuple[str, ...]
    validation: int | None
    max_test: int | None = None
    paper: dict[str, int]
    release: dict[str, int]
    f1: str = "auto"
    table_note: str = ""

    @property
    def policy(self) -> SplitPolicy:
        """The sizes of the splits."""
        return SplitPolicy(validation=self.validation, max_test=self.max_test)

    def published(self, splits: str) -> Mapping[str, int]:
        """Return the published numbers of a protocol by column."""
        if splits == "release":
            return {**self.paper, **self.release}
        return self.paper

    @property
    def source_name(self) -> str:
        """The source of the rows, for tables."""
        if self.repo is None:
            return f"{len(self.files)} CSV files, from their owners"
        if self.config:
            return f"{self.repo} ({self.config})"
        return self.repo

    def source(self, official: OfficialSplit, request: TaskRequest) -> Source:
        """Return the source of an official split."""
        if self.repo is None:
            return StoryClozeSource(self.files[official.split], request.story_cloze_dir)
        return HubSource(self.repo, self.config, official.split, mirror=request.hub_mirror)


def catalog_names() -> tuple[str, ...]:
    """Return the names of the datasets, sorted."""
    return tuple(sorted(path.stem for path in (_FOLDER / "datasets").glob("*.yaml")))


def catalog_entry(name: str) -> CatalogEntry:
    """Read the data file of a dataset (``E-TASK-UNKNOWN``)."""
    require_known([name], catalog_names(), "E-TASK-UNKNOWN", "the catalog has no task")
    return CatalogEntry(name=name, **read_yaml(_FOLDER / "datasets" / f"{name}.yaml"))


@dataclass(frozen=True)
class CatalogData:
    """A dataset: its task, its named official rows, and the rows that no split uses."""

    entry: CatalogEntry
    splits: str
    train: Rows
    test: Rows
    duplicates: Duplicates
    task: Task


def load(request: TaskRequest) -> Task:
    """Load the task of a dataset: the entry point of each name in :func:`catalog_names`."""
    return catalog_data(request).task


def catalog_data(request: TaskRequest) -> CatalogData:
    """Load a dataset, select its templates and divide its rows.

    Raises:
        InputError: ``E-TASK-UNKNOWN``, ``E-TPL-FETCH`` (templates), ``E-DATA-HUB`` or
            ``E-DATA-FILE`` (rows), or ``E-DATA-COLUMN``.
    """
    name = request.name
    if request.fields:
        raise InputError("E-TASK-KEY", f"{name!r} is a dataset with rows, not a set of templates.")
    entry = catalog_entry(name)
    folder = templates_folder()
    candidates = read_promptsource(folder, entry.templates)
    official = []
    for split in (entry.train_from, entry.test_from):
        rows = entry.source(split, request).load()
        rows.require_columns(entry.fields, f"which {name} has")
        official.append(name_rows(rows, split.split, entry.id_field, entry.named_by))
    train, test = official
    templates, duplicates = check_rows(entry, candidates, train, test, request.value_limit)
    if not len(templates.kept):
        template, reason = templates.dropped[0]
        raise InputError(
            "E-TPL-EMPTY",
            f"{entry.source_name}: no template renders for every row; {template!r}: {reason}.",
            "Download the dataset again.",
        )
    task = Task(
        name,
        templates.kept,
        labels=entry.labels,
        label_field=entry.label_field,
        f1=entry.f1,
        label_names=entry.label_names,
        description=entry.description,
        dropped_templates=templates.dropped,
    )
    labels = [task.gold_labels(rows) for rows in official]
    for rows, known in zip(official, labels, strict=True):
        if None in known:
            place = rows.location(rows.rows[known.index(None)])
            raise InputError("E-LABEL", f"{place}: {entry.label_field!r} is empty.", "Download the dataset again.")
    divided = divide(
        train, test, labels[0], entry.policy, duplicates=duplicates, splits=request.splits, seed=request.seed
    )
    task = replace(task, data=record_templates(divided, folder, entry.templates))
    return CatalogData(entry, request.splits, train, test, duplicates, task)


def check_rows(
    entry: CatalogEntry, candidates: Sequence[SourceTemplate], train: Rows, test: Rows, value_limit: int | None
) -> tuple[TemplateFilter, Duplicates]:
    """Render every row of two official splits under every candidate, or read the cached result.

    The kept templates have the ``value_limit``.
    """
    label_field = entry.label_field
    num_labels = len(entry.labels)
    key = _key(candidates, train, test, label_field, num_labels, value_limit)
    path = cache_folder().parent / "screenings" / f"{entry.name}-{key}.json"
    with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):  # a missing or damaged file
        return _result(read_object(path) or {}, candidates, value_limit)
    total = len(train) + len(test)
    fields = (row.fields for row in (*train.rows, *test.rows))
    with track(f"{entry.name}: templates that render", total, "rows") as advance:
        found = filter_templates(candidates, fields, label_field=label_field, num_labels=num_labels, advance=advance)
    kept = replace(found.kept, value_limit=value_limit)
    with track(f"{entry.name}: duplicate rows", total * len(kept), "renderings") as advance:
        duplicates = find_duplicates(train, test, kept, label_field, advance=advance)
    content = {"kept": kept.names, "dropped": found.dropped, "duplicates": asdict(duplicates)}
    try:
        write_json(path, content)
    except OSError as error:
        log.info("%s: the check of all rows is not cached: %s", entry.name, error.strerror)
    return _result(content, candidates, value_limit)


def _result(
    content: Mapping[str, Any], candidates: Sequence[SourceTemplate], value_limit: int | None
) -> tuple[TemplateFilter, Duplicates]:
    """Return the result of a check from the content of its file."""
    by_name = {source.name: source.template for source in candidates if isinstance(source.template, Template)}
    kept = TemplateSet(tuple(by_name[name] for name in content["kept"]), value_limit)
    dropped = tuple((name, reason) for name, reason in content["dropped"])
    indices_of = {kind: tuple(indices) for kind, indices in content["duplicates"].items()}
    return TemplateFilter(kept, dropped), Duplicates(**indices_of)


def _key(candidates: Sequence[SourceTemplate], train: Rows, test: Rows, *shape: str | int | None) -> str:
    templates = [[source.name, source.jinja, source.answer_choices, source.original_task] for source in candidates]
    content = {
        "templates": templates,
        "data": [train.provenance["sha256"], test.provenance["sha256"], *shape],
        "names": [sha256_json(train.ids), sha256_json(test.ids)],
        "versions": [importlib.metadata.version(name) for name in ("flip-flop-consistency", "jinja2")],
    }
    return sha256_json(content)[:24]


@dataclass(frozen=True)
class StoryClozeSource:
    """One of StoryCloze's two CSV files of 2016, in ``folder`` or in ``FLIP_FLOP_STORY_CLOZE``."""

    file_name: str
    folder: Path | None = None

    def load(self) -> Rows:
        """Read the file with the field names of the hub (``E-DATA-FILE``, ``E-DATA-COLUMN``)."""
        folder = self.folder or os.environ.get(STORY_CLOZE_VARIABLE)
        if not folder:
            raise InputError(
                "E-DATA-FILE",
                "StoryCloze must be requested from its owners.",
                f"Register at {STORY_CLOZE_OWNERS}, and give --story-cloze-dir the folder of the two 2016 CSV files.",
            )
        rows = FileSource(Path(folder) / self.file_name).load()
        rows.require_columns(STORY_CLOZE_FIELDS, "which the owners' file of 2016 has")
        renamed = []
        for row in rows.rows:
            fields: Json = {name: row.fields[column] for column, name in STORY_CLOZE_FIELDS.items()}
            for column in STORY_CLOZE_FIELDS:
                if is_blank(row.fields[column]):
                    raise InputError(
                        "E-DATA-PARSE",
                        f"{rows.location(row)}: {column!r} is empty.",
                        "Complete the cell, or ask the owners for the file again.",
                    )
            if fields["answer_right_ending"].isdecimal():  # another answer is an invalid label
                fields["answer_right_ending"] = int(fields["answer_right_ending"])
            renamed.append(row._replace(fields=fields))
        return replace(rows, rows=tuple(renamed))


@dataclass(frozen=True)
class Comparison:
    """The numbers found and published, by column, and the reasons for differences."""

    name: str
    found: Mapping[str, int]
    published: Mapping[str, int]
    reasons: tuple[str, ...]
    unexplained: tuple[str, ...]


def compare(data: CatalogData) -> Comparison:
    """Compare a dataset with the published sizes.

    Three causes explain a difference: the rows are a part of the official split, rows are excluded, or the data file
    has a ``table_note``.
    """
    entry = data.entry
    duplicates = data.duplicates
    splits = COLUMNS[:3]
    published = data.entry.published(data.splits)
    is_paper = data.splits == "paper"
    counted = {split: len(data.task.rows(split)) for split in splits}
    counted |= {"templates": len(data.task.templates), "labels": len(entry.labels)}
    differing = [column for column in COLUMNS if counted[column] != published[column]]
    explained: dict[str, tuple[str, ...]] = {}
    for official, rows, columns in (
        (entry.train_from, data.train, ("train", "validation")),
        (entry.test_from, data.test, ("test",)),
    ):
        if len(rows) != official.rows:
            explained[f"{official.split} has {len(rows):,} of its {official.rows:,} rows here"] = columns
    if is_paper and (left_out := len(duplicates.in_test)):
        reason = f"{left_out} of {entry.train_from.split} left out: rendered, they are in {entry.test_from.split}"
        explained[reason] = ("train", "validation")
    if unanswerable := len(duplicates.unanswerable):
        explained[f"{unanswerable} rows left out: two of their answers are equal"] = splits
    if is_paper and entry.table_note and differing:
        explained[entry.table_note] = splits
    known = {column for columns in explained.values() for column in columns}
    unexplained = tuple(column for column in differing if column not in known)
    return Comparison(entry.name, counted, published, tuple(explained), unexplained)
