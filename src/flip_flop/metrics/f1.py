"""F1, accuracy and Cohen's kappa of each template, and their mean over templates, on instances with a gold label."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from flip_flop.arrays import Extremes, InstanceLabels, PerTemplate, Predictions
from flip_flop.errors import InputError
from flip_flop.metrics.agreement import require_labels
from flip_flop.metrics.bootstrap import SumStatistic, mean_statistic, ratio

Average = Literal["auto", "binary", "macro"]


def resolve_average(average: str, num_labels: int) -> Average:
    """Resolve ``"auto"``: binary for two labels, else macro.

    Raises:
        InputError: ``E-TASK-KEY`` if the F1 is not defined, for example ``"binary"`` for three labels.
    """
    if average == "macro" or (average == "auto" and num_labels != 2):
        return "macro"
    if average in ("auto", "binary") and num_labels == 2:
        return "binary"
    raise InputError("E-TASK-KEY", f"f1 is {average!r}, but there are {num_labels} labels.", "Use macro or auto.")


def f1_per_template(
    predictions: Predictions,
    gold: InstanceLabels,
    *,
    num_labels: int,
    average: Average = "auto",
) -> PerTemplate | None:
    r"""F1 of each template.

    .. math:: F_1(c) = \frac{2 \, \mathrm{TP}_c}{\#\{\hat y = c\} + \#\{y = c\}}

    The paper does not say which F1 it reports. Its base model's 11.45 on WiC at an agreement of 85 cannot be
    a macro-F1, which is near 33 for a constant answer to a balanced task: hence "auto".

    ``"binary"`` is F1 of label 1, of two; ``"macro"`` the mean over all labels, whether they occur or not; ``"auto"``
    binary for two labels, else macro. A label that neither occurs nor is predicted has an F1 of 0. None if no
    instance has a gold label (-1).

    Raises:
        ValueError: A prediction or gold label is no label's index, or there is no such F1.

    Example:
        >>> predictions = np.array([[1, 1], [1, 0], [0, 0], [0, 1]])
        >>> f1_per_template(predictions, np.array([1, 1, 0, -1]), num_labels=2).round(4).tolist()
        [1.0, 0.6667]
    """
    counts = _counts(predictions, gold, num_labels, average).sum(axis=0)
    return _f1(counts) if (gold >= 0).any() else None


def accuracy_per_template(data: Any) -> PerTemplate | None:
    r"""The share of instances on which each template predicts the gold label; None if no instance has one.

    .. math:: A_v = \frac{1}{N} \sum_i \mathbf 1[\hat y_{i,v} = y_i]

    Example:
        >>> from flip_flop.metrics import Scores
        >>> data = Scores(np.eye(2)[[[1, 1], [1, 0], [0, 1]]], np.array([1, 1, -1]))
        >>> accuracy_per_template(data).tolist()
        [1.0, 0.5]
    """
    if len(data.labelled):
        return data.labelled.right.mean(axis=0)
    return None


def _counts(
    predictions: Predictions,
    gold: InstanceLabels,
    num_labels: int,
    average: Average,
) -> Float[np.ndarray, "instances templates averaged_labels 3"]:
    # What F1 counts, for each label that it is averaged over: hit, predicted, gold; all 0 without a gold label.
    require_labels("Predictions", predictions, num_labels)
    require_labels("Gold labels", gold, num_labels)
    if resolve_average(average, num_labels) == "binary":
        labels = np.array([1])
    else:
        labels = np.arange(num_labels)
    is_gold = np.broadcast_to(gold[:, None, None] == labels, (*predictions.shape, len(labels)))
    is_predicted = (predictions[:, :, None] == labels) & (gold >= 0)[:, None, None]
    return np.stack([is_predicted & is_gold, is_predicted, is_gold], axis=-1).astype(np.float64)


def _f1(counts: Float[np.ndarray, "*samples templates labels 3"]) -> Float[np.ndarray, "*samples templates"]:
    hits = counts[..., 0]
    predicted = counts[..., 1]
    occurring = counts[..., 2]
    return ratio(2 * hits, predicted + occurring, otherwise=0.0).mean(axis=-1)


def _extremes(data: Any) -> Extremes:
    """Return the counts of a wrong and of a right instance of each gold label, for any number of templates."""
    labels = np.arange(data.num_labels)
    common = (labels, data.num_labels, data.design.average)
    return _counts(np.roll(labels, 1)[:, None], *common), _counts(labels[:, None], *common)


# Of Scores, whose instances all have a gold label.
F1_PER_TEMPLATE = SumStatistic(
    contributions=lambda data: _counts(data.predictions, data.gold, data.num_labels, data.design.average),
    value=_f1,
    extremes=_extremes,
)
MEAN_F1 = SumStatistic(F1_PER_TEMPLATE.contributions, lambda sums: _f1(sums).mean(axis=-1), extremes=_extremes)
ACCURACY = mean_statistic(
    lambda data: data.right.mean(axis=1),
    plain=lambda data: float(data.right.mean(axis=0).mean()),
    bounds=(0.0, 1.0),
)


def _kappa_weights(data: Any) -> Float[np.ndarray, "labels labels_and_none"]:
    gold = np.arange(data.num_labels)[:, None]
    predicted = np.arange(data.num_labels + 1)
    weights = (gold - predicted) ** 2.0 if data.design.is_scale else (gold != predicted) * 1.0
    weights[:, -1] = weights[:, :-1].max()  # of an answer without a label, -1
    return weights


def _kappa_counts(
    data: Any, predictions: Predictions, gold: InstanceLabels
) -> Float[np.ndarray, "instances templates features"]:
    """Return the weight of an answer, 1, the weights of all answers to the gold label, and the answer as one-hot."""
    weights = np.broadcast_to(_kappa_weights(data)[gold][:, None], (*predictions.shape, data.num_labels + 1))
    answered = np.eye(data.num_labels + 1)[predictions]
    return np.concatenate(
        [(weights * answered).sum(axis=-1, keepdims=True), np.ones_like(weights[..., :1]), weights, answered], axis=-1
    )


def _kappas(sums: Float[np.ndarray, "*samples templates features"]) -> Float[np.ndarray, "*samples templates"]:
    r"""Cohen's kappa of each template and the gold labels, from summed counts: agreement beyond chance.

    .. math:: \kappa = 1 - \frac{N \sum_i w(y_i, \hat y_i)}{\sum_{i,j} w(y_i, \hat y_j)}

    with a weight w of 1 for different labels, and of :math:`(a - b)^2` for the grades a and b of a scale. An answer
    without a label has the largest weight. NaN if all answers and gold labels are one label.

    Reference: Cohen, "A coefficient of agreement for nominal scales", 1960, and "Weighted kappa", 1968.
    """
    weights, answered = np.split(sums[..., 2:], 2, axis=-1)
    by_chance = (weights * answered).sum(axis=-1)
    return 1 - ratio(sums[..., 0] * sums[..., 1], by_chance, otherwise=np.nan)


def _kappa_extremes(data: Any) -> Extremes:
    """Return the counts of the worst and of a right answer to each gold label."""
    labels = np.arange(data.num_labels)
    farthest = _kappa_weights(data)[:, :-1].argmax(axis=1)
    return _kappa_counts(data, farthest[:, None], labels), _kappa_counts(data, labels[:, None], labels)


COHEN_KAPPA = SumStatistic(
    contributions=lambda data: _kappa_counts(data, data.predictions, data.gold),
    value=lambda sums: _kappas(sums).mean(axis=-1),
    extremes=_kappa_extremes,
)


def chance_f1(data: Any) -> float:
    r"""Return the highest F1 of answers that do not depend on the input.

    It is :math:`1/L` for macro-F1, and :math:`2g/(1+g)` for label 1 with the share g of the gold labels.

    Example:
        >>> from flip_flop.metrics import Scores
        >>> chance_f1(Scores(np.zeros((4, 1, 5)), np.array([0, 0, 1, 2])))
        0.2
    """
    share = float((data.gold == 1).mean())
    if data.is_binary:
        return 2 * share / (1 + share)
    return 1 / data.num_labels
