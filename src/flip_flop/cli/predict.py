"""``flip-flop predict``."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click

from flip_flop.cli.options import CalibrationOptions, ModelOptions, RowOptions, TaskOptions, option, options, out_file
from flip_flop.console import count, echo, is_first_process
from flip_flop.scoring import ScoringOptions, listed_beside


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """A prediction's own options."""

    source: Path = option(flag="input", short="-i", help="CSV, TSV, JSONL, parquet or xlsx.")
    out: Path = option(short="-o", callback=out_file, help="A .csv, .xlsx or .jsonl file.")
    abstain_below: float = option(
        0.0, type=click.FloatRange(0, 1), help="Leave the vote empty if a smaller share of the templates predicts it."
    )
    quiet: bool = option(False, short="-q", help="Show no progress.")


@click.command("predict")
@options(ModelOptions, TaskOptions, PredictOptions, CalibrationOptions, ScoringOptions, RowOptions)
def predict_command(
    model: ModelOptions,
    task: TaskOptions,
    run: PredictOptions,
    calibration: CalibrationOptions,
    scoring: ScoringOptions,
    data: RowOptions,
) -> None:
    """Answer a file's rows: the label distribution under each template, and the vote of all.

    Rows need the fields that the templates use, and no labels. A table has the vote and its confidence first, then the
    input's columns, one of a taken name as `input: NAME`; JSONL has the object `input`. `confidence` is the share of
    the templates that predict the vote. With --too-long skip, a row that is longer than the model's context has no
    answer, and a note that says so.
    """
    from flip_flop.evaluation.run_directory import check_target
    from flip_flop.files import lock_output

    check_target(run.out)
    # The data's errors come before the model's minutes, and those of all that is typed before the seconds of torch.
    opened = data.open(task.task, task.templates, data.protocol)
    prior = calibration.prior(opened)
    rows = opened.render_file(run.source)
    model.check(scoring)
    if is_first_process():
        click.get_current_context().with_resource(lock_output(run.out))
    scorer, calibrate = model.scorer(quiet=run.quiet), calibration.calibrate
    quiet = run.quiet or not is_first_process()
    from flip_flop.evaluation.predict import predict, write_predictions

    with listed_beside(run.out):
        predictions = predict(
            scorer,
            rows,
            scoring=scoring,
            quiet=quiet,
            calibrate=calibrate,
            label_prior=prior,
            abstain_below=run.abstain_below,
        )
    if not is_first_process():
        return
    labels = rows.task.label_values(len(rows.instances[0].choices[0]))
    write_predictions(predictions, labels, run.out, rows.rows)
    votes = Counter(row["vote"] for row in predictions)
    shares = ", ".join(f"{label}: {votes[label]}" for label in labels)
    if opened.answer:
        shares = count(len(votes.keys() - {None}), "different vote")
    undecided = sum(row["consensus"] is False for row in predictions)
    notes = f"; {undecided} without a strict majority of the templates"
    abstained = sum(row["vote"] is None and 0 < (row["confidence"] or 0) < run.abstain_below for row in predictions)
    if run.abstain_below:
        notes += f"; {abstained} abstained"
    if skipped := sum(bool(row.get("note")) for row in predictions):
        notes += f"; {skipped} too long"
    none = "without a readable answer" if opened.answer else "without an answer that is a label"
    if unanswered := sum(row["vote"] is None for row in predictions) - abstained - skipped:
        notes += f"; {unanswered} {none}"
    echo(f"{run.out}: {len(predictions)} rows ({shares}{notes})")
