"""F2C with the base's ensemble as a second target, which keeps the doubts of the votes."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method import Method
from flip_flop.method.algorithm import Instance, label_log_probs
from flip_flop.method.losses import f2c_terms


def ensemble_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    r"""The terms of F2C, and the cross-entropy of every template to the mean distribution of the votes.

    .. math:: \mathcal L_{\text{ensemble}}(i) = -\frac1V \sum_v \sum_c \bar p_{i,c} \log p_{i,v,c}, \qquad
        \bar p_{i,c} = \frac1V \sum_v \operatorname{softmax}(s_{i,v})_c

    s are the base's calibrated scores. With ``cce_space: vocab`` this takes the place of the consensus cross-entropy
    over the labels.
    """
    target = instance.vote_scores.float().softmax(dim=-1).mean(dim=0).to(instance.scores().device)
    cross_entropy = -(target * label_log_probs(instance.scores())).sum(dim=-1)
    return f2c_terms(instance, config) | {"ensemble": cross_entropy.mean()}


F2C_ENSEMBLE = Method("f2c_ensemble", "F2C, ensemble", "#009e73", ensemble_terms)
