"""PPCL, or LoRA-JS: the gold label under two templates, and a divergence between them. It uses labels."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.consensus import label_log_probs
from flip_flop.method.instance import Instance
from flip_flop.method.losses import jsd_loss
from flip_flop.method.paft import drawn_template
from flip_flop.method.supervised import gold_nll


def ppcl_loss(
    nll: Float[Tensor, " pair"], log_probs: Float[Tensor, "pair labels"], *, beta: float
) -> dict[str, Float[Tensor, ""]]:
    r"""Perturbation consistency learning of one instance under two templates, as its two terms.

    .. math::
        \mathcal L_{\text{PPCL}}(i) = \ell_c + \ell_u
        + \beta \operatorname{sg} \left[ \frac{\ell_c + \ell_u}{\mathrm{JS}} \right] \mathrm{JS}(\pi_c, \pi_u)

    The quotient carries no gradient, so both parts are equally large for :math:`\beta = 1`. A divergence that rounding
    alone could explain counts as 0, and so does its term.

    Example:
        >>> ppcl_loss(torch.tensor([0.1, 0.7]), torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log(), beta=0.5)
        {'ppcl_nll': tensor(0.8000), 'ppcl_js': tensor(0.4000)}

    References:
        Qiang et al., "Prompt Perturbation Consistency Learning for Robust Language Models", Findings of EACL, 2024.
    """
    cross_entropy = nll.sum()
    js = jsd_loss(log_probs, weight=1.0)
    is_clear = js > 8 * torch.finfo(js.dtype).eps
    scale = torch.where(is_clear, cross_entropy / js, 0.0).detach()
    return {"ppcl_nll": cross_entropy, "ppcl_js": beta * scale * js}


def ppcl_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``ppcl``: the clean template and another template at random."""
    clean = config.clean_template
    pair = [clean, drawn_template(instance, "ppcl", without=clean)]
    log_probs = label_log_probs(torch.stack([instance.scores()[template] for template in pair]))
    nll = gold_nll(instance, config)
    return ppcl_loss(torch.stack([nll[template] for template in pair]), log_probs, beta=config.ppcl_beta)
