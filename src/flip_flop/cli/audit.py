"""``flip-flop audit``."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flip_flop.cli.options import CalibrationOptions, ModelOptions, RowOptions, TaskOptions, options
from flip_flop.errors import InputError, nearest
from flip_flop.options import ScoringOptions, option
from flip_flop.terminal import echo

if TYPE_CHECKING:
    from flip_flop.evaluation.run_directory import Audit

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

    Writes run.json, metrics.json, scores.npz and instances.jsonl.gz into --out; the last has every row's prompts. With
    --calibrate the table has a second row; --fail-under reads the first. A gate that hangs on fragile answers, whose
    margin the data type does not resolve, says so. With --too-long skip, too_long.csv in --out names the rows that were
    left out.
    """
    from flip_flop.evaluation.audit import audit
    from flip_flop.evaluation.run_directory import check_out
    from flip_flop.files import lock_output
    from flip_flop.report import comparison_rows, render_text
    from flip_flop.too_long import listed_beside

    thresholds = [_threshold(text) for text in run.fail_under]
    click.get_current_context().with_resource(lock_output(run.out))
    check_out(run.out, overwrite=run.overwrite)
    # The data's errors come before the model's minutes.
    chosen = data.open(task.task, task.templates, data.protocol)
    prior = calibration.prior(chosen)
    split = chosen.render(run.split, limit=run.limit, seed=run.seed)
    loaded = model.load()
    with listed_beside(run.out, chosen.templates.names):
        found = audit(
            loaded,
            split,
            scoring=scoring,
            name=run.name,
            seed=run.seed,
            quiet=run.quiet,
            calibrate=calibration.calibrate,
            label_prior=prior,
        )
    found.write(run.out)
    echo(render_text(comparison_rows([found])))
    if not run.quiet:
        echo(f"\n{run.out}: next, flip-flop report {run.out} --out report.html")
    missed = list(filter(None, (_missed(found.metrics, *threshold) for threshold in thresholds)))
    for text in [*missed, *filter(None, (_doubt(found, *threshold) for threshold in thresholds))]:
        echo(text, err=True)
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


def _doubt(found: "Audit", name: str, minimum: float) -> str | None:
    """That the fragile answers, if they were other ones, might change whether the threshold is met.

    The value is nearer to it than the share of instances that have a fragile answer. Agreement and accuracy cannot move
    further; other metrics move by about as much.
    """
    from flip_flop.metrics import METRICS, fragile_instance_share

    metric = METRICS[ALIASES.get(name, name)]
    value, share = found.value(metric.name), fragile_instance_share(metric.judged(found.data))
    if value is None or not share or not (value - share < minimum <= value + share):
        return None
    of_nats = f"a margin under {found.metrics['resolution']:.2g} nats"
    return (
        f"the gate hangs on fragile answers: {name} is {value:.4f}, the threshold {minimum:g}, and "
        f"{100 * share:.1f} % of the instances have an answer with {of_nats}"
    )


def _missed(metrics: dict[str, Any], name: str, minimum: float) -> str | None:
    value = metrics[ALIASES.get(name, name)]
    if value is None:
        message = f"--fail-under: {name} has no value here."
        raise InputError("E-FAIL-UNDER", message, "It needs gold labels, or a second template.")
    return f"below the threshold: {name} is {value:.4f}, under {minimum:g}" if value < minimum else None
