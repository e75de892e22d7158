"""Marginal entropy, as in MEMO: the mean distribution of the templates becomes certain."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.consensus import label_log_probs
from flip_flop.method.divergences import mixture_log_probs
from flip_flop.method.instance import Instance


def marginal_entropy_loss(log_probs: Float[Tensor, "templates labels"]) -> Float[Tensor, ""]:
    r"""Entropy of the mean distribution of one instance's templates, in nats.

    .. math::
        \mathcal L_{\text{entropy}}(i) = - \sum_c \bar\pi_{i,c} \log \bar\pi_{i,c}, \quad
        \bar\pi_{i,c} = \frac{1}{V} \sum_v \pi_{i,v,c}

    Gradients flow through the mean. It is 0 only if all templates give one label all probability.

    Example:
        >>> marginal_entropy_loss(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
        tensor(0.6109)

    References:
        Zhang, Levine and Finn, "MEMO: Test Time Robustness via Adaptation and Augmentation", NeurIPS, 2022.
    """
    mean = mixture_log_probs(log_probs)
    return -(mean.exp() * torch.where(mean.exp() > 0, mean, 0.0)).sum()


def marginal_entropy_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``marginal_entropy``."""
    return {"marginal_entropy": marginal_entropy_loss(label_log_probs(instance.scores()))}
