"""How often an instance's templates predict the same label."""

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.sums import SumStatistic, mean_statistic, ratio


def vote_counts(
    predictions: Int[np.ndarray, "instances templates"], num_labels: int
) -> Int[np.ndarray, "instances labels"]:
    r"""How many templates predict each label of each instance; they sum to V.

    .. math:: n_{i,c} = \sum_v \mathbf 1[\hat y_{i,v} = c]

    Eq. 4 of the F2C paper.

    Raises:
        ValueError: A prediction is no label's index, 0 to ``num_labels - 1``.

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

    Returns:
        One share for each instance, float64; None for a single template, which has no other to agree with.

    Example:
        >>> instance_agreement(np.array([[0, 0, 1], [2, 2, 2]])).round(4).tolist()
        [0.3333, 1.0]
    """
    num_templates = predictions.shape[1]
    if num_templates < 2:
        return None
    counts = vote_counts(predictions, int(predictions.max(initial=0)) + 1)
    return (counts * (counts - 1)).sum(axis=1) / (num_templates * (num_templates - 1))


def observed_agreement(predictions: Int[np.ndarray, "instances templates"]) -> float | None:
    r"""Observed agreement :math:`P_o`: the mean of Eq. 11 over instances.

    Equal to the *consistency rate* of Zhao et al. 2024 for discrete labels. High agreement is no success in
    itself: see :func:`~flip_flop.metrics.is_collapsed`.

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
    """The share of instances on which each two templates predict the same label: symmetric, ones on the diagonal.

    The mean of its off-diagonal entries is :func:`observed_agreement`: it shows which templates break it.

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


def lacks_consensus(
    predictions: Int[np.ndarray, "instances templates"],
) -> Float[np.ndarray, " instances"] | None:
    r"""1 for each instance on which no label has a strict majority, :math:`n_{i,c} > V/2` (Eq. 5), else 0.

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


def _kappa(sums: Float[np.ndarray, "samples features"]) -> Float[np.ndarray, " samples"]:
    r"""Fleiss' kappa from the sums of an instance's agreement, of 1, and of its votes for each label.

    .. math:: \kappa = \frac{P_o - P_e}{1 - P_e}, \qquad P_e = \sum_c p_c^2

    with :math:`p_c` the share of label c among all votes. Fleiss, "Measuring nominal scale agreement among
    many raters", 1971; the raters are the templates. NaN where all votes are for one label: no chance is left.
    """
    agreement, votes = sums[:, 0] / sums[:, 1], sums[:, 2:]
    by_chance = ((votes / votes.sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return ratio(agreement - by_chance, 1 - by_chance, otherwise=np.nan)


# Of EvalData.
AGREEMENT = mean_statistic(
    lambda data: instance_agreement(data.predictions), plain=lambda data: observed_agreement(data.predictions)
)
NO_CONSENSUS = mean_statistic(lambda data: lacks_consensus(data.predictions))
FLEISS_KAPPA = SumStatistic(
    contributions=lambda data: np.column_stack(
        [AGREEMENT.contributions(data), vote_counts(data.predictions, data.num_labels)]
    ),
    value=_kappa,
)
