"""Agreement of an instance's templates, their majority vote, and collapse to one label."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from flip_flop.arrays import (
    Extremes,
    FlipCounts,
    InstanceLabels,
    InstanceScores,
    LabelScores,
    Offsets,
    PerInstance,
    PerLabel,
    Predictions,
)
from flip_flop.metrics.bootstrap import SumStatistic, mean_statistic, ratio, row_counts

COLLAPSE_SHARE = 0.95
COLLAPSE_SHARE_WITH_GOLD = 0.9
COLLAPSE_EXCESS = 0.1 - 1e-9  # 1 - 0.9 < 0.1
MIN_FOR_CONSTANT = 10  # A perfect template on a balanced binary task is constant in 1 of 512 samples of 10 instances.


def predicted(scores: LabelScores) -> Predictions:
    """The label with the highest score; ties go to the lowest index. -1, no label, where all are ruled out (-inf)."""
    return np.where(scores.max(axis=2) == -np.inf, -1, scores.argmax(axis=2))


def require_labels(kind: str, values: np.ndarray, num_labels: int) -> None:
    """Refuse values other than label indices and -1."""
    if values.size and not -1 <= values.min() <= values.max() < num_labels:
        raise ValueError(f"{kind} must be label indices, 0 to {num_labels - 1}, or -1 for none.")


def vote_counts(predictions: Predictions, num_labels: int) -> Int[np.ndarray, "instances labels"]:
    r"""Count the templates that predict each label of each instance. -1 does not count.

    .. math:: n_{i,c} = \sum_v \mathbf 1[\hat y_{i,v} = c] \qquad \text{(Eq. 4 of the F2C paper)}

    Raises:
        ValueError: A prediction is no label's index, 0 to ``num_labels - 1``, nor -1.

    Example:
        >>> vote_counts(np.array([[0, 2, 2], [1, 1, 1]]), 3)
        array([[1, 0, 2],
               [0, 3, 0]])
    """
    require_labels("Predictions", predictions, num_labels)
    return row_counts(predictions + 1, num_labels + 1)[:, 1:]


def instance_agreement(
    predictions: Predictions,
) -> PerInstance | None:
    r"""Observed agreement of each instance: how likely two of its templates predict the same label.

    .. math:: P_i = \frac{1}{V(V-1)} \sum_c n_{i,c} (n_{i,c} - 1)

    Eq. 11 of the F2C paper: the share of the pairs of different templates that agree. None for a single template.

    Example:
        >>> instance_agreement(np.array([[0, 0, 1], [2, 2, 2]])).round(4).tolist()
        [0.3333, 1.0]
    """
    if predictions.shape[1] < 2:
        return None
    flips, read, pairs = _pair_flips(predictions).T
    return (read - flips) / pairs


def observed_agreement(predictions: Predictions) -> float | None:
    r"""Observed agreement :math:`P_o`: the mean of Eq. 11 over instances.

    Equal to the *consistency rate* of Zhao et al. 2024 for discrete labels. A collapsed model also has a high
    agreement, see :func:`~flip_flop.metrics.is_collapsed`. None for a single template, or without instances.

    Example:
        >>> round(observed_agreement(np.array([[0, 0, 1], [2, 2, 2]])), 4)
        0.6667
    """
    agreement = instance_agreement(predictions)
    if agreement is None or len(agreement) == 0:
        return None
    return float(agreement.mean())


def template_agreement_matrix(
    predictions: Predictions,
) -> Float[np.ndarray, "templates templates"]:
    """Compute the share of instances on which each two templates predict the same label.

    The matrix is symmetric. The mean of the other entries is :func:`observed_agreement`.

    Raises:
        ValueError: The set of instances is empty.

    Example:
        >>> template_agreement_matrix(np.array([[0, 0, 1], [2, 2, 2]])).tolist()
        [[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]
    """
    if len(predictions) == 0:
        raise ValueError("Templates cannot be compared without instances.")
    # One column at a time: all pairs at once would be instances x templates x templates.
    return np.stack(
        [((predictions == template[:, None]) & (predictions >= 0)).mean(axis=0) for template in predictions.T]
    )


def count_flips(left: Int[np.ndarray, "instances pairs"], right: Int[np.ndarray, "instances pairs"]) -> FlipCounts:
    r"""Count the flips of each instance, its pairs in which both answers were read, and all its pairs.

    .. math:: f = \frac{\sum_i \sum_{(u,v) \in P_i} \mathbf 1[\hat y_{i,u} \ne \hat y_{i,v}]}{\sum_i |P_i|}

    :math:`P_i` are the pairs of answers to instance i that were both read. All flip rates are of this form
    (:data:`FLIP_RATE`). An answer that could not be read, -1, is no flip.

    Example:
        >>> count_flips(np.array([[0, 0, -1, -1]]), np.array([[0, 1, 1, -1]])).tolist()
        [[1, 2, 4]]
    """
    is_read = (left >= 0) & (right >= 0)
    is_flip = (left != right) & is_read
    num_pairs = np.full(len(left), left.shape[1])
    return np.stack([is_flip.sum(axis=1), is_read.sum(axis=1), num_pairs], axis=1)


def group_flips(predictions: Predictions, groups: Iterable[Mapping[str, Sequence[int]]]) -> FlipCounts:
    r"""Count flips along an axis of the templates, such as the wording or the order of the options.

    The counts are those of :func:`count_flips`, over the pairs of templates of a group with different levels on this
    axis. A group has the templates of each of its levels. The cost is linear in the templates, not in their pairs.

    Example:
        >>> predictions = np.array([[0, 1, 0, 1], [1, 1, 0, -1]])
        >>> group_flips(predictions, [{"1 2": [0], "2 1": [1]}, {"1 2": [2], "2 1": [3]}]).tolist()
        [[2, 2, 2], [0, 1, 2]]
    """
    counts = np.zeros((len(predictions), 3), dtype=np.int64)
    for group in groups:
        counts += _pair_flips(predictions[:, [*chain(*group.values())]])
        for same in group.values():
            counts -= _pair_flips(predictions[:, same])
    return counts


def _pair_flips(predictions: Predictions) -> FlipCounts:
    """Count the flips over all pairs of templates, from the number of templates that predict each label."""
    equal = vote_counts(predictions, int(predictions.max(initial=0)) + 1)
    read = equal.sum(axis=1)
    num_read = read * (read - 1) // 2
    num_flips = num_read - (equal * (equal - 1) // 2).sum(axis=1)
    return np.stack([num_flips, num_read, np.full(len(read), math.comb(predictions.shape[1], 2))], axis=1)


def lacks_consensus(
    predictions: Predictions,
) -> PerInstance | None:
    r"""1 for each instance on which no label has a strict majority, :math:`n_{i,c} > V/2` (Eq. 5), else 0.

    .. math:: \mathbf 1\left[ \max_c n_{i,c} \le V / 2 \right]

    Training skips these instances. An exact half is no majority. None for a single template.

    Example:
        >>> lacks_consensus(np.array([[0, 0, 1, 1], [2, 2, 2, 1]])).tolist()
        [1.0, 0.0]
    """
    num_templates = predictions.shape[1]
    if num_templates < 2:
        return None
    counts = vote_counts(predictions, int(predictions.max(initial=0)) + 1)
    return (2 * counts.max(axis=1) <= num_templates).astype(np.float64)


def instance_posix(
    scores: LabelScores,
) -> PerInstance | None:
    r"""POSIX, the prompt sensitivity index, of each instance, over labels.

    .. math:: \psi = \frac{1}{V(V-1)} \sum_{u \ne v}
        \left| \log q_u(\hat y_v) - \log q_v(\hat y_v) \right|

    with :math:`q_v` the softmax of template v's scores over the labels and :math:`\hat y_v` its prediction.
    Definition 3 of Chatterjee et al., "POSIX: A Prompt Sensitivity Index For Large Language Models", 2024, with
    a label as the response: each template words it in its own way, so its probability is that among the labels.
    The paper's division by the response's length is in the scores, which are means over an answer's tokens.

    In nats; NaN where a template gives some prediction no probability at all. None for a single template.

    Example:
        >>> instance_posix(np.log([[[0.8, 0.2], [0.4, 0.6]]])).round(4).tolist()  # (log 2 + log 3) / 2
        [0.8959]
    """
    num_templates = scores.shape[1]
    if num_templates < 2:
        return None
    scores = scores.astype(np.float64)
    predictions = scores.argmax(axis=2)[:, None, :]
    with np.errstate(invalid="ignore"):  # a template that rules out every label
        log_probs = scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)
        asked = np.take_along_axis(log_probs, predictions, axis=2)  # [instances, asking u, answering v]
        moved = np.abs(asked - np.diagonal(asked, axis1=1, axis2=2)[:, None, :])
    total = moved.sum(axis=(1, 2)) / (num_templates * (num_templates - 1))
    return np.where(np.isfinite(total), total, np.nan)


def label_probs(
    scores: LabelScores,
) -> LabelScores:
    r"""The scores normalised over the labels, Eq. 14: their softmax, in float64.

    .. math:: \pi_{i,v,c} = \frac{\exp \mathrm{LL}_i[v,c]}{\sum_{c'} \exp \mathrm{LL}_i[v,c']}

    A template that rules out every label (-inf throughout) gives each of them 0.

    Raises:
        ValueError: A score is NaN or +inf, and so no log-probability.
    """
    if scores.size and not scores.max() < np.inf:
        raise ValueError("A score is NaN or +inf; scores are log-probabilities.")
    scores = scores.astype(np.float64)
    peak = scores.max(axis=2, keepdims=True)
    odds = np.exp(scores - np.where(peak == -np.inf, 0.0, peak))
    # The sum of sorted terms: floating-point addition would otherwise let the labels' order decide a tie.
    total = np.broadcast_to(np.sort(odds, axis=2).sum(axis=2, keepdims=True), odds.shape)
    return ratio(odds, total, otherwise=0.0)


def majority_vote(scores: LabelScores) -> InstanceLabels:
    r"""The label that most of an instance's templates predict.

    .. math:: \arg\max_c \sum_v \mathbf 1[\hat y_{i,v} = c]

    A plurality is enough, unlike for a consensus: every instance gets an answer. A tie goes to the label with the
    larger sum of label probabilities over all templates, and then to the lowest index, which for open answers is that
    of the first template. -1: no template's answer is a label.

    Example:
        >>> probabilities = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.7, 0.3]]])
        >>> majority_vote(np.log(probabilities)).tolist()
        [0, 1]
    """
    return most_votes(predicted(scores), label_probs(scores))


def most_votes(
    predictions: Predictions,
    probs: LabelScores,
    templates: Any = slice(None),
) -> InstanceLabels:
    """The :func:`majority_vote` of some templates, from predictions and label probabilities, which break the ties."""
    counts = vote_counts(predictions[:, templates], probs.shape[2])
    most = counts.max(axis=1, keepdims=True)
    votes = np.where(most[:, 0] > 0, counts.argmax(axis=1), -1)
    tied = np.flatnonzero((votes >= 0) & ((counts == most).sum(axis=1) > 1))
    weights = vote_weights(probs[tied][:, templates])
    votes[tied] = np.where(counts[tied] == most[tied], weights, -1.0).argmax(axis=1)
    return votes


def vote_weights(probs: LabelScores) -> InstanceScores:
    """The sum of each label's probabilities over all templates, which breaks a tie of votes."""
    return np.sort(probs, axis=1).sum(axis=1)  # sorted, as in label_probs


