"""How often an instance's templates predict the same label."""

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.sums import SumStatistic, mean_statistic


def vote_counts(
    predictions: Int[np.ndarray, "instances templates"], num_labels: int
) -> Int[np.ndarray, "instances labels"]:
    r"""How many templates predict each label of each instance.

    .. math:: n_{i,c} = \sum_v \mathbf 1[\hat y_{i,v} = c]

    Eq. 4 of the F2C paper.

    Args:
        predictions: Label indices, 0 to ``num_labels - 1``.
        num_labels: L.

    Returns:
        Counts that sum to V for each instance.

    Raises:
        ValueError: A prediction is no label's index.

    Example:
        >>> vote_counts(np.array([[0, 2, 2], [1, 1, 1]]), 3)
        array([[1, 0, 2],
               [0, 3, 0]])
    """
    if predictions.size and not 0 <= predictions.min() <= predictions.max() < num_labels:
        raise ValueError(f"Predictions must be label indices, 0 to {num_labels - 1}.")
    num_instances = len(predictions)
    cells = predictions + num_labels * np.arange(num_instances)[:, None]
    return np.bincount(cells.ravel(), minlength=num_instances * num_labels).reshape(num_instances, num_labels)


def instance_agreement(
    predictions: Int[np.ndarray, "instances templates"],
) -> Float[np.ndarray, " instances"] | None:
    r"""Observed agreement of each instance: how likely two of its templates predict the same label.

    .. math:: P_i = \frac{1}{V(V-1)} \sum_c n_{i,c} (n_{i,c} - 1)

    Eq. 11 of the F2C paper: the share of the pairs of different templates that agree.

    Args:
        predictions: Label indices.

    Returns:
        One share for each instance, float64; None for a single template, which has nobody to agree with.

    Example:
        >>> instance_agreement(np.array([[0, 0, 1], [2, 2, 2]])).round(4).tolist()
        [0.3333, 1.0]
    """
    num_templates = predictions.shape[1]
    if num_templates < 2:
        return None
    counts = vote_counts(predictions, int(predictions.max(initial=0)) + 1)
    agreeing_pairs = (counts * (counts - 1)).sum(axis=1)
    return agreeing_pairs / (num_templates * (num_templates - 1))


def observed_agreement(predictions: Int[np.ndarray, "instances templates"]) -> float | None:
    r"""Observed agreement :math:`P_o`: the mean of Eq. 11 over instances.

    Equal to the *consistency rate* of Zhao et al. 2024 for discrete labels. High agreement is no success in
    itself: see :func:`~flip_flop.metrics.is_collapsed`.

    Args:
        predictions: Label indices.

    Returns:
        A share between 0 and 1; None for a single template, or without instances.

    Example:
        >>> round(observed_agreement(np.array([[0, 0, 1], [2, 2, 2]])), 4)
        0.6667
    """
    agreement = instance_agreement(predictions)
    return None if agreement is None or len(agreement) == 0 else float(agreement.mean())


def template_agreement_matrix(
    predictions: Int[np.ndarray, "instances templates"],
) -> Float[np.ndarray, "templates templates"]:
    """The share of instances on which each two templates predict the same label.

    The mean of its off-diagonal entries is :func:`observed_agreement`: it shows which templates break it.

    Args:
        predictions: Label indices, of at least one instance.

    Returns:
        A symmetric matrix with ones on the diagonal.

    Raises:
        ValueError: There are no instances.

    Example:
        >>> template_agreement_matrix(np.array([[0, 0, 1], [2, 2, 2]])).tolist()
        [[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]
    """
    if len(predictions) == 0:
        raise ValueError("Templates cannot be compared without instances.")
    # One column at a time: all pairs at once would be instances x templates x templates.
    return np.stack([(predictions == column[:, None]).mean(axis=0) for column in predictions.T])


def no_consensus_share(predictions: Int[np.ndarray, "instances templates"]) -> float | None:
    r"""The share of instances on which no label has a strict majority, :math:`n_{i,c} > V/2` (Eq. 5).

    Training skips these instances. An exact half is no majority.

    Args:
        predictions: Label indices.

    Returns:
        A share between 0 and 1; None for a single template, or without instances.

    Example:
        >>> no_consensus_share(np.array([[0, 0, 1, 1], [2, 2, 2, 1]]))
        0.5
    """
    lacks = _lacks_consensus(predictions)
    return None if lacks is None or len(lacks) == 0 else float(lacks.mean())


def agreement_statistic() -> SumStatistic:
    """:func:`observed_agreement` of ``(predictions)``, in the form that the bootstrap resamples."""
    return mean_statistic(instance_agreement)


def no_consensus_statistic() -> SumStatistic:
    """:func:`no_consensus_share` of ``(predictions)``, in the form that the bootstrap resamples."""
    return mean_statistic(_lacks_consensus)


def _lacks_consensus(
    predictions: Int[np.ndarray, "instances templates"],
) -> Float[np.ndarray, " instances"] | None:
    num_templates = predictions.shape[1]
    if num_templates < 2:
        return None
    counts = vote_counts(predictions, int(predictions.max(initial=0)) + 1)
    return (2 * counts.max(axis=1) <= num_templates).astype(np.float64)
