"""Votes with label frequencies of few labels, from stored audits: ``python evidence/few_labels.py RUN...``.

Each seed divides the labelled rows of an audit into two halves. The few labels are drawn from the first half, and the
second half measures every vote. Prints accuracy / macro-F1 in percent, the mean over seeds.
"""

import sys
from collections.abc import Sequence

import numpy as np

from flip_flop.evaluation.run_directory import Audit, load_run
from flip_flop.metrics import METRICS, Scores, batch_offsets, calibrated, prior_of_labels

NUMBERS = (0, 5, 10, 20, 50)
SEEDS = (0, 1, 2)


def votes(data: Scores, few: np.ndarray, test: np.ndarray) -> dict[str, Scores]:
    """Return each vote on the test rows. The offsets of a calibration come from all rows, without labels."""
    prior = prior_of_labels(data.gold[few], data.num_labels)
    scores_of_vote = {
        "majority vote": data.scores,
        "calibrated vote": calibrated(data.scores, batch_offsets(data.scores)),
        "calibrated vote, prior of the few labels": calibrated(data.scores, batch_offsets(data.scores, prior)),
    }
    return {name: Scores(scores, data.gold, data.average)[test].voted for name, scores in scores_of_vote.items()}


def curve(run: Audit, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    """Return the cells of each vote, one for each number of labels that the first half has."""
    data = run.data.labelled
    half = len(data) // 2
    cells: dict[str, list[str]] = {}
    for number in (number for number in NUMBERS if number <= half):
        values: dict[str, list[tuple[float | None, ...]]] = {}
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(data))
            for name, vote in votes(data, order[:number], order[half:]).items():
                measured = tuple(METRICS[metric].value(vote) for metric in ("accuracy", "macro_f1"))
                values.setdefault(name, []).append(measured)
        for name, per_seed in values.items():
            mean = 100 * np.mean(per_seed, axis=0)
            cells.setdefault(name, []).append(" / ".join(f"{value:.1f}" for value in mean))
    return cells


def main(paths: Sequence[str]) -> None:
    """Print a Markdown table for each audit."""
    for path in paths:
        run = load_run(path)
        cells = curve(run)
        numbers = NUMBERS[: len(cells["majority vote"])]
        print(f"\n{run.record.task.name}, {len(run.data.labelled)} rows\n")
        print("| vote | " + " | ".join(f"{number} labels" for number in numbers) + " |")
        print("|---|" + "---|" * len(numbers))
        for name, line in cells.items():
            print(f"| {name} | " + " | ".join(line) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
