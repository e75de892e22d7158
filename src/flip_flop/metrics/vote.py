"""The majority vote of the templates: V forward passes an answer, and a free baseline for training."""

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.agreement import vote_counts
from flip_flop.metrics.sums import ratio


def label_probs(
    scores: Float[np.ndarray, "instances templates labels"],
) -> Float[np.ndarray, "instances templates labels"]:
    """The scores normalised over the labels, Eq. 14: their softmax, in float64.

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


def majority_vote(
    scores: Float[np.ndarray, "instances templates labels"],
) -> Int[np.ndarray, " instances"]:
    """The label that most of an instance's templates predict.

    A plurality is enough, unlike for a consensus: every instance gets an answer. A tie goes to the tied label
    with the larger sum of label probabilities over all templates, and then to the lowest index. The order of
    the templates has no influence.

    Args:
        scores: Mean log-probability of each answer's tokens, in nats.

    Raises:
        ValueError: A score is NaN or +inf.

    Example:
        >>> probabilities = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.7, 0.3]]])
        >>> majority_vote(np.log(probabilities)).tolist()
        [0, 1]
    """
    probs = label_probs(scores)
    counts = vote_counts(scores.argmax(axis=2), scores.shape[2])
    weights = np.sort(probs, axis=1).sum(axis=1)  # sorted, as in label_probs
    tied = counts == counts.max(axis=1, keepdims=True)
    return np.where(tied, weights, -1.0).argmax(axis=1)
