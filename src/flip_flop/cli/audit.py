"""``flip-flop audit``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flip_flop.cli.options import AuditCalibrationOptions, ModelOptions, RowOptions, TaskOptions, option, options
from flip_flop.cli.plugin import SectionOptions, audit_sections
from flip_flop.console import align_columns, count, echo, is_first_process, percent, visible
from flip_flop.errors import InputError, nearest
from flip_flop.scoring.options import ScoringOptions

if TYPE_CHECKING:
    from flip_flop.evaluation.run_directory import Audit
    from flip_flop.tasks import RenderedSplit

ALIASES = {"agreement": "observed_agreement"}
SECTIONS = audit_sections()


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
    compare_chat: bool = option(
        False, help="Audit with and without the chat template, into OUT/chat-on and OUT/chat-off."
    )
    overwrite: bool = option(False, help="Replace an existing run.")
    quiet: bool = option(False, short="-q", help="Print the table only.")


@click.command("audit")
@options(ModelOptions, TaskOptions, AuditOptions, AuditCalibrationOptions, ScoringOptions, RowOptions)
def audit_command(
    model: ModelOptions,
    task: TaskOptions,
    run: AuditOptions,
    calibration: AuditCalibrationOptions,
    scoring: ScoringOptions,
    data: RowOptions,
    **values: Any,
) -> int:
    """Measure the consistency and accuracy of a model over the templates of a task.

    Writes run.json, metrics.json, scores.npz and instances.jsonl.gz, with the prompts of all rows, into --out. A second
    row of the table shows the same scores after calibration, if there are 50 rows and a prediction changes.
    --fail-under reads the first row. --vary N prints a second table, of the sensitivity to formatting: separators,
    spaces, casing, marks and the order of options. Rows that are too long in one format are skipped in all. With
    --too-long skip, too_long.csv in --out lists the skipped rows.
    """
    from flip_flop.evaluation.run_directory import check_out
    from flip_flop.files import lock_output
    from flip_flop.scoring.too_long import listed_beside

    thresholds = [_threshold(text) for text in run.fail_under]
    variants = {run.out: scoring}
    if run.compare_chat:
        if scoring.chat_template != "auto":
            raise InputError("E-CHAT-TEMPLATE", "--compare-chat and --chat-template are both given.", "Remove one.")
        variants = {run.out / f"chat-{each}": replace(scoring, chat_template=each) for each in ("on", "off")}
    for out in variants:
        check_out(out, overwrite=run.overwrite)
    # Errors in the data come before the model is loaded, and errors in options before torch is imported.
    chosen = data.open(task.task, task.templates, data.protocol)
    prior, few_labels = calibration.prior(chosen), calibration.labelled(chosen)
    split = chosen.render(run.split, limit=run.limit, seed=run.seed)
    for name, _ in thresholds:
        _check_gate(name, split)
    model.check(scoring)
    for out in variants if is_first_process() else ():
        click.get_current_context().with_resource(lock_output(out))
        check_out(out, overwrite=run.overwrite)  # another process may have written since
    quiet = run.quiet or not is_first_process()
    scorer = model.scorer(quiet=run.quiet)
    from flip_flop.evaluation.audit import audit
    from flip_flop.report import comparison_frame, legend, render_text, table_caveats

    for each in variants.values():
        scorer.as_read(split.instances[0], each)  # rejects a chat template setting before scoring
    runs = []
    for out, each in variants.items():
        with listed_beside(out, chosen.templates.names):
            found = audit(
                scorer,
                split,
                scoring=each,
                name=run.name,
                seed=run.seed,
                quiet=quiet,
                calibrate=calibration.calibrate,
                label_prior=prior,
                few_labels=few_labels,
            )
        found = replace(found, path=out)
        how = SectionOptions(None, run.split, run.limit, run.seed, each, quiet)
        try:
            with listed_beside(out, ()):
                computed = {
                    name: section.compute(scorer, chosen, replace(how, value=value))
                    for name, section in SECTIONS.items()
                    if (value := values[section.option.name]) is not None
                }
            found = replace(found, metrics={**found.metrics, **computed})
        finally:  # an error in a section does not lose the audit
            if is_first_process():
                found.write(out)
        runs.append(found)
    if not is_first_process():
        return 0
    frame = comparison_frame(runs)
    echo(render_text(frame))
    if few_labels is not None:
        echo(f"\n{_render_votes([each for found in runs for each in (found, found.calibrated) if each])}")
    for found in runs:
        place = f"{found.path}: " if run.compare_chat else ""
        for name, section in SECTIONS.items():
            if name in found.metrics:
                echo(f"\n{place}{section.render(found.metrics[name])}")
        if found.value("unmapped_share"):
            listed = (f"{name} {percent(part)}" for name, part in found.metrics["unmapped_share_per_template"].items())
            share = percent(found.value("unmapped_share"))
            echo(f"\n{place}no label, in percent of the answers: {share} ({', '.join(listed)})")
    if not run.quiet:
        blocks = [rows["audit"] for _, rows in frame.groupby("heading", sort=False)]
        notes = "\n".join([legend(frame), *(note for block in blocks for note in table_caveats(block))])
        folders = " ".join(map(str, variants))
        echo(f"\n{notes}\n\n{run.out}: next, flip-flop report {folders} --out report.html")
    missed = [text for found in runs for gate in thresholds if (text := _missed(found.metrics, *gate))]
    for text in missed:
        echo(text, err=True)
    return 1 if missed else 0


audit_command.params.extend(section.option for section in SECTIONS.values())


def _render_votes(runs: "Sequence[Audit]") -> str:
    """Render the accuracy and F1 of the two votes of each run, in percent, and the weights."""
    lines, notes = [["vote", "accuracy", "F1", "macro-F1"]], []
    for run in runs:
        found, title = run.metrics["weighted_vote"], visible(run.name, one_line=True)
        lines += [[f"{title}: {name} vote", *map(percent, found[name].values())] for name in ("majority", "weighted")]
        weights = (f"{visible(name, one_line=True)} {weight:.2f}" for name, weight in found["weights"].items())
        notes.append(f"{title}: weights {', '.join(weights)}")
    others, few = count(found["num_instances"], "labelled instance"), count(found["num_few_labels"], "labelled row")
    return "\n".join(
        [f"{others} other than the {few} of --few-labels", align_columns(lines, num_left=1, rule=True), *notes]
    )


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


def _check_gate(name: str, split: "RenderedSplit") -> None:
    """Refuse a gate whose metric has no value on this split, before it is scored: here every label is answered."""
    import numpy as np

    from flip_flop.metrics import METRICS, Scores

    shape = (len(split.instances), len(split.task.templates), len(split.instances[0].choices[0]))
    instance, template, label = np.indices(shape)
    answers = ((instance + template) % shape[2] == label).astype(np.float32)
    if METRICS[ALIASES.get(name, name)].value(Scores(answers, split.gold)) is None:
        labelled, templates = int((split.gold >= 0).sum()), count(shape[1], "template")
        raise _no_value(name, f"split {split.split!r} has {count(labelled, 'gold label')} and {templates}")


def _no_value(name: str, why: str) -> InputError:
    hint = "It needs gold labels, or a second template."
    return InputError("E-FAIL-UNDER", f"--fail-under: {name} has no value here: {why}.", hint)


def _missed(metrics: dict[str, Any], name: str, minimum: float) -> str | None:
    value = metrics[ALIASES.get(name, name)]
    if value is None:
        raise _no_value(name, "it is not defined for these answers")
    return f"below the threshold: {name} is {value:.4f}, under {minimum:g}" if value < minimum else None
