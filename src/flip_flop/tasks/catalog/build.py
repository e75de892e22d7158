"""A dataset's task: official rows, the templates that render for all of them, the paper's splits."""

from dataclasses import dataclass, replace
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.files import sha256_file
from flip_flop.prompts.archive import FILE_NAME, templates_folder
from flip_flop.prompts.promptsource import read_promptsource
from flip_flop.tasks.catalog.entry import CatalogEntry, catalog_entry
from flip_flop.tasks.catalog.row_checks import check_rows
from flip_flop.tasks.paper_splits import Duplicates, divide, name_rows
from flip_flop.tasks.sources import Rows
from flip_flop.tasks.task import Task


@dataclass(frozen=True)
class CatalogData:
    """A dataset: its named official rows, what is not used of them and of the templates, and the task.

    ``dropped_templates`` are the name and the reason of each template of PromptSource's that is not used.
    """

    entry: CatalogEntry
    train: Rows
    test: Rows
    dropped_templates: tuple[tuple[str, str], ...]
    duplicates: Duplicates
    task: Task


def catalog_data(
    name: str, *, hub_mirror: Path | None = None, story_cloze_dir: Path | None = None, seed: int = 0
) -> CatalogData:
    """Load one of :func:`catalog_names`, choose its templates and divide its rows, by ``seed``.

    Raises:
        InputError: ``E-TASK-UNKNOWN``; ``E-TPL-FETCH``: PromptSource's templates are missing; ``E-DATA-HUB``,
            ``E-DATA-FILE`` or ``E-DATA-STORYCLOZE``: the rows are; ``E-DATA-COLUMN``: they are of another shape.
    """
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
        name, candidates, train, test, label_field=entry.label_field, num_labels=len(entry.labels)
    )
    if not len(templates.kept):
        template, reason = templates.dropped[0]
        message = f"{entry.source_name}: no template renders for every row; {template!r}: {reason}."
        raise InputError("E-TPL-EMPTY", message, "Download the dataset again.")
    task = Task(
        name=name,
        templates=templates.kept,
        labels=entry.labels,
        label_field=entry.label_field,
        f1=entry.f1,
        description=entry.description,
    )
    task.gold_labels(test)
    splits = divide(train, test, task.gold_labels(train), entry.policy, duplicates=duplicates, seed=seed)
    source = {"promptsource": entry.templates, "sha256": sha256_file(folder / entry.templates / FILE_NAME)}
    data = {split: replace(rows, provenance={**rows.provenance, "templates": source}) for split, rows in splits.items()}
    return CatalogData(entry, train, test, templates.dropped, duplicates, replace(task, data=data))
