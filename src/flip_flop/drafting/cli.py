"""``flip-flop init DATA`` and ``flip-flop templates vary``."""

import functools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import jinja2

from flip_flop.cli.options import BaseModelOptions, DataOptions, TemplateOptions, option, options, out_file
from flip_flop.cli.templates import sample_rows
from flip_flop.console import align_columns, count, echo
from flip_flop.drafting.draft import NUM_TEMPLATES, Draft, draft_task, split_labels
from flip_flop.drafting.library import TaskKind
from flip_flop.errors import InputError
from flip_flop.files import lock_output, write_text
from flip_flop.prompts import lines_of
from flip_flop.tasks import DELIMITERS, SEPARATED, FileSource, Task, load_file, lost_header

if TYPE_CHECKING:
    from flip_flop.drafting.vary import VariedTemplate

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
    _hold(init.out, init.overwrite)
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
    text = Path(__file__).with_name("summary.txt.jinja").read_text(encoding="utf-8")
    answers = [[template.name, template.answer_choices or ""] for template in draft.templates]
    functions = {"count": count, "align_columns": align_columns, "warnings": lines_of(draft.findings)}
    names = {"draft": draft, "columns": draft.columns, "out": out, "quoted": shlex.quote(str(out)), "answers": answers}
    echo(jinja2.Template(text, trim_blocks=True).render(functions | names, wanted=NUM_TEMPLATES))


def _ask(question: str, proposed: str, choices: Sequence[str]) -> str:
    kind = click.Choice(list(choices)) if choices else None
    return str(click.prompt(question, default=proposed or None, type=kind, err=True))


def _hold(out: Path, overwrite: bool) -> None:
    """Hold the lock of a new task file until the command ends (``E-OUT-BUSY``, ``E-OUT-USED``)."""
    click.get_current_context().with_resource(lock_output(out))
    if out.exists() and not overwrite:
        raise InputError("E-OUT-USED", f"{out} exists already.", "Give another --out, or add --overwrite.")


@dataclass(frozen=True, kw_only=True)
class VaryOptions(TemplateOptions):
    """Options of ``templates vary``."""

    out: Path = option(short="-o", callback=TASK_FILE, help="The new task file.")
    number: int = option(20, short="-n", min=2, help="The number of templates, with the original ones.")
    typos: float = option(0.0, type=click.FloatRange(0, 1), help="The share of words with a typo in new formats.")
    paraphraser: str | None = option(None, metavar="MODEL", help="Also paraphrase with this causal model.")
    paraphrases: int = option(4, min=1, help="Paraphrases per template.")
    limit: int = option(200, min=1, help="Lint a seeded uniform sample of this many rows.")
    seed: int = option(0, help="For formats, paraphrases and samples.")
    overwrite: bool = option(False, help="Replace a task file that is there already.")


@click.command("vary")
@click.argument("task", type=click.Path(path_type=Path))
@options(VaryOptions, DataOptions)
def vary_command(vary: VaryOptions, data: DataOptions, task: Path) -> None:
    """Write the task file TASK with more templates to --out.

    New templates are formats of the training templates, or of --templates: separators, spaces, casing, wrappers of
    marks, and the order of options. --paraphraser adds paraphrases. Lint rejects invalid templates and duplicates.

    Review paraphrases, because their meaning may differ. `flip-flop audit` shows how the model answers each template.
    """
    if task.suffix not in (".yaml", ".yml"):
        raise InputError("E-TASK-FILE", f"{task} is not a task file.", "Give a .yaml file: the new file has its data.")
    _hold(vary.out, vary.overwrite)
    found = whole = data.open(str(task), "all")
    if vary.templates:
        names = data.open(str(task), vary.templates).templates.names
        others = tuple(name for name in whole.templates.names if name not in names or name in whole.held_out_templates)
        found = replace(whole, held_out_templates=others)
    model = BaseModelOptions(model=vary.paraphraser) if vary.paraphraser else None
    if model:
        model.check()
    rows = [row for name in found.data for row in sample_rows(found, name, vary.limit, vary.seed)]
    if model:
        model.announce()
    from flip_flop.drafting.vary import sampler, varied_task_text, vary_templates

    variants = vary_templates(
        found,
        rows,
        number=vary.number,
        seed=vary.seed,
        typos=vary.typos,
        generate=sampler(model.load()) if model else None,
        paraphrases=vary.paraphrases,
        by=vary.paraphraser or "",
    )
    write_text(vary.out, varied_task_text(task, vary.out, whole, variants))
    _show_variants(found, variants, vary)


def _show_variants(task: Task, variants: "Sequence[VariedTemplate]", vary: VaryOptions) -> None:
    own = task.training_templates.names
    lines = [("template", "change", "verdict"), *((name, "original", "") for name in own)]
    for variant in variants:
        if variant.rejected:
            verdict = f"rejected: {variant.rejected}"
        else:
            verdict = " ".join(("kept", *variant.warnings))
        lines.append((variant.name, variant.text, verdict))
    kept = sum(not variant.rejected for variant in variants)
    reached = f"{count(len(own) + kept, 'template')}, {len(own)} of them original; {len(variants) - kept} rejected"
    echo(align_columns(lines, num_left=3, rule=True))
    echo(f"{vary.out}: {reached}")
    if len(own) + kept < vary.number:
        echo(f"only {len(own) + kept} of {vary.number} templates: the templates have no more formats", err=True)
