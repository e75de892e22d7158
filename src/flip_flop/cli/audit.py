"""``flip-flop audit``."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from flip_flop.cli import gates
from flip_flop.cli.options import (
    EXPLAIN_HELP,
    AuditCalibrationOptions,
    ModelOptions,
    RowOptions,
    TaskOptions,
    option,
    options,
    out_file,
    out_folder,
)
from flip_flop.console import echo, echo_prose, is_first_process, percent, terminal_width
from flip_flop.errors import InputError, unsupported
from flip_flop.evaluation.result import Audit, check_out
from flip_flop.files import check_output, lock_output, write_text
from flip_flop.hub import is_endpoint
from flip_flop.scoring import ScoringOptions, listed_beside


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """An audit's own options."""

    out: Path = option(short="-o", callback=out_folder, help="The run's folder.")
    split: str = option("test", help="Which split to score.")
    limit: int | None = option(None, min=1, help="Score a seeded uniform sample of this many instances.")
    name: str | None = option(None, help="The run's name in tables; by default the adapter's method, or base.")
    fail_under: tuple[str, ...] = option(
        (), metavar="METRIC=VALUE", help="Exit with 1 below it, e.g. agreement=0.9. Repeatable."
    )
    metric: tuple[str, ...] = option((), metavar="MODULE:NAME", help="Also compute this custom metric. Repeatable.")
    fail_if_worse_than: tuple[str, ...] = option(
        (),
        metavar="RUN[:METRIC]",
        help="Exit with 1 if macro-F1 (without labels: agreement) is worse than in this run, or a template constant. "
        "Repeatable.",
    )
    markdown: Path | None = option(
        None, callback=out_file, help="Write the table and the results of --fail-... as Markdown."
    )
    seed: int = option(0, help="For the sample, the bootstrap, and templates that draw at random.")
    ask_again: bool = option(False, help="Ask a served model everything twice, and report how many answers differ.")
    compare_chat: bool = option(
        False, help="Audit with and without the chat template, into OUT/chat-on and OUT/chat-off."
    )
    overwrite: bool = option(False, help="Replace an existing run.")
    dry_run: bool = option(False, help="Only print requests, tokens and time of the audit.")
    explain: bool = option(False, help=EXPLAIN_HELP)
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
) -> int:
    """Measure the consistency and accuracy of a model over the templates of a task.

    Writes run.json, metrics.json, scores.npz and instances.jsonl.gz, with the prompts of all rows, into --out. A second
    row of the table shows the same scores after calibration, if there are 50 rows and a prediction changes.
    --fail-under and --fail-if-worse-than read the first row. With --too-long skip, too_long.csv in --out lists the
    skipped rows.
    """
    from flip_flop.metrics import add_metric

    variants = _variants(run, scoring)
    for out in variants if is_first_process() and not run.dry_run else ():
        check_out(out, overwrite=run.overwrite)
    for reference in run.metric:
        add_metric(reference)
    checks = gates.Checks.of(run.fail_under, run.fail_if_worse_than)
    # Errors in the data come before the model is loaded, and errors in options before torch is imported.
    opened = data.open(task.task, task.templates, data.protocol, task.axes)
    if opened.answer and run.dry_run:
        raise unsupported("--dry-run")
    prior = calibration.prior(opened)
    split = opened.render(run.split, limit=run.limit, seed=run.seed)
    checks.require_values(split, skips_rows=scoring.too_long == "skip")
    model.check(scoring)
    if run.ask_again and not is_endpoint(model.model):
        raise InputError("E-ENDPOINT", "--ask-again applies only to served models.", "Remove it: others answer alike.")
    if run.dry_run:
        from flip_flop.evaluation.audit import estimate

        scorer = model.scorer(quiet=run.quiet)
        for variant in variants.values():
            estimated = estimate(scorer, split, variant)
            if is_first_process():
                echo(estimated)
        return 0
    if run.markdown is not None:
        check_output(run.markdown)  # again, because the inputs are known now
    for out in variants if is_first_process() else ():
        click.get_current_context().with_resource(lock_output(out))
        check_out(out, overwrite=run.overwrite)
    quiet = run.quiet or not is_first_process()
    scorer = model.scorer(quiet=run.quiet)
    from flip_flop.evaluation.audit import ask_again, audit, with_flips

    for variant in variants.values():
        scorer.as_read(split.instances[0], variant)  # rejects a chat template setting before scoring
    runs = list[Audit]()
    for out, variant in variants.items():
        with listed_beside(out):
            result = audit(
                scorer,
                split,
                scoring=variant,
                name=run.name,
                seed=run.seed,
                quiet=quiet,
                calibrate=calibration.calibrate,
                label_prior=prior,
            )
        result = replace(result, path=out)
        try:
            with listed_beside(out):
                if run.ask_again:
                    result = ask_again(scorer, split, result, variant, quiet=quiet)
            if runs and runs[0].instance_ids == result.instance_ids:
                result = with_flips(result, runs[0].data, "chat_flips")
        finally:  # an error here does not lose the audit
            if is_first_process():
                result.write(out)
        runs.append(result)
    if is_first_process():
        return _show(runs, run, checks)
    return 0


