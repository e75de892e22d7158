"""Test-time reinforcement learning (TTRL) in label space: the majority vote is the reward."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method.consensus import label_log_probs
from flip_flop.method.instance import Instance


def ttrl_loss(log_probs: Float[Tensor, "templates labels"], label: int) -> Float[Tensor, ""]:
    r"""The expected reward of one instance with a consensus, negated.

    .. math:: \mathcal L_{\text{TTRL}}(i) = - \frac{1}{V} \sum_v \pi_{i,v,c_i^\star}

    The reward of an answer is 1 if it is the consensus label, else 0. Over the labels its expectation is exact, so
    nothing is sampled.

    Example:
        >>> ttrl_loss(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log(), label=0)
        tensor(-0.7000)

    References:
        Zuo et al., "TTRL: Test-Time Reinforcement Learning", NeurIPS, 2025.
    """
    return -log_probs[:, label].exp().mean()


def ttrl_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``ttrl``: the probability of the consensus label, as a reward."""
    return {"ttrl": ttrl_loss(label_log_probs(instance.scores()), int(instance.consensus.label))}
