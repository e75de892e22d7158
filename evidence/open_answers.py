"""Writes the results of audits of open answers without their texts.

Usage: python -m evidence.open_answers BASE [TRAINED --training RUN] --out FILE.

A file has one character per row and template: the number of the answer among the row's different answers, in the order
of the templates, or `-` if it cannot be read. Another character is 1 for an answer that equals a reference. `numbers`
computes the metrics again.
"""

import argparse
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from flip_flop import Audit, load_run
from flip_flop.files import write_json
from flip_flop.metrics import Scores
from flip_flop.record import RunRecord

READABLE = "0123456789"


def without_texts(run: Audit) -> dict[str, Any]:
    """Return an audit's answers as characters, by template."""
    answers: dict[str, str] = dict.fromkeys(run.template_names, "")
    right = dict.fromkeys(run.template_names, "")
    for row, is_right in zip(run.data.answers.tolist(), run.data.right, strict=True):
        distinct = [answer for answer in dict.fromkeys(row) if answer >= 0]
        for name, answer, hit in zip(answers, row, is_right, strict=True):
            answers[name] += READABLE[distinct.index(answer)] if answer >= 0 else "-"
            right[name] += str(int(hit))
    return {"answers": answers, "right": right}


def numbers(run: dict[str, Any], templates: list[str]) -> dict[str, float]:
    """Return P_o, accuracy and the share of unreadable answers under some templates, in percent."""
    rows = list(zip(*(run["answers"][name] for name in templates), strict=True))
    agreed = [left == right != "-" for row in rows for left, right in combinations(row, 2)]
    hits = [hit == "1" for name in templates for hit in run["right"][name]]
    return {
        "observed_agreement": 100 * fmean(agreed),
        "accuracy": 100 * fmean(hits),
        "unreadable": 100 * fmean(answer == "-" for row in rows for answer in row),
    }


def scores_of(run: dict[str, Any], templates: list[str]) -> Scores:
    """Return the answers under some templates as scores, from which metrics compute intervals."""
    keys = np.array([[READABLE.find(answer) for answer in run["answers"][name]] for name in templates]).T
    right = np.array([[hit == "1" for hit in run["right"][name]] for name in templates]).T
    certain = np.where(keys[..., None] == np.arange(len(READABLE)), 0.0, -np.inf)
    return Scores(certain, np.zeros(len(keys), dtype=np.int64), answered={"key": keys, "exact": right})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m evidence.open_answers", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("trained", type=Path, nargs="?")
    parser.add_argument("--training", type=Path, help="the folder of the training run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    training = load_training(options.training) if options.training else None
    runs = [load_run(folder) for folder in (options.base, options.trained) if folder]
    record = runs[0].record
    result = {
        "model": Path(record.model.name).name,
        "task": record.task.name,
        "versions": record.versions,
        "training": training,
        "vote_accuracy": {run.name: run.value("vote_accuracy") for run in runs},
        "runs": {run.name: without_texts(run) for run in runs},
    }
    write_json(options.out, result)


def load_training(folder: Path) -> dict[str, Any]:
    """Return the settings of a training run, and the rows and templates that it saw."""
    record = RunRecord.read(folder, "train")
    seen = {"num_rows": record.task.num_instances, "templates": [template.name for template in record.task.templates]}
    return {**seen, "seconds": record.seconds, **(record.training or {})}


if __name__ == "__main__":
    main()
