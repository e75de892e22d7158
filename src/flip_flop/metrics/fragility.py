"""Which answers and votes the arithmetic's noise decides: their labels' scores lie nearer than the dtype resolves."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from flip_flop.metrics.agreement import majority_vote, vote_weights


@dataclass(frozen=True)
class Resolution:
    """The least margin that a run's arithmetic resolves, in nats: measured on its rows, or stated for its dtype."""

    nats: float
    found: Literal["measured", "stated"]


def fragile_answers(
    scores: Float[np.ndarray, "instances templates labels"], resolution: float
) -> Bool[np.ndarray, "instances templates"]:
    r"""Whether an answer is fragile: its margin over the second label is under the resolution, both in nats.

    .. math:: \max_c \mathrm{LL}_i[v,c] - \max_{c \ne \hat y_{i,v}} \mathrm{LL}_i[v,c] < \text{resolution}

    Example:
        >>> fragile_answers(np.array([[[-1.0, -3.0], [-1.0, -1.02]]]), 0.05).tolist()
        [[False, True]]
    """
    top = np.sort(scores.astype(np.float64), axis=2)[:, :, -2:]
    with np.errstate(invalid="ignore"):  # a template that rules out every label: not a number, and not fragile
        return top[:, :, 1] - top[:, :, 0] < resolution


def fragile_votes(
    scores: Float[np.ndarray, "instances templates labels"], resolution: float
) -> Bool[np.ndarray, " instances"]:
    r"""Whether a vote is fragile: another label wins it if some of its fragile answers become their second labels.

    Label c wins over the vote :math:`c^*` for some choice of them if and only if

    .. math:: \sum_v \max_{o \in O_v} \left( \mathbf 1[o = c] - \mathbf 1[o = c^*] \right)

    is positive, with :math:`O_v` the best label of template v and, where its answer is fragile, the second one; or if
    it is 0 and c is before :math:`c^*` in the order that breaks ties, which the scores themselves decide.

    Example:
        >>> scores = np.array([[[-1.0, -3.0], [-1.0, -1.02], [-3.0, -1.0]]])  # two to one, of which one is fragile
        >>> fragile_votes(scores, 0.05).tolist(), fragile_votes(scores, 0.01).tolist()
        ([True], [False])
    """
    votes, weights, labels = majority_vote(scores)[:, None], vote_weights(scores), np.arange(scores.shape[2])
    best = scores.argmax(axis=2)
    second = np.where(best[:, :, None] == labels, -np.inf, scores).argmax(axis=2)

    def lead(answers: Int[np.ndarray, "instances templates"]) -> Int[np.ndarray, "instances templates labels"]:
        return (answers[:, :, None] == labels).astype(np.int64) - (answers == votes)[:, :, None]

    fragile = fragile_answers(scores, resolution)[:, :, None]
    leads = np.where(fragile, np.maximum(lead(best), lead(second)), lead(best)).sum(axis=1)
    own = np.take_along_axis(weights, votes, axis=1)
    breaks_tie = (weights > own) | ((weights == own) & (labels < votes))
    return ((leads > 0) | ((leads == 0) & breaks_tie)).any(axis=1)


# Of Scores; None where its resolution is not known.


def fragile_share(data: Any) -> float | None:
    """The share of fragile answers among all, over instances and templates."""
    return None if data.resolution is None else float(fragile_answers(data.scores, data.resolution).mean())


def fragile_vote_share(data: Any) -> float | None:
    """The share of fragile votes."""
    return None if data.resolution is None else float(fragile_votes(data.scores, data.resolution).mean())


def fragile_share_per_template(data: Any) -> Float[np.ndarray, " templates"] | None:
    """The share of fragile answers of each template."""
    return None if data.resolution is None else fragile_answers(data.scores, data.resolution).mean(axis=0)
