"""Bias-augmented consistency training (BCT): templates learn the base model's answer under one clean template."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.instance import Instance
from flip_flop.method.losses import answer_nll
from flip_flop.method.variant import LossVariant


def other_rows(rows: Float[Tensor, "*shape"], template: int) -> Float[Tensor, "*others"]:
    """The rows of all templates but one. The first axis has the templates."""
    return torch.cat([rows[:template], rows[template + 1 :]])


def bct_loss(nll: Float[Tensor, " templates"], clean: int) -> Float[Tensor, ""]:
    r"""BCT of one instance.

    .. math:: \mathcal L_{\text{BCT}}(i) = \frac{1}{V - 1} \sum_{v \ne c} \ell_{i,v}(\hat y^0_{i,c})

    ``nll`` is the negative log-likelihood, under each template, of the label that the base model predicts under the
    clean template c.

    Example:
        >>> bct_loss(torch.tensor([9.0, 0.5, 1.5]), clean=0)
        tensor(1.)

    References:
        Chua et al., "Bias-Augmented Consistency Training Reduces Biased Reasoning in Chain-of-Thought", 2024.
    """
    return other_rows(nll, clean).mean()


def bct_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``bct``: the base model's prediction under the clean template is the target of the others."""
    label = int(instance.vote_scores[config.clean_template].argmax())
    nll = answer_nll(instance, label, LossVariant.of(config))
    return {"bct": bct_loss(nll, config.clean_template)}
