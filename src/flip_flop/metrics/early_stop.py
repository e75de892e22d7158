"""Early stops of a mean over templates, certified on rows without labels."""

import numpy as np
from jaxtyping import Float

from flip_flop.arrays import LabelScores
from flip_flop.metrics.certainty import MAX_WRONG, binomial_tail

STEPS = 20  # of the threshold, fixed before the rows are seen


def leads(probs: LabelScores) -> Float[np.ndarray, "instances passes"]:
    r"""Compute by how much the other templates must favour another label, on average, to change the mean.

    .. math:: \ell_k = \frac{k}{K - k} (\bar q_{(1)} - \bar q_{(2)})

    for the two largest mean probabilities over the first k of K templates.

    Example:
        >>> leads(np.array([[[0.7, 0.3], [0.2, 0.8], [0.0, 0.0]]])).round(2).tolist()
        [[0.2, 0.2]]
    """
    ordered = np.sort(probs.cumsum(axis=1)[:, :-1], axis=2)
    return (ordered[:, :, -1] - ordered[:, :, -2]) / np.arange(probs.shape[1] - 1, 0, -1)


def certified_lead(probs: LabelScores, confidence: float) -> float | None:
    """Return the smallest of the :func:`leads` at which the passes over the templates may stop; None if none holds.

    Of the instances that stop there at the latest, at most 1 - ``confidence`` change their answer, with 95 %
    confidence. The leads 1, 0.95, ..., 0.05 are tested in this order by the exact upper bound of Clopper and Pearson,
    from the first at which enough instances stop, until one fails. In a fixed sequence, the error of all tests together
    is 5 % (Angelopoulos et al., "Learn then Test", 2021), if smaller leads change more answers.

    Args:
        probs: Probabilities of the labels, with the templates in the order of the passes.
        confidence: The share of the answers that must not change.

    Example:
        >>> probs = np.tile([[0.9, 0.1], [0.8, 0.2]], (400, 1, 1))
        >>> certified_lead(probs, 0.99), certified_lead(probs[:200], 0.99)
        (0.05, None)
    """
    answers = probs.cumsum(axis=1).argmax(axis=2)
    is_changed = answers != answers[:, -1:]
    reached = leads(probs)
    found = None
    for step in range(STEPS, 0, -1):
        stops = reached >= step / STEPS
        stopped = np.flatnonzero(stops.any(axis=1))
        changed = is_changed[stopped, stops[stopped].argmax(axis=1)]
        if binomial_tail(0, len(stopped), 1 - confidence) > MAX_WRONG:
            continue
        if binomial_tail(int(changed.sum()), len(stopped), 1 - confidence) > MAX_WRONG:
            break
        found = step / STEPS
    return found
