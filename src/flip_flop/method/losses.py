"""The losses of one instance in nats: consensus cross-entropy, the two divergence terms, and their sum.

The training objective (Eq. 7) is the mean over *all* instances: one without a consensus adds its zero and is counted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flip_flop.method.algorithm import Instance, TemplateSplit, label_log_probs
from flip_flop.method.divergences import (
    answer_distributions,
    at_least_float32,
    kl_divergence,
    mixture_log_probs,
    to_device,
)

Loss = Float[Tensor, ""]  # of one instance, in nats
Terms = dict[str, Loss]  # by name; their sum is the loss


def cce_loss(consensus_nll: Float[Tensor, " templates"], *, weight: float) -> Loss:
    r"""Consensus cross-entropy of one instance that has a consensus.

    .. math:: \mathcal L_{\text{CCE}}(i) = \lambda_{\text{CCE}} \frac{1}{V} \sum_v \ell_{i,v}

    Eq. 6 of the F2C paper without its indicator, which is the caller's (:func:`f2c_loss` has it).
    ``consensus_nll`` is the negative log-likelihood of the consensus answer under each template: its tokens' mean
    or sum, as the caller reads :math:`\ell_{i,v}`. A weight of 0 gives exactly 0.

    Example:
        >>> cce_loss(torch.tensor([0.5, 1.5]), weight=2.0)
        tensor(2.)
    """
    if weight == 0:
        return zero_of(consensus_nll)
    return weight * at_least_float32(consensus_nll).mean()


def jsd_loss(cc: Float[Tensor, "templates outcomes"], *, weight: float) -> Loss:
    r"""Agreement within the CC set of one instance: Eq. 8 of the F2C paper, the Jensen-Shannon divergence.

    .. math::
        \mathcal L_{\text{jsd}}(i) = \beta_{\text{jsd}} \,
        \frac{1}{|T_i|} \sum_{t \in T_i} \mathrm{KL}(\mathbf q^\star_{i,t} \,\|\, \bar{\mathbf q}^{T\star}_i)

    From the log-probabilities of the CC set's templates. At most the weight times :math:`\log |T_i|`. Gradients flow
    through all of it, the mixture included. Exactly 0 for an empty CC set, for one template, and for a weight of 0.

    Example:
        >>> jsd_loss(torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log(), weight=0.5)
        tensor(0.1840)

    References:
        Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Inf. Theory, 1991.
    """
    if weight == 0 or len(cc) == 0:
        return zero_of(cc)
    mixture = mixture_log_probs(cc)
    return weight * kl_divergence(cc, mixture).mean()


def flip_loss(log_probs: Float[Tensor, "templates outcomes"], split: TemplateSplit) -> Loss:
    r"""Alignment of the NC set of one instance with the mixture of its CC set: Eq. 9 of the F2C paper.

    .. math::
        \mathcal L_{\text{flip}}(i) = w_{\text{flip}} \frac{1}{|S_i|} \sum_{s \in S_i}
        \mathrm{KL}(\mathbf q^\star_{i,s} \,\|\, \bar{\mathbf q}^{T\star}_i)

    The CC mixture is detached, as in the authors' release. The paper leaves this open. Exactly 0 where the NC set is
    empty or its weight is 0.

    Example:
        >>> cc_mask = torch.tensor([True, True, False])
        >>> split = TemplateSplit(case=3, cc_mask=cc_mask, nc_mask=~cc_mask, flip_weight=0.5)
        >>> flip_loss(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]).log(), split)
        tensor(0.4159)
    """
    if split.flip_weight == 0 or not split.nc_mask.any():
        return zero_of(log_probs)
    nc = _rows(log_probs, split.nc_mask)
    mixture = mixture_log_probs(_rows(log_probs, split.cc_mask)).detach()
    return split.flip_weight * kl_divergence(nc, mixture).mean()


def f2c_loss(
    consensus_nll: Float[Tensor, " templates"],
    log_probs: Float[Tensor, "templates outcomes"],
    split: TemplateSplit,
    *,
    cce_weight: float,
    jsd_weight: float,
) -> Terms:
    r"""Flip-Flop Consistency of one instance.

    .. math::
        \mathcal L_{\text{FF}}(i) = \begin{cases}
        0 & \text{Case 1} \\
        \mathcal L_{\text{CCE}}(i) + \mathcal L_{\text{jsd}}(i) & \text{Case 2} \\
        \mathcal L_{\text{CCE}}(i) + \mathcal L_{\text{jsd}}(i) + \mathcal L_{\text{flip}}(i) & \text{Case 3}
        \end{cases}

    Eq. 10 of the F2C paper, as its terms, weights included: ``cce`` (Eq. 6), ``jsd`` (Eq. 8) and ``flip`` (Eq. 9).
    A term that a case leaves out is exactly 0, and so is its gradient; it stays part of the graph, so ``backward``
    works on every instance. The outcomes are the vocabulary, on the consensus answer's tokens (the paper), or the
    labels.

    Example:
        >>> split = TemplateSplit(2, torch.tensor([True, True]), torch.tensor([False, False]), 0.0)
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log()
        >>> f2c_loss(-log_probs[:, 0], log_probs, split, cce_weight=1.0, jsd_weight=1.0)
        {'cce': tensor(0.1643), 'jsd': tensor(0.0100), 'flip': tensor(0.)}
    """
    return {
        "cce": cce_loss(consensus_nll, weight=0.0 if split.case == 1 else cce_weight),
        "jsd": jsd_loss(_rows(log_probs, split.cc_mask), weight=jsd_weight),
        "flip": flip_loss(log_probs, split),
    }


def cce_terms(instance: Instance, config: Any) -> Terms:
    """The method ``cce``: only the consensus cross-entropy, Eq. 6."""
    nll = answer_nll(instance, int(instance.consensus.label), config)
    return {"cce": cce_loss(nll, weight=config.cce_weight)}


def f2c_terms(instance: Instance, config: Any) -> Terms:
    """The method ``f2c``: Flip-Flop Consistency, Eq. 10, over the vocabulary, over the labels (Eq. 14), or over both.

    Over both, each space has its divergence terms, and the consensus cross-entropy is counted once.
    """
    label = int(instance.consensus.label)
    spaces = {}
    if config.divergence_space != "labels":
        answers = instance.answer_log_probs(label)
        spaces["vocab"] = answer_distributions(answers, config.answer_aggregation)
    if config.divergence_space != "vocab":
        spaces["labels"] = label_log_probs(instance.scores())
    return loss_of_spaces(f2c_loss, instance, spaces, config)


def loss_of_spaces(loss: Callable[..., Terms], instance: Instance, spaces: Mapping[str, Any], config: Any) -> Terms:
    """Weigh the divergence terms of each space, ``vocab`` or ``labels``, and tell them apart if there are two.

    ``loss`` is :func:`f2c_loss` or the loss of the release, and ``spaces`` has its distributions.
    """
    nll = answer_nll(instance, int(instance.consensus.label), config)
    terms = {}
    for space, answers in spaces.items():
        of_space = loss(nll, answers, instance.split, cce_weight=config.cce_weight, jsd_weight=config.jsd_weight)
        weight = config.vocab_weight if space == "vocab" else config.labels_weight
        suffix = f"_{space}" if len(spaces) > 1 else ""
        terms["cce"] = of_space["cce"]
        terms[f"jsd{suffix}"] = weight * of_space["jsd"]
        terms[f"flip{suffix}"] = weight * of_space["flip"]
    return terms


def mixes_answer_vocabularies(config: Any) -> bool:
    """Whether ``f2c`` has a divergence over the vocabulary, which pulls each template toward the others' words."""
    is_used = config.divergence_space != "labels" and config.vocab_weight > 0
    return is_used and (config.jsd_weight > 0 or config.flip_weight_max > 0)


def answer_nll(instance: Instance, label: int, config: Any) -> Float[Tensor, " templates"]:
    """The negative log-likelihood of a label under each template, over the vocabulary, over the labels, or both."""
    parts = []
    if config.cce_space != "labels":
        parts.append(instance.nll(label, config.cce_reduction))
    if config.cce_space != "vocab":
        parts.append(-label_log_probs(instance.scores())[:, label])
    return torch.stack(parts).sum(dim=0)


def zero_of(tensor: Float[Tensor, "*shape"]) -> Loss:
    """An exact 0 that stays in the graph of the tensor, even if it has infinite values or NaN."""
    return at_least_float32(tensor[:0]).sum()


def _rows(
    log_probs: Float[Tensor, "templates outcomes"], templates: Bool[Tensor, " templates"]
) -> Float[Tensor, "chosen outcomes"]:
    # The mask is on the CPU. Indices do not wait for the device.
    chosen = templates.nonzero().squeeze(1)
    return log_probs[to_device(chosen, log_probs.device)]
