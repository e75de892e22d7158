"""``flip-flop templates``: fetch PromptSource's; list, show and check templates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flip_flop.cli.options import BaseModelOptions, DataOptions, TemplateOptions, check_task_out, option, options
from flip_flop.console import align_columns, count, echo, percent, visible
from flip_flop.errors import InputError

if TYPE_CHECKING:
    from flip_flop.drafting.vary import VariedTemplate
    from flip_flop.prompts.lint import Encode, Finding, LintRow
    from flip_flop.tasks import Task


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TemplateOptions):
    """What ``show`` shows."""

    instance: str = option("1", short="-n", help="Its number in the split, or its id.")
    split: str = option("test", help="Which split it is in.")
    seed: int = option(0, help="For templates that draw at random.")


@dataclass(frozen=True, kw_only=True)
class LintOptions:
    """What ``lint`` looks at."""

    model: str | None = option(None, short="-m", help="Also compare the answers' tokens, with this model's tokenizer.")
    revision: str | None = option(None, help="The model's commit, branch or tag on the hub.")
    limit: int = option(1000, min=1, help="Look at a seeded uniform sample of this many rows of each split.")
    seed: int = option(0, help="For the sample, and for templates that draw at random.")


@dataclass(frozen=True, kw_only=True)
class VaryOptions(TemplateOptions):
    """What ``vary`` makes, and from what."""

    out: Path = option(short="-o", help="The new task file.")
    number: int = option(20, short="-n", min=2, help="How many templates there are to be, with the task's own.")
    typos: float = option(0.0, type=click.FloatRange(0, 1), help="The share of words in which a new format has a typo.")
    paraphraser: str | None = option(None, metavar="MODEL", help="Also ask this causal model for other words.")
    paraphrases: int = option(4, min=1, help="How many to ask for of each template.")
    model: str | None = option(None, short="-m", help="Show how this model answers each template.")
    split: str | None = option(None, help="Which rows it answers; by default train where there is one, else test.")
    limit: int = option(200, min=1, help="Lint and answer a seeded uniform sample of this many rows.")
    seed: int = option(0, help="For formats, paraphrases and samples.")
    overwrite: bool = option(False, help="Replace a task file that is there already.")


@click.group("templates")
def templates_command() -> None:
    """PromptSource's templates and your own: fetch, search, list, show, lint."""


@templates_command.command("fetch", short_help="Put PromptSource's templates into the user's cache.")
@click.option("--from", "source", type=click.Path(path_type=Path), help="Without a network: the archive or its folder.")
def fetch_command(source: Path | None) -> int:
    """Put PromptSource's templates into the user's cache, once.

    They come with pip from the package index, as promptsource 0.2.3 (Apache-2.0), checked by their SHA-256. Only the
    YAML files are read.
    """
    from flip_flop.prompts.archive import fetch
    from flip_flop.prompts.promptsource import promptsource_names

    folder = fetch(source)
    echo(f"{folder}: the templates of {len(promptsource_names(folder))} datasets")
    return 0


@templates_command.command("search", short_help="PromptSource's sets, and how many templates of each can be used.")
@click.argument("word", default="")
def search_command(word: str) -> int:
    """PromptSource's sets whose name, or a template's, holds WORD; without it, all.

    A template can be used where it asks for the set's own task, has answers, and does nothing that is not allowed.
    Whether it renders for every row, only the rows tell: `flip-flop templates list promptsource:SET`.
    """
    from flip_flop.tasks.promptsource_set import search

    lines, total = [["set", "templates", "original task", "usable", ""]], [0, 0, 0]
    for name, found in search(word):
        if isinstance(found, InputError):
            lines.append([name, "-", "-", "-", found.code])
            continue
        counts = [len(found), sum(each.original_task for each in found), sum(each.is_usable for each in found)]
        names = [each.name.strip() for each in found if word and word.casefold() in each.name.casefold()]
        lines.append([name, *map(str, counts), visible(", ".join(names), one_line=True)])
        total = [before + more for before, more in zip(total, counts, strict=True)]
    echo(align_columns([*lines, [f"{len(lines) - 1} sets", *map(str, total), ""]]))
    return 0


