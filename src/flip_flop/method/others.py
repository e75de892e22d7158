"""Eleven methods of other papers for comparison. Each is a function from an instance and the settings to terms."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.algorithm import label_log_probs
from flip_flop.method.divergences import at_least_float32, kl_divergence, mixture_log_probs, to_device
from flip_flop.method.losses import answer_nll, cce_loss, jsd_loss
from flip_flop.method.swarm import swarm_loss, swarm_teachers, swarm_terms
from flip_flop.method.types import Instance


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
    label = int(instance.consensus.predictions[config.clean_template])
    if label < 0:  # a generated answer that cannot be read
        return {}
    return {"bct": bct_loss(answer_nll(instance, label, config), config.clean_template)}


def opct_loss(
    log_probs: Float[Tensor, "templates labels"], target: Float[Tensor, " labels"], clean: int
) -> Float[Tensor, ""]:
    r"""OPCT of one instance, over the labels.

    .. math::
        \mathcal L_{\text{OPCT}}(i) = \frac{1}{V - 1} \sum_{v \ne c} \mathrm{KL}(\pi_{i,v} \,\|\, \pi^0_{i,c})

    ``target`` is the base model's distribution under the clean template c, as log-probabilities without gradient.

    Example:
        >>> opct_loss(torch.tensor([[0.1, 0.9], [0.5, 0.5]]).log(), torch.tensor([0.9, 0.1]).log(), clean=0)
        tensor(0.5108)

    References:
        "On-Policy Consistency Training Improves LLM Safety with Minimal Capability Degradation", arXiv 2605.21834.
    """
    return kl_divergence(other_rows(log_probs, clean), target.detach()).mean()


def opct_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``opct``: reverse divergence from the base model under the clean template."""
    log_probs, clean = label_log_probs(instance.scores()), config.clean_template
    target = label_log_probs(to_device(instance.vote_scores[clean], log_probs.device))
    return {"opct": opct_loss(log_probs, target, clean)}


def ssd_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
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
    return {"ssd": torch.stack(answered).mean()} if answered else {}


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


def marginal_entropy_loss(log_probs: Float[Tensor, "templates labels"]) -> Float[Tensor, ""]:
    r"""Entropy of the mean distribution of one instance's templates, in nats.

    .. math::
        \mathcal L_{\text{entropy}}(i) = - \sum_c \bar\pi_{i,c} \log \bar\pi_{i,c}, \quad
        \bar\pi_{i,c} = \frac{1}{V} \sum_v \pi_{i,v,c}

    Gradients flow through the mean. It is 0 only if all templates give one label all probability.

    Example:
        >>> marginal_entropy_loss(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
        tensor(0.6109)

    References:
        Zhang, Levine and Finn, "MEMO: Test Time Robustness via Adaptation and Augmentation", NeurIPS, 2022.
    """
    mean = mixture_log_probs(log_probs)
    return -(mean.exp() * torch.where(mean.exp() > 0, mean, 0.0)).sum()


def marginal_entropy_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``marginal_entropy``."""
    return {"marginal_entropy": marginal_entropy_loss(label_log_probs(instance.scores()))}


def gold_nll(instance: Instance, config: Any) -> Float[Tensor, " templates"]:
    r"""Negative log-likelihood of the gold label :math:`y_i` under each template.

    .. math:: \mathcal L_{\text{supervised}}(i) = \frac{1}{V} \sum_v \ell_{i,v}(y_i)

    The mean over the templates is the loss of ``supervised``: CCE with the gold label in place of the consensus.
    """
    assert instance.gold is not None, "the trainer skips instances without a gold label"
    return answer_nll(instance, instance.gold, config)


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
    return {"supervised": cce_loss(answer_nll(instance, gold, config), weight=config.supervised_weight)}


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
