"""Runs cells of the results: the audits of a base, or a training run with its audits. Each has one file in the results.

Usage: python -m evidence.run --model FOLDER --name NAME --work FOLDER movie_reviews/base-0 rte/f2c-0 ...

A cell is TASK/METHOD-SEED, or TASK/METHOD_from_OTHER-SEED for the audit of a model that was trained on another task.
Cells with a file are skipped. An interrupted cell continues: the folder of work has its checkpoints and its audits. The
files have no texts. They have gold labels and predictions as digits, from which every metric can be computed again.
`python -m evidence.prepare` writes the rows of movie reviews, AG News and TREC.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from flip_flop import Audit, LoadedModel, ScoringOptions, Task, audit, load_model, load_run, load_task, train
from flip_flop.console import echo, now
from flip_flop.errors import InputError
from flip_flop.files import write_json
from flip_flop.record import RUN_FILE, RunRecord
from flip_flop.training.config import make_config
from flip_flop.training.data import load_training_data

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
TASKS = FOLDER / "tasks"
EXAMPLES = FOLDER.parent / "examples"
# `flip-flop tasks list` has other names.
FILES = {
    "movie_reviews": TASKS / "mr.yaml",
    "ag_news": TASKS / "ag.yaml",
    "trec": TASKS / "trec.yaml",
    "movies": EXAMPLES / "movies/task.yaml",
    "facts": EXAMPLES / "judges/facts.yaml",
    **{path.stem: path for path in [*FOLDER.glob("*_orders.yaml"), *EXAMPLES.glob("open_answers/*.yaml")]},
}
# Tasks whose templates vary along other axes: the source of the templates, those that vary, and their axes.
EXAMPLES_AXIS = {"number": 4, "sets": 2, "orders": 2, "from": "train", "labels": "gold"}
FORMATS = {"order": None, "held_out": {}, "format": 4, "examples": EXAMPLES_AXIS}
VARIED: dict[str, tuple[str, str | None, Any]] = {
    "ag_news_formats": ("ag_news_orders", "letters,words", FORMATS),
    "trec_formats": ("trec_orders", "letters,words", FORMATS),
    "movie_reviews_typos": ("movie_reviews", None, {"typos": 0.05, "examples": EXAMPLES_AXIS}),
}
# A pass over many rows computes the demonstrations that they share once.
BATCH_TOKENS = 16384
# Rows for training and for selecting a checkpoint. Training is one epoch.
ROWS, EVAL_ROWS = 256, 100
SETTINGS = {"max_steps": 16, "per_device_train_batch_size": 16, "eval_steps": 4, "logging_steps": 2}
# The settings of the tutorial, and one pass in steps of 8 over open answers.
OPEN = {"max_steps": -1, "per_device_train_batch_size": 8, "eval_steps": 8, "chat_template": "off"}
TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "movies": {"max_steps": 10, "eval_steps": 5, "chat_template": "off"},
    "capitals": OPEN,
    "svamp_equation": OPEN,
}
# Changes of the settings of F2C, and the rows or the number of templates for training if they differ. Other names of
# cells are methods.
VARIANTS: dict[str, dict[str, Any]] = {
    "f2c_paper": {"protocol": "paper"},
    "f2c_labels": {"cce_space": "labels"},
    "f2c_labels_4": {"cce_space": "labels", "max_steps": 4, "eval_steps": 1, "logging_steps": 1},
    "f2c_tokens": {"cce_space": "vocab"},
    "f2c_both": {"divergence_space": "both"},
    "f2c_uncalibrated": {"vote_calibration": "none"},
    "f2c_online": {"votes": "online"},
    "f2c_slow": {"learning_rate": 1e-4},
    "f2c_ensemble": {"method": "examples.methods.ensemble:F2C_ENSEMBLE", "cce_space": "vocab"},
    "f2c_adaptive": {"method": "examples.methods.adaptive:F2C_ADAPTIVE"},
    **{f"f2c_{number}": {"templates": number} for number in (2, 3, 5)},
    "f2c_1024": {"rows": 1024, "max_steps": 64, "eval_steps": 16},
}
# Settings that the paper did not tune, one at a time. 100 means without a limit. The paper selects by mean F1.
UNTUNED: list[tuple[str, Any]] = [
    ("max_cc_size", 2),
    ("max_cc_size", 5),
    ("max_cc_size", 100),
    ("unanimous_margin", 0.5),
    ("unanimous_margin", 100.0),
    ("flip_temperature", 0.5),
    ("jsd_weight", 0.0),
    ("flip_weight_max", 0.0),
    ("select_by", "worst_f1"),
    ("select_by", "worst_agreement"),
]
VARIANTS |= {f"f2c_{setting}_{value}": {setting: value} for setting, value in UNTUNED}
VARIANTS["f2c_flip_weight_max_0.0"]["flip_weight_min"] = 0.0
# The task's F1 is macro-F1. f1_std is its standard deviation over templates.
SHOWN = ("observed_agreement", "accuracy", "macro_f1", "f1_std", "vote_accuracy", "vote_f1")
SHOWN_OPEN = ("observed_agreement", "accuracy", "vote_accuracy", "unmapped_share")
# Over the orders of the options: one answer for each wording.
AVERAGES = ("average", "calibrated average")
# The log of a training run: the losses, and metrics on the rows for selection.
COURSE = (
    *("loss", "grad_norm", "own_label_mass", "pseudo_label_accuracy", "eval_observed_agreement", "eval_accuracy"),
    *("eval_macro_f1", "eval_vote_accuracy", "eval_vote_drift", "eval_own_label_mass"),
)


def run_cell(
    cell: str, model: str, name: str, work: Path, results: Path, hub_mirror: Path | None, rows: int, dtype: str
) -> Path:
    """Run a cell unless it has a file, and return the file.

    Raises:
        InputError: The task or method is unknown, or an error of the data or the model.
        SystemExit: A signal stopped the training run.
    """
    task_name, method, seed = cell.replace("-", "/").split("/")
    file = results / name / f"{cell}.json"
    if file.exists():
        return file
    task = _task(task_name, hub_mirror)
    # The cells that audit one training run share it.
    objective, _, source = method.partition("_from_")
    train_out = work / name / (source or task_name) / f"{objective}-{seed}" / "train"
    trained, adapter = None, None
    if method != "base":
        trained_task = _task(source, hub_mirror) if source else task
        trained = _train(model, trained_task, objective, int(seed), train_out, dtype)
        adapter = train_out / "adapter"
    audits, load = {}, partial(load_model, model, adapter=adapter, dtype=dtype)
    for part, names in (("trained", task.training_templates.names), ("held_out", task.held_out_templates)):
        if names:
            run = _audit(load, task.with_templates(names), rows, work / name / cell / part)
            audits[part] = numbers(run)
    result = {"model": name, "task": task_name, "method": method, "seed": int(seed), **_provenance(run)}
    write_json(file, {**result, "training": trained and _course(trained, train_out), "audits": audits})
    return file


def _task(name: str, hub_mirror: Path | None) -> Task:
    source, templates, axes = VARIED.get(name, (name, "all", None))
    return load_task(FILES.get(source, source), templates=templates, axes=axes, hub_mirror=hub_mirror)


def _train(model: str, task: Task, method: str, seed: int, out: Path, dtype: str) -> RunRecord:
    settings = {**SETTINGS, **TASK_SETTINGS.get(task.name, {}), **VARIANTS.get(method, {"method": method})}
    rows = settings.pop("rows", ROWS)
    # The first ones, as in the paper's third study.
    task = task.with_templates(task.training_templates.names[: settings.pop("templates", None)])
    config = make_config({**settings, "seed": seed, "model_init_kwargs": {"dtype": dtype}})
    data = load_training_data(task, config, limit=rows, eval_limit=EVAL_ROWS)
    run = train(model, data, config, out, resume=True, quiet=True, keep_worse=True)
    if run.stopped_by is not None:
        raise SystemExit(128 + run.stopped_by)
    return RunRecord.read(out, "train")


def _audit(load: Callable[[], LoadedModel], task: Task, rows: int, out: Path) -> Audit:
    if not (out / RUN_FILE).exists():
        chat_template = TASK_SETTINGS.get(task.name, {}).get("chat_template", "auto")
        scoring = ScoringOptions(chat_template=chat_template, batch_tokens=BATCH_TOKENS)
        audit(load(), replace(task, f1="macro"), scoring=scoring, limit=rows, quiet=True).write(out)
    return load_run(out)


def numbers(run: Audit) -> dict[str, Any]:
    """Return the metrics of an audit, raw and calibrated, with gold labels and predictions as digits.

    An open answer is its number among the different answers to the row, in the order of the templates. ``right`` has 1
    where it is one of the references.
    """
    found: dict[str, Any] = {
        "rows": run.record.task.instances_digest,
        "num_rows": len(run.gold),
        "gold": digits(run.gold),
        "num_labels": run.data.num_labels,
        "seconds": run.record.seconds,
        "levels": run.data.design.levels,
    }
    is_open = bool(run.data.answered)
    for name, view in {"raw": run, **({} if is_open else {"calibrated": run.calibrated or run})}.items():
        found[name] = {
            "metrics": {metric: view.metrics[metric] for metric in (SHOWN_OPEN if is_open else SHOWN)},
            "collapsed": view.is_collapsed,
            "vote": digits(view.data.votes),
            "predictions": by_template(view, view.predictions),
            **({"right": by_template(view, view.data.right.astype(int))} if is_open else {}),
        }
    for form in run.forms.keys() & AVERAGES:
        mean = run.forms[form]
        levels = mean.design.levels
        answers = map(digits, mean.predictions.T)
        predictions = {own["wording"]: own_answers for own, own_answers in zip(levels, answers, strict=True)}
        found[form] = {"levels": levels, "predictions": predictions}
    return found


def by_template(run: Audit, values: np.ndarray) -> dict[str, str]:
    """Return small numbers ``[instances, templates]`` as texts of digits, by template."""
    return dict(zip(run.template_names, map(digits, values.T), strict=True))


def digits(numbers: np.ndarray) -> str:
    """Return small numbers as text. -1, an answer that cannot be read, is a dash.

    Example:
        >>> digits(np.array([0, 2, -1]))
        '02-'
    """
    return "".join("-" if number < 0 else str(number) for number in numbers.tolist())


def _course(record: RunRecord, out: Path) -> dict[str, Any]:
    """Return the settings of a training run and its log as [step, value]. Seconds count from the last resume."""
    log = pd.read_json(out / "log.jsonl", lines=True)
    course = {name: log[["step", name]].dropna().values.tolist() for name in COURSE if name in log}
    return {**(record.training or {}), "num_rows": record.task.num_instances, "seconds": record.seconds, "log": course}


def _provenance(run: Audit) -> dict[str, Any]:
    words = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False)
    return {
        "base": {name: getattr(run.record.model, name) for name in ("digest", "dtype", "num_parameters")},
        "versions": {"commit": commit.stdout.strip(), **run.record.versions},
        "machine": dict(run.record.hardware),
        "date": now()[:10],
    }


@click.command()
@click.option("--model", required=True, help="The folder of the model, or its name on the hub.")
@click.option("--name", required=True, help="The model's folder in the results.")
@click.option("--work", required=True, type=Path, help="The folder of checkpoints and audits.")
@click.option("--results", type=Path, default=RESULTS, help="The folder of results (evidence/results).")
@click.option("--rows", type=int, default=1000, help="The rows of an audit (1000).")
@click.option("--dtype", default="auto", help="The data type of the model (auto).")
@click.option("--hub-mirror", type=Path, help="Read datasets from this folder.")
@click.argument("cells", metavar="TASK/METHOD-SEED...", required=True, nargs=-1)
def main(cells: tuple[str, ...], **options: Any) -> None:
    """Run cells that have no result yet."""
    try:
        for cell in cells:
            echo(f"{now()} {run_cell(cell, **options)}")
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
