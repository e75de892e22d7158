"""Supervised training: the gold label under every template. It uses labels, so it bounds what training can gain."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method.instance import Instance
from flip_flop.method.losses import answer_nll, cce_loss
from flip_flop.method.variant import LossVariant


def gold_nll(instance: Instance, config: Any) -> Float[Tensor, " templates"]:
    r"""Negative log-likelihood of the gold label :math:`y_i` under each template.

    .. math:: \mathcal L_{\text{supervised}}(i) = \frac{1}{V} \sum_v \ell_{i,v}(y_i)

    The mean over the templates is the loss of ``supervised``: CCE with the gold label in place of the consensus.
    """
    assert instance.gold is not None, "the trainer skips instances without a gold label"
    return answer_nll(instance, instance.gold, LossVariant.of(config))


def supervised_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``supervised``."""
    return {"supervised": cce_loss(gold_nll(instance, config), weight=1.0)}


def few_label_terms(instance: Instance, gold: int | None, config: Any) -> dict[str, Float[Tensor, ""]]:
    r"""The term of ``supervised_weight`` for a row with a gold label, in addition to the terms of any method.

    .. math:: \mathcal L(i) = \mathcal L_{\text{method}}(i) + w \frac{1}{V} \sum_v \ell_{i,v}(y_i)

    Instances of a method without ``uses_labels`` have no gold label, so the trainer passes it separately. Without a
    label, or with weight 0, there is no term.
    """
    if gold is None or config.supervised_weight == 0:
        return {}
    return {"supervised": cce_loss(answer_nll(instance, gold, LossVariant.of(config)), weight=config.supervised_weight)}
