"""Proper scores of probabilities, and a temperature without labels.

An answer that cannot be read gives each label the same probability.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from flip_flop.arrays import CellValues, InstanceLabels, LabelScores, PerInstance
from flip_flop.metrics.agreement import AGREEMENT, label_probs, vote_weights
from flip_flop.metrics.bootstrap import SumStatistic, mean_statistic
from flip_flop.metrics.data import Scores

HOTTEST = 100.0
STEPS = 2**30  # from 1 to the hottest

Loss = Callable[[LabelScores, InstanceLabels], CellValues]


def answer_probs(data: Scores) -> LabelScores:
    """Return the probabilities of the labels under each template."""
    return _filled(label_probs(data.values))


def ensemble_probs(data: Scores) -> Float[np.ndarray, "instances 1 labels"]:
    """Return the mean probabilities over the templates whose answer can be read."""
    return _filled(vote_weights(label_probs(data.values))[:, None])


def _filled(weights: LabelScores) -> LabelScores:
    """Return weights whose sum is 1. If all are 0, they become equal."""
    total = weights.sum(axis=2, keepdims=True)
    return np.where(total > 0, weights, 1.0) / np.where(total > 0, total, weights.shape[2])


def brier_scores(probs: LabelScores, gold: InstanceLabels) -> CellValues:
    r"""Compute the Brier score of each distribution, from 0 to 2.

    .. math:: \sum_c \left( p_c - \mathbf 1[c = y] \right)^2

    Brier, "Verification of forecasts expressed in terms of probability", 1950.

    Example:
        >>> brier_scores(np.array([[[0.9, 0.1], [0.5, 0.5]]]), np.array([1])).round(2).tolist()
        [[1.62, 0.5]]
    """
    is_gold = gold[:, None, None] == np.arange(probs.shape[2])
    return ((probs - is_gold) ** 2).sum(axis=2)


def log_losses(probs: LabelScores, gold: InstanceLabels) -> CellValues:
    r"""Compute the negative log-likelihood of the gold label under each distribution: :math:`-\log p_y`, in nats.

    Example:
        >>> log_losses(np.array([[[0.9, 0.1], [0.5, 0.5]]]), np.array([1])).round(2).tolist()
        [[2.3, 0.69]]
    """
    chosen = np.take_along_axis(probs, gold[:, None, None], axis=2)[:, :, 0]
    with np.errstate(divide="ignore"):
        return -np.log(chosen)


def mean_loss(loss: Loss, probs: Callable[[Scores], LabelScores], highest: float) -> SumStatistic:
    """Return the mean of a loss over instances and templates. It has no value if a gold label is impossible."""

    def per_instance(data: Scores) -> PerInstance | None:
        losses = loss(probs(data), data.gold).mean(axis=1)
        return losses if np.isfinite(losses).all() else None

    return mean_statistic(per_instance, bounds=(0.0, highest) if np.isfinite(highest) else None)


def temperature(data: Scores) -> float | None:
    r"""Compute the temperature at which the templates are as confident as they agree, at least 1. It needs no labels.

    .. math:: \frac{1}{NV} \sum_{i,v} \max_c \, \mathrm{softmax}_c \left( \mathrm{LL}_i[v,c] / T \right) = P_o

    If the votes are calibrated, agreement estimates accuracy (Jiang et al., "Assessing Generalization of SGD via
    Disagreement", ICLR 2022). Templates that share errors agree more often than they are right. So it is a lower bound
    then, and never sharpens. None without two templates, or if their agreement is not above chance.

    Example:
        >>> opposed = [[[0.99, 0.01], [0.01, 0.99]]]
        >>> agreed = [[[0.99, 0.01], [0.99, 0.01]]] * 4
        >>> round(temperature(Scores(np.log(opposed + agreed), np.full(5, -1))), 2)
        3.31
    """
    agreement = AGREEMENT(data)
    if agreement is None or not agreement > 1 / data.num_labels:  # also NaN, of one template
        return None
    probs = answer_probs(data)
    odds = probs / probs.max(axis=2, keepdims=True)

    def minus_confidence(step: int) -> float:
        sharpness = HOTTEST ** (-step / STEPS)
        return float(-(1 / (odds**sharpness).sum(axis=2)).mean())

    return HOTTEST ** (bisect_left(range(STEPS), -agreement, key=minus_confidence) / STEPS)
