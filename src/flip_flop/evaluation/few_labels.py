"""Votes in which templates have weights from few labelled rows (docs/how-to/few-labels.md)."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS, Scores, calibrated, predicted, template_weights
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.scorer import Scorer
from flip_flop.tasks import RenderedSplit


def with_weighted_vote(
    found: Audit, scorer: Scorer, split: RenderedSplit, few: RenderedSplit, scoring: ScoringOptions, *, quiet: bool
) -> Audit:
    """Add ``weighted_vote`` to an audit: the majority vote and the weighted vote on labelled rows that are not ``few``.

    ``few`` are labelled rows from :func:`~flip_flop.tasks.labelled_file`. Rows are the same if all their prompts and
    choices are.
    """
    scored, used = (
        score_few(scorer, few, scoring, quiet=quiet),
        {each.texts for each in few.instances},
    )
    used_ids = {each.id for each in split.instances if each.texts in used}
    is_other = np.array([each not in used_ids for each in found.instance_ids])

    def compare(run: Audit, offsets: Float[np.ndarray, "templates labels"] | None) -> dict[str, Any]:
        weights, others = weigh_templates(scored, offsets), run.data[is_other].labelled
        metrics = ("accuracy", "mean_f1", "macro_f1")
        return {
            "num_few_labels": len(few.instances),
            "num_instances": len(others),
            "weights": dict(zip(run.template_names, weights.tolist(), strict=True)),
            "majority": {each: METRICS[each].value(others.voted) for each in metrics},
            "weighted": {each: METRICS[each].value(others.weighted(weights)) for each in metrics},
        }

    metrics = {**found.metrics, "weighted_vote": compare(found, None)}
    if (after := found.calibrated) is not None:
        offsets = np.array([after.metrics["offsets"][name] for name in found.template_names])
        metrics["calibrated"] = {**after.metrics, "weighted_vote": compare(after, offsets)}
    return replace(found, metrics=metrics)


def weigh_templates(
    few: Scores, offsets: Float[np.ndarray, "templates labels"] | None
) -> Float[np.ndarray, " templates"]:
    """Compute template weights from the scores of labelled rows, with the offsets of the calibration of the vote."""
    scores = few.scores if offsets is None else calibrated(few.scores, offsets)
    return template_weights(predicted(scores), few.gold, few.num_labels)


def score_few(scorer: Scorer, few: RenderedSplit, scoring: ScoringOptions, *, quiet: bool) -> Scores:
    """Score a few labelled rows."""
    return scorer.scores(few.instances, scoring, names=few.task.templates.names, label="few labels", quiet=quiet)
