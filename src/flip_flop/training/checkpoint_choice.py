"""Selection of the checkpoint: by macro-F1 with labels, without labels by agreement with the base model's votes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from flip_flop.errors import InputError
from flip_flop.metrics import METRICS, Average, Scores, is_collapsed, label_shares, majority_vote, summarise
from flip_flop.training.config import F2CConfig
from flip_flop.training.settings import SelectBy
from flip_flop.training.votes import VoteTable


def evaluation_metrics(table: Scores, gold: np.ndarray, names: Sequence[str], f1: Average = "auto") -> dict[str, float]:
    """Metrics of one evaluation, flat and without those that have no answer; own-label mass per template.

    The votes' label shares of the evaluation before the first step are the base's: with them the log alone tells what
    another criterion would have chosen.
    """
    summary = summarise(table.scores, gold, names, f1=f1, intervals=False)
    metrics = {name: summary[name] for name in METRICS if summary[name] is not None}
    metrics |= {f"label_share_{label}": share for label, share in enumerate(summary["label_shares"])}
    vote_shares = label_shares(majority_vote(table.scores)[:, None], table.scores.shape[-1])
    metrics |= {f"vote_share_{label}": float(share) for label, share in enumerate(vote_shares)}
    mass = table.own_label_mass.mean(axis=0)
    metrics |= {"own_label_mass": float(mass.mean()), "own_label_mass_min": float(mass.min())}
    return metrics | {f"own_label_mass/{name}": float(value) for name, value in zip(names, mass, strict=True)}


def vote_agreement(
    predictions: Int[np.ndarray, "instances templates"], votes: Int[np.ndarray, " instances"], num_labels: int
) -> float:
    r"""Compute Cohen's kappa of predictions and votes: their agreement beyond chance.

    .. math:: \kappa = \frac{p_o - p_e}{1 - p_e}, \qquad p_e = \sum_c a_c b_c

    with :math:`p_o` the share of predictions that equal the vote of their instance, and a and b the label shares of
    predictions and votes. It is 1 for predictions that follow the votes, and exactly 0 for templates that give the same
    label for every instance, whatever the label shares are.

    Example:
        >>> votes = np.array([0, 1, 1, 1])
        >>> vote_agreement(votes[:, None], votes, 2), vote_agreement(np.ones((4, 3), dtype=int), votes, 2)
        (1.0, 0.0)

    Reference: Cohen, "A coefficient of agreement for nominal scales", 1960.
    """
    counts, vote_counts = (np.bincount(each.ravel(), minlength=num_labels) for each in (predictions, votes))
    agreed, by_chance = (predictions == votes[:, None]).sum() * len(votes), counts @ vote_counts  # whole numbers
    pairs = predictions.size * len(votes)
    return float((agreed - by_chance) / (pairs - by_chance)) if by_chance < pairs else 0.0


@dataclass
class CheckpointCriterion:
    """The value by which a checkpoint is selected; higher is better.

    Constant predictions cannot win by ``macro_f1``, the mean over templates, or by ``vote_agreement`` with the base
    model's calibrated majority votes on the validation split, which needs no labels. By ``mean_f1``, the paper's
    criterion, they can: the F1 of label 1 is high if every prediction is label 1.
    """

    by: SelectBy
    max_share_drift: float

    @classmethod
    def of(cls, config: F2CConfig, gold: Sequence[int | None] | None) -> "CheckpointCriterion":
        """Resolve ``select_by`` for validation rows with these labels: ``auto`` uses labels if most rows have one."""
        by = config.select_by
        if gold is None or by == "last" or config.eval_strategy == "no":
            return cls("last", config.max_share_drift)
        labelled = sum(label is not None for label in gold)
        if by in ("mean_f1", "macro_f1") and not labelled:
            raise InputError("E-SELECT-LABELS", f"select_by is {by}, but the validation rows have no labels.")
        if by == "auto" and 2 * labelled > len(gold):
            by = "macro_f1" if config.stop_on_collapse else "mean_f1"
        return cls("vote_agreement" if by in ("auto", "agreement") else by, config.max_share_drift)

    @property
    def measure(self) -> Literal["macro_f1", "vote_agreement"]:
        """The measure of quality that constant predictions cannot win."""
        return "macro_f1" if self.by.endswith("f1") else "vote_agreement"

    def constant_value(self, gold: Int[np.ndarray, " instances"], num_labels: int) -> float:
        """The value of the best constant predictions by :attr:`measure`, not to be reached by rounding."""
        if self.measure == "vote_agreement":
            return 1e-9
        share = float(label_shares(gold[gold >= 0][:, None], num_labels).max())
        return 2 * share / (1 + share) / num_labels + 1e-9

    def judge(
        self,
        scores: Float[np.ndarray, "instances templates labels"],
        base: VoteTable,
        gold: Int[np.ndarray, " instances"],
        f1: Average = "auto",
    ) -> dict[str, float]:
        """Compare a checkpoint with the base model, whose calibrated scores are ``base``, on the validation split.

        Predictions have collapsed if they are worse than the base model's and have drifted or are nearly all one label.
        Drifted predictions that do not exceed constant ones have collapsed too.

        Returns:
            ``vote_agreement``, ``vote_drift`` (label drift of the majority votes) and ``collapsed`` (0 or 1). Also
            ``selection`` and ``base_selection``, the values of the criterion, unless the last checkpoint is used.
        """
        num_labels, votes = scores.shape[-1], majority_vote(base.scores)

        def values(scores: Float[np.ndarray, "instances templates labels"]) -> dict[str, float]:
            data = Scores(scores, gold, f1)
            with_labels = {name: METRICS[name].value(data) or 0.0 for name in ("mean_f1", "macro_f1")}
            return with_labels | {"vote_agreement": vote_agreement(data.predictions, votes, num_labels)}

        found, before = values(scores), values(base.uncalibrated.scores)
        value, labels = found[self.measure], gold if self.measure == "macro_f1" else None
        drift = base.drift(label_shares(majority_vote(scores)[:, None], num_labels))
        drifted, one_label = drift > self.max_share_drift, is_collapsed(scores.argmax(axis=-1), num_labels, labels)
        worse, constant = value < before[self.measure], value <= self.constant_value(gold, num_labels)
        collapsed = ((drifted or one_label) and worse) or (drifted and constant)
        judged = {"vote_agreement": found["vote_agreement"], "vote_drift": drift, "collapsed": float(collapsed)}
        if self.by == "last":
            return judged
        return judged | {"selection": found[self.by], "base_selection": before[self.by]}


def base_value(log_history: Sequence[dict[str, Any]]) -> float | None:
    """The base model's value of the criterion. Logs of earlier versions have it only before the first step."""
    first = next((entry for entry in log_history if "eval_selection" in entry), None)
    if first is None:
        return None
    return first.get("eval_base_selection", None if first["step"] else first["eval_selection"])