def label_shares(predictions: Predictions, num_labels: int) -> PerLabel:
    """The share of each label among all predictions, over instances and templates; they sum to 1.

    Example:
        >>> label_shares(np.array([[0, 0], [0, 2]]), 3).tolist()
        [0.75, 0.0, 0.25]
    """
    return label_shares_per_template(predictions, num_labels).mean(axis=0)


def label_shares_per_template(predictions: Predictions, num_labels: int) -> Offsets:
    """Compute the share of each label among the predictions of each template.

    Raises:
        ValueError: The set of instances is empty, or a prediction is not a label index.

    Example:
        >>> label_shares_per_template(np.array([[0, 0], [0, 2]]), 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]]
    """
    if len(predictions) == 0:
        raise ValueError("Label shares need at least one prediction.")
    return vote_counts(predictions.T, num_labels) / len(predictions)


def constant_templates(predictions: Predictions, gold: InstanceLabels | None = None) -> Bool[np.ndarray, " templates"]:
    """Return which templates predict one label for every instance.

    Such a template may ignore its input. A correct template also gives one label if the sample is small or the task is
    skewed. A template is therefore constant only on 10 or more instances. With 10 or more gold labels, its label must
    also be at most 90 % of them. Without gold labels, a skewed task looks like a constant template.

    Example:
        >>> predictions = np.array([[0, 1, 0]] * 19 + [[0, 1, 1]])
        >>> constant_templates(predictions).tolist()
        [True, True, False]
        >>> constant_templates(predictions, gold=np.array([0] * 19 + [1])).tolist()
        [False, True, False]
    """
    first = predictions[:1]
    is_constant = ((predictions == first) & (first >= 0)).all(axis=0) & (len(predictions) >= MIN_FOR_CONSTANT)
    if gold is not None and (gold >= 0).sum() >= MIN_FOR_CONSTANT:
        is_constant &= (gold[gold >= 0, None] == first).mean(axis=0) <= 1 - COLLAPSE_EXCESS
    return is_constant


