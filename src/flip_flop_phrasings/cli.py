"""``flip-flop init DATA``, ``flip-flop templates vary`` and ``flip-flop audit --vary``."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flip_flop.cli.options import BaseModelOptions, DataOptions, TemplateOptions, options
from flip_flop.cli.plugin import AuditSection, SectionOptions
from flip_flop.cli.templates import sample_rows
from flip_flop.errors import InputError
from flip_flop.options import option
from flip_flop.terminal import echo
from flip_flop.text import align_columns, count, percent
from flip_flop_phrasings import TaskKind

if TYPE_CHECKING:
    from flip_flop.scoring import Scorer
    from flip_flop.tasks import Task
    from flip_flop_phrasings.draft import Draft
    from flip_flop_phrasings.vary import VariedTemplate


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """What ``init`` need not find out."""

    out: Path = option(Path("task.yaml"), short="-o", help="The task file.")
    text: tuple[str, ...] = option((), metavar="COLUMN", help="The column of texts; twice for a pair.")
    label: str | None = option(None, metavar="COLUMN", help="The column of gold labels; none: there is none.")
    labels: str | None = option(
        None,
        metavar="LABEL,LABEL,...",
        help="The labels in the order of the answers; words for labels that are numbers.",
    )
    kind: TaskKind | None = option(None, help="What is asked of a text, or of a pair.")
    question: str = option("", help="For yes_no: what is asked, such as 'Is this urgent?'.")
    overwrite: bool = option(False, help="Replace a task file that is there already.")


@click.command("data")
@click.argument("data", type=click.Path(path_type=Path))
@options(InitOptions)
def data_command(init: InitOptions, data: Path) -> int:
    """Write a task file for DATA (CSV, TSV, JSONL, parquet), with four phrasings to begin with.

    On a terminal it asks for what is not given. Elsewhere it takes what the columns' names and values tell, and what
    they do not tell is an error. The phrasings are a beginning: change them in the file.
    """
    from flip_flop.files import write_text
    from flip_flop_phrasings.draft import draft_task, split_labels

    click.get_current_context().with_resource(check_task_out(init.out, overwrite=init.overwrite))
    draft = draft_task(
        data,
        texts=init.text,
        label=init.label,
        labels=split_labels(init.labels) if init.labels is not None else (),
        kind=init.kind,
        question=init.question,
        ask=_ask if sys.stdin.isatty() else None,
    )
    write_text(init.out, draft.text(init.out))
    _show(draft, init.out)
    return 0


def _show(draft: "Draft", out: Path) -> None:
    columns = draft.columns
    meant = [
        f"{value} ({word})" if value != word else value for value, word in zip(draft.labels, draft.words, strict=True)
    ]
    parts = ", ".join(
        f"{part} {number:,}" + (f" ({blank:,} unlabelled)" if blank else "")
        for part, (number, blank) in draft.parts.items()
    )
    found = f"{count(len(draft.templates), 'template')}, {count(len(draft.findings), 'warning')} of lint"
    echo(f"{out}: {draft.kind}, {found}")
    rows = [
        ["text", ", ".join([*columns.texts, *columns.options])],
        [
            "labels",
            f"{columns.label}: {', '.join(meant)}" if columns.label else f"in no column: {', '.join(draft.words)}",
        ],
        ["rows", parts or "test: all; too few to divide"],
    ]
    echo(align_columns(rows, indent="  "))
    echo(align_columns([[each.name, each.answer_choices or ""] for each in draft.templates], indent="    "))
    for finding in draft.findings:
        echo(f"  {finding.code} {finding.template}: {finding.message}")
    echo(f"next: flip-flop audit --model demo --task {out} --out out/before    # demo is a toy: name your own model")


def _ask(question: str, proposed: str, choices: Sequence[str]) -> str:
    kind = click.Choice(list(choices)) if choices else None
    return str(click.prompt(question, default=proposed or None, type=kind, err=True))


@contextlib.contextmanager
def check_task_out(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Hold the lock of a task file that is to be written (``E-OUT-KIND``, ``E-OUT-BUSY``, ``-PATH``, ``-USED``)."""
    from flip_flop.files import lock_output

    if out.suffix not in (".yaml", ".yml"):
        raise InputError("E-OUT-KIND", f"{out.name} is no task file.", "End --out with .yaml.")
    with lock_output(out):
        if out.is_dir():
            raise InputError("E-OUT-PATH", f"{out} is a folder.", "Give a file.")
        if out.exists() and not overwrite:
            raise InputError("E-OUT-USED", f"{out} is there already.", "Give another --out, or add --overwrite.")
        yield


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


@click.command("vary", short_help="A task file with more templates, made from its own.")
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
    from flip_flop.files import write_text
    from flip_flop.tasks.plugins import COMPUTED_LABEL
    from flip_flop_phrasings.paraphrase import sampler
    from flip_flop_phrasings.vary import review, varied_task_text, vary_templates

    if task.suffix not in (".yaml", ".yml"):
        raise InputError("E-TASK-FILE", f"{task} is no task file.", "Give one: its data are named in the new one.")
    click.get_current_context().with_resource(check_task_out(vary.out, overwrite=vary.overwrite))
    found = whole = data.open(str(task), "all")
    if whole.label_field == COMPUTED_LABEL:
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
    rows = [row for each in found.data for row in sample_rows(found, each, vary.limit, vary.seed)]
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


def _compute_spread(scorer: "Scorer", task: "Task", how: SectionOptions) -> dict[str, Any]:
    from flip_flop_phrasings.spread import format_spread

    return format_spread(
        scorer,
        task,
        how.value,
        split=how.split,
        limit=how.limit,
        scoring=how.scoring,
        seed=how.seed,
        quiet=how.quiet,
    )


def _render_spread(found: Mapping[str, Any]) -> str:
    from flip_flop_phrasings.spread import render_formats

    return render_formats(found)


VARY_SECTION = AuditSection(
    click.Option(
        ["--vary"],
        type=click.IntRange(min=2),
        metavar="N",
        help="Also score each template under this many random formats, to measure sensitivity to formatting.",
    ),
    _compute_spread,
    _render_spread,
)
