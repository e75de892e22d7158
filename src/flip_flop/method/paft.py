"""PAFT: the gold label under one template at random. It uses labels."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method.instance import Instance
from flip_flop.method.supervised import gold_nll


def drawn_template(instance: Instance, purpose: str, without: int | None = None) -> int:
    """A random template of the instance for (seed, purpose, epoch, id), other than ``without``."""
    order = instance.random(purpose).permutation(len(instance.token_counts))
    return next(int(template) for template in order if template != without)


def paft_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    r"""The method ``paft``: cross-entropy with the gold label under one random template.

    .. math:: \mathcal L_{\text{PAFT}}(i) = \ell_{i,v}(y_i), \quad v \sim \text{uniform over the templates}

    The template depends on the run's seed, the epoch and the instance only.

    References:
        Wei et al., "PAFT: Prompt-Agnostic Fine-Tuning", arXiv 2502.12859.
    """
    return {"paft": gold_nll(instance, config)[drawn_template(instance, "paft")]}
