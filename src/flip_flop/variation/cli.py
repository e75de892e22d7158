"""``flip-flop templates vary``."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from flip_flop.cli.options import DataOptions, ModelOptions, TemplateOptions, hold_new_file, option, options, out_file
from flip_flop.cli.templates import sample_rows
from flip_flop.console import align_columns, count, echo
from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks import choose_templates, read_task_file
from flip_flop.variation.vary import VariedTemplate, varied_task_text, vary_templates


@dataclass(frozen=True, kw_only=True)
class VaryOptions(TemplateOptions):
    """Options of ``templates vary``."""

    out: Path = option(
        short="-o", callback=functools.partial(out_file, suffixes=(".yaml", ".yml")), help="The new task file."
    )
    templates: str | None = option(None, help="Write these templates only: NAME,NAME,... or `held_out`.")
    paraphraser: str | None = option(
        None, metavar="MODEL", help="Also paraphrase with this causal model, or with openai:URL#NAME (served)."
    )
    paraphrases: int = option(4, min=1, help="Paraphrases per template.")
    limit: int = option(200, min=1, help="Lint a seeded uniform sample of this many rows.")
    seed: int = option(0, help="For variants and samples.")
    overwrite: bool = option(False, help="Replace a task file that is there already.")


@click.command("vary")
@click.argument("task", type=click.Path(path_type=Path))
@options(VaryOptions, DataOptions)
def vary_command(vary: VaryOptions, data: DataOptions, task: Path) -> None:
    """Write the task file TASK with variants of its templates to --out.

    --axis adds variants by order, format, examples and typos, and --paraphraser adds paraphrases, which vary along the
    axes, too. Each template has its level on each axis. Lint rejects invalid templates and duplicates.

    Review paraphrases, because their meaning may differ. `flip-flop audit` shows how the model answers each template.
    """
    if task.suffix not in (".yaml", ".yml"):
        raise InputError("E-TASK-FILE", f"{task} is not a task file.", "Give a .yaml file: the new file has its data.")
    hold_new_file(vary.out, overwrite=vary.overwrite)
    opened = choose_templates(read_task_file(task, data.hub_mirror), vary.templates or "all")
    axes = (read_yaml(task).get("axes") or {}) | vary.axes
    if not axes and not vary.paraphraser:
        raise InputError("E-AXIS", "--axis and --paraphraser are missing.", "Write, for example, --axis order=4.")
    model = ModelOptions(model=vary.paraphraser or "")
    if vary.paraphraser:
        model.check()
    rows = [row for name in opened.data for row in sample_rows(opened, name, vary.limit, vary.seed)]
    varied = opened
    found = list[VariedTemplate]()
    if vary.paraphraser:
        from flip_flop.variation.paraphrases import add_paraphrases

        varied, found = add_paraphrases(opened, rows, model.scorer(), vary.paraphrases, by=vary.paraphraser)
    if axes:
        varied, variants = vary_templates(varied, rows, {"seed": vary.seed, **axes})
        found += variants
    write_text(vary.out, varied_task_text(task, vary.out, varied, found))
    _show(opened.templates.names, found, vary.out)


def _show(own: Sequence[str], found: Sequence[VariedTemplate], out: Path) -> None:
    lines = [("template", "verdict", "change"), *((name, "original", "") for name in own)]
    for variant in found:
        verdict = f"rejected: {variant.rejected}" if variant.rejected else "kept"
        lines.append((variant.name, verdict, variant.text))
    kept = sum(not variant.rejected for variant in found)
    reached = f"{count(len(own) + kept, 'template')}, {len(own)} of them original; {len(found) - kept} rejected"
    echo(align_columns(lines, num_left=3, rule=True))
    echo(f"{out}: {reached}")
