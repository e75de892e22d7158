"""``flip-flop tasks``, ``flip-flop templates fetch`` and ``flip-flop templates search``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from flip_flop.cli.options import DataOptions, RowOptions, options
from flip_flop.console import align_columns, echo, visible
from flip_flop.errors import InputError, nearest
from flip_flop.method.settings import Protocol

if TYPE_CHECKING:
    from flip_flop.paper.data.catalog import CatalogData, CatalogEntry, Comparison

COLUMNS = ("task", "train", "validation", "test", "templates", "labels")


@click.group("tasks", short_help="The paper's datasets by name: list, show, check.")
def tasks_command() -> None:
    """The paper's datasets: their names, sources and sizes."""


@tasks_command.command("list", short_help="Names and sizes, as in the paper.")
def list_command() -> int:
    """List names, labels, templates and sizes of the paper's table without reading data."""
    from flip_flop.paper.data.catalog import catalog_entry, catalog_names

    entries = [catalog_entry(name) for name in catalog_names()]
    rows = [[entry.name, *(str(entry.paper[column]) for column in COLUMNS[1:]), entry.source_name] for entry in entries]
    echo(align_columns([[*COLUMNS, "from"], *rows]))
    echo("\nnext: flip-flop tasks check, or flip-flop tasks show rte")
    return 0


@tasks_command.command("show", short_help="A dataset's source, fields, labels and splits.")
@click.argument("task")
@options(RowOptions)
def show_command(data: RowOptions, task: str) -> int:
    """Show the source, fields, labels and splits of a dataset, and its templates if the rows are available."""
    from flip_flop.metrics import resolve_average
    from flip_flop.paper.data.catalog import catalog_entry

    entry = catalog_entry(task)
    train, test = entry.train_from, entry.test_from
    labels = ", ".join(f"{label!r} {name}" for label, name in zip(entry.labels, entry.label_names, strict=True))
    for key, value in (
        (entry.name, entry.description),
        ("from", f"{entry.source_name}: {train.split} ({train.rows:,} rows), {test.split} ({test.rows:,} rows)"),
        ("fields", ", ".join(entry.fields)),
        ("labels", f"{entry.label_field}: {labels}"),
        ("f1", f"of {entry.label_names[1]}" if resolve_average(entry.f1, len(entry.labels)) == "binary" else "macro"),
        ("splits", entry.policy.describe(train.split, test.split, data.protocol)),
        ("templates", f"PromptSource, {entry.templates}"),
    ):
        echo(f"{key + ':':11}{value}")
    try:
        dataset = _open(data, task, data.protocol)
    except InputError as error:
        echo(f"\nthe kept templates depend on the rows, which are not available:\n{error}")
    else:
        echo(_details(dataset))
    return 0


@tasks_command.command("check", short_help="Compare the numbers with the published numbers.")
@click.argument("tasks", nargs=-1)
@options(DataOptions)
@click.option("--protocol", type=click.Choice(get_args(Protocol)), help="By default both, one after the other.")
@click.option("--seed", default=0, show_default=True, help="For the paper's splits; audit and train use 0.")
def check_command(data: DataOptions, tasks: Sequence[str], protocol: str | None, seed: int) -> int:
    """Compare rows, templates and labels with the published numbers, which are in parentheses if they differ.

    Without a name, all datasets are compared, under both protocols. Exit code 1: a number differs without a known
    reason, or rows are not available. StoryCloze, which its owners give to each user, may be missing.
    """
    from flip_flop.hub import hub_answers
    from flip_flop.paper.data.catalog import ROW_PROTOCOLS, catalog_entry, catalog_names, compare

    entries = [catalog_entry(name) for name in tasks or catalog_names()]
    protocols = [name for name in ROW_PROTOCOLS if protocol in (None, name)]
    comparisons_of: dict[str, list[Comparison]] = {}
    missing: dict[str, InputError] = {}
    for entry in entries:
        try:
            comparisons_of[entry.name] = [compare(_open(data, entry.name, name, seed)) for name in protocols]
        except InputError as error:
            if error.code == "E-TPL-FETCH":
                raise
            missing[entry.name] = error
            if error.code == "E-DATA-HUB" and not hub_answers():
                echo("the hub cannot be reached: the other datasets are not tried", err=True)
                break
    for place, name in enumerate(protocols):
        comparisons = {task: of_protocols[place] for task, of_protocols in comparisons_of.items()}
        cells = [_cells(entry, comparisons.get(entry.name), name) for entry in entries]
        echo(align_columns([list(COLUMNS), *cells]))
        echo("\n".join(["", f"protocol {name}: {ROW_PROTOCOLS[name]}", *_notes(list(comparisons.values())), ""]))
    for name, reason in missing.items():
        echo(f"{name}: {reason}")
    is_complete = not missing or (set(missing) == {"storycloze"} and data.story_cloze_dir is None)
    return (
        0
        if is_complete and not any(comparison.unexplained for both in comparisons_of.values() for comparison in both)
        else 1
    )


