"""CPC-GRPO in label space: an answer's reward is its score under the other templates."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.consensus import label_log_probs
from flip_flop.method.divergences import at_least_float32
from flip_flop.method.instance import Instance

# Added to the standard deviation of the rewards, as implementations of GRPO do.
EPSILON = 1e-4


def cpc_grpo_loss(scores: Float[Tensor, "templates labels"]) -> Float[Tensor, ""]:
    r"""The policy loss of one instance with cross-prompt consensus rewards.

    .. math::
        R_{v,c} = \frac{1}{V - 1} \sum_{u \ne v} \mathrm{LL}_i[u, c], \quad
        A_{v,c} = \frac{R_{v,c} - \operatorname{mean} R_{v,\cdot}}{\operatorname{std} R_{v,\cdot} + \varepsilon}, \quad
        \mathcal L_{\text{CPC}}(i) = - \frac{1}{V} \sum_v \sum_c \pi_{i,v,c} \, A_{v,c}

    The candidates of a template are all labels, so the expectation is exact. Mean and population standard deviation
    are over the labels, :math:`\varepsilon` is 1e-4, and the advantages :math:`A` carry no gradient. Scores are finite.

    Example:
        >>> cpc_grpo_loss(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
        tensor(-0.)

    References:
        Kim and Kang, "CPC-GRPO: Answer-Free Reinforcement Learning with Cross-Prompt Consensus Rewards", Findings of
        ACL, 2026.
    """
    fixed = at_least_float32(scores.detach())
    num_templates = len(fixed)
    others = (1 - torch.eye(num_templates, dtype=fixed.dtype, device=fixed.device)) / (num_templates - 1)
    rewards = others @ fixed
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + EPSILON)
    return -(label_log_probs(scores).exp() * advantages).sum(dim=1).mean()


def cpc_grpo_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``cpc_grpo``: labels that the other templates score highly gain probability."""
    return {"cpc_grpo": cpc_grpo_loss(instance.scores())}
