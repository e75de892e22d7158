"""Which checkpoint is kept: the best by labelled mean F1, as in the paper, or by agreement, which needs no labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from flip_flop.errors import InputError
from flip_flop.metrics import METRICS, Average, label_shares, majority_vote, share_drift, summarise
from flip_flop.scoring.scorer import ScoreTable
from flip_flop.training.config import F2CConfig

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
    _base_shares: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, config: F2CConfig, gold: Sequence[int | None] | None) -> "CheckpointCriterion":
        """What ``select_by`` means for validation rows with these labels: ``auto`` is mean F1 where all have one."""
        if gold is None or config.select_by == "last" or config.eval_strategy == "no":
            return cls("last", config.max_share_drift)
        labelled = all(label is not None for label in gold)
        if config.select_by == "mean_f1" and not labelled:
            message = "select_by is mean_f1, but the validation rows have no labels."
            raise InputError("E-SELECT-LABELS", message)
        by_f1 = labelled and config.select_by != "agreement"
        return cls("mean_f1" if by_f1 else "agreement", config.max_share_drift)

    def value(self, metrics: dict[str, float], table: ScoreTable, base_scores: Callable[[], np.ndarray]) -> float:
        """The checkpoint's value: mean F1, or agreement, which counts -1 after a collapse.

        ``metrics`` are from :func:`evaluation_metrics`. ``base_scores`` gives the scores of the model without its
        adapter, and is called once.
        """
        if self.by != "agreement":
            return metrics.get("mean_f1", 0.0)
        num_labels = table.scores.shape[-1]
        if self._base_shares is None:
            votes = majority_vote(base_scores())
            self._base_shares = label_shares(votes[:, None], num_labels)
        predictions = table.scores.argmax(axis=-1)
        drift = share_drift(label_shares(predictions, num_labels), self._base_shares)
        return COLLAPSED if drift > self.max_share_drift else metrics["observed_agreement"]


def base_value(log_history: Sequence[dict[str, Any]]) -> float | None:
    """What the base itself is worth by the criterion, where it was evaluated before the first step."""
    first = next((entry for entry in log_history if "eval_selection" in entry), None)
    return first["eval_selection"] if first and first["step"] == 0 else None
