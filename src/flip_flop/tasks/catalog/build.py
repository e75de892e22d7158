"""A dataset's task: official rows, the templates that render for all of them, the paper's splits."""

from dataclasses import dataclass, replace
from pathlib import Path

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_file
from flip_flop.prompts import TemplateSet
from flip_flop.prompts.archive import FILE_NAME, templates_folder
from flip_flop.prompts.promptsource import read_promptsource
from flip_flop.tasks.catalog.entry import CatalogEntry, OfficialSplit, catalog_entry
from flip_flop.tasks.catalog.screening import Screening, screen
from flip_flop.tasks.paper_splits import divide, name_rows
from flip_flop.tasks.sources import LoadedSource, Rows
from flip_flop.tasks.task import Task


@dataclass(frozen=True)
class CatalogData:
    """A dataset at hand.

    Attributes:
        entry: Its data file.
        train: The rows of the official split that is divided, named.
        test: Those of the official split that is tested on.
        screening: Templates kept and dropped, and the rows that render alike.
        task: The task, with the paper's splits.
    """

    entry: CatalogEntry
    train: Rows
    test: Rows
    screening: Screening
    task: Task


def catalog_task(
    name: str, *, hub_mirror: Path | None = None, story_cloze_dir: Path | None = None, seed: int = 0
) -> Task:
    """One of the paper's datasets, with its templates and splits; the arguments are those of :func:`catalog_data`."""
    return catalog_data(name, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir, seed=seed).task


def catalog_data(
    name: str, *, hub_mirror: Path | None = None, story_cloze_dir: Path | None = None, seed: int = 0
) -> CatalogData:
    """Load a dataset, choose its templates and divide its rows.

    Args:
        name: One of :func:`catalog_names`.
        hub_mirror: A folder to read instead of the hub.
        story_cloze_dir: The folder of StoryCloze's two files.
        seed: The seed of the split: the same one gives the same rows on every machine.

    Raises:
        InputError: ``E-TASK-UNKNOWN``; ``E-TPL-FETCH``: PromptSource's templates are not there; ``E-DATA-HUB``,
            ``E-DATA-FILE`` or ``E-DATA-STORYCLOZE``: the rows are not; ``E-DATA-COLUMN``: they are of another shape.
    """
    entry = catalog_entry(name)
    folder = templates_folder()
    candidates = read_promptsource(folder, entry.templates)
    train, test = (
        _official_rows(entry, official, hub_mirror, story_cloze_dir) for official in (entry.train_from, entry.test_from)
    )
    found = screen(name, candidates, train, test, label_field=entry.label_field, num_labels=len(entry.labels))
    if not len(found.selection.kept):
        template, reason = found.selection.dropped[0]
        message = f"{entry.place}: no template renders for every row; {template!r}: {reason}."
        raise InputError("E-TPL-EMPTY", message, "Get the official rows anew.")
    undivided = _task(entry, found.selection.kept)
    undivided.gold_labels(test)
    splits = divide(train, test, undivided.gold_labels(train), entry.policy, doubles=found.doubles, seed=seed)
    templates = {"promptsource": entry.templates, "sha256": sha256_file(folder / entry.templates / FILE_NAME)}
    return CatalogData(entry, train, test, found, _task(entry, found.selection.kept, splits, templates))


def _official_rows(
    entry: CatalogEntry, official: OfficialSplit, hub_mirror: Path | None, story_cloze_dir: Path | None
) -> Rows:
    rows = entry.source(official, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir).load()
    columns = rows.columns()
    for field in entry.fields:
        if field not in columns:
            message = f"{rows.source} has no column {field!r}, which {entry.name} has."
            raise InputError("E-DATA-COLUMN", message, nearest(field, columns))
    return name_rows(rows, official.split, entry.id_field, entry.named_by)


def _task(
    entry: CatalogEntry,
    kept: TemplateSet,
    splits: dict[str, Rows] | None = None,
    templates: dict[str, str] | None = None,
) -> Task:
    data = {
        split: LoadedSource(replace(rows, provenance={**rows.provenance, "templates": templates}))
        for split, rows in (splits or {}).items()
    }
    return Task(
        name=entry.name,
        templates=kept,
        data=data,
        labels=entry.labels,
        label_field=entry.label_field,
        f1=entry.f1,
        description=entry.description,
    )
