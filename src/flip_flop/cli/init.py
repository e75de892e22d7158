"""``flip-flop init``: a task file from a data file."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flip_flop.cli.options import check_task_out, option, options
from flip_flop.console import align_columns, count, echo
from flip_flop.drafting.phrasings import TaskKind

if TYPE_CHECKING:
    from flip_flop.drafting import Draft


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


@click.command("init")
@click.argument("data", type=click.Path(path_type=Path))
@options(InitOptions)
def init_command(init: InitOptions, data: Path) -> int:
    """Write a task file for DATA (CSV, TSV, JSONL, parquet), with four phrasings to begin with.

    On a terminal it asks for what is not given. Elsewhere it takes what the columns' names and values tell, and what
    they do not tell is an error. The phrasings are a beginning: change them in the file.
    """
    from flip_flop.drafting import draft_task
    from flip_flop.drafting.draft import split_labels
    from flip_flop.files import write_text

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
