"""``flip-flop templates``: fetch PromptSource's, list them, show what they say, find what is wrong with one's own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flip_flop.cli.options import data_options, open_task, templates_option
from flip_flop.errors import InputError
from flip_flop.text import align_columns, visible

if TYPE_CHECKING:
    from flip_flop.prompts.lint import Encode, Finding, LintRow
    from flip_flop.tasks import Task

task_argument = click.argument("task")


@click.group("templates")
def templates_command() -> None:
    """PromptSource's templates and one's own: fetch, list, show, lint."""


@templates_command.command("fetch", short_help="Put PromptSource's templates into the user's cache.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="The archive, or the folder that it unpacks to, where there is no network.",
)
def fetch_command(source: Path | None) -> int:
    """Put PromptSource's templates into the user's cache, once.

    They come with pip from the package index, as promptsource 0.2.3 (Apache-2.0), checked by their SHA-256. Only the
    YAML files are read.
    """
    from flip_flop.prompts.archive import fetch
    from flip_flop.prompts.promptsource import promptsource_names

    folder = fetch(source)
    click.echo(f"{folder}: the templates of {len(promptsource_names(folder))} datasets")
    return 0


@templates_command.command("list", short_help="Names, kept or dropped and why, answers.")
@task_argument
@data_options
def list_command(task: str, hub_mirror: Path | None, story_cloze_dir: Path | None) -> int:
    """Each template of TASK: whether it is kept, why it is not, and its answers.

    TASK is a dataset of the paper (`flip-flop tasks list`), a task file, or `demo`.
    """
    from flip_flop.tasks.catalog import catalog_data, catalog_names

    dropped: dict[str, str] = {}
    if task in catalog_names():
        data = catalog_data(task, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir)
        found, dropped = data.task, dict(data.screening.selection.dropped)
    else:
        found = open_task(task, "all", hub_mirror, story_cloze_dir)
    lines = [
        (name, "held out" if name in found.held_out_templates else "kept", template.answer_choices or "")
        for name, template in zip(found.templates.names, found.templates, strict=True)
    ]
    lines = sorted(lines + [(name, "dropped", reason) for name, reason in dropped.items()]) if dropped else lines
    click.echo(f"{found.name}: {len(found.templates)} templates kept, {len(dropped)} dropped")
    click.echo(align_columns([["template", "", "answers, or why not"], *lines], indent="  "))
    return 0


@templates_command.command("show", short_help="One instance under every template.")
@task_argument
@click.option("--instance", "-n", default="1", show_default=True, help="Its number in the split, or its id.")
@click.option("--split", default="test", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of templates that draw at random.")
@templates_option
@data_options
def show_command(
    task: str,
    instance: str,
    split: str,
    seed: int,
    templates: str | None,
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
) -> int:
    """One instance of TASK under every template, as a model gets it, with the answers; * is the gold one."""
    found = open_task(task, templates, hub_mirror, story_cloze_dir)
    instances = found.instances(split, seed=seed, need_labels=False)
    by_id = {each.id: each for each in instances}
    if instance not in by_id and not (instance.isdecimal() and 0 < int(instance) <= len(instances)):
        message = f"{found.name}, {split}, has no instance {instance!r}."
        raise InputError("E-DATA-INSTANCE", message, f"Give a number from 1 to {len(instances)}, or an id.")
    chosen = by_id.get(instance) or instances[int(instance) - 1]
    click.echo(f"{visible(f'{found.name}, {split}, instance {chosen.id}', one_line=True)}")
    for name, prompt, choices in zip(found.templates.names, chosen.prompts, chosen.choices, strict=True):
        click.echo(f"\n--- {visible(name, one_line=True)} ---\n{visible(prompt)}")
        for index, choice in enumerate(choices):
            click.echo(f"  {'*' if index == chosen.label else ' '} {index + 1}. {visible(choice, one_line=True)}")
    return 0


@templates_command.command("lint", short_help="What is wrong with the templates of a task file.")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option("--model", "-m", help="Also compare the answers' tokens, with this model's tokenizer.")
@click.option("--revision", help="The model's commit, branch or tag on the hub.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Look at a seeded uniform sample of this many rows of each split.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@data_options
def lint_command(
    tasks: tuple[str, ...],
    model: str | None,
    revision: str | None,
    limit: int,
    seed: int,
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
) -> int:
    """What is wrong or doubtful about the templates of task files, on their rows; exit code 2 where one is wrong.

    A folder stands for the task files (.yaml, .yml) in it.
    """
    encode = None if model is None else _encoder(model, revision)
    failed = False
    names = [name for given in tasks for name in _task_files(given)]
    for name in names:
        try:
            task = open_task(name, "all", hub_mirror, story_cloze_dir)
            failed |= _lint(name, task, limit, seed, encode)
        except InputError as error:
            if len(names) == 1:
                raise
            click.echo(str(error), err=True)
            failed = True
    return 2 if failed else 0


def _task_files(given: str) -> list[str]:
    """The task files in a folder, or what was given."""
    folder = Path(given)
    return sorted(str(path) for path in folder.glob("*.y*ml")) or [given] if folder.is_dir() else [given]


def _lint(name: str, task: "Task", limit: int, seed: int, encode: "Encode | None") -> bool:
    """Print what is found in one task; whether an error is among it."""
    from flip_flop.prompts.lint import lint_templates

    rows = [row for split in task.data for row in _sample(task, split, limit, seed)]
    findings = lint_templates(
        task.templates,
        rows,
        label_field=task.label_field,
        num_labels=None if task.labels is None else len(task.labels),
        seed=seed,
        encode=encode,
    )
    errors = sum(finding.is_error for finding in findings)
    warnings = len(findings) - errors
    counts = {"template": len(task.templates), "row": len(rows), "error": errors, "warning": warnings}
    summary = [f"{count:,} {word}{'s' if count != 1 else ''}" for word, count in counts.items()]
    click.echo(f"{name}: {', '.join(summary)}")
    if findings:
        click.echo(align_columns([["code", "template", "what"], *_lines(findings)], indent="  "))
    return errors > 0


def _sample(task: "Task", split: str, limit: int, seed: int) -> "Iterator[LintRow]":
    """Rows of a split: the same ones for the same seed."""
    from flip_flop.prompts.lint import LintRow
    from flip_flop.randomness import derive_seed

    rows = task.rows(split)
    gold = task.gold_labels(rows, need_labels=False)
    by_chance = sorted(range(len(rows)), key=lambda index: derive_seed(seed, "lint", index))
    for index in sorted(by_chance[:limit]):
        row = rows.rows[index]
        yield LintRow(f"{split} {rows.unit} {row.number}", row.fields, gold[index])


def _lines(findings: "Sequence[Finding]") -> list[tuple[str, str, str]]:
    """A line for each finding; what is found of several templates alike is one."""
    names: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        more = f" and {finding.num_rows - 1:,} more" if finding.num_rows > 1 else ""
        place = f"{finding.row}{more}: " if finding.row else ""
        names.setdefault((finding.code, f"{place}{finding.message}"), []).append(finding.template)
    return [
        (code, f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0], what)
        for (code, what), found in names.items()
    ]


def _encoder(model: str, revision: str | None) -> "Encode":
    """The tokens of answers, cut from their prompts as scoring cuts them."""
    from flip_flop.demo import demo_model_path
    from flip_flop.prompts import RenderedInstance
    from flip_flop.scoring.models import load_tokenizer
    from flip_flop.scoring.tokens import PromptEncoder

    tokenizer = load_tokenizer(str(demo_model_path()) if model == "demo" else model, revision)
    encoder = PromptEncoder(tokenizer)

    def encode(prompt: str, choices: tuple[str, ...]) -> Sequence[Sequence[int]]:
        (answers,) = encoder.encode(RenderedInstance("", (prompt,), (choices,), None)).answers
        return [answer.tokens for answer in answers]

    limit = tokenizer.model_max_length
    if limit < 1_000_000:  # "none" is written as a very large number
        encoder = replace(encoder, max_length=limit)
    return encode
