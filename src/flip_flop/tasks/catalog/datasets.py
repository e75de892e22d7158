"""The paper's datasets: what each data file says, the task made of it, and both beside the paper's table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_file
from flip_flop.prompts.archive import FILE_NAME, templates_folder
from flip_flop.prompts.promptsource import read_promptsource
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks.catalog.row_checks import check_rows
from flip_flop.tasks.catalog.story_cloze import StoryClozeSource
from flip_flop.tasks.sources import HubSource, Rows, Source
from flip_flop.tasks.splits import SPLITS, Duplicates, SplitPolicy, divide, name_rows
from flip_flop.tasks.task import Label, Task

_FOLDER = Path(__file__).parent
COLUMNS = ("train", "validation", "test", "templates", "labels")


@dataclass(frozen=True)
class OfficialSplit:
    """A split as its owners publish it: its name on the hub, and its number of rows there."""

    split: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """What one data file says.

    Attributes:
        repo: The repository on the hub; None where the rows come from files.
        files: The name of each official split's file where the owners give it out themselves.
        train_from: The official split that is divided into train and validation.
        id_field: A field that names a row within its split; without it a row is named by its content.
        named_by: Without an ``id_field``, the fields whose texts name a row; never the label's.
        labels: Its values, in the order of the answer choices.
        validation: How many rows of ``train_from`` are held out; None for as many as ``test_from`` has.
        paper: The paper's table: ``train``, ``validation``, ``test``, ``templates``, ``labels``.
        release: What the authors' release has: ``train``, ``validation``, ``test``.
        table_note: Why the official rows cannot give the paper's table.
    """

    name: str
    description: str
    repo: str | None = None
    config: str | None = None
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
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
    paper: Mapping[str, int]
    release: Mapping[str, int]
    f1: str = "auto"
    table_note: str = ""

    @property
    def policy(self) -> SplitPolicy:
        """How the rows are divided."""
        return SplitPolicy(validation=self.validation, max_test=self.max_test)

    def published(self, splits: str) -> Mapping[str, int]:
        """The numbers that are published with one of :data:`~flip_flop.tasks.splits.SPLITS`, by column."""
        return {**self.paper, **self.release} if splits == "release" else self.paper

    @property
    def source_name(self) -> str:
        """Where the rows come from, in words."""
        if self.repo is None:
            return f"{len(self.files)} CSV files, from their owners"
        return f"{self.repo} ({self.config})" if self.config else self.repo

    def source(self, official: OfficialSplit, *, hub_mirror: Path | None, story_cloze_dir: Path | None) -> Source:
        """The rows of an official split."""
        if self.repo is None:
            return StoryClozeSource(self.files[official.split], story_cloze_dir)
        return HubSource(self.repo, self.config, official.split, mirror=hub_mirror)


def catalog_names() -> tuple[str, ...]:
    """The datasets' names, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def catalog_entry(name: str) -> CatalogEntry:
    """Read one dataset's data file (``E-TASK-UNKNOWN``)."""
    names = catalog_names()
    if name not in names:
        raise InputError("E-TASK-UNKNOWN", f"there is no task {name!r} in the catalog.", nearest(name, names))
    content: dict[str, Any] = read_yaml(_FOLDER / f"{name}.yaml")
    if content["validation"] == "official":
        content["validation"] = None
    for key, value in content.items():
        if isinstance(value, list):
            content[key] = tuple(value)
        elif key in ("train_from", "test_from"):
            content[key] = OfficialSplit(**value)
    return CatalogEntry(name=name, **content)


@dataclass(frozen=True)
class CatalogData:
    """A dataset's task, its named official rows, and what is not used: rows, and templates with the reason.

    ``splits`` is one of :data:`~flip_flop.tasks.splits.SPLITS`.
    """

    entry: CatalogEntry
    splits: str
    train: Rows
    test: Rows
    dropped_templates: tuple[tuple[str, str], ...]
    duplicates: Duplicates
    task: Task


def catalog_data(
    name: str,
    *,
    hub_mirror: Path | None = None,
    story_cloze_dir: Path | None = None,
    seed: int = 0,
    splits: str = "paper",
    prompt_value_limit: int | None = None,
) -> CatalogData:
    """Load one of :func:`catalog_names`, choose its templates and divide its rows, by ``seed``.

    ``splits`` is one of :data:`~flip_flop.tasks.splits.SPLITS`; ``prompt_value_limit`` the longest value that a prompt
    prints, in characters.

    Raises:
        InputError: ``E-TASK-UNKNOWN``; ``E-TPL-FETCH``: PromptSource's templates are missing; ``E-DATA-HUB``,
            ``E-DATA-FILE`` or ``E-DATA-STORYCLOZE``: the rows are; ``E-DATA-COLUMN``: they are of another shape.
    """
    if splits not in SPLITS:
        raise InputError("E-TASK-KEY", f"there are no splits {splits!r}.", nearest(splits, SPLITS))
    entry = catalog_entry(name)
    folder = templates_folder()
    candidates = read_promptsource(folder, entry.templates)
    official = []
    for split in (entry.train_from, entry.test_from):
        rows = entry.source(split, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir).load()
        rows.require_columns(entry.fields, f"which {name} has")
        official.append(name_rows(rows, split.split, entry.id_field, entry.named_by))
    train, test = official
    templates, duplicates = check_rows(
        name,
        candidates,
        train,
        test,
        label_field=entry.label_field,
        num_labels=len(entry.labels),
        value_limit=prompt_value_limit,
    )
    if not len(templates.kept):
        template, reason = templates.dropped[0]
        message = f"{entry.source_name}: no template renders for every row; {template!r}: {reason}."
        raise InputError("E-TPL-EMPTY", message, "Download the dataset again.")
    task = Task(name, templates.kept, {}, entry.labels, entry.label_field, entry.f1, label_names=entry.label_names)
    task = replace(task, description=entry.description)
    task.gold_labels(test)
    labels = task.gold_labels(train)
    divided = divide(train, test, labels, entry.policy, duplicates=duplicates, splits=splits, seed=seed)
    source = {"promptsource": entry.templates, "sha256": sha256_file(folder / entry.templates / FILE_NAME)}
    data = {
        split: replace(rows, provenance={**rows.provenance, "templates": source}) for split, rows in divided.items()
    }
    return CatalogData(entry, splits, train, test, templates.dropped, duplicates, replace(task, data=data))


@dataclass(frozen=True)
class Comparison:
    """The numbers found and the published ones, by column; why they differ; those that differ for no known reason."""

    name: str
    splits: str
    found: Mapping[str, int]
    published: Mapping[str, int]
    reasons: tuple[str, ...]
    unexplained: tuple[str, ...]


def compare(data: CatalogData) -> Comparison:
    """Compare a dataset with the paper's table, or its release's splits with the release's.

    A difference is explained where the available rows are not all of the official split, where rows are left out, or
    where the data file knows that the table and the owners differ.
    """
    entry, duplicates = data.entry, data.duplicates
    splits, published, is_paper = COLUMNS[:3], data.entry.published(data.splits), data.splits == "paper"
    found = {split: len(data.task.rows(split)) for split in splits}
    found |= {"templates": len(data.task.templates), "labels": len(entry.labels)}
    differing = [column for column in COLUMNS if found[column] != published[column]]
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
    return Comparison(entry.name, data.splits, found, published, tuple(explained), unexplained)
