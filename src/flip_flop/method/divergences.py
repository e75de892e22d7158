"""Distributions, as normalised log-probabilities over the vocabulary or the labels, and their divergences in nats."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.settings import Aggregation


# Indices and masks are made on the CPU, and copied to the device that computes.
def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting until the device has done what it was given before.

    Apple's devices alone may still read the memory of such a copy when it is used again: there it is waited for.
    """
    return tensor.to(device, non_blocking=device.type != "mps")


def at_least_float32(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in float32 if it is narrower than that; float64 stays, for checks of gradients."""
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.float()


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
    log_p = at_least_float32(log_p)
    log_q = at_least_float32(log_q)
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
        ValueError: The answer has no token, or ``reading`` is neither of the two.

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


def answer_distributions(
    answers: Sequence[Float[Tensor, "_positions vocab"]], aggregation: Aggregation = "mean_log_prob"
) -> Float[Tensor, "templates vocab"]:
    r"""The distribution of each template's answer, :math:`\log \mathbf q^\star_{i,v}`.

    Each answer is given as the token-level log-softmax at its positions. See :func:`aggregate_answer_log_probs`.

    Example:
        >>> answer_distributions([torch.zeros(1, 2), torch.zeros(2, 2)]).exp()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    return torch.stack([aggregate_answer_log_probs(rows, reading=aggregation) for rows in answers])
