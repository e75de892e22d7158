"""Weights of the templates in a vote, from their accuracy on a few labelled instances."""

import numpy as np
from jaxtyping import Float, Int

STEP = 2.0**-10  # of the weights: multiples have exact sums, so the order of the templates has no influence


def template_accuracies(
    predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"], num_labels: int
) -> Float[np.ndarray, " templates"]:
    r"""Estimate the accuracy of each template, shrunk toward the mean of all templates.

    .. math::
        \hat a_v = \bar a + B \, (\tilde a_v - \bar a), \qquad \tilde a_v = \frac{h_v + 1}{n + L}, \qquad
        B = \max\left(0, 1 - \frac{s_e^2 / n}{s_a^2}\right)

    :math:`h_v` counts the correct predictions on n instances with L labels, and :math:`\bar a` is the mean of
    :math:`\tilde a_v`. :math:`s_a^2` is the variance of :math:`h_v / n` over templates. :math:`s_e^2` is the residual
    variance of a correct prediction after the effects of its template and its instance: all templates answer the same
    instances, so an instance that is difficult for all of them adds no noise. With fewer than two instances or
    templates B is 0.

    This is the positive-part estimator of Efron and Morris, "Data Analysis Using Stein's Estimator and Its
    Generalizations", JASA 1975, with an estimated noise and with :math:`V - 1` instead of :math:`V - 3`, so that it
    also shrinks three templates.

    Example:
        >>> predictions = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
        >>> template_accuracies(predictions, np.array([1, 0, 1, 0]), 2).round(3).tolist()
        [0.815, 0.815, 0.37]
    """
    correct = (predictions == gold[:, None]).astype(np.float64)
    instances, templates = correct.shape
    smoothed = (correct.sum(axis=0) + 1) / (instances + num_labels)
    if min(instances, templates) < 2 or (spread := correct.mean(axis=0).var(ddof=1)) == 0:
        return np.full(templates, smoothed.mean())
    residual = correct - correct.mean(axis=0) - correct.mean(axis=1, keepdims=True) + correct.mean()
    noise = (residual**2).sum() / ((instances - 1) * (templates - 1)) / instances
    return smoothed.mean() + max(0.0, 1 - noise / spread) * (smoothed - smoothed.mean())


def template_weights(
    predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"], num_labels: int
) -> Float[np.ndarray, " templates"]:
    r"""Compute the weight of each template in :func:`~flip_flop.metrics.majority_vote`.

    .. math:: w_v = \max\left(0, \log \frac{(L - 1) \, \hat a_v}{1 - \hat a_v}\right)

    The log-odds of :func:`template_accuracies` are the optimal weights of independent voters with two labels (Nitzan
    and Paroush, "Optimal Decision Rules in Uncertain Dichotomous Choice Situations", International Economic Review
    1982), and with L labels if every wrong label is equally likely. A template at or below chance has weight 0. If all
    templates are, or without labelled instances, the weights are equal: the majority vote.

    Example:
        >>> predictions = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
        >>> template_weights(predictions, np.array([1, 0, 1, 0]), 2).round(2).tolist()
        [1.48, 1.48, 0.0]
    """
    accuracies = template_accuracies(predictions, gold, num_labels)
    log_odds = np.log((num_labels - 1) * accuracies / (1 - accuracies))
    weights = np.rint(np.maximum(log_odds, 0) / STEP) * STEP
    return weights if weights.any() else np.ones(len(weights))
