"""Votes with few labels, from the stored scores of audits: ``python evidence/few_labels.py RUN...``.

Each seed divides the labelled rows of an audit into two halves. The few labels come from the first half, at random or
the most disputed first, and the second half measures every vote. Prints accuracy / macro-F1 in percent, the mean over
seeds.
"""

import sys
from collections.abc import Sequence

import numpy as np

from flip_flop.evaluation.predict import most_disputed
from flip_flop.evaluation.run_directory import Audit, load_run
from flip_flop.metrics import (
    METRICS,
    Scores,
    batch_offsets,
    calibrated,
    label_probs,
    predicted,
    prior_of_labels,
    template_weights,
    vote_counts,
)

NUMBERS = (0, 5, 10, 20, 50)
SEEDS = (0, 1, 2)


def disputed_order(data: Scores) -> np.ndarray:
    """Return all rows in the order of ``predict --label-next``."""
    shares = vote_counts(data.predictions, data.num_labels).max(axis=1) / data.scores.shape[1]
    rows = [
        {"confidence": share, "templates": {at: {"probs": own} for at, own in enumerate(probs)}}
        for share, probs in zip(shares, label_probs(data.scores).tolist(), strict=True)
    ]
    return np.array(most_disputed(rows, len(rows)))


def votes(data: Scores, few: np.ndarray, test: np.ndarray) -> dict[str, Scores]:
    """Return each vote on the test rows. The offsets of a calibration come from all rows, without labels."""
    found, gold = {}, data.gold[few]
    prior = prior_of_labels(gold, data.num_labels)
    moved = {
        "majority vote": data.scores,
        "calibrated vote": calibrated(data.scores, batch_offsets(data.scores)),
        "calibrated vote, prior of the few labels": calibrated(data.scores, batch_offsets(data.scores, prior)),
    }
    for name, scores in moved.items():
        found[name] = Scores(scores, data.gold, data.average)[test].voted
    for name in ("majority vote", "calibrated vote"):
        weights = template_weights(predicted(moved[name][few]), gold, data.num_labels)
        title = name.replace("majority vote", "weighted vote").replace("calibrated vote", "calibrated weighted vote")
        found[title] = Scores(moved[name], data.gold, data.average)[test].weighted(weights)
    return found


def curve(run: Audit, selection: str, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    """Return the cells of each vote, one for each number of labels that the first half has."""
    data = run.data.labelled
    half = len(data) // 2
    cells: dict[str, list[str]] = {}
    for number in (each for each in NUMBERS if each <= half):
        values: dict[str, list[tuple[float | None, ...]]] = {}
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(data))
            pool, test = order[:half], order[half:]
            if selection == "disputed":
                pool = pool[disputed_order(data[pool])]
            for name, vote in votes(data, pool[:number], test).items():
                values.setdefault(name, []).append(
                    tuple(METRICS[each].value(vote) for each in ("accuracy", "macro_f1"))
                )
        for name, found in values.items():
            mean = 100 * np.mean(found, axis=0)
            cells.setdefault(name, []).append(" / ".join(f"{each:.1f}" for each in mean))
    return cells


def main(paths: Sequence[str]) -> None:
    """Print a Markdown table for each audit and selection."""
    for path in paths:
        run = load_run(path)
        for selection in ("random", "disputed"):
            cells = curve(run, selection)
            numbers = NUMBERS[: len(cells["majority vote"])]
            print(f"\n{run.record.task.name}, {len(run.data.labelled)} rows, {selection} rows labelled\n")
            print("| vote | " + " | ".join(f"{number} labels" for number in numbers) + " |")
            print("|---|" + "---|" * len(numbers))
            for name, line in cells.items():
                print(f"| {name} | " + " | ".join(line) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
