"""``flip-flop templates``: list, show and check templates."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from flip_flop.cli.lazy import LazyGroup
from flip_flop.cli.options import DataOptions, TemplateOptions, options
from flip_flop.console import align_columns, count, echo, on_one_line, visible
from flip_flop.errors import InputError
from flip_flop.files import derive_seed
from flip_flop.prompts import Encode, Fields, LintRow, RenderedInstance, Rendering, lines_of, lint_templates
from flip_flop.tasks import Task

LAZY = {
    "fetch": ("flip_flop.paper.cli:fetch_command", "Download PromptSource's templates."),
    "vary": ("flip_flop.variation.cli:vary_command", "Write variants and paraphrases of templates."),
}


@click.group("templates", cls=LazyGroup, lazy=LAZY)
def templates_command() -> None:
    """PromptSource's templates and your own: fetch, list, show, lint."""


@templates_command.command("list", short_help="Names, answers, and reasons of dropped templates.")
@click.argument("task")
@options(DataOptions)
def list_command(data: DataOptions, task: str) -> None:
    """List the templates of TASK with their answers, and the dropped templates with the reason.

    TASK is a dataset of the paper (`flip-flop tasks list`), `promptsource:SET`, a task file, or `demo`. Its rows are
    needed.
    """
    opened = data.open(task, "all")
    dropped = opened.dropped_templates
    lines = [
        (name, "held out" if name in opened.held_out_templates else "kept", template.answer_choices or "")
        for name, template in zip(opened.templates.names, opened.templates, strict=True)
    ]
    if dropped:
        lines = sorted([*lines, *((name, "dropped", reason) for name, reason in dropped)])
    echo(f"{opened.name}: {len(opened.templates)} templates kept, {len(dropped)} dropped")
    echo(align_columns([["template", "", "answers, or why not"], *lines], indent="  "))


@templates_command.command("show", short_help="One instance under every template.")
@click.argument("task")
@click.option("--instance", "-n", default="1", show_default=True, help="Its number in the split, or its id.")
@click.option("--split", default="test", show_default=True, help="Which split it is in.")
@click.option("--seed", default=0, show_default=True, help="For templates that draw at random.")
@options(TemplateOptions, DataOptions)
def show_command(
    templates: TemplateOptions, data: DataOptions, task: str, instance: str, split: str, seed: int
) -> None:
    """Show one instance of TASK under every template, with its answers. * marks the gold answer.

    Scoring puts each prompt into the model's chat template, if it has one, with the task's additions to it.
    """
    opened = data.open(task, templates.templates, axes=templates.axes)
    instances = opened.instances(split, seed=seed, need_labels=False)
    by_name = {str(number): each for number, each in enumerate(instances, start=1)}
    selected = (by_name | {each.id: each for each in instances}).get(instance)
    if selected is None:
        raise InputError(
            "E-TASK-UNKNOWN",
            f"{opened.name}, {split}, has no instance {instance!r}.",
            f"Give a number from 1 to {len(instances)}, or an id.",
        )
    echo(on_one_line(f"{opened.name}, {split}, instance {selected.id}"))
    for key, value in selected.chat.given.items():
        echo(on_one_line(f"{key}: {value}"))
    for name, prompt, choices in zip(opened.templates.names, selected.prompts, selected.choices, strict=True):
        echo(f"\n--- {on_one_line(name)} ---\n{visible(prompt)}")
        for index, choice in enumerate(choices):
            echo(f"  {'*' if index == selected.label else ' '} {index + 1}. {on_one_line(choice)}")


@templates_command.command("lint", short_help="Errors and warnings about the templates of a task file.")
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
@click.option("--seed", default=0, show_default=True, help="For the sample, and for templates that draw at random.")
@options(DataOptions)
def lint_command(
    data: DataOptions, tasks: tuple[str, ...], model: str | None, revision: str | None, limit: int, seed: int
) -> int:
    """Check the templates of task files on their rows. The exit code is 2 if there are errors.

    A folder means all task files (.yaml, .yml) in it.
    """
    encode = None if model is None else _encoder(model, revision)
    failed = False
    files = {place: sorted(map(str, Path(place).glob("*.y*ml"))) for place in tasks}  # of a folder; none of a file
    names = [name for place in tasks for name in files[place] or [place]]
    for name in names:
        try:
            failed |= _lint(name, data.open(name, "all"), limit, seed, encode)
        except InputError as error:
            if len(names) == 1:
                raise
            echo(str(error), err=True)
            failed = True
    return 2 if failed else 0


def _lint(name: str, task: Task, limit: int, seed: int, encode: Encode | None) -> bool:
    """Print the findings of one task; return whether one is an error."""
    rows = [row for split in task.data for row in sample_rows(task, split, limit, seed)]
    findings = lint_templates(
        task.templates,
        rows,
        label_field=task.label_field,
        num_labels=task.num_labels,
        seed=seed,
        encode=encode,
    )
    errors = sum(finding.is_error for finding in findings)
    read = f"{count(len(task.templates), 'template')}, {count(len(rows), 'row')}"
    echo(f"{name}: {read}, {count(errors, 'error')}, {count(len(findings) - errors, 'warning')}")
    if findings:
        echo(align_columns([["code", "template", "what"], *lines_of(findings)], indent="  "))
    return errors > 0


def sample_rows(task: Task, split: str, limit: int, seed: int) -> Iterator[LintRow]:
    """Yield a seeded uniform sample of the rows of a split."""
    rows = task.rows(split)
    if task.id_field and not rows.ids:
        rows.ids_from(task.id_field)  # refuses what an audit refuses
    gold = task.gold_labels(rows, need_labels=split != "train")
    by_chance = sorted(range(len(rows)), key=lambda index: derive_seed(seed, "lint", index))
    for index in sorted(by_chance[:limit]):
        row = rows.rows[index]
        yield LintRow(f"{split} {rows.unit} {row.number}", row.fields, gold[index])


def _encoder(model: str, revision: str | None) -> Encode:
    """Return the encoding of prompts and answers for scoring, which raises the tokenizer's errors."""
    from flip_flop.scoring.encode import PromptEncoder
    from flip_flop.scoring.models import load_tokenizer

    tokenizer = load_tokenizer(model, revision)
    limit = tokenizer.model_max_length  # a very large number if unknown
    encoder = PromptEncoder(tokenizer, max_length=limit if limit < 1_000_000 else None)

    def encode(rendering: Rendering, fields: Fields) -> set[str]:
        prompt, choices = rendering
        instance = RenderedInstance("", (prompt,), (choices,), None)
        encoder.encode(instance)
        return encoder.special_tokens_of_row(replace(instance, fields=fields))

    return encode
