"""Certainty: risk against coverage of the majority vote, calibration error, and the ranking of templates."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from flip_flop.arrays import CellValues, Extremes, LabelScores, Offsets, PerInstance, PerTemplate, Predictions
from flip_flop.metrics.agreement import (
    COLLAPSE_EXCESS,
    constant_templates,
    label_probs,
    label_shares_per_template,
    most_votes,
    predicted,
    vote_counts,
    vote_weights,
)
from flip_flop.metrics.bootstrap import SumStatistic, ratio, simultaneous_width
from flip_flop.metrics.data import Scores
from flip_flop.metrics.f1 import F1_PER_TEMPLATE, accuracy_per_template

BINS = 10
MIN_LABELLED = 50  # Below, F1 does not rank the templates, and none is chosen.
MAX_WRONG = 0.05  # of automatic decisions, and the error of the statement itself
MIN_DECIDED = 59  # the fewest instances of which none is wrong that pass
# The share of a label that makes a template constant, its label bias, and how far a template must be below the best.
CONSTANT_SHARE = 0.9
LABEL_BIAS = 0.1
CLEARLY_BELOW = 0.1

Fault = Literal["constant", "label preference", "low F1", "low agreement"]


def _mean_extremes(agrees: CellValues) -> Extremes:
    """Return the contributions of an instance of zeros and of an instance of ones."""
    num_templates = agrees.shape[1]
    return np.eye(1, num_templates + 1, num_templates), np.ones((1, num_templates + 1))


_MEAN_PER_TEMPLATE = SumStatistic(
    contributions=lambda agrees: np.column_stack([agrees, np.ones(len(agrees))]),
    value=lambda sums: sums[:, :-1] / sums[:, -1:],
    extremes=_mean_extremes,
)


def vote_share(data: Scores) -> PerInstance:
    """Compute the share of the templates that predict the majority vote, the confidence in predictions.

    Example:
        >>> vote_share(Scores(np.log([[[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.7, 0.3]]]), np.array([0]))).tolist()
        [0.75]
    """
    return vote_counts(data.predictions, data.num_labels).max(axis=1) / data.predictions.shape[1]


def vote_margin(data: Scores) -> PerInstance:
    """Compute the mean probability of the majority vote minus the largest mean probability of another label.

    It is negative if the most frequent prediction is not the most probable label.

    Example:
        >>> vote_margin(Scores(np.log([[[0.9, 0.1], [0.8, 0.2]]]), np.array([0]))).round(4).tolist()
        [0.7]
    """
    means = vote_weights(label_probs(data.values)) / data.predictions.shape[1]
    is_vote = data.votes[:, None] == np.arange(data.num_labels)
    other = np.where(is_vote, -np.inf, means).max(axis=1, initial=0.0)
    return np.where(data.votes >= 0, (means * is_vote).sum(axis=1) - other, -np.inf)


def risk_coverage(confidence: PerInstance, wrong: Bool[np.ndarray, " instances"]) -> Float[np.ndarray, "points 3"]:
    r"""Compute threshold, coverage and risk for each value of the confidence, largest first.

    .. math:: \phi(t) = \frac1N \sum_i \mathbf 1[c_i \ge t], \qquad
        r(t) = \frac{\sum_i \mathbf 1[c_i \ge t, \hat y_i \ne y_i]}{N \phi(t)}

    The last point has full coverage, and its risk is 1 minus the accuracy. El-Yaniv and Wiener, "On the Foundations of
    Noise-free Selective Classification", 2010.

    Example:
        >>> risk_coverage(np.array([0.5, 1.0, 1.0, 0.75]), np.array([True, False, False, True])).round(2).tolist()
        [[1.0, 0.5, 0.0], [0.75, 0.75, 0.33], [0.5, 1.0, 0.5]]
    """
    thresholds, group = np.unique(-confidence, return_inverse=True)
    answered = np.bincount(group, minlength=len(thresholds)).cumsum()
    errors = np.bincount(group, weights=wrong, minlength=len(thresholds)).cumsum()
    return np.stack([-thresholds, answered / len(confidence), errors / answered], axis=1)


def binomial_tail(wrong: int, number: int, share: float) -> float:
    """Compute the probability of at most ``wrong`` of ``number`` errors, if their share is ``share``.

    Example:
        >>> round(binomial_tail(0, 59, 0.05), 4), round(binomial_tail(1, 59, 0.05), 4)
        (0.0485, 0.1991)
    """
    places = np.arange(1, wrong + 1)
    ratios = (number - places + 1) / places * share / (1 - share)
    logs = number * np.log1p(-share) + np.append(0.0, np.log(ratios).cumsum())
    return float(np.exp(logs).sum())


def decidable(data: Scores) -> tuple[float, float]:
    """Return the smallest vote share whose votes are wrong in at most 5 %, and the share of instances that reach it.

    Each threshold, largest first, is tested by the exact upper bound of Clopper and Pearson at 95 %, until one fails.
    In a fixed sequence, the error of all tests together is 5 % (Angelopoulos et al., "Learn then Test", 2021). It
    begins at the first threshold that 59 instances reach: fewer cannot pass without an error either. All instances
    need a gold label. The threshold is inf and the share 0 if none passes.

    Example:
        >>> scores = np.log([[[0.9, 0.1], [0.8, 0.2]]] * 90 + [[[0.9, 0.1], [0.2, 0.8]]] * 10)
        >>> decidable(Scores(scores, np.array([0] * 95 + [1] * 5)))
        (1.0, 0.9)
    """
    found = (np.inf, 0.0)
    for threshold, coverage, risk in risk_coverage(vote_share(data), ~data.voted.right[:, 0]).tolist():
        number = round(coverage * len(data))
        if number < MIN_DECIDED:
            continue
        if binomial_tail(round(risk * number), number, MAX_WRONG) > MAX_WRONG:
            break
        found = (threshold, coverage)
    return found


def decidable_share(data: Scores) -> float | None:
    """Return the share of :func:`decidable`, or None if there are fewer than 59 instances."""
    if len(data) < MIN_DECIDED:
        return None
    return decidable(data)[1]


def reliability(data: Scores) -> Float[np.ndarray, "templates bins 3"]:
    """Count instances, and sum confidence and correct predictions, in ten bins of equal width of the confidence.

    The confidence of a template is the probability of its prediction among the labels. A bin includes its upper end.
    All instances need a gold label.

    Example:
        >>> reliability(Scores(np.log([[[0.9, 0.1]], [[0.16, 0.84]]]), np.array([0, 0])))[0, 8].round(2).tolist()
        [2.0, 1.74, 1.0]
    """
    confidence = label_probs(data.values).max(axis=2)
    bins: Predictions = np.clip(np.ceil(confidence * BINS - 1e-9) - 1, 0, BINS - 1)
    in_bin = bins[:, :, None] == np.arange(BINS)
    parts = (np.ones_like(confidence), confidence, data.predictions == data.gold[:, None])
    return np.stack([(in_bin * part[:, :, None]).sum(axis=0) for part in parts], axis=-1)


def calibration_error_per_template(data: Scores) -> PerTemplate:
    r"""Compute the expected calibration error (ECE) of each template, with the bins of :func:`reliability`.

    .. math:: \mathrm{ECE}_v = \sum_b \frac{n_{v,b}}{N} \left| \mathrm{acc}_{v,b} - \mathrm{conf}_{v,b} \right|

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> calibration_error_per_template(Scores(np.log([[[0.8, 0.2]], [[0.8, 0.2]]]), np.array([0, 1]))).round(2)
        array([0.3])
    """
    sums = reliability(data)
    gaps = np.abs(sums[..., 1] - sums[..., 2]).sum(axis=1)
    return ratio(gaps, sums[..., 0].sum(axis=1), otherwise=np.nan)


def peer_votes(scores: LabelScores) -> Predictions:
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
    predictions = predicted(scores)
    probs = label_probs(scores)
    others = (np.arange(num_templates) != template for template in range(num_templates))
    return np.stack([most_votes(predictions, probs, kept) for kept in others], axis=1)


def label_preference(
    scores: LabelScores,
) -> Offsets:
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
        f1: F1 of each template, or for open answers its accuracy. None without gold labels.
        by_f1: Whether F1 ranks the templates, and not agreement.
        bias: The label preference, see :func:`label_preference`. None for generated answers.
        constancy: Share of the most frequent label of each template, ``top_label``.
        order: The templates, best first. Constant templates are last. Ties keep the order of the templates.
        values: The numbers that rank the templates: F1 or agreement.
        differences: Difference from the best template with its 95 % interval; None for the best. The intervals are
            simultaneous: see :func:`~flip_flop.metrics.bootstrap.simultaneous_width`.
        faults: Why a template should not be used, or None. It is constant, or more than 10 points below the best,
            interval included.
    """

    agreement: PerTemplate
    f1: PerTemplate | None
    by_f1: bool
    bias: Offsets | None
    constancy: PerTemplate
    top_label: Int[np.ndarray, " templates"]
    order: list[int]
    values: PerTemplate
    differences: list[tuple[float, float, float] | None]
    faults: list[Fault | None]