@templates_command.command("list", short_help="Names, kept or dropped and why, answers.")
@click.argument("task")
@options(DataOptions)
def list_command(data: DataOptions, task: str) -> int:
    """Each template of TASK: whether it is kept, why it is not, and its answers.

    TASK is a dataset of the paper (`flip-flop tasks list`), `promptsource:SET`, a task file, or `demo`.
    """
    from flip_flop.tasks.catalog import catalog_names
    from flip_flop.tasks.promptsource_set import PREFIX, set_task

    dropped: tuple[tuple[str, str], ...] = ()
    if task in catalog_names():
        dataset = data.open_paper(task)
        found, dropped = dataset.task, dataset.dropped_templates
    elif task.startswith(PREFIX):
        found, dropped = set_task(task.removeprefix(PREFIX), hub_mirror=data.hub_mirror)
    else:
        found = data.open(task, "all")
    lines = [
        (name, "held out" if name in found.held_out_templates else "kept", template.answer_choices or "")
        for name, template in zip(found.templates.names, found.templates, strict=True)
    ]
    if dropped:
        lines = sorted([*lines, *((name, "dropped", reason) for name, reason in dropped)])
    echo(f"{found.name}: {len(found.templates)} templates kept, {len(dropped)} dropped")
    echo(align_columns([["template", "", "answers, or why not"], *lines], indent="  "))
    return 0


@templates_command.command("show", short_help="One instance under every template.")
@click.argument("task")
@options(ShowOptions, DataOptions)
def show_command(show: ShowOptions, data: DataOptions, task: str) -> int:
    """One instance of TASK under every template, with the answers; * is the gold one.

    A model's chat template, where it has one, comes around each prompt, with what the task says of the chat.
    """
    found = data.open(task, show.templates)
    instances = found.instances(show.split, seed=show.seed, need_labels=False)
    by_name = {str(number): each for number, each in enumerate(instances, start=1)}
    chosen = (by_name | {each.id: each for each in instances}).get(show.instance)
    if chosen is None:
        message = f"{found.name}, {show.split}, has no instance {show.instance!r}."
        raise InputError("E-DATA-INSTANCE", message, f"Give a number from 1 to {len(instances)}, or an id.")
    echo(visible(f"{found.name}, {show.split}, instance {chosen.id}", one_line=True))
    for key, value in chosen.chat.given.items():
        echo(visible(f"{key}: {value}", one_line=True))
    for name, prompt, choices in zip(found.templates.names, chosen.prompts, chosen.choices, strict=True):
        echo(f"\n--- {visible(name, one_line=True)} ---\n{visible(prompt)}")
        for index, choice in enumerate(choices):
            echo(f"  {'*' if index == chosen.label else ' '} {index + 1}. {visible(choice, one_line=True)}")
    return 0


@templates_command.command("lint", short_help="What is wrong with the templates of a task file.")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@options(LintOptions, DataOptions)
def lint_command(lint: LintOptions, data: DataOptions, tasks: tuple[str, ...]) -> int:
    """What is wrong or doubtful about the templates of task files, on their rows; exit code 2 where one is wrong.

    A folder stands for the task files (.yaml, .yml) in it.
    """
    encode = None if lint.model is None else _encoder(lint.model, lint.revision)
    failed = False
    files = {given: sorted(map(str, Path(given).glob("*.y*ml"))) for given in tasks}  # of a folder; none of a file
    names = [name for given in tasks for name in files[given] or [given]]
    for name in names:
        try:
            failed |= _lint(name, data.open(name, "all"), lint, encode)
        except InputError as error:
            if len(names) == 1:
                raise
            echo(str(error), err=True)
            failed = True
    return 2 if failed else 0


@templates_command.command("vary", short_help="A task file with more templates, made from its own.")
@click.argument("task", type=click.Path(path_type=Path))
@options(VaryOptions, DataOptions)
def vary_command(vary: VaryOptions, data: DataOptions, task: Path) -> int:
    """Write the task file TASK with more templates to --out, made from those that are not held out.

    They are in other formats (separators, spaces, casing, what stands around marks, order of options; of FormatSpread's
    grammar what keeps the meaning) and, with --paraphraser, in other words. --templates names those that they are made
    from; the new file has the others too. Lint rejects what is no template or another's double. Nothing tells
    whether other words mean the same: read them, and give --model, which shows how often it answers each as the vote
    of the task's own templates, and how probable its labels are.
    """
    from flip_flop.drafting.paraphrase import sampler
    from flip_flop.drafting.vary import review, varied_task_text, vary_templates
    from flip_flop.files import write_text
    from flip_flop.tasks.promptsource_set import TARGET_FIELD

    if task.suffix not in (".yaml", ".yml"):
        raise InputError("E-TASK-FILE", f"{task} is no task file.", "Give one: its data are named in the new one.")
    click.get_current_context().with_resource(check_task_out(vary.out, overwrite=vary.overwrite))
    found = whole = data.open(str(task), "all")
    if whole.label_field == TARGET_FIELD:
        message = f"{task}: each row's label is the place of PromptSource's target, which no field of the rows holds."
        raise InputError("E-TASK-FILE", message, "Add label_field and labels to it, and list its templates.")
    if vary.templates:
        names = data.open(str(task), vary.templates).templates.names
        others = tuple(name for name in whole.templates.names if name not in names or name in whole.held_out_templates)
        found = replace(whole, held_out_templates=others)
    split = vary.split or ("train" if "train" in found.data else "test")
    found.rows(split)
    given = {name: BaseModelOptions(model=name) for name in (vary.paraphraser, vary.model) if name}
    for model in given.values():
        model.check()
    rows = [row for each in found.data for row in _sample(found, each, LintOptions(limit=vary.limit, seed=vary.seed))]
    loaded = {name: model.load() for name, model in given.items()}
    variants = vary_templates(
        found,
        rows,
        number=vary.number,
        seed=vary.seed,
        typos=vary.typos,
        generate=sampler(loaded[vary.paraphraser]) if vary.paraphraser else None,
        paraphrases=vary.paraphrases,
        by=vary.paraphraser or "",
    )
    shown = {}
    if vary.model:
        shown = review(loaded[vary.model], found, variants, split=split, limit=vary.limit, seed=vary.seed)
    write_text(vary.out, varied_task_text(task, vary.out, whole, variants))
    _show_variants(found, variants, shown, vary)
    return 0


