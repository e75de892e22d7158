"""The losses of one instance in nats: consensus cross-entropy, the two divergence terms, and their sum.

The training objective (Eq. 7) is the mean over *all* instances: one without a consensus adds its zero and is counted.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method.algorithm import Instance, TemplateSplit, label_log_probs
from flip_flop.method.divergences import (
    Distributions,
    answer_distributions,
    as_distributions,
    at_least_float32,
    divergence_from_mixture,
    kl_divergence,
    reverse_kl,
    symmetric_kl,
)
from flip_flop.method.settings import FlipDirection, JsdForm


def cce_loss(consensus_nll: Float[Tensor, " templates"], *, weight: float) -> Float[Tensor, ""]:
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
        return _zero(consensus_nll)
    return weight * at_least_float32(consensus_nll).mean()


def jsd_loss(
    cc: Float[Tensor, "distributions outcomes"] | Distributions, *, weight: float, form: JsdForm = "mean"
) -> Float[Tensor, ""]:
    r"""Agreement within the CC set of one instance.

    .. math::
        \text{mean:} \quad \mathcal L_{\text{jsd}}(i) = \beta_{\text{jsd}} \,
        \frac{1}{|T_i|} \sum_{t \in T_i} \mathrm{KL}(\mathbf q^\star_{i,t} \,\|\, \bar{\mathbf q}^{T\star}_i)

        \text{symmetric:} \quad \mathcal L_{\text{jsd}}(i) = \beta_{\text{jsd}} \,
        \frac{1}{|T_i|} \sum_{t \in T_i} \tfrac12 \bigl(
        \mathrm{KL}(\mathbf q^\star_{i,t} \,\|\, \bar{\mathbf q}^{T\star}_i)
        + \mathrm{KL}(\bar{\mathbf q}^{T\star}_i \,\|\, \mathbf q^\star_{i,t}) \bigr)

    ``mean`` is Eq. 8 of the F2C paper, the Jensen-Shannon divergence, at most the weight times :math:`\log |T_i|`;
    ``symmetric`` is the release's row "JSD". From the distributions of the CC set's templates. Gradients flow through
    all of it, the mixture included, in both forms.
    Exactly 0 for an empty CC set, for one template, and for a weight of 0.

    Example:
        >>> jsd_loss(torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log(), weight=0.5)
        tensor(0.1840)

    References:
        Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Inf. Theory, 1991.
    """
    cc = as_distributions(cc)
    if weight == 0 or len(cc.log_probs) == 0:
        return _zero(cc.log_probs)
    divergence = {"mean": kl_divergence, "symmetric": symmetric_kl}[form]
    return weight * divergence_from_mixture(cc, cc, divergence, detach=False)


def flip_loss(
    log_probs: Float[Tensor, "templates outcomes"] | Distributions,
    split: TemplateSplit,
    *,
    direction: FlipDirection = "forward",
    detach_cc_mixture: bool = True,
) -> Float[Tensor, ""]:
    r"""Alignment of the NC set of one instance with the average distribution of its CC set.

    .. math::
        \text{forward:} \quad \mathcal L_{\text{flip}}(i) = w_{\text{flip}} \frac{1}{|S_i|} \sum_{s \in S_i}
        \mathrm{KL}(\mathbf q^\star_{i,s} \,\|\, \bar{\mathbf q}^{T\star}_i), \qquad
        \text{reverse:} \quad \mathrm{KL}(\bar{\mathbf q}^{T\star}_i \,\|\, \mathbf q^\star_{i,s})

    ``forward`` is Eq. 9 of the F2C paper, ``reverse`` the release's row "Flip term". The CC mixture is a target
    without gradient, toward which the NC set moves: so in the release; the paper does not say, and
    ``detach_cc_mixture=False`` lets the CC set move toward the NC set as well. Exactly 0 where the NC set is empty or
    its weight is 0.

    Example:
        >>> cc_mask = torch.tensor([True, True, False])
        >>> split = TemplateSplit(case=3, cc_mask=cc_mask, nc_mask=~cc_mask, flip_weight=0.5)
        >>> flip_loss(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]).log(), split)
        tensor(0.4159)
    """
    distributions = as_distributions(log_probs)
    if split.flip_weight == 0 or not split.nc_mask.any():
        return _zero(distributions.log_probs)
    divergence = {"forward": kl_divergence, "reverse": reverse_kl}[direction]
    nc, cc = distributions[split.nc_mask], distributions[split.cc_mask]
    return split.flip_weight * divergence_from_mixture(nc, cc, divergence, detach=detach_cc_mixture)


def f2c_loss(
    consensus_nll: Float[Tensor, " templates"],
    log_probs: Float[Tensor, "templates outcomes"] | Distributions,
    split: TemplateSplit,
    *,
    cce_weight: float,
    jsd_weight: float,
    jsd: JsdForm = "mean",
    flip_direction: FlipDirection = "forward",
    detach_cc_mixture: bool = True,
) -> dict[str, Float[Tensor, ""]]:
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
    labels. ``jsd`` is the ``form`` of :func:`jsd_loss`; the last two are the settings of :func:`flip_loss`.

    Example:
        >>> split = TemplateSplit(2, torch.tensor([True, True]), torch.tensor([False, False]), 0.0)
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log()
        >>> f2c_loss(-log_probs[:, 0], log_probs, split, cce_weight=1.0, jsd_weight=1.0)
        {'cce': tensor(0.1643), 'jsd': tensor(0.0100), 'flip': tensor(0.)}
    """
    distributions = as_distributions(log_probs)
    return {
        "cce": cce_loss(consensus_nll, weight=0.0 if split.case == 1 else cce_weight),
        "jsd": jsd_loss(distributions[split.cc_mask], weight=jsd_weight, form=jsd),
        "flip": flip_loss(distributions, split, direction=flip_direction, detach_cc_mixture=detach_cc_mixture),
    }


