"""Which checkpoint is kept: the best by labelled mean F1, as in the paper, or by agreement, which needs no labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from flip_flop.errors import InputError
from flip_flop.metrics import METRICS, Average, EvalData, label_shares, majority_vote, summarise
from flip_flop.scoring.scorer import ScoreTable
from flip_flop.training.config import F2CConfig
from flip_flop.training.votes import VoteTable

# Below every agreement: a checkpoint that must not be chosen.
COLLAPSED = -1.0


def evaluation_metrics(
    table: ScoreTable, gold: np.ndarray, names: Sequence[str], f1: Average = "auto"
) -> dict[str, float]:
    """Metrics of one evaluation, flat and without those that have no answer; own-label mass per template.

    The votes' label shares of the evaluation before the first step are the base's: with them the log alone tells what
    ``select_by: agreement`` would have chosen.
    """
    summary = summarise(table.scores, gold, names, f1=f1, intervals=False)
    metrics = {name: summary[name] for name in METRICS if summary[name] is not None}
    metrics |= {f"label_share_{label}": share for label, share in enumerate(summary["label_shares"])}
    vote_shares = label_shares(majority_vote(table.scores)[:, None], table.scores.shape[-1])
    metrics |= {f"vote_share_{label}": float(share) for label, share in enumerate(vote_shares)}
    mass = table.own_label_mass.mean(axis=0)
    metrics |= {"own_label_mass": float(mass.mean()), "own_label_mass_min": float(mass.min())}
    return metrics | {f"own_label_mass/{name}": float(value) for name, value in zip(names, mass, strict=True)}


@dataclass
class CheckpointCriterion:
    """The value that a checkpoint is chosen by; higher is better.

    Agreement alone would reward a model that always gives one label. So a checkpoint counts only while the shares of
    its labels are those of the base model's majority votes, to within ``max_share_drift`` (total variation).
    """

    by: Literal["mean_f1", "agreement", "last"]
    max_share_drift: float
    refuses_collapse: bool = False

    @classmethod
    def of(cls, config: F2CConfig, gold: Sequence[int | None] | None) -> "CheckpointCriterion":
        """Resolve ``select_by`` for validation rows with these labels: ``auto`` is mean F1 if most rows have one."""
        if gold is None or config.select_by == "last" or config.eval_strategy == "no":
            return cls("last", config.max_share_drift, config.stop_on_collapse)
        labelled = sum(label is not None for label in gold)
        if config.select_by == "mean_f1" and not labelled:
            raise InputError("E-SELECT-LABELS", "select_by is mean_f1, but the validation rows have no labels.")
        by_f1 = config.select_by == "mean_f1" or (config.select_by == "auto" and 2 * labelled > len(gold))
        return cls("mean_f1" if by_f1 else "agreement", config.max_share_drift, config.stop_on_collapse)

    def judge(
        self,
        metrics: dict[str, float],
        scores: Float[np.ndarray, "instances templates labels"],
        base_votes: VoteTable,
        gold: Int[np.ndarray, " instances"],
    ) -> dict[str, float]:
        """``selection``, the checkpoint's value; ``vote_drift``, how far its votes are from the base's; ``collapsed``.

        The value is mean F1, which counts -1 after a collapse only if ``refuses_collapse``, or agreement, which always
        does; there is none where the last checkpoint is kept. ``metrics`` are from :func:`evaluation_metrics`.
        ``base_votes`` are those of the model without its adapter on the same rows; what a calibration has moved is no
        drift. Where labels choose the checkpoint, shares that move are a collapse only if macro-F1 is below the base's
        too: F1 of label 1 rewards a model for always answering it.
        """
        num_labels = scores.shape[-1]
        votes = label_shares(majority_vote(scores)[:, None], num_labels)
        drift = base_votes.drift(votes)
        has_moved = drift > self.max_share_drift
        if self.by == "last":
            return {"vote_drift": drift, "collapsed": float(has_moved)}
        if self.by == "mean_f1":
            before = METRICS["macro_f1"].value(EvalData(base_votes.uncalibrated.scores, gold)) or 0.0
            has_moved = has_moved and metrics.get("macro_f1", 0.0) < before
            value = COLLAPSED if has_moved and self.refuses_collapse else metrics.get("mean_f1", 0.0)
        else:
            shares = label_shares(scores.argmax(axis=-1), num_labels)
            is_far = base_votes.drift(shares) > self.max_share_drift
            value = COLLAPSED if is_far or has_moved else metrics["observed_agreement"]
        return {"vote_drift": drift, "collapsed": float(has_moved), "selection": value}


def base_value(log_history: Sequence[dict[str, Any]]) -> float | None:
    """What the base itself is worth by the criterion, where it was evaluated before the first step."""
    first = next((entry for entry in log_history if "eval_selection" in entry), None)
    return first["eval_selection"] if first and first["step"] == 0 else None
