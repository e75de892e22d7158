"""``flip-flop predict`` and ``flip-flop export``."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from flip_flop.cli.options import (
    CalibrationOptions,
    ModelOptions,
    RowOptions,
    TaskOptions,
    option,
    options,
    out_file,
    out_folder,
)
from flip_flop.console import echo, is_first_process
from flip_flop.errors import InputError
from flip_flop.metrics import AveragedAxis
from flip_flop.scoring import ScoringOptions, listed_beside
from flip_flop.tasks import split_names

if TYPE_CHECKING:
    from flip_flop.scoring.scorer import Scorer

# The options beside --with, which does not decide them.
FREE = {"source", "out", "decided", "abstain_below", "average", "certify", "quiet"}
FREE |= {"model", "templates", "device", "device_map", "shard", "backend", "batch_tokens", "concurrency", "too_long"}


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Averages over the orders of the options."""

    average: AveragedAxis | None = option(
        None, help="Answer by the mean probabilities over the orders of the options (docs/how-to/axes.md)."
    )
    certify: float | None = option(
        None,
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Stop such an average early: this share of the answers must not change, e.g. 0.99.",
    )


@dataclass(frozen=True, kw_only=True)
class PredictOptions(AverageOptions):
    """A prediction's own options."""

    source: Path = option(flag="input", short="-i", help="CSV, TSV, JSONL, parquet or xlsx.")
    out: Path = option(short="-o", callback=out_file, help="A .csv, .xlsx or .jsonl file.")
    decided: Path | None = option(
        None,
        flag="with",
        short="-w",
        help="The folder of an audit, a training run or an export: apply what it decided.",
    )
    abstain_below: float | None = option(
        None, type=click.FloatRange(0, 1), help="Leave the vote empty if its confidence is smaller."
    )
    quiet: bool = option(False, short="-q", help="Show no progress.")


@click.command("predict")
@options(
    *(ModelOptions, TaskOptions, PredictOptions, CalibrationOptions, ScoringOptions, RowOptions),
    optional=("model", "task"),
)
def predict_command(
    model: ModelOptions,
    task: TaskOptions,
    run: PredictOptions,
    calibration: CalibrationOptions,
    scoring: ScoringOptions,
    data: RowOptions,
) -> None:
    """Answer a file's rows: the label distribution under each template, and the vote of all.

    With `--with`, model, templates, offsets and chat settings are those of an audit or a training run, and rows that
    are too long get a note. A file of any size is read and written in parts. Otherwise give `--model` and `--task`.

    Rows need the fields that the templates use, and no labels. A table has the vote and its confidence first, then the
    input's columns, one of a taken name as `input: NAME`; JSONL has the object `input`. `confidence` is the share of
    the templates that predict the vote, or the probability of the label under a single template. With --too-long skip,
    a row that is longer than the model's context has no answer, and a note that says so.
    """
    from flip_flop.evaluation.run_directory import check_target

    check_target(run.out)
    if run.decided is not None:
        _refuse_decided()
        rows = _apply(run.decided, run, model, task, scoring)
    elif run.certify or not model.model or not task.task:
        raise click.UsageError("Give --with, or --model and --task. --certify needs --with.")
    else:
        rows = _predict(run, model, task, calibration, scoring, data)
    if is_first_process():
        echo(f"{run.out}: {rows}")


def _refuse_decided() -> None:
    context = click.get_current_context()
    for item in context.command.params:
        is_typed = context.get_parameter_source(str(item.name)) == ParameterSource.COMMANDLINE
        if is_typed and item.name not in FREE:
            raise InputError("E-CLASSIFIER", f"{item.opts[0]} and --with are both given.", "Remove one of them.")


def _scorer(run: PredictOptions, model: ModelOptions) -> "Scorer":
    """Lock the output, and load the model."""
    from flip_flop.files import lock_output

    if is_first_process():
        click.get_current_context().with_resource(lock_output(run.out))
    return model.scorer(quiet=run.quiet)


def _predict(
    run: PredictOptions,
    model: ModelOptions,
    task: TaskOptions,
    calibration: CalibrationOptions,
    scoring: ScoringOptions,
    data: RowOptions,
) -> str:
    """Predict with the model and the task that are given."""
    # The data's errors come before the model's minutes, and those of all that is typed before the seconds of torch.
    opened = data.open(task.task, task.templates, data.protocol, task.axes)
    prior = calibration.prior(opened)
    split = opened.render_file(run.source)
    model.check(scoring)
    scorer = _scorer(run, model)
    from flip_flop.classifier.stream import write_counted
    from flip_flop.evaluation.handover import answering
    from flip_flop.evaluation.predict import predict

    shown = opened.with_templates(answering(opened, run.average))
    with listed_beside(run.out):
        predictions = predict(
            scorer,
            split,
            scoring=scoring,
            quiet=run.quiet,
            calibrate=calibration.calibrate,
            label_prior=prior,
            abstain_below=run.abstain_below or 0.0,
            average=run.average,
        )
    pairs = zip(predictions, split.rows.rows, strict=True)
    num_labels = len(split.instances[0].choices[0])
    return write_counted(pairs, shown, scoring, num_labels, split.rows.columns(), run.out)


def _apply(path: Path, run: PredictOptions, model: ModelOptions, task: TaskOptions, scoring: ScoringOptions) -> str:
    """Predict what an audit or a training run decided."""
    from flip_flop.classifier.read import model_arguments, read_classifier

    classifier = read_classifier(path, split_names(task.templates or ""), run.average, run.certify)
    if run.abstain_below is not None:
        classifier = replace(classifier, abstain_below=run.abstain_below)
    measured = replace(model, **model_arguments(classifier, model.model))
    measured.check(scoring)
    # Errors of the folder and of options come before the seconds of torch.
    from flip_flop.classifier.load import LoadedClassifier
    from flip_flop.classifier.stream import predict_file

    classify = LoadedClassifier(classifier, lambda: _scorer(run, measured), scoring)
    return predict_file(classify, run.source, run.out, quiet=run.quiet)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(AverageOptions):
    """The options of an export."""

    out: Path = option(short="-o", callback=out_folder, help="The folder to write.")
    merge: bool = option(False, help="Write merged weights, and compare their answers with the adapter's.")
    template: tuple[str, ...] = option((), help="Use this template of an audit, or `all`. Several vote. Repeatable.")
    rows: Path | None = option(None, help="Rows to compare the answers of merged weights; by default the audit's.")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@options(ExportOptions)
def export_command(export: ExportOptions, run: Path) -> None:
    """Write what an audit or a training run decided into a folder of its own: `classifier.json` and the adapter.

    `--merge` writes base and adapter as one model in safetensors, and fails if more than 0.5 % of up to 200 answers
    change. `predict --with` and `load_classifier` take the folder.
    """
    from flip_flop.classifier import export as exporting

    figures = exporting.export(
        run,
        export.out,
        merge=export.merge,
        templates=export.template,
        average=export.average,
        certify=export.certify,
        rows=export.rows,
    )
    if figures:
        echo(f"{export.out}: {figures}")
    command = shlex.join(["flip-flop", "predict", "--with", str(export.out)])
    echo(f"{export.out}: next, {command} --input rows.csv --out predictions.csv")