def _variants(run: AuditOptions, scoring: ScoringOptions) -> dict[Path, ScoringOptions]:
    """Return the scoring options of each run by its folder."""
    if not run.compare_chat:
        return {run.out: scoring}
    if scoring.chat_template != "auto":
        raise InputError("E-CHAT-TEMPLATE", "--compare-chat and --chat-template are both given.", "Remove one.")
    return {run.out / f"chat-{choice}": replace(scoring, chat_template=choice) for choice in ("on", "off")}


def _show(runs: Sequence[Audit], run: AuditOptions, checks: gates.Checks) -> int:
    """Print the runs, write the files for CI, and return the exit code of the gates."""
    from flip_flop.report.audit_tables import legend, missing_values, render_markdown, render_text, table_caveats
    from flip_flop.report.axes import axis_table
    from flip_flop.report.compare import comparison_blocks

    blocks = comparison_blocks(runs)
    echo(render_text(blocks, terminal_width()))
    for result in runs:
        place = f"{result.path}: " if run.compare_chat else ""
        kind = "unreadable" if result.data.answered else "no label"
        table = axis_table(result)
        if table.rows:
            echo(f"\n{place}{table.text(terminal_width())}")
        if result.value("unmapped_share"):
            listed = (f"{name} {percent(part)}" for name, part in result.metrics["unmapped_share_per_template"].items())
            share = percent(result.value("unmapped_share"))
            echo(f"\n{place}{kind}, in percent of the answers: {share} ({', '.join(listed)})")
        if inside := result.metrics.get("label_inside_share"):
            echo(f"\n{place}label inside the text, not at its beginning: {percent(inside)} % of the answers")
        if result.unparsed:
            echo(f"{place}most frequent texts, {kind}: {result.unparsed}")
    if not run.quiet:
        for result in runs:
            first, *others = result.decision.sentences
            echo()
            echo_prose(" ".join(others), strong=f"{result.path}: {first}" if run.compare_chat else first)
            if result.decision.command:
                echo(f"\n    {result.decision.command}")
            for advice in filter(None, (result.abstention_advice, result.decidable_advice)):
                echo()
                echo_prose(advice)
        echo()
        notes = [*missing_values(runs), *(note for block in blocks.values() for note in table_caveats(block))]
        for note in (*notes, *(legend(runs) if run.explain else ["--explain explains the columns."])):
            echo_prose(note)
        folders = shlex.join(str(result.path) for result in runs)
        echo(f"\n{run.out}: next, flip-flop report {folders} --out report.html")
    results = checks.results(runs)
    for gate in results:
        if not (gate.passed and run.quiet):
            echo(f"{gate.run}: {gate.message}" if run.compare_chat else gate.message, err=not gate.passed)
    if run.markdown is not None:
        write_text(run.markdown, gates.markdown(results, render_markdown(blocks)))
    return max((gates.EXIT_CODES[gate.passed] for gate in results), default=0)
