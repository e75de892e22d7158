"""Swarm distillation as the final script of Zhou et al. runs it (L2), and its sum with our swarm (L1)."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from flip_flop.method.consensus import label_log_probs
from flip_flop.method.divergences import to_device
from flip_flop.method.instance import Instance
from flip_flop.method.swarm import swarm_loss, swarm_teachers, swarm_terms


def swarm_l2_loss(scores: Float[Tensor, "templates labels"]) -> Float[Tensor, ""]:
    r"""Cross-entropy of one instance's templates with their mean distribution over the labels.

    .. math::
        \mathcal L_{\text{L2}}(i) = - \frac{1}{V} \sum_v \sum_c \bar\pi_{i,c} \log \pi_{i,v,c}, \quad
        \bar\pi_{i,c} = \frac{1}{V} \sum_u \pi_{i,u,c}

    The mean carries no gradient. Unlike in ``swarm``, the student is normalised over the labels.

    Example:
        >>> swarm_l2_loss(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
        tensor(0.7288)

    References:
        Zhou et al., "Prompt Consistency for Zero-Shot Task Generalization", Findings of EMNLP, 2022: the authors' code,
        script ``final_3B.sh``.
    """
    log_probs = label_log_probs(scores)
    # Cross-entropy is linear in its target, so all pairs are the mean of all teachers.
    teachers = swarm_teachers(len(scores), pairs="all")
    return swarm_loss(log_probs, to_device(teachers, scores.device))


def swarm_l2_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``swarm_l2``."""
    return {"swarm_l2": swarm_l2_loss(instance.scores())}


def swarm_l1_l2_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``swarm_l1_l2``: the term of ``swarm`` with its settings plus that of ``swarm_l2``."""
    return swarm_terms(instance, config) | swarm_l2_terms(instance, config)
