"""A dataset's data file: where its rows are, what its labels mean, how it is split, what the paper's table prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks.catalog.story_cloze import StoryClozeSource
from flip_flop.tasks.paper_splits import SplitPolicy
from flip_flop.tasks.sources import HubSource, Source
from flip_flop.tasks.task import Label

_FOLDER = Path(__file__).parent


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
        config: Its configuration; None for its only one.
        files: The name of each official split's file where the owners give it out themselves.
        train_from: The official split that is divided into train and validation.
        test_from: The official split that is the test split.
        templates: Their folder in PromptSource.
        id_field: A field that names a row within its split; without it a row is named by its content.
        named_by: Without an ``id_field``, the fields whose texts name a row; never the label's.
        labels: Its values, in the order of the answer choices.
        label_names: What they mean.
        validation: How many rows of ``train_from`` are held out; None for as many as ``test_from`` has.
        max_test: At most this many are tested on; None for all.
        paper: The paper's table: ``train``, ``validation``, ``test``, ``templates``, ``labels``.
        table_note: Why the official rows cannot give the paper's table, if they cannot.
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
    f1: str = "auto"
    table_note: str = ""

    @property
    def policy(self) -> SplitPolicy:
        """How the official splits become train, validation and test."""
        return SplitPolicy(validation=self.validation, max_test=self.max_test)

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
    """The datasets' names, sorted.

    Example:
        >>> catalog_names()[:4], len(catalog_names())
        (('anli_r1', 'anli_r2', 'anli_r3', 'cb'), 11)
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def catalog_entry(name: str) -> CatalogEntry:
    """Read one dataset's data file.

    Raises:
        InputError: ``E-TASK-UNKNOWN``.

    Example:
        >>> entry = catalog_entry("cb")
        >>> entry.source_name, entry.label_names
        ('aps/super_glue (cb)', ('entailment', 'contradiction', 'neutral'))
    """
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
