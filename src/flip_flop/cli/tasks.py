"""``flip-flop tasks``: the paper's datasets by name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import click

from flip_flop.cli.options import DataOptions, RowOptions, options
from flip_flop.console import align_columns, echo
from flip_flop.errors import InputError
from flip_flop.method.settings import Protocol

if TYPE_CHECKING:
    from flip_flop.tasks.catalog import CatalogData, CatalogEntry, Comparison

COLUMNS = ("task", "train", "validation", "test", "templates", "labels")


@click.group("tasks")
def tasks_command() -> None:
    """The paper's datasets: which there are, where they come from, and whether they are what is published."""


@tasks_command.command("list", short_help="Names and sizes, as in the paper.")
def list_command() -> int:
    """Names, labels, templates and sizes, as the paper's table prints them; no data is read."""
    from flip_flop.tasks.catalog import catalog_entry, catalog_names

    entries = [catalog_entry(name) for name in catalog_names()]
    rows = [[entry.name, *(str(entry.paper[column]) for column in COLUMNS[1:]), entry.source_name] for entry in entries]
    echo(align_columns([[*COLUMNS, "from"], *rows]))
    echo("\nnext: flip-flop tasks check, or flip-flop tasks show rte")
    return 0


@tasks_command.command("show", short_help="A dataset's source, fields, labels and splits.")
@click.argument("task")
@options(RowOptions)
def show_command(data: RowOptions, task: str) -> int:
    """Where a dataset comes from, its fields, labels and splits; and its templates, where its rows are available."""
    from flip_flop.metrics import resolve_average
    from flip_flop.tasks.catalog import catalog_entry
    from flip_flop.tasks.protocols import row_protocol

    entry = catalog_entry(task)
    train, test, splits = entry.train_from, entry.test_from, row_protocol(data.protocol).splits
    labels = ", ".join(f"{label!r} {name}" for label, name in zip(entry.labels, entry.label_names, strict=True))
    for key, value in (
        (entry.name, entry.description),
        ("from", f"{entry.source_name}: {train.split} ({train.rows:,} rows), {test.split} ({test.rows:,} rows)"),
        ("fields", ", ".join(entry.fields)),
        ("labels", f"{entry.label_field}: {labels}"),
        ("f1", "of label 1" if resolve_average(entry.f1, len(entry.labels)) == "binary" else "macro"),
        ("splits", entry.policy.describe(train.split, test.split, splits)),
        ("templates", f"PromptSource, {entry.templates}"),
    ):
        echo(f"{key + ':':11}{value}")
    try:
        dataset = data.open_paper(task, protocol=data.protocol)
    except InputError as error:
        echo(f"\nwhich templates are kept depends on the rows, which are not available:\n{error}")
    else:
        echo(_details(dataset))
    return 0


@tasks_command.command("check", short_help="Compare what is found with what is published.")
@click.argument("tasks", nargs=-1)
@options(DataOptions)
@click.option("--protocol", type=click.Choice(get_args(Protocol)), help="By default both, one after the other.")
@click.option("--seed", default=0, show_default=True, help="For the paper's splits; audit and train use 0.")
def check_command(data: DataOptions, tasks: Sequence[str], protocol: str | None, seed: int) -> int:
    """Rows per split, templates and labels, and in parentheses the published ones where they differ.

    The paper's splits stand beside its table, the release's beside its own sizes. Without a name, all datasets. Exit
    status 1 where a number differs for no known reason, or where rows are not available; StoryCloze, which its owners
    give to each user, may be missing.
    """
    from flip_flop.hub import hub_answers
    from flip_flop.tasks.catalog import catalog_entry, catalog_names, compare
    from flip_flop.tasks.protocols import row_protocols

    entries = [catalog_entry(name) for name in tasks or catalog_names()]
    protocols = [each for each in row_protocols().values() if protocol in (None, each.name)]
    found: dict[str, list[Comparison]] = {}
    missing: dict[str, InputError] = {}
    for entry in entries:
        try:
            found[entry.name] = [compare(data.open_paper(entry.name, seed, each.name)) for each in protocols]
        except InputError as error:
            if error.code == "E-TPL-FETCH":  # it is the same for every dataset
                raise
            missing[entry.name] = error
            if error.code == "E-DATA-HUB" and not hub_answers():  # nor for the next one
                echo("the hub cannot be reached: the other datasets are not tried", err=True)
                break
    for place, each in enumerate(protocols):
        comparisons = {name: of_protocols[place] for name, of_protocols in found.items()}
        cells = [_cells(entry, comparisons.get(entry.name), each.splits) for entry in entries]
        echo(align_columns([list(COLUMNS), *cells]))
        echo("\n".join(["", f"protocol {each.name}: {each.source}", *_notes(list(comparisons.values())), ""]))
    for name, reason in missing.items():
        echo(f"{name}: {reason}")
    is_complete = not missing or (set(missing) == {"storycloze"} and data.story_cloze_dir is None)
    return 0 if is_complete and not any(each.unexplained for both in found.values() for each in both) else 1


def _cells(entry: "CatalogEntry", comparison: "Comparison | None", splits: str) -> list[str]:
    """What was found, with the published number in parentheses where it differs."""
    cells = [entry.name]
    for column, published in entry.published(splits).items():
        here = None if comparison is None else comparison.found[column]
        cells.append(str(here) if here == published else f"{'-' if here is None else here} ({published})")
    return cells


def _notes(comparisons: Sequence["Comparison"]) -> list[str]:
    """Why numbers differ, a line for each dataset."""
    same = [comparison.name for comparison in comparisons if comparison.found == comparison.published]
    lines = [f"as published: {', '.join(same)}"] if same else []
    for comparison in comparisons:
        unknown = [f"no known reason: {', '.join(comparison.unexplained)}"] if comparison.unexplained else []
        if reasons := [*comparison.reasons, *unknown]:
            lines.append(f"{comparison.name}: {'; '.join(reasons)}")
    return lines


def _details(data: "CatalogData") -> str:
    """What only the rows tell: sizes, labels per split, the templates that are kept."""
    lines = ["", "rows:"]
    for split in ("train", "validation", "test"):
        rows = data.task.rows(split)
        gold = data.task.gold_labels(rows)
        shares = ", ".join(
            f"{name} {100 * gold.count(index) / len(gold):.1f} %" for index, name in enumerate(data.entry.label_names)
        )
        lines.append(f"  {split:11}{len(rows):6} rows ({shares})")
    lines += ["", "templates:", *(f"  {template.name}" for template in data.task.templates)]
    lines += [f"  not {name}: {reason}" for name, reason in data.dropped_templates]
    return "\n".join(lines)
