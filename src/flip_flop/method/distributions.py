"""The distributions of an instance that the losses compare, and how far some are from the mixture of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flip_flop.method.divergences import aggregate_answer_log_probs, kl_divergence, mixture_log_probs, to_device
from flip_flop.method.settings import Aggregation

Divergence = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Distributions:
    """Log-probabilities of an instance, each of one template and one position; rows that share a position are compared.

    Templates and positions are on the CPU, the log-probabilities on any device.

    With one distribution per template, all are at position 0: over the labels, or over the vocabulary with an answer's
    positions aggregated. With ``per_position`` there is one for each position of each answer.
    """

    log_probs: Float[Tensor, "rows outcomes"]
    template: Int[Tensor, " rows"]
    position: Int[Tensor, " rows"]

    def __getitem__(self, templates: Bool[Tensor, " templates"]) -> "Distributions":
        """Those of some templates; the mask is on the CPU."""
        rows = templates[self.template].nonzero().squeeze(1)
        return Distributions(_rows(self.log_probs, rows), self.template[rows], self.position[rows])


def as_distributions(log_probs: Float[Tensor, "templates outcomes"] | Distributions) -> Distributions:
    """One distribution per template, all at position 0; ``Distributions`` are returned unchanged."""
    if isinstance(log_probs, Distributions):
        return log_probs
    template = torch.arange(log_probs.shape[0])
    return Distributions(log_probs, template, torch.zeros_like(template))


def answer_distributions(
    answers: Sequence[Float[Tensor, "_positions vocab"]], aggregation: Aggregation = "mean_log_prob"
) -> Distributions:
    r"""From each template's answer, given as the token-level log-softmax at its positions.

    The paper says "aggregated over answer positions" and not how: :func:`aggregate_answer_log_probs` has two
    readings. ``per_position`` is the release's (its row "Distributions"): position j of an answer is compared
    with position j of the other templates' answers, of those that have one.

    Example:
        >>> answer_distributions([torch.zeros(1, 3), torch.zeros(2, 3)], "per_position").position
        tensor([0, 0, 1])
    """
    if aggregation != "per_position":
        return as_distributions(
            torch.stack([aggregate_answer_log_probs(rows, reading=aggregation) for rows in answers])
        )
    owners = [(template, place) for template, rows in enumerate(answers) for place in range(len(rows))]
    template, position = torch.tensor(owners).unbind(dim=1)
    return Distributions(torch.cat(list(answers)), template, position)


def forward_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r"""Each distribution's :math:`\mathrm{KL}(q \,\|\, m)` from the mixture: Eqs. 8 and 9 of the F2C paper."""
    return kl_divergence(log_probs, mixture)


def reverse_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r"""The mixture's :math:`\mathrm{KL}(m \,\|\, q)` from each: release, rows "Flip term" and "Swarm"."""
    return kl_divergence(mixture, log_probs)


def symmetric_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r""":math:`(\mathrm{KL}(q \,\|\, m) + \mathrm{KL}(m \,\|\, q)) / 2`: release, row "JSD"."""
    return (forward_kl(log_probs, mixture) + reverse_kl(log_probs, mixture)) / 2


def divergence_from_mixture(
    own: Distributions, others: Distributions, divergence: Divergence, *, detach: bool
) -> Float[Tensor, ""]:
    r"""How far distributions are from the mixture of others at the same position.

    .. math:: \frac{1}{|C|} \sum_{(v, j) \in C} D(q_{v,j}, m_j), \quad m_j = \frac{1}{|U_j|} \sum_{u \in U_j} q_{u,j}

    C are the distributions ``own`` at positions where ``others`` have one, :math:`U_j` the others that have position j.
    With one distribution per template this is a mean over templates; with ``per_position``, the release's mean over
    (template, position) cells. ``detach`` takes the gradient from the mixture.
    """
    values = []
    for position in torch.unique(own.position):
        theirs = _rows(others.log_probs, (others.position == position).nonzero().squeeze(1))
        if len(theirs):
            mixture = mixture_log_probs(theirs)
            mixture = mixture.detach() if detach else mixture
            mine = _rows(own.log_probs, (own.position == position).nonzero().squeeze(1))
            values.append(divergence(mine, mixture))
    return torch.cat(values).mean()


def _rows(log_probs: Float[Tensor, "rows outcomes"], rows: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen outcomes"]:
    return log_probs[to_device(rows, log_probs.device)]
