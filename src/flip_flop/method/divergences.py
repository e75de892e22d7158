"""Distributions, as normalised log-probabilities over the vocabulary or the labels, and their divergences in nats."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flip_flop.method.settings import Aggregation

Divergence = Callable[[Tensor, Tensor], Tensor]


# Indices and masks are made on the CPU, and copied to the device that computes.
def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting until the device has done what it was given before.

    Apple's devices alone may still read the memory of such a copy when it is used again: there it is waited for.
    """
    return tensor.to(device, non_blocking=device.type != "mps")


def at_least_float32(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in float32 if it is narrower than that; float64 stays, for checks of gradients."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def kl_divergence(
    log_p: Float[Tensor, "*#batch outcomes"], log_q: Float[Tensor, "*#batch outcomes"]
) -> Float[Tensor, "*batch"]:
    r"""Kullback-Leibler divergence of p from q, in nats.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_y p(y) \, (\log p(y) - \log q(y))

    The divergence of Eqs. 8 and 9 of the F2C paper, for each pair; leading axes broadcast. An outcome to which p gives
    no probability adds nothing (0 log 0 = 0) and has gradient 0; where q gives none and p does, the divergence is
    infinite. Gradients flow into both. Below 0 by rounding at most.

    Example:
        >>> kl_divergence(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.5, 0.5]).log())
        tensor(0.6931)

    References:
        Kullback and Leibler, "On information and sufficiency", Ann. Math. Statist., 1951.
    """
    log_p, log_q = at_least_float32(log_p), at_least_float32(log_q)
    p = log_p.exp()
    # Not `log_p > -inf`: a probability can also be too small for its dtype, and 0 * inf is NaN.
    return (p * torch.where(p > 0, log_p - log_q, 0.0)).sum(dim=-1)


def mixture_log_probs(log_probs: Float[Tensor, "distributions outcomes"]) -> Float[Tensor, " outcomes"]:
    r"""The uniform mixture of K distributions, averaged as probabilities and given as log-probabilities.

    .. math:: \log \bar q(y) = \operatorname{logsumexp}_k \log q_k(y) - \log K

    Computed as the largest term plus the logarithm of a mean that lies between 1/K and 1: nothing underflows,
    and the mixture of equal distributions is exactly that distribution. Gradients flow into all of them.

    Raises:
        ValueError: There is no distribution to mix.

    Example:
        >>> mixture_log_probs(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()).exp()
        tensor([0.7000, 0.3000])
    """
    if log_probs.shape[0] == 0:
        raise ValueError("A mixture needs at least one distribution.")
    log_probs = at_least_float32(log_probs)
    peak = log_probs.detach().amax(dim=0)
    impossible = peak == -math.inf  # to every distribution: kept out of exp and log, whose gradients would be NaN
    peak = peak.masked_fill(impossible, 0.0)
    mean = (log_probs - peak).exp().mean(dim=0)
    log_mixture = peak + mean.masked_fill(impossible, 1.0).log()
    return log_mixture.masked_fill(impossible, -math.inf)


def aggregate_answer_log_probs(
    token_log_probs: Float[Tensor, "positions vocab"], *, reading: Aggregation = "mean_log_prob"
) -> Float[Tensor, " vocab"]:
    r"""One distribution for an answer of several tokens: :math:`\log \mathbf q^\star_{i,v}`.

    .. math::
        \text{mean\_log\_prob:} \quad \log q(y) = \frac{1}{P} \sum_p \log q_p(y) - \log Z, \qquad
        \text{mean\_prob:} \quad q(y) = \frac{1}{P} \sum_p q_p(y)

    The paper says "token-level log-softmax ... aggregated over answer positions" (Method, before Case 1) and not how.
    The default takes its words. A mean of log-probabilities is no distribution until it is divided by its sum
    :math:`Z`; without that, a "divergence" of two of them can be negative. With ``mean_log_prob`` some token must be
    possible at every position. Gradients flow.

    Raises:
        ValueError: The answer has no token, or ``reading`` is neither of the two (``per_position`` makes no one of it).

    Example:
        >>> two_tokens = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> aggregate_answer_log_probs(two_tokens).exp()
        tensor([0.7500, 0.2500])
        >>> aggregate_answer_log_probs(two_tokens, reading="mean_prob").exp()
        tensor([0.7000, 0.3000])
    """
    if token_log_probs.shape[0] == 0:
        raise ValueError("An answer needs at least one token.")
    if reading == "mean_prob":
        return mixture_log_probs(token_log_probs)
    if reading == "mean_log_prob":
        return at_least_float32(token_log_probs).mean(dim=0).log_softmax(dim=-1)
    raise ValueError(f"reading is {reading!r}; known are 'mean_log_prob' and 'mean_prob'.")


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


def reverse_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r"""The mixture's :math:`\mathrm{KL}(m \,\|\, q)` from each: release, rows "Flip term" and "Swarm"."""
    return kl_divergence(mixture, log_probs)


def symmetric_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r""":math:`(\mathrm{KL}(q \,\|\, m) + \mathrm{KL}(m \,\|\, q)) / 2`: release, row "JSD"."""
    return (kl_divergence(log_probs, mixture) + reverse_kl(log_probs, mixture)) / 2


def divergence_from_mixture(
    rows: Distributions, others: Distributions, divergence: Divergence, *, detach: bool
) -> Float[Tensor, ""]:
    r"""How far distributions are from the mixture of others at the same position.

    .. math:: \frac{1}{|C|} \sum_{(v, j) \in C} D(q_{v,j}, m_j), \quad m_j = \frac{1}{|U_j|} \sum_{u \in U_j} q_{u,j}

    C are the distributions ``rows`` at positions where ``others`` have one, :math:`U_j` the others with position j.
    With one distribution per template this is a mean over templates; with ``per_position``, the release's mean over
    (template, position) cells. ``detach`` takes the gradient from the mixture.
    """
    values = []
    for position in torch.unique(rows.position):
        theirs = _rows(others.log_probs, (others.position == position).nonzero().squeeze(1))
        if len(theirs):
            mixture = mixture_log_probs(theirs)
            mixture = mixture.detach() if detach else mixture
            log_probs = _rows(rows.log_probs, (rows.position == position).nonzero().squeeze(1))
            values.append(divergence(log_probs, mixture))
    return torch.cat(values).mean()


def _rows(log_probs: Float[Tensor, "rows outcomes"], rows: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen outcomes"]:
    return log_probs[to_device(rows, log_probs.device)]