def is_collapsed(
    predictions: Predictions,
    num_labels: int,
    gold: InstanceLabels | None = None,
) -> bool:
    r"""Return whether one label dominates the predictions, or every template is constant.

    Constant templates (:func:`constant_templates`) may differ in their labels. With gold labels, a label dominates if
    it has at least 90 % of the predictions on labelled instances, and at least 10 points more than of the gold labels.
    A constant answer to a task with 95 % of one label is therefore not collapsed: such data cannot tell. With fewer
    than 10 gold labels, a skewed task and a collapsed model look the same. The threshold is then 95 % of all
    predictions, and the flag is a reason to look. Fewer than 10 instances are never collapsed.

    Agreement needs no threshold: if a label has the share s of all predictions, then :math:`P_o \ge 2s - 1`.
    The threshold of 90 % is for the paper's WiC, with an F1 near 10 at an agreement near 87, where s is at most 93.5 %.

    Example:
        >>> always_no = np.zeros((20, 3), dtype=int)
        >>> is_collapsed(always_no, 2), is_collapsed(always_no, 2, gold=np.array([0] * 19 + [1]))
        (True, False)
    """
    if len(predictions) < MIN_FOR_CONSTANT or constant_templates(predictions, gold).all():
        return len(predictions) >= MIN_FOR_CONSTANT
    if gold is None or (labelled := gold >= 0).sum() < MIN_FOR_CONSTANT:
        return bool(label_shares(predictions, num_labels).max() >= COLLAPSE_SHARE)
    shares = label_shares(predictions[labelled], num_labels)
    top = int(shares.argmax())
    excess = shares[top] - float((gold[labelled] == top).mean())
    return bool(shares[top] >= COLLAPSE_SHARE_WITH_GOLD and excess >= COLLAPSE_EXCESS)


