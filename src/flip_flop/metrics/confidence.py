"""Confidence: risk against coverage of the majority vote, and calibration error of single templates."""

import numpy as np
from jaxtyping import Bool, Float, Int

from flip_flop.metrics.agreement import label_probs, vote_counts, vote_weights
from flip_flop.metrics.bootstrap import ratio
from flip_flop.metrics.data import Scores

BINS = 10


def vote_share(data: Scores) -> Float[np.ndarray, " instances"]:
    """Compute the share of the templates that predict the majority vote, the confidence in predictions.

    Example:
        >>> vote_share(Scores(np.log([[[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.7, 0.3]]]), np.array([0]))).tolist()
        [0.75]
    """
    return vote_counts(data.predictions, data.num_labels).max(axis=1) / data.predictions.shape[1]


def vote_margin(data: Scores) -> Float[np.ndarray, " instances"]:
    """Compute the mean probability of the majority vote minus the largest mean probability of another label.

    It is negative if the most frequent prediction is not the most probable label.

    Example:
        >>> vote_margin(Scores(np.log([[[0.9, 0.1], [0.8, 0.2]]]), np.array([0]))).round(4).tolist()
        [0.7]
    """
    means = vote_weights(data.scores) / data.predictions.shape[1]
    is_vote = data.votes[:, None] == np.arange(data.num_labels)
    other = np.where(is_vote, -np.inf, means).max(axis=1, initial=0.0)
    return np.where(data.votes >= 0, (means * is_vote).sum(axis=1) - other, -np.inf)


def risk_coverage(
    confidence: Float[np.ndarray, " instances"], wrong: Bool[np.ndarray, " instances"]
) -> Float[np.ndarray, "points 3"]:
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


def reliability(data: Scores) -> Float[np.ndarray, "templates bins 3"]:
    """Count instances, and sum confidence and correct predictions, in ten bins of equal width of the confidence.

    The confidence of a template is the probability of its prediction among the labels. A bin includes its upper end.
    All instances need a gold label.

    Example:
        >>> reliability(Scores(np.log([[[0.9, 0.1]], [[0.16, 0.84]]]), np.array([0, 0])))[0, 8].round(2).tolist()
        [2.0, 1.74, 1.0]
    """
    confidence = label_probs(data.scores).max(axis=2)
    bins: Int[np.ndarray, "instances templates"] = np.clip(np.ceil(confidence * BINS - 1e-9) - 1, 0, BINS - 1)
    in_bin = bins[:, :, None] == np.arange(BINS)
    parts = (np.ones_like(confidence), confidence, data.predictions == data.gold[:, None])
    return np.stack([(in_bin * part[:, :, None]).sum(axis=0) for part in parts], axis=-1)


def calibration_error_per_template(data: Scores) -> Float[np.ndarray, " templates"]:
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


def mean_calibration_error(data: Scores) -> float:
    """Return the mean over templates of :func:`calibration_error_per_template`."""
    return float(calibration_error_per_template(data).mean())
