"""Compare the label-free ranking of templates with their F1: ``python -m evidence.template_ranking RUN...``.

Each run is an audit with gold labels. The ranking sees the scores only. Audits from before calibration was the default
get the calibrated row that ``flip-flop audit`` adds today.
"""

import argparse
from dataclasses import replace

import numpy as np
import pandas as pd

from flip_flop import Audit, load_run
from flip_flop.metrics import calibrated, f1_per_template, offsets_that_change, rank_templates, summarise


def with_calibration(run: Audit) -> Audit:
    """Return the run with a calibrated row, if calibration changes a prediction."""
    offsets = None if run.calibrated else offsets_that_change(run.scores)
    if offsets is None:
        return run
    scores, names, f1 = calibrated(run.scores, offsets), run.template_names, run.data.average
    found = {
        "method": "batch",
        "label_prior": [1 / run.data.num_labels] * run.data.num_labels,
        "offsets": dict(zip(names, offsets.tolist(), strict=True)),
        "votes_changed": float((run.data.votes != replace(run.data, scores=scores).votes).mean()),
        "vote_share_drift": 0.0,
        **summarise(scores, run.gold, names, f1=f1, intervals=False),
    }
    return replace(run, metrics={**run.metrics, "calibrated": found})


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Compute Spearman's rank correlation, with mean ranks for ties; NaN if all values of one side are equal."""
    return float(pd.Series(first).rank().corr(pd.Series(second).rank()))


def row_of(run: Audit) -> dict[str, object]:
    """Return the row of an audit: correlations, and F1 of the first template of the ranking."""
    scores = run.calibrated and run.calibrated.data
    ranking = rank_templates(replace(run.data, gold=np.full(len(run.scores), -1)), scores)
    raw = rank_templates(replace(run.data, gold=np.full(len(run.scores), -1)))
    number = {"num_labels": run.data.num_labels}
    f1 = f1_per_template(run.predictions, run.gold, **number, average=run.data.average)
    macro = f1_per_template(run.predictions, run.gold, **number, average="macro")
    assert f1 is not None
    assert macro is not None
    place, raw_place = (np.argsort(each.order) for each in (ranking, raw))
    return {
        "audit": f"{run.path.parent.name}/{run.path.name}",
        "rows": len(run.scores),
        "templates": len(f1),
        "F1": rank_correlation(-place, f1),
        "macro-F1": rank_correlation(-place, macro),
        "macro-F1, agreement": rank_correlation(ranking.agreement, macro),
        "macro-F1, uncalibrated": rank_correlation(-raw_place, macro),
        "macro-F1, constancy": rank_correlation(-ranking.constancy, macro),
        "first": 100 * macro[ranking.order[0]],
        "mean": 100 * macro.mean(),
        "best": 100 * macro.max(),
    }


def main() -> None:
    """Print the table and its means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    frame = pd.DataFrame([row_of(with_calibration(load_run(run))) for run in parser.parse_args().runs])
    numbers = frame.drop(columns=["audit", "rows", "templates"])
    print(frame.round(2).to_string(index=False))
    print(numbers.agg(["mean", "median", "min", "max"]).round(2).to_string())
    print("five or more templates:", numbers[frame["templates"] >= 5].mean().round(2).to_dict())


if __name__ == "__main__":
    main()
