"""``flip-flop predict``."""

from collections import Counter
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


@click.command("predict")
@model_options
@task_option
@click.option("--input", "-i", "source", type=click.Path(path_type=Path), required=True, help="CSV, JSONL or parquet.")
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="A .jsonl or .csv file.")
@templates_option
@scoring_options
@data_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def predict_command(
    model: str,
    adapter: Path | None,
    revision: str | None,
    dtype: str,
    device: str,
    task: str,
    source: Path,
    out: Path,
    templates: str | None,
    chat_template: Any,
    backend: Any,
    batch_tokens: int,
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
    quiet: bool,
) -> int:
    """Answer a file's rows: the label distribution under each template, and the vote of all.

    Rows need the fields that the templates use, and no labels.
    """
    from flip_flop.evaluation import predict, write_predictions
    from flip_flop.evaluation.predict import check_target, render_file

    check_target(out, source)
    chosen = open_task(task, templates, hub_mirror, story_cloze_dir)
    instances = render_file(chosen, source)  # the data's mistakes before the model's minutes
    loaded = open_model(model, adapter, revision, dtype, device)
    predictions = predict(
        loaded,
        chosen,
        source,
        chat_template=chat_template,
        backend=backend,
        batch_tokens=batch_tokens,
        quiet=quiet,
    )
    labels = chosen.label_values(len(instances[0].choices[0]))
    write_predictions(predictions, labels, out)
    votes = Counter(row["vote"] for row in predictions)
    shares = ", ".join(f"{label}: {votes[label]}" for label in labels)
    undecided = sum(not row["consensus"] for row in predictions)
    click.echo(f"{out}: {len(predictions)} rows ({shares}; {undecided} without a strict majority of the templates)")
    return 0
