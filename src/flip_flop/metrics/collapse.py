"""Whether agreement is bought by giving everything one label."""

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.agreement import vote_counts

COLLAPSE_SHARE = 0.95
COLLAPSE_SHARE_WITH_GOLD = 0.9
COLLAPSE_EXCESS = 0.1


def label_shares(predictions: Int[np.ndarray, "instances templates"], num_labels: int) -> Float[np.ndarray, " labels"]:
    """The share of each label among all predictions, over instances and templates; they sum to 1.

    Raises:
        ValueError: There are no instances, or a prediction is no label's index.

    Example:
        >>> label_shares(np.array([[0, 0], [0, 2]]), 3).tolist()
        [0.75, 0.0, 0.25]
    """
    return label_shares_per_template(predictions, num_labels).mean(axis=0)


def label_shares_per_template(
    predictions: Int[np.ndarray, "instances templates"], num_labels: int
) -> Float[np.ndarray, "templates labels"]:
    """The share of each label among each template's predictions; they sum to 1 for each template.

    Raises:
        ValueError: There are no instances, or a prediction is no label's index.

    Example:
        >>> label_shares_per_template(np.array([[0, 0], [0, 2]]), 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]]
    """
    if len(predictions) == 0:
        raise ValueError("There are no predictions to take shares of.")
    return vote_counts(predictions.T, num_labels) / len(predictions)


def is_collapsed(
    predictions: Int[np.ndarray, "instances templates"],
    num_labels: int,
    gold: Int[np.ndarray, " instances"] | None = None,
) -> bool:
    r"""Whether one label takes nearly everything, as in a model that has stopped reading its input.

    With gold labels, on the instances that have one: a label takes 90 % of the predictions or more, and at
    least 10 points more than of the gold labels. A constant answer to a task whose labels are truly 95 % one
    label is therefore not called collapsed: such data cannot tell. Without gold labels a skewed task and a
    collapsed model look the same, so the bar is higher, 95 %, and the flag is a reason to look.

    Agreement needs no bar of its own: if a label takes the share s of all predictions, then
    :math:`P_o \ge 2s - 1`, here at least 80 % with gold labels and 90 % without. The paper's WiC, with an F1
    near 10 at an agreement near 87, is what the bar of 90 % is for: at that agreement s is at most 93.5 %.

    Args:
        predictions: Label indices; of no instances, nothing has collapsed.
        num_labels: L.
        gold: Label indices, -1 where there is none.

    Example:
        >>> always_no = np.zeros((20, 3), dtype=int)
        >>> is_collapsed(always_no, 2), is_collapsed(always_no, 2, gold=np.array([0] * 19 + [1]))
        (True, False)
    """
    if len(predictions) == 0:
        return False
    labelled = np.zeros(len(predictions), dtype=bool) if gold is None else gold >= 0
    if gold is None or not labelled.any():
        return bool(label_shares(predictions, num_labels).max() >= COLLAPSE_SHARE)
    shares = label_shares(predictions[labelled], num_labels)
    top = int(shares.argmax())
    excess = shares[top] - float((gold[labelled] == top).mean())
    return bool(shares[top] >= COLLAPSE_SHARE_WITH_GOLD and excess >= COLLAPSE_EXCESS)


def share_drift(before: Float[np.ndarray, " labels"], after: Float[np.ndarray, " labels"]) -> float:
    r"""How far label shares have moved: their total variation distance.

    .. math:: \frac12 \sum_c |a_c - b_c|

    The visible symptom of a collapse under way, without gold labels.

    Returns:
        0 (the same) to 1 (nothing in common): the smallest share of predictions that must have changed.

    Example:
        >>> share_drift(np.array([0.5, 0.5]), np.array([0.75, 0.25]))
        0.25
    """
    return float(np.abs(after - before).sum() / 2)
