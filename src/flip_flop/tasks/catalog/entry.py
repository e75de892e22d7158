"""A dataset's data file: where its rows are, what its labels mean, how it is split, what the paper's table prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.prompts.strict_yaml import read_yaml
from flip_flop.tasks.paper_splits import SplitPolicy
from flip_flop.tasks.sources import HubSource, Source
from flip_flop.tasks.story_cloze import StoryClozeSource
from flip_flop.tasks.task import Label

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class OfficialSplit:
    """A split as its owners publish it.

    Attributes:
        split: Its name on the hub.
        rows: How many rows it has there.
    """

    split: str
    rows: int


@dataclass(frozen=True)
class CatalogEntry:
    """What one data file says.

    Attributes:
        name: The task's name: the file's.
        description: One sentence.
        repo: The repository on the hub; None where the rows come from files.
        config: Its configuration; None for its only one.
        files: The name of each official split's file where the owners give it out themselves.
        train_from: The official split that is divided into train and validation.
        test_from: The official split that is the test split.
        templates: The folder of its templates in PromptSource.
        fields: The fields of a row.
        id_field: A field that names a row within its split; without it a row is named by its content.
        label_field: The gold label's field.
        labels: Its values, in the order of the answer choices.
        label_names: What they mean.
        policy: How the official splits become train, validation and test.
        paper: The paper's table: ``train``, ``validation``, ``test``, ``templates``, ``labels``.
        f1: ``"auto"``, ``"binary"`` or ``"macro"``.
        named_by: Without an ``id_field``, the fields whose texts name a row; never the label's.
        table_note: Why the paper's table cannot be met by the official rows, where it cannot.
    """

    name: str
    description: str
    repo: str | None
    config: str | None
    files: Mapping[str, str] = field(repr=False)
    train_from: OfficialSplit
    test_from: OfficialSplit
    templates: str
    fields: tuple[str, ...]
    id_field: str | None
    named_by: tuple[str, ...]
    label_field: str
    labels: tuple[Label, ...]
    label_names: tuple[str, ...]
    policy: SplitPolicy
    paper: Mapping[str, int]
    f1: str
    table_note: str

    @property
    def place(self) -> str:
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
        >>> entry.place, entry.label_names
        ('aps/super_glue (cb)', ('entailment', 'contradiction', 'neutral'))
    """
    names = catalog_names()
    if name not in names:
        raise InputError("E-TASK-UNKNOWN", f"there is no task {name!r} in the catalog.", nearest(name, names))
    content: dict[str, Any] = read_yaml(_FOLDER / f"{name}.yaml")
    policy = SplitPolicy(
        validation=None if content["validation"] == "official" else content["validation"],
        max_test=content.get("max_test"),
    )
    return CatalogEntry(
        name=name,
        description=content["description"],
        repo=content.get("repo"),
        config=content.get("config"),
        files=content.get("files", {}),
        train_from=OfficialSplit(**content["train_from"]),
        test_from=OfficialSplit(**content["test_from"]),
        templates=content["templates"],
        fields=tuple(content["fields"]),
        id_field=content.get("id_field"),
        named_by=tuple(content.get("named_by", ())),
        label_field=content["label_field"],
        labels=tuple(content["labels"]),
        label_names=tuple(content["label_names"]),
        policy=policy,
        paper=content["paper"],
        f1=content.get("f1", "auto"),
        table_note=content.get("table_note", ""),
    )