def share_drift(before: PerLabel, after: PerLabel) -> float:
    r"""How far label shares have moved: their total variation distance.

    .. math:: \frac12 \sum_c |a_c - b_c|

    0 (the same) to 1 (nothing in common): the smallest share of predictions that must have changed. The visible
    symptom of a collapse under way, without gold labels.

    Example:
        >>> share_drift(np.array([0.5, 0.5]), np.array([0.75, 0.25]))
        0.25
    """
    return float(np.abs(after - before).sum() / 2)


def _kappa(sums: Float[np.ndarray, "samples features"]) -> Float[np.ndarray, " samples"]:
    r"""Fleiss' kappa from the sums of an instance's agreement, of 1, of its answers, and of those that are each label.

    .. math:: \kappa = \frac{P_o - P_e}{1 - P_e}, \qquad P_e = \sum_c p_c^2

    with :math:`p_c` the share of label c among all answers; one that is no label agrees with none, by chance neither.
    Fleiss, "Measuring nominal scale agreement among many raters", 1971; the raters are the templates. NaN where all
    answers are one label: no chance is left.
    """
    agreement = sums[:, 0] / sums[:, 1]
    shares = sums[:, 3:] / sums[:, 2:3]
    by_chance = (shares**2).sum(axis=1)
    return ratio(agreement - by_chance, 1 - by_chance, otherwise=np.nan)


def _extremes(data: Any) -> Extremes:
    """Return an instance without agreement, whose answers are the most frequent labels, and one with full agreement.

    The latter has an answer of each label. Rare labels would lower the agreement by chance, and so raise kappa.
    """
    counts = vote_counts(data.predictions, data.num_labels).sum(axis=0)
    answers = np.zeros(data.num_labels)
    answers[np.argsort(-counts, kind="stable")[: data.predictions.shape[1]]] = 1
    worst = np.concatenate([[0, 1, answers.sum()], answers])
    return worst[None], np.concatenate([[1, 1, data.num_labels], np.ones(data.num_labels)])[None]


def _flip_extremes(counts: FlipCounts) -> Extremes:
    """Return an instance without flips and one with flips only. They have as many pairs as any instance."""
    num_pairs = counts[:, 1].max()
    return num_pairs * np.array([[0, 1, 1]]), num_pairs * np.array([[1, 1, 1]])


# Of Scores.
AGREEMENT = mean_statistic(
    lambda data: instance_agreement(data.predictions),
    plain=lambda data: observed_agreement(data.predictions),
    bounds=(0.0, 1.0),
)
FLEISS_KAPPA = SumStatistic(
    contributions=lambda data: np.column_stack(
        [
            AGREEMENT.contributions(data),
            np.full(len(data), data.predictions.shape[1]),
            vote_counts(data.predictions, data.num_labels),
        ]
    ),
    value=_kappa,
    extremes=_extremes,
)
FLIP_RATE = SumStatistic(  # of the counts of count_flips
    contributions=lambda counts: counts.astype(np.float64),
    value=lambda sums: ratio(sums[:, 0], sums[:, 1], otherwise=np.nan),
    extremes=_flip_extremes,
)
ANSWERED = {
    name: mean_statistic(
        lambda data, name=name: data.answered[name].mean(axis=1) if data.answered else None, bounds=bounds
    )
    for name, bounds in {"token_f1": (0.0, 1.0), "length": None}.items()
}
