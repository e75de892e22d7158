"""F1 and accuracy of each template, and their mean and spread over templates.

F1 is of label 1 where a task has two labels, and macro-F1 over all declared labels otherwise: "auto". A
label that neither occurs nor is predicted has an F1 of 0. Instances without a gold label (-1) are left out.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.sums import SumStatistic, ratio

Average = Literal["auto", "binary", "macro"]


def f1_per_template(
    predictions: Int[np.ndarray, "instances templates"],
    gold: Int[np.ndarray, " instances"],
    *,
    num_labels: int,
    average: Average = "auto",
) -> Float[np.ndarray, " templates"] | None:
    r"""F1 of each template.

    .. math:: F_1(c) = \frac{2 \, \mathrm{TP}_c}{\#\{\hat y = c\} + \#\{y = c\}}

    The paper does not say which F1 it reports. Its base model's 11.45 on WiC at an agreement of 85 cannot be
    a macro-F1, which is near 33 for a constant answer to a balanced task: hence "auto".

    Args:
        predictions: Label indices.
        gold: Label indices, -1 where there is none.
        num_labels: L.
        average: ``"binary"``: F1 of label 1, of two. ``"macro"``: the mean over all labels, whether they
            occur or not. ``"auto"``: binary for two labels, else macro.

    Returns:
        One F1 for each template, 0 to 1; None if no instance has a gold label.

    Raises:
        ValueError: A prediction or gold label is no label's index, or ``"binary"`` is asked of a task that
            has not two labels.

    Example:
        >>> predictions = np.array([[1, 1], [1, 0], [0, 0], [0, 1]])
        >>> f1_per_template(predictions, np.array([1, 1, 0, -1]), num_labels=2).round(4).tolist()
        [1.0, 0.6667]
    """
    sums = _f1_contributions(predictions, gold, num_labels).sum(axis=0)
    f1 = _f1_of_sums(sums, num_labels, average)
    return None if np.isnan(f1).any() else f1


def accuracy_per_template(
    predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"]
) -> Float[np.ndarray, " templates"] | None:
    """The share of instances on which each template predicts the gold label.

    Args:
        predictions: Label indices.
        gold: Label indices, -1 where there is none.

    Returns:
        One share for each template; None if no instance has a gold label.

    Example:
        >>> accuracy_per_template(np.array([[1, 1], [1, 0], [0, 1]]), np.array([1, 1, -1])).tolist()
        [1.0, 0.5]
    """
    labelled = gold >= 0
    if not labelled.any():
        return None
    return (predictions[labelled] == gold[labelled, None]).mean(axis=0)


def mean_f1(f1: Float[np.ndarray, " templates"]) -> float:
    """Mean F1 over templates.

    Args:
        f1: F1 of each template.

    Returns:
        The mean, in the unit of F1.

    Example:
        >>> mean_f1(np.array([0.5, 0.75]))
        0.625
    """
    return float(f1.mean())


def f1_std(f1: Float[np.ndarray, " templates"]) -> float | None:
    """Standard deviation of F1 over templates, of the population (ddof = 0).

    The templates at hand are all there are, not a sample of more; the paper does not say.

    There is no bootstrap form of it, on purpose. A resample adds noise to every template's F1 and so to their
    spread: the percentile interval lies too high. Around a spread of 0.01 it misses, in simulations with 300
    instances and 8 templates, the very value that it is drawn around half of the time.

    Args:
        f1: F1 of each template.

    Returns:
        The deviation, in the unit of F1; None for a single template.

    Example:
        >>> f1_std(np.array([0.5, 0.75]))
        0.125
    """
    return None if len(f1) < 2 else float(f1.std(ddof=0))


def mean_f1_statistic(num_labels: int, average: Average = "auto") -> SumStatistic:
    """:func:`mean_f1` of ``(predictions, gold)``, in the form that the bootstrap resamples.

    Example:
        >>> round(mean_f1_statistic(2)(np.array([[1, 1], [0, 1], [0, 0]]), np.array([1, 0, 0])), 4)
        0.8333
    """
    return SumStatistic(
        contributions=lambda predictions, gold: _f1_contributions(predictions, gold, num_labels),
        value=lambda sums: _f1_of_sums(sums, num_labels, average).mean(axis=-1),
    )


def accuracy_statistic() -> SumStatistic:
    """Mean accuracy over templates of ``(predictions, gold)``, in the form that the bootstrap resamples.

    Example:
        >>> accuracy_statistic()(np.array([[1, 1], [0, 1], [0, 0]]), np.array([1, 0, -1]))
        0.75
    """

    def contributions(
        predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"]
    ) -> Float[np.ndarray, "instances features"]:
        labelled = gold >= 0
        hits = (predictions == gold[:, None]).mean(axis=1) * labelled
        return np.stack([hits, labelled], axis=1)

    return SumStatistic(contributions, lambda sums: ratio(sums[..., 0], sums[..., 1], otherwise=np.nan))


def _f1_contributions(
    predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"], num_labels: int
) -> Float[np.ndarray, "instances features"]:
    # The features of an instance are [templates, labels, (hit, predicted, gold)]; all 0 without a gold label.
    if predictions.size and not 0 <= predictions.min() <= predictions.max() < num_labels:
        raise ValueError(f"Predictions must be label indices, 0 to {num_labels - 1}.")
    if gold.size and not -1 <= gold.min() <= gold.max() < num_labels:
        raise ValueError(f"Gold labels must be label indices, 0 to {num_labels - 1}, or -1 for none.")
    labels = np.arange(num_labels)
    is_gold = np.broadcast_to(gold[:, None, None] == labels, (*predictions.shape, num_labels))
    is_predicted = (predictions[:, :, None] == labels) & (gold >= 0)[:, None, None]
    features = np.stack([is_predicted & is_gold, is_predicted, is_gold], axis=-1)
    return features.reshape(len(predictions), -1).astype(np.float64)


def _f1_of_sums(
    sums: Float[np.ndarray, "*samples features"], num_labels: int, average: Average
) -> Float[np.ndarray, "*samples templates"]:
    if average == "auto":
        average = "binary" if num_labels == 2 else "macro"
    if average == "binary" and num_labels != 2:
        raise ValueError(f"Binary F1 is for two labels; this task has {num_labels}. Use 'macro' or 'auto'.")
    counts = sums.reshape(*sums.shape[:-1], -1, num_labels, 3)
    hits, predicted, occurring = counts[..., 0], counts[..., 1], counts[..., 2]
    f1 = ratio(2 * hits, predicted + occurring, otherwise=0.0)
    f1 = f1[..., 1] if average == "binary" else f1.mean(axis=-1)
    return np.where(occurring.sum(axis=-1) > 0, f1, np.nan)  # without any gold label there is no F1
