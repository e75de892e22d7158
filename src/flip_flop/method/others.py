"""Methods of other papers for comparison: swarm distillation, the baseline, and eleven more.

Each is a function from an instance and the settings to terms.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flip_flop.method.algorithm import DrawsPermutations, Instance, label_log_probs
from flip_flop.method.divergences import (
    at_least_float32,
    kl_divergence,
    mixture_log_probs,
    to_device,
)
from flip_flop.method.losses import Loss, Terms, answer_nll, cce_loss, jsd_loss


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


def swarm_loss(scores: Float[Tensor, "templates labels"], teachers: Int[Tensor, "templates teachers"]) -> Loss:
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


def swarm_terms(instance: Instance, config: Any) -> Terms:
    """The method ``swarm``: each template learns from others' predictions, right or wrong."""
    scores = instance.scores()
    teachers = swarm_teachers(scores.shape[0], pairs=config.swarm_pairs, seed_generator=instance.random("teachers"))
    return {"swarm": swarm_loss(scores, to_device(teachers, scores.device))}


def other_rows(rows: Float[Tensor, "*shape"], template: int) -> Float[Tensor, "*others"]:
    """The rows of all templates but one. The first axis has the templates."""
    return torch.cat([rows[:template], rows[template + 1 :]])


def bct_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``bct``: the base model's prediction under the clean template is the target of the others.

    .. math:: \mathcal L_{\text{BCT}}(i) = \frac{1}{V - 1} \sum_{v \ne c} \ell_{i,v}(\hat y^0_{i,c})

    c is the clean template. Without a term if the base model's answer under it cannot be read.

    References:
        Chua et al., "Bias-Augmented Consistency Training Reduces Biased Reasoning in Chain-of-Thought", 2024.
    """
    label = int(instance.consensus.predictions[config.clean_template])
    if label < 0:
        return {}
    return {"bct": other_rows(answer_nll(instance, label, config), config.clean_template).mean()}


def opct_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``opct``: reverse divergence from the base model under the clean template, over the labels.

    .. math::
        \mathcal L_{\text{OPCT}}(i) = \frac{1}{V - 1} \sum_{v \ne c} \mathrm{KL}(\pi_{i,v} \,\|\, \pi^0_{i,c})

    :math:`\pi^0_{i,c}` is the base model's distribution under the clean template c, without gradient.

    References:
        "On-Policy Consistency Training Improves LLM Safety with Minimal Capability Degradation", arXiv 2605.21834.
    """
    log_probs = label_log_probs(instance.scores())
    clean = config.clean_template
    target = label_log_probs(to_device(instance.vote_scores[clean].detach(), log_probs.device))
    return {"opct": kl_divergence(other_rows(log_probs, clean), target).mean()}


def ssd_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``ssd``: each template learns its own answer, right or wrong.

    .. math:: \mathcal L_{\text{SSD}}(i) = \frac{1}{|A_i|} \sum_{v \in A_i} \ell_{i,v}(\hat y^0_{i,v})

    :math:`\hat y^0_{i,v}` is the base model's answer under template v, and :math:`A_i` has the templates whose answer
    can be read. No template sees the answer of another one, so this is self-training without a consensus.

    References:
        Zhang et al., "Embarrassingly Simple Self-Distillation Improves Code Generation", arXiv 2604.01193.
    """
    labels = instance.consensus.predictions.tolist()
    nll = {label: answer_nll(instance, label, config) for label in set(labels) if label >= 0}
    answered = [nll[label][template] for template, label in enumerate(labels) if label >= 0]
    if answered:
        return {"ssd": torch.stack(answered).mean()}
    return {}


def ttrl_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``ttrl``: the expected reward, negated. The reward of the consensus label is 1, of others 0.

    .. math:: \mathcal L_{\text{TTRL}}(i) = - \frac{1}{V} \sum_v \pi_{i,v,c_i^\star}

    Over the labels the expectation is exact, so nothing is sampled.

    References:
        Zuo et al., "TTRL: Test-Time Reinforcement Learning", NeurIPS, 2025.
    """
    log_probs = label_log_probs(instance.scores())
    return {"ttrl": -log_probs[:, int(instance.consensus.label)].exp().mean()}


# Added to the standard deviation of the rewards, as implementations of GRPO do.
EPSILON = 1e-4


def cpc_grpo_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``cpc_grpo``: labels that the other templates score highly gain probability.

    .. math::
        R_{v,c} = \frac{1}{V - 1} \sum_{u \ne v} \mathrm{LL}_i[u, c], \quad
        A_{v,c} = \frac{R_{v,c} - \operatorname{mean} R_{v,\cdot}}{\operatorname{std} R_{v,\cdot} + \varepsilon}, \quad
        \mathcal L_{\text{CPC}}(i) = - \frac{1}{V} \sum_v \sum_c \pi_{i,v,c} \, A_{v,c}

    The candidates of a template are all labels, so the expectation is exact. Mean and population standard deviation
    are over the labels, :math:`\varepsilon` is 1e-4, and the advantages :math:`A` carry no gradient. Scores are finite.

    References:
        Kim and Kang, "CPC-GRPO: Answer-Free Reinforcement Learning with Cross-Prompt Consensus Rewards", Findings of
        ACL, 2026.
    """
    scores = instance.scores()
    fixed = at_least_float32(scores.detach())
    num_templates = len(fixed)
    others = (1 - torch.eye(num_templates, dtype=fixed.dtype, device=fixed.device)) / (num_templates - 1)
    rewards = others @ fixed
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + EPSILON)
    return {"cpc_grpo": -(label_log_probs(scores).exp() * advantages).sum(dim=1).mean()}


def swarm_l2_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``swarm_l2``: cross-entropy of the templates with their mean distribution over the labels.

    .. math::
        \mathcal L_{\text{L2}}(i) = - \frac{1}{V} \sum_v \sum_c \bar\pi_{i,c} \log \pi_{i,v,c}, \quad
        \bar\pi_{i,c} = \frac{1}{V} \sum_u \pi_{i,u,c}

    The mean carries no gradient. Unlike in ``swarm``, the student is normalised over the labels.

    References:
        Zhou et al., "Prompt Consistency for Zero-Shot Task Generalization", Findings of EMNLP, 2022: the authors' code,
        script ``final_3B.sh``.
    """
    log_probs = label_log_probs(instance.scores())
    # Cross-entropy is linear in its target, so all pairs are the mean of all teachers.
    teachers = swarm_teachers(len(log_probs), pairs="all")
    return {"swarm_l2": swarm_loss(log_probs, to_device(teachers, log_probs.device))}