def _show_variants(
    task: "Task", variants: "Sequence[VariedTemplate]", shown: dict[str, tuple[float, float]], vary: VaryOptions
) -> None:
    own = task.training_templates.names
    lines = [(name, "the task's own", "") for name in own]
    for each in variants:
        verdict = f"rejected: {each.rejected}" if each.rejected else " ".join(("kept", *each.warnings))
        lines.append((each.name, each.text, verdict))
    head: list[tuple[str, ...]] = [("template", "change", "verdict", *(("as the vote", "own labels") if shown else ()))]
    cells = [(*line, *(map(percent, shown.get(line[0], (None, None))) if shown else ())) for line in lines]
    kept = sum(not each.rejected for each in variants)
    reached = (
        f"{count(len(own) + kept, 'template')}, {len(own)} of them the task's own; {len(variants) - kept} rejected"
    )
    echo(align_columns([*head, *cells], num_left=3, rule=True))
    echo(f"{vary.out}: {reached}")
    if len(own) + kept < vary.number:
        echo(f"there are no {vary.number}: these templates have no more formats than were found", err=True)


def _lint(name: str, task: "Task", lint: LintOptions, encode: "Encode | None") -> bool:
    """Print the findings of one task; return whether one is an error."""
    from flip_flop.prompts.lint import lint_templates

    rows = [row for split in task.data for row in _sample(task, split, lint)]
    findings = lint_templates(
        task.templates,
        rows,
        label_field=task.label_field,
        num_labels=None if task.labels is None else len(task.labels),
        seed=lint.seed,
        encode=encode,
    )
    errors = sum(finding.is_error for finding in findings)
    read = f"{count(len(task.templates), 'template')}, {count(len(rows), 'row')}"
    echo(f"{name}: {read}, {count(errors, 'error')}, {count(len(findings) - errors, 'warning')}")
    if findings:
        echo(align_columns([["code", "template", "what"], *_lines(findings)], indent="  "))
    return errors > 0


def _sample(task: "Task", split: str, lint: LintOptions) -> "Iterator[LintRow]":
    from flip_flop.files import derive_seed
    from flip_flop.prompts.lint import LintRow

    rows = task.rows(split)
    gold = task.gold_labels(rows, need_labels=False)
    by_chance = sorted(range(len(rows)), key=lambda index: derive_seed(lint.seed, "lint", index))
    for index in sorted(by_chance[: lint.limit]):
        row = rows.rows[index]
        yield LintRow(f"{split} {rows.unit} {row.number}", row.fields, gold[index])


def _lines(findings: "Sequence[Finding]") -> list[tuple[str, str, str]]:
    """A line for each finding; one for several templates with the same finding."""
    names: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        more = f" and {finding.num_rows - 1:,} more" if finding.num_rows > 1 else ""
        where = f"{finding.row}{more}: " if finding.row else ""
        names.setdefault((finding.code, f"{where}{finding.message}"), []).append(finding.template)
    return [
        (code, f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0], what)
        for (code, what), found in names.items()
    ]


def _encoder(model: str, revision: str | None) -> "Encode":
    """Encodes a prompt and its answers as scoring does, to see what it refuses."""
    from flip_flop.prompts import RenderedInstance
    from flip_flop.scoring import PromptEncoder, load_tokenizer

    tokenizer = load_tokenizer(model, revision)
    limit = tokenizer.model_max_length  # a very large number stands for none
    encoder = PromptEncoder(tokenizer, max_length=limit if limit < 1_000_000 else None)

    return lambda prompt, choices: encoder.encode(RenderedInstance("", (prompt,), (choices,), None))
