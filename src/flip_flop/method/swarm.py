"""Swarm distillation, the baseline: every template learns from other templates' predictions."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flip_flop.method.algorithm import label_log_probs
from flip_flop.method.divergences import (
    Distributions,
    answer_distributions,
    as_distributions,
    at_least_float32,
    divergence_from_mixture,
    reverse_kl,
    to_device,
)
from flip_flop.method.types import DrawsPermutations, Instance


def swarm_teachers(
    num_templates: int,
    *,
    pairs: Literal["derangement", "all"] = "derangement",
    seed_generator: DrawsPermutations | None = None,
) -> Int[Tensor, "templates teachers"]:
    r"""Assign teachers to the templates of one instance.

    Row v lists the indices of template v's teachers. ``"derangement"``: every template learns from one other and
    teaches one other; ``seed_generator`` draws it, every derangement with the same probability. ``"all"``: every
    template learns from all of them with equal weight, *itself included*. This is the uniform case of the F2C paper's
    Theorem A.1, in which every student has the same target, the mean.

    Raises:
        ValueError: For fewer than two templates, a derangement without generator, or unknown ``pairs``.

    Example:
        >>> swarm_teachers(3, pairs="all")
        tensor([[0, 1, 2],
                [0, 1, 2],
                [0, 1, 2]])

    References:
        Zhou et al., "Prompt Consistency for Zero-Shot Task Generalization", Findings of EMNLP, 2022.
    """
    if num_templates < 2:
        raise ValueError(f"Swarm distillation needs two templates or more to teach each other, not {num_templates}.")
    students = torch.arange(num_templates)
    if pairs == "all":
        return students.repeat(num_templates, 1)
    if pairs != "derangement":
        raise ValueError(f"pairs is {pairs!r}; known are 'derangement' and 'all'.")
    if seed_generator is None:
        raise ValueError("A derangement is random: pass the generator that draws it.")
    while True:  # rejection leaves every derangement equally likely; more than a third of permutations pass
        teachers = torch.tensor([int(index) for index in seed_generator.permutation(num_templates)])
        if (teachers != students).all():
            return teachers[:, None]


def swarm_loss(
    scores: Float[Tensor, "templates labels"], teachers: Int[Tensor, "templates teachers"]
) -> Float[Tensor, ""]:
    r"""Swarm distillation of one instance: cross-entropy of every student with its teachers.

    .. math::
        \mathcal L_{\text{swarm}}(i) = - \frac{1}{V} \sum_v \frac{1}{K} \sum_k \sum_c
        \pi_{i, u_{v,k}, c} \; \mathrm{LL}_i[v, c]

    where :math:`u_{v,1}, \dots, u_{v,K}` are the teachers of template v and :math:`\pi` is Eq. 14 of the F2C
    paper. Zhou et al. draw the answer from the teacher; here its expectation over the labels is exact. The
    student's log-probability of an answer is its score as it stands, the mean over the answer's tokens,
    not normalised over the labels: so the student also learns to put its probability on the answers.

    Teachers are from :func:`swarm_teachers` and carry no gradient.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> swarm_loss(scores, torch.tensor([[1], [0]]))
        tensor(0.7678)

    References:
        Zhou et al., "Prompt Consistency for Zero-Shot Task Generalization", Findings of EMNLP, 2022, Eq. 2.
        Kim and Rush, "Sequence-Level Knowledge Distillation", EMNLP, 2016.
    """
    teacher_probs = label_log_probs(scores.detach()).exp()
    # The loss is linear in the teacher, so their mean may come first: the heart of Theorem A.1.
    target = teacher_probs[teachers].mean(dim=1)
    expected = torch.where(target > 0, target * at_least_float32(scores), 0.0)  # 0 * -inf is NaN
    return -expected.sum(dim=-1).mean()


def swarm_mixture_loss(answers: Sequence[Distributions]) -> Float[Tensor, ""]:
    r"""Swarm distillation of one instance toward the mixture of all its templates.

    .. math::
        \mathcal L_{\text{swarm}}(i) = \frac{1}{L} \sum_c \frac{1}{|C_c|} \sum_{(v,j) \in C_c}
        \mathrm{KL}(m_{c,j} \,\|\, q_{v,c,j}), \quad m_{c,j} = \frac{1}{|U_{c,j}|} \sum_{u \in U_{c,j}} q_{u,c,j}

    The release's row "Swarm": ``answers`` are the distributions of every label's answer, :math:`C_c` those of label
    c, and the mixture is of all templates whose answer has position j, detached. Over the labels there is one answer
    only, the label distributions (Eq. 14). By Theorem A.1 of the F2C paper this pulls as all pairs do.

    Example:
        >>> swarm_mixture_loss([as_distributions(torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log())])
        tensor(0.5108)
    """
    losses = [divergence_from_mixture(answer, answer, reverse_kl, detach=True) for answer in answers]
    return torch.stack(losses).mean()


def swarm_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``swarm``: each template learns from others' predictions, right or wrong."""
    if config.swarm_pairs == "mixture":
        return {"swarm": swarm_mixture_loss(_distributions(instance, config))}
    scores = instance.scores()
    teachers = swarm_teachers(scores.shape[0], pairs=config.swarm_pairs, seed_generator=instance.random("teachers"))
    return {"swarm": swarm_loss(scores, to_device(teachers, scores.device))}


def swarm_mixes_answer_vocabularies(config: Any) -> bool:
    """Whether ``swarm`` has a mixture over the vocabulary, which pulls each template toward the others' words."""
    return config.swarm_pairs == "mixture" and config.swarm_space == "vocab"


def _distributions(instance: Instance, config: Any) -> list[Distributions]:
    if config.swarm_space == "labels":
        return [as_distributions(label_log_probs(instance.scores()))]
    answers = [instance.answer_log_probs(label) for label in range(instance.token_counts.shape[1])]
    return [answer_distributions(answer, config.answer_aggregation) for answer in answers]
