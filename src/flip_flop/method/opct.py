"""On-policy consistency training (OPCT): templates approach the base model's distribution under one clean template."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method.bct import other_rows
from flip_flop.method.consensus import label_log_probs
from flip_flop.method.divergences import kl_divergence, to_device
from flip_flop.method.instance import Instance


def opct_loss(
    log_probs: Float[Tensor, "templates labels"], target: Float[Tensor, " labels"], clean: int
) -> Float[Tensor, ""]:
    r"""OPCT of one instance, over the labels.

    .. math::
        \mathcal L_{\text{OPCT}}(i) = \frac{1}{V - 1} \sum_{v \ne c} \mathrm{KL}(\pi_{i,v} \,\|\, \pi^0_{i,c})

    ``target`` is the base model's distribution under the clean template c, as log-probabilities without gradient.

    Example:
        >>> opct_loss(torch.tensor([[0.1, 0.9], [0.5, 0.5]]).log(), torch.tensor([0.9, 0.1]).log(), clean=0)
        tensor(0.5108)

    References:
        "On-Policy Consistency Training Improves LLM Safety with Minimal Capability Degradation", arXiv 2605.21834.
    """
    return kl_divergence(other_rows(log_probs, clean), target.detach()).mean()


def opct_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``opct``: reverse divergence from the base model under the clean template."""
    log_probs, clean = label_log_probs(instance.scores()), config.clean_template
    target = label_log_probs(to_device(instance.vote_scores[clean], log_probs.device))
    return {"opct": opct_loss(log_probs, target, clean)}
