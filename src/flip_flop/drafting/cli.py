"""``flip-flop init DATA``."""

import functools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from flip_flop.cli.options import hold_new_file, option, options, out_file
from flip_flop.console import align_columns, count, echo
from flip_flop.drafting.draft import NUM_TEMPLATES, Draft, draft_task, split_labels
from flip_flop.drafting.library import TaskKind
from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.prompts import lines_of
from flip_flop.tasks import DELIMITERS, SEPARATED, FileSource, load_file, lost_header
from flip_flop.texts import render

TASK_FILE = functools.partial(out_file, suffixes=(".yaml", ".yml"))


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of ``init``; by default found in the data."""

    out: Path = option(Path("task.yaml"), short="-o", callback=TASK_FILE, help="The task file.")
    text: tuple[str, ...] = option((), metavar="COLUMN", help="The column of texts; twice for two columns.")
    label: str | None = option(None, metavar="COLUMN", help="The column of gold labels, or none.")
    labels: str | None = option(
        None,
        metavar="LABEL,LABEL,...",
        help="The labels in the order of the answers; words for labels that are numbers.",
    )
    kind: TaskKind | None = option(None, help="The kind of task.")
    question: str = option("", help="For yes_no: the question, such as 'Is this urgent?'.")
    prompt: Path | None = option(
        None,
        metavar="FILE",
        help="Start from this prompt, with {column} or Jinja, and vary its layout. A judge of pairs gets both orders.",
    )
    encoding: str = option("utf-8", help="The file's encoding, such as cp1252 for Excel's CSV.")
    delimiter: str | None = option(None, metavar="CHARACTER", help="The character between the cells of a CSV file.")
    overwrite: bool = option(False, help="Replace a task file that is there already.")


@click.command("data")
@click.argument("data", type=click.Path(path_type=Path))
@options(InitOptions)
def data_command(init: InitOptions, data: Path) -> None:
    """Write a task file for DATA (CSV, TSV, JSONL, parquet, xlsx) with four templates, in the language of the labels.

    On a terminal, the command asks for missing options. Otherwise it finds them in the names and values of the columns,
    and ambiguity is an error. Edit the templates in the file.

    `flip-flop init method NAME` and `flip-flop init metric NAME` write a plug-in.
    """
    hold_new_file(init.out, overwrite=init.overwrite)
    if init.delimiter is None:
        rows = load_file(
            data, [each for each in DELIMITERS if each != SEPARATED.get(data.suffix.lower())], [init.encoding]
        )
    else:
        rows = FileSource(data, init.encoding, init.delimiter).load()
    question = "Does the first row name the columns? One of them has the name of one of its values."
    if sys.stdin.isatty() and lost_header(rows.rows) and not click.confirm(question, err=True):
        raise InputError("E-INIT", f"{data} has no names of columns.", "Add them as the first row.")
    draft = draft_task(
        rows,
        texts=init.text,
        label=init.label,
        labels=split_labels(init.labels) if init.labels is not None else (),
        kind=init.kind,
        question=init.question,
        ask=_ask if sys.stdin.isatty() else None,
        prompt=init.prompt,
    )
    write_text(init.out, draft.text(init.out))
    _show(draft, init.out)


def _show(draft: Draft, out: Path) -> None:
    answers = [[template.name, template.answer_choices or ""] for template in draft.templates]
    functions = {"count": count, "align_columns": align_columns, "warnings": lines_of(draft.findings)}
    names = {"draft": draft, "columns": draft.columns, "out": out, "quoted": shlex.quote(str(out)), "answers": answers}
    echo(render("flip_flop.drafting", "summary.txt.jinja", wanted=NUM_TEMPLATES, **functions, **names))


def _ask(question: str, proposed: str, choices: Sequence[str]) -> str:
    kind = click.Choice(list(choices)) if choices else None
    return str(click.prompt(question, default=proposed or None, type=kind, err=True))
