"""``flip-flop audit``."""

import math
from pathlib import Path
from typing import Any

import click

from flip_flop.cli.options import (
    data_options,
    model_options,
    open_model,
    open_task,
    scoring_options,
    task_option,
    templates_option,
)
from flip_flop.errors import InputError, nearest

ALIASES = {"agreement": "observed_agreement"}


@click.command("audit")
@model_options
@task_option
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="The run's folder.")
@click.option("--split", default="test", show_default=True, help="Which split to score.")
@click.option("--limit", type=click.IntRange(min=1), help="Score a seeded uniform sample of this many instances.")
@templates_option
@click.option("--name", help="The run's name in tables; by default the adapter's method, or base.")
@click.option(
    "--fail-under",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Exit with 1 below it, e.g. agreement=0.9. Repeatable.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@scoring_options
@data_options
@click.option("--overwrite", is_flag=True, help="Replace a run that is there already.")
@click.option("--quiet", "-q", is_flag=True, help="Print the table only.")
def audit_command(
    model: str,
    adapter: Path | None,
    revision: str | None,
    dtype: str,
    device: str,
    task: str,
    out: Path,
    split: str,
    limit: int | None,
    templates: str | None,
    name: str | None,
    fail_under: tuple[str, ...],
    seed: int,
    chat_template: Any,
    backend: Any,
    batch_tokens: int,
    fast_linear: bool,
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Measure how consistently a model answers a task over its templates, and how well.

    Writes run.json, metrics.json, scores.npz and examples.jsonl into --out.
    """
    from flip_flop.evaluation import audit, check_out
    from flip_flop.report import comparison_rows, load_run, render_text

    thresholds = [_threshold(text) for text in fail_under]
    check_out(out, overwrite=overwrite)
    chosen = open_task(task, templates, hub_mirror, story_cloze_dir)
    chosen.instances(split, limit=limit, seed=seed)  # the data's mistakes before the model's minutes
    loaded = open_model(model, adapter, revision, dtype, device)
    found = audit(
        loaded,
        chosen,
        split,
        limit=limit,
        seed=seed,
        name=name,
        chat_template=chat_template,
        backend=backend,
        batch_tokens=batch_tokens,
        fast_linear=fast_linear,
        quiet=quiet,
    )
    found.write(out)
    click.echo(render_text(comparison_rows([load_run(out)])))
    if not quiet:
        click.echo(f"\n{out}: next, flip-flop report {out} --out report.html")
    missed = [text for text in (_missed(found.metrics, *threshold) for threshold in thresholds) if text]
    for text in missed:
        click.echo(text, err=True)
    return 1 if missed else 0


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        minimum = float(value)
    except ValueError:
        minimum = math.nan
    if not 0 <= minimum <= 1:  # NaN too: nothing is below it, and the check would always pass
        raise InputError(
            "E-FAIL-UNDER",
            f"--fail-under {text!r} is not METRIC=VALUE with a number from 0 to 1.",
            "Write, for example, --fail-under agreement=0.9.",
        )
    from flip_flop.metrics import METRICS

    # A floor under a spread or under the share without a consensus would be upside down.
    known = [*ALIASES, *(metric.name for metric in METRICS.values() if metric.higher_is_better)]
    if name not in known:
        raise InputError("E-FAIL-UNDER", f"--fail-under: there is no metric {name!r}.", nearest(name, known))
    return name, minimum


def _missed(metrics: dict[str, Any], name: str, minimum: float) -> str | None:
    value = metrics[ALIASES.get(name, name)]
    if value is None:
        raise InputError(
            "E-FAIL-UNDER",
            f"--fail-under: {name} has no value here.",
            "It needs gold labels, or a second template.",
        )
    return f"below the threshold: {name} is {value:.4f}, under {minimum:g}" if value < minimum else None
