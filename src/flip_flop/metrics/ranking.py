"""Ranking of the templates of a task, with and without gold labels."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.agreement import label_probs, label_shares_per_template, majority_vote
from flip_flop.metrics.bootstrap import SumStatistic, simultaneous_width
from flip_flop.metrics.data import Scores
from flip_flop.metrics.f1 import F1_PER_TEMPLATE, f1_per_template

MIN_LABELLED = 50  # Below, F1 does not rank the templates, and none is recommended.
# Shares of a label that make a template constant, its label bias, and how far a template must be below the best.
CONSTANT_SHARE, CONSTANT_EXCESS, LABEL_BIAS, CLEARLY_BELOW = 0.9, 0.1, 0.1, 0.1

Fault = Literal["constant", "label preference", "low F1", "low agreement"]
_MEAN_PER_TEMPLATE = SumStatistic(
    contributions=lambda agrees: np.column_stack([agrees, np.ones(len(agrees))]),
    value=lambda sums: sums[:, :-1] / sums[:, -1:],
    extremes=lambda agrees: (np.eye(1, agrees.shape[1] + 1, agrees.shape[1]), np.ones((1, agrees.shape[1] + 1))),
)


def peer_votes(scores: Float[np.ndarray, "instances templates labels"]) -> Int[np.ndarray, "instances templates"]:
    r"""Compute the majority vote of the other templates, for each template (leave-one-out).

    .. math:: \arg\max_c \sum_{u \ne v} \mathbf 1[\hat y_{i,u} = c]

    Ties are those of :func:`~flip_flop.metrics.majority_vote`. -1 if there is no other template.

    Example:
        >>> peer_votes(np.log([[[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]])).tolist()
        [[1, 0, 0]]
    """
    num_templates = scores.shape[1]
    if num_templates < 2:
        return np.full(scores.shape[:2], -1)
    return np.stack([majority_vote(np.delete(scores, own, axis=1)) for own in range(num_templates)], axis=1)


def label_preference(
    scores: Float[np.ndarray, "instances templates labels"],
) -> Float[np.ndarray, "templates labels"]:
    r"""Compute how far the mean label probabilities of a template are from the mean of all templates.

    .. math:: \bar q_{v,c} - \frac1V \sum_u \bar q_{u,c}, \qquad \bar q_{v,c} = \frac1N \sum_i q_{i,v}(c)

    Half of the sum of the absolute values is the total variation distance, the label preference of the template.

    Example:
        >>> label_preference(np.log([[[0.9, 0.1], [0.5, 0.5]]])).round(4).tolist()
        [[0.2, -0.2], [-0.2, 0.2]]
    """
    means = label_probs(scores).mean(axis=0)
    return means - means.mean(axis=0)


@dataclass(frozen=True, eq=False)
class TemplateRanking:
    """The templates of a task and the numbers that rank them.

    Attributes:
        agreement: Share of instances on which a template agrees with the vote of the other templates.
        f1: F1 of each template, None without gold labels.
        by_f1: Whether F1 ranks the templates, and not agreement.
        bias: The label preference, see :func:`label_preference`. None for generated answers.
        constancy: Share of the most frequent label of each template, ``top_label``.
        order: The templates, best first. Constant templates are last. Ties keep the order of the templates.
        differences: Difference from the best template with its 95 % interval; None for the best. The intervals are
            simultaneous: see :func:`~flip_flop.metrics.bootstrap.simultaneous_width`.
        faults: Why a template should not be used, or None. It is constant, or more than 10 points below the best,
            interval included.
    """

    agreement: Float[np.ndarray, " templates"]
    f1: Float[np.ndarray, " templates"] | None
    by_f1: bool
    bias: Float[np.ndarray, "templates labels"] | None
    constancy: Float[np.ndarray, " templates"]
    top_label: Int[np.ndarray, " templates"]
    order: list[int]
    differences: list[tuple[float, float, float] | None]
    faults: list[Fault | None]

    @property
    def values(self) -> Float[np.ndarray, " templates"]:
        """The numbers that rank the templates: F1 or agreement."""
        return self.f1 if self.by_f1 and self.f1 is not None else self.agreement


def rank_templates(data: Scores, calibrated: Scores | None = None) -> TemplateRanking:
    """Rank the templates by F1 if there are 50 gold labels, and otherwise by agreement with the other templates.

    Args:
        data: The scores whose predictions are ranked.
        calibrated: Scores of the same instances, for the votes of the other templates. By default ``data``.

    Example:
        >>> scores = np.log([[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]])
        >>> rank_templates(Scores(scores, np.array([-1, -1]))).order
        [1, 0, 2]
    """
    predictions, votes = data.predictions, peer_votes((calibrated or data).scores)
    agrees = ((predictions == votes) & (predictions >= 0)).astype(np.float64)
    f1 = f1_per_template(predictions, data.gold, num_labels=data.num_labels, average=data.average)
    by_f1 = len(data.labelled) >= MIN_LABELLED
    shares = label_shares_per_template(predictions, data.num_labels)
    constancy, top = shares.max(axis=1), shares.argmax(axis=1)
    reference = (data.labelled.gold[:, None] if by_f1 else votes) == top
    constant = (constancy >= CONSTANT_SHARE) & (constancy - reference.mean(axis=0) >= CONSTANT_EXCESS)
    constant &= by_f1 | (predictions.shape[1] > 1)  # without labels, a single template has no reference
    values = f1 if by_f1 and f1 is not None else agrees.mean(axis=0)
    order = np.lexsort((-values, constant)).tolist()
    bias = None if data.is_generated else label_preference(data.scores)
    best = order[0]
    measured = (F1_PER_TEMPLATE, data.labelled) if by_f1 else (_MEAN_PER_TEMPLATE, agrees)
    width = simultaneous_width(*measured)
    gaps = values - values[best]
    differences = [(gap, gap - width, gap + width) if at != best else None for at, gap in enumerate(gaps.tolist())]
    faults: list[Fault | None] = [None] * len(order)
    for own in np.flatnonzero(gaps + width < -CLEARLY_BELOW).tolist():
        biased = bias is not None and np.abs(bias[own]).sum() / 2 >= LABEL_BIAS
        faults[own] = "label preference" if biased else "low F1" if by_f1 else "low agreement"
    for own in np.flatnonzero(constant).tolist():
        faults[own] = "constant"
    return TemplateRanking(agrees.mean(axis=0), f1, by_f1, bias, constancy, top, order, differences, faults)