def resampled_per_template(labelled: Scores, agrees: CellValues | None) -> tuple[SumStatistic, Any]:
    """Return statistic and data of a bootstrap of each template's F1, or with open answers of its accuracy.

    With ``agrees``, it is the mean of its columns instead.
    """
    if agrees is not None:
        return _MEAN_PER_TEMPLATE, agrees
    if labelled.answered:
        return _MEAN_PER_TEMPLATE, labelled.right.astype(np.float64)
    return F1_PER_TEMPLATE, labelled


def rank_templates(data: Scores, calibrated: Scores | None = None, *, confidence: float = 0.95) -> TemplateRanking:
    """Rank the templates by F1 if there are 50 gold labels, and otherwise by agreement with the other templates.

    Args:
        data: The scores whose predictions are ranked.
        calibrated: Scores of the same instances, for the votes of the other templates. By default ``data``.
        confidence: Of the intervals of the differences.

    Example:
        >>> scores = np.log([[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]])
        >>> rank_templates(Scores(scores, np.array([-1, -1]))).order
        [1, 0, 2]
    """
    predictions = data.predictions
    votes = peer_votes((calibrated or data).values)
    agrees = ((predictions == votes) & (predictions >= 0)).astype(np.float64)
    agreement = agrees.mean(axis=0)
    labelled = data.labelled
    f1 = accuracy_per_template(data) if data.answered else data.f1
    by_f1 = len(labelled) >= MIN_LABELLED
    shares = label_shares_per_template(data.answers, data.num_answers)
    constancy = shares.max(axis=1)
    top_label = shares.argmax(axis=1)
    reference = labelled.gold[:, None] if by_f1 else votes
    expected_share = (reference == top_label).mean(axis=0)
    constant = (constancy >= CONSTANT_SHARE) & (constancy - expected_share >= COLLAPSE_EXCESS)
    constant &= by_f1 | (predictions.shape[1] > 1)  # without labels, a single template has no reference
    if data.answered:  # votes and gold labels are numbered in another way
        constant = constant_templates(data.answers)
    values = agreement
    low: Fault = "low agreement"
    if by_f1 and f1 is not None:
        values = f1
        low = "low F1"
    order = np.lexsort((-values, constant)).tolist()
    bias = None if data.is_generated else label_preference(data.values)
    width = simultaneous_width(*resampled_per_template(labelled, None if by_f1 else agrees), confidence=confidence)
    gaps = values - values[order[0]]
    differences: list[tuple[float, float, float] | None] = [(gap, gap - width, gap + width) for gap in gaps.tolist()]
    differences[order[0]] = None
    faults: list[Fault | None] = [None] * len(order)
    for template in np.flatnonzero(gaps + width < -CLEARLY_BELOW).tolist():
        is_biased = bias is not None and np.abs(bias[template]).sum() / 2 >= LABEL_BIAS
        faults[template] = "label preference" if is_biased else low
    for template in np.flatnonzero(constant).tolist():
        faults[template] = "constant"
    return TemplateRanking(agreement, f1, by_f1, bias, constancy, top_label, order, values, differences, faults)