def swarm_l1_l2_terms(instance: Instance, config: Any) -> Terms:
    """The method ``swarm_l1_l2``: the term of ``swarm`` with its settings plus that of ``swarm_l2``."""
    return swarm_terms(instance, config) | swarm_l2_terms(instance, config)


def marginal_entropy_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``marginal_entropy``: entropy of the mean distribution of the templates over the labels, in nats.

    .. math::
        \mathcal L_{\text{entropy}}(i) = - \sum_c \bar\pi_{i,c} \log \bar\pi_{i,c}, \quad
        \bar\pi_{i,c} = \frac{1}{V} \sum_v \pi_{i,v,c}

    Gradients flow through the mean. It is 0 only if all templates give one label all probability.

    References:
        Zhang, Levine and Finn, "MEMO: Test Time Robustness via Adaptation and Augmentation", NeurIPS, 2022.
    """
    mean = mixture_log_probs(label_log_probs(instance.scores()))
    return {"marginal_entropy": -(mean.exp() * torch.where(mean.exp() > 0, mean, 0.0)).sum()}


def gold_nll(instance: Instance, config: Any) -> Float[Tensor, " templates"]:
    r"""Negative log-likelihood of the gold label :math:`y_i` under each template.

    .. math:: \mathcal L_{\text{supervised}}(i) = \frac{1}{V} \sum_v \ell_{i,v}(y_i)

    The mean over the templates is the loss of ``supervised``: CCE with the gold label in place of the consensus.
    """
    assert instance.gold is not None, "the trainer skips instances without a gold label"
    return answer_nll(instance, instance.gold, config)


def supervised_terms(instance: Instance, config: Any) -> Terms:
    """The method ``supervised``."""
    return {"supervised": cce_loss(gold_nll(instance, config), weight=1.0)}


def few_label_terms(instance: Instance, gold: int | None, config: Any) -> Terms:
    r"""The term of ``supervised_weight`` for a row with a gold label, in addition to the terms of any method.

    .. math:: \mathcal L(i) = \mathcal L_{\text{method}}(i) + w \frac{1}{V} \sum_v \ell_{i,v}(y_i)

    Instances of a method without ``uses_labels`` have no gold label, so the trainer passes it separately. Without a
    label, or with weight 0, there is no term.
    """
    if gold is None or config.supervised_weight == 0:
        return {}
    return {"supervised": cce_loss(answer_nll(instance, gold, config), weight=config.supervised_weight)}


def drawn_template(instance: Instance, purpose: str, without: int | None = None) -> int:
    """A random template of the instance for (seed, purpose, epoch, id), other than ``without``."""
    order = instance.random(purpose).permutation(len(instance.token_counts))
    return next(int(template) for template in order if template != without)


def paft_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``paft``: cross-entropy with the gold label under one random template.

    .. math:: \mathcal L_{\text{PAFT}}(i) = \ell_{i,v}(y_i), \quad v \sim \text{uniform over the templates}

    The template depends on the run's seed, the epoch and the instance only.

    References:
        Wei et al., "PAFT: Prompt-Agnostic Fine-Tuning", arXiv 2502.12859.
    """
    return {"paft": gold_nll(instance, config)[drawn_template(instance, "paft")]}


def ppcl_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``ppcl``: perturbation consistency of the clean template c and another template u at random.

    .. math::
        \mathcal L_{\text{PPCL}}(i) = \ell_c + \ell_u
        + \beta \operatorname{sg} \left[ \frac{\ell_c + \ell_u}{\mathrm{JS}} \right] \mathrm{JS}(\pi_c, \pi_u)

    The quotient carries no gradient, so both parts are equally large for :math:`\beta = 1`. A divergence that rounding
    alone could explain counts as 0, and so does its term.

    References:
        Qiang et al., "Prompt Perturbation Consistency Learning for Robust Language Models", Findings of EACL, 2024.
    """
    clean = config.clean_template
    nll = gold_nll(instance, config)
    scores = instance.scores()
    other = drawn_template(instance, "ppcl", without=clean)
    cross_entropy = nll[clean] + nll[other]
    js = jsd_loss(label_log_probs(torch.stack([scores[clean], scores[other]])), weight=1.0)
    is_clear = js > 8 * torch.finfo(js.dtype).eps
    scale = torch.where(is_clear, cross_entropy / js, 0.0).detach()
    return {"ppcl_nll": cross_entropy, "ppcl_js": config.ppcl_beta * scale * js}
