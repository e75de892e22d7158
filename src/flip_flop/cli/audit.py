"""``flip-flop audit``."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flip_flop.cli.options import CalibrationOptions, ModelOptions, RowOptions, TaskOptions, options
from flip_flop.errors import InputError, nearest
from flip_flop.options import ScoringOptions, option

ALIASES = {"agreement": "observed_agreement"}


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """An audit's own options."""

    out: Path = option(short="-o", help="The run's folder.")
    split: str = option("test", help="Which split to score.")
    limit: int | None = option(None, min=1, help="Score a seeded uniform sample of this many instances.")
    name: str | None = option(None, help="The run's name in tables; by default the adapter's method, or base.")
    fail_under: tuple[str, ...] = option(
        (), metavar="METRIC=VALUE", help="Exit with 1 below it, e.g. agreement=0.9. Repeatable."
    )
    seed: int = option(0, help="For the sample, the bootstrap, and templates that draw at random.")
    overwrite: bool = option(False, help="Replace a run that is there already.")
    quiet: bool = option(False, short="-q", help="Print the table only.")


@click.command("audit")
@options(ModelOptions, TaskOptions, AuditOptions, CalibrationOptions, ScoringOptions, RowOptions)
def audit_command(
    model: ModelOptions,
    task: TaskOptions,
    run: AuditOptions,
    calibration: CalibrationOptions,
    scoring: ScoringOptions,
    data: RowOptions,
) -> int:
    """Measure how consistently a model answers a task over its templates, and how well.

    Writes run.json, metrics.json, scores.npz and examples.jsonl into --out. With --calibrate the table has a second
    row; --fail-under reads the first.
    """
    from flip_flop.evaluation.audit import audit
    from flip_flop.evaluation.run_directory import check_out
    from flip_flop.report import comparison_rows, render_text

    thresholds = [_threshold(text) for text in run.fail_under]
    check_out(run.out, overwrite=run.overwrite)
    # The data's errors come before the model's minutes.
    chosen = data.open(task.task, task.templates, data.protocol)
    prior = calibration.prior(chosen)
    split = chosen.render(run.split, limit=run.limit, seed=run.seed)
    found = audit(
        model.load(model.adapter),
        split,
        scoring,
        name=run.name,
        seed=run.seed,
        quiet=run.quiet,
        calibrate=calibration.calibrate,
        label_prior=prior,
    )
    found.write(run.out)
    click.echo(render_text(comparison_rows([found])))
    if not run.quiet:
        click.echo(f"\n{run.out}: next, flip-flop report {run.out} --out report.html")
    missed = list(filter(None, (_missed(found.metrics, *threshold) for threshold in thresholds)))
    for text in missed:
        click.echo(text, err=True)
    return 1 if missed else 0


def _threshold(text: str) -> tuple[str, float]:
    from flip_flop.metrics import METRICS

    name, _, value = (part.strip() for part in text.partition("="))
    try:
        minimum = float(value)
    except ValueError:
        minimum = math.nan
    if not 0 <= minimum <= 1:  # NaN too: nothing is below it, and the check would always pass
        message = f"--fail-under {text!r} is not METRIC=VALUE with a number from 0 to 1."
        raise InputError("E-FAIL-UNDER", message, "Write, for example, --fail-under agreement=0.9.")
    known = [*ALIASES, *(metric.name for metric in METRICS.values() if metric.higher_is_better)]
    if name not in known:
        raise InputError("E-FAIL-UNDER", f"--fail-under takes no metric {name!r}.", nearest(name, known))
    return name, minimum


def _missed(metrics: dict[str, Any], name: str, minimum: float) -> str | None:
    value = metrics[ALIASES.get(name, name)]
    if value is None:
        message = f"--fail-under: {name} has no value here."
        raise InputError("E-FAIL-UNDER", message, "It needs gold labels, or a second template.")
    return f"below the threshold: {name} is {value:.4f}, under {minimum:g}" if value < minimum else None