def cce_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``cce``: only the consensus cross-entropy, Eq. 6."""
    nll = answer_nll(instance, int(instance.consensus.label), config)
    return _scaled({"cce": cce_loss(nll, weight=config.cce_weight)}, instance, config)


def f2c_terms(instance: Instance, config: Any) -> dict[str, Float[Tensor, ""]]:
    """The method ``f2c``: Flip-Flop Consistency, Eq. 10, over the vocabulary, over the labels (Eq. 14), or over both.

    Over both, each space has its divergence terms, and the consensus cross-entropy is counted once.
    """
    label = int(instance.consensus.label)
    spaces: dict[str, tuple[float, Distributions]] = {}
    if config.divergence_space != "labels":
        answers = instance.answer_log_probs(label)
        spaces["vocab"] = config.vocab_weight, answer_distributions(answers, config.answer_aggregation)
    if config.divergence_space != "vocab":
        spaces["labels"] = config.labels_weight, as_distributions(label_log_probs(instance.scores()))
    nll = answer_nll(instance, label, config)
    names = ("cce_weight", "jsd_weight", "jsd", "flip_direction", "detach_cc_mixture")
    settings = {name: getattr(config, name) for name in names}
    terms: dict[str, Tensor] = {}
    for space, (weight, distributions) in spaces.items():
        losses = f2c_loss(nll, distributions, instance.split, **settings)
        suffix = f"_{space}" if len(spaces) > 1 else ""
        terms |= {
            "cce": losses["cce"],
            f"jsd{suffix}": weight * losses["jsd"],
            f"flip{suffix}": weight * losses["flip"],
        }
    return _scaled(terms, instance, config)


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


def _scaled(terms: dict[str, Tensor], instance: Instance, config: Any) -> dict[str, Tensor]:
    # Release, row "Objective's scale": each answer is a micro-batch, and other labels' answers have zero loss.
    num_labels = instance.token_counts.shape[1] if config.divide_by_labels else 1
    return {name: term / num_labels for name, term in terms.items()}


def _zero(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    # An empty sum stays in the graph and, unlike 0 * x, is exactly 0 even if x has -inf or NaN.
    return at_least_float32(tensor[:0]).sum()