def _open(data: DataOptions, name: str, protocol: str, seed: int = 0) -> "CatalogData":
    from flip_flop.paper.data.catalog import catalog_data
    from flip_flop.tasks import TaskRequest
    from flip_flop.tasks.loading import VALUE_LIMITS

    request = TaskRequest(
        name=name,
        hub_mirror=data.hub_mirror,
        story_cloze_dir=data.story_cloze_dir,
        seed=seed,
        splits=protocol,
        value_limit=VALUE_LIMITS[protocol],
    )
    return catalog_data(request)


def _cells(entry: "CatalogEntry", comparison: "Comparison | None", splits: str) -> list[str]:
    """Return the found numbers, each with the published number in parentheses if it differs."""
    cells = [entry.name]
    for column, published in entry.published(splits).items():
        here = None if comparison is None else comparison.found[column]
        cells.append(str(here) if here == published else f"{'-' if here is None else here} ({published})")
    return cells


def _notes(comparisons: Sequence["Comparison"]) -> list[str]:
    """Return the reasons for differences, one line per dataset."""
    same = [comparison.name for comparison in comparisons if comparison.found == comparison.published]
    lines = [f"as published: {', '.join(same)}"] if same else []
    for comparison in comparisons:
        unknown = [f"no known reason: {', '.join(comparison.unexplained)}"] if comparison.unexplained else []
        if reasons := [*comparison.reasons, *unknown]:
            lines.append(f"{comparison.name}: {'; '.join(reasons)}")
    return lines


def _details(data: "CatalogData") -> str:
    """Describe the rows: sizes, labels per split, and kept templates."""
    lines = ["", "rows:"]
    for split in ("train", "validation", "test"):
        rows = data.task.rows(split)
        gold = data.task.gold_labels(rows)
        shares = ", ".join(
            f"{name} {100 * gold.count(index) / len(gold):.1f} %" for index, name in enumerate(data.entry.label_names)
        )
        lines.append(f"  {split:11}{len(rows):6} rows ({shares})")
    lines += ["", "templates:", *(f"  {template.name}" for template in data.task.templates)]
    lines += [f"  not {name}: {reason}" for name, reason in data.task.dropped_templates]
    return "\n".join(lines)


@click.command("fetch", short_help="Put PromptSource's templates into the user's cache.")
@click.option("--from", "source", type=click.Path(path_type=Path), help="Without a network: the archive or its folder.")
def fetch_command(source: Path | None) -> int:
    """Put PromptSource's templates into the user's cache, once.

    pip downloads promptsource 0.2.3 (Apache-2.0) from the package index. The program checks its SHA-256 and
    reads only its YAML files.
    """
    from flip_flop.paper.data.promptsource import fetch, promptsource_names

    folder = fetch(source)
    echo(f"{folder}: the templates of {len(promptsource_names(folder))} datasets")
    return 0


@click.command("search", short_help="PromptSource's sets, with their numbers of usable templates.")
@click.argument("word", default="")
def search_command(word: str) -> int:
    """List PromptSource's sets whose name or template has WORD; without it, all.

    The last column has the names of the templates that have WORD, and of all templates if WORD is the name of the set.
    A template is usable if it asks for the dataset's own task, has answers, and passes the sandbox. Use
    `flip-flop templates list promptsource:SET` to see whether it renders for every row.
    """
    from flip_flop.paper.data.promptsource import promptsource_names, search, templates_folder

    lines, total = [["set", "templates", "original task", "usable", ""]], [0, 0, 0]
    for name, sources in search(word):
        if isinstance(sources, InputError):
            lines.append([name, "-", "-", "-", sources.code])
            continue
        counts = [
            len(sources),
            sum(source.original_task for source in sources),
            sum(source.is_usable for source in sources),
        ]
        names = [
            source.name.strip()
            for source in sources
            if word and (word == name or word.casefold() in source.name.casefold())
        ]
        lines.append([name, *map(str, counts), visible(", ".join(names), one_line=True)])
        total = [before + more for before, more in zip(total, counts, strict=True)]
    if len(lines) == 1:
        raise InputError(
            "E-TASK-UNKNOWN",
            f"no set or template of PromptSource has {word!r}.",
            nearest(word, promptsource_names(templates_folder())),
        )
    echo(align_columns([*lines, [f"{len(lines) - 1} sets", *map(str, total), ""]]))
    return 0
