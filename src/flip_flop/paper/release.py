"""The losses of the authors' release, as methods: ``swarm_release``, ``cce_release`` and ``f2c_release``.

``--protocol release`` trains them instead of the methods of the paper. docs/release.md compares both.

An answer has one distribution per position. Position j of an answer is compared with position j of the other
templates' answers, of those that have one. A cell is a pair of a template and a position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method import losses
from flip_flop.method.algorithm import Instance, TemplateSplit, label_log_probs
from flip_flop.method.divergences import kl_divergence, mixture_log_probs
from flip_flop.method.losses import Loss, Terms

# The log-probabilities of one answer under some templates.
Answers = Sequence[Float[Tensor, "_positions outcomes"]]


def reverse_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r"""The mixture's :math:`\mathrm{KL}(m \,\|\, q)` from each row, without gradient to the mixture."""
    return kl_divergence(mixture.detach(), log_probs)


def symmetric_kl(log_probs: Tensor, mixture: Tensor) -> Tensor:
    r""":math:`(\mathrm{KL}(q \,\|\, m) + \mathrm{KL}(m \,\|\, q)) / 2` of each row, with both gradients."""
    return (kl_divergence(log_probs, mixture) + kl_divergence(mixture, log_probs)) / 2


def divergence_from_mixture(answers: Answers, others: Answers, divergence: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    r"""How far answers are from the mixture of others at the same position.

    .. math:: \frac{1}{|C|} \sum_{(v, j) \in C} D(q_{v,j}, m_j), \quad m_j = \frac{1}{|U_j|} \sum_{u \in U_j} q_{u,j}

    C are the cells of ``answers`` at positions that some of the ``others`` have, and :math:`U_j` those others.

    Example:
        >>> answer = torch.tensor([[0.9, 0.1]]).log()
        >>> divergence_from_mixture([answer, answer.flip(1)], [answer, answer.flip(1)], reverse_kl)
        tensor(0.5108)
    """
    values = []
    for position in range(max(map(len, answers))):
        targets = _rows_at(others, position)
        if targets:
            mixture = mixture_log_probs(torch.stack(targets))
            log_probs = torch.stack(_rows_at(answers, position))
            values.append(divergence(log_probs, mixture))
    return torch.cat(values).mean()


def _rows_at(answers: Answers, position: int) -> list[Float[Tensor, " outcomes"]]:
    return [rows[position] for rows in answers if len(rows) > position]


def f2c_loss(
    consensus_nll: Float[Tensor, " templates"],
    answers: Answers,
    split: TemplateSplit,
    *,
    cce_weight: float,
    jsd_weight: float,
) -> Terms:
    r"""The terms of one instance, before the division by the number of labels.

    .. math::
        \mathcal L_{\text{jsd}}(i) = \frac{\beta_{\text{jsd}}}{|C_T|} \sum_{(t, j) \in C_T}
        \tfrac12 \bigl( \mathrm{KL}(q_{t,j} \,\|\, m_j) + \mathrm{KL}(m_j \,\|\, q_{t,j}) \bigr), \qquad
        \mathcal L_{\text{flip}}(i) = \frac{w_{\text{flip}}}{|C_S|} \sum_{(s, j) \in C_S}
        \mathrm{KL}(m_j \,\|\, q_{s,j})

    :math:`C_T` and :math:`C_S` are the cells of the CC and the NC set, and :math:`m_j` is the mixture of the CC set.
    """
    cc = [rows for rows, is_cc in zip(answers, split.cc_mask.tolist(), strict=True) if is_cc]
    nc = [rows for rows, is_nc in zip(answers, split.nc_mask.tolist(), strict=True) if is_nc]
    jsd = flip = losses.zero_of(consensus_nll)
    if cc and jsd_weight > 0:
        jsd = jsd_weight * divergence_from_mixture(cc, cc, symmetric_kl)
    if nc and split.flip_weight > 0:
        flip = split.flip_weight * divergence_from_mixture(nc, cc, reverse_kl)
    cce = losses.cce_loss(consensus_nll, weight=0.0 if split.case == 1 else cce_weight)
    return {"cce": cce, "jsd": jsd, "flip": flip}


def f2c_terms(instance: Instance, config: Any) -> Terms:
    """The method ``f2c_release``. A distribution over the labels is an answer of one position."""
    label = int(instance.consensus.label)
    spaces = {}
    if config.divergence_space != "labels":
        spaces["vocab"] = instance.answer_log_probs(label)
    if config.divergence_space != "vocab":
        spaces["labels"] = label_log_probs(instance.scores()).split(1)
    return _divided(losses.loss_of_spaces(f2c_loss, instance, spaces, config), instance)


def cce_terms(instance: Instance, config: Any) -> Terms:
    """The method ``cce_release``."""
    return _divided(losses.cce_terms(instance, config), instance)


def _divided(terms: Terms, instance: Instance) -> Terms:
    # Each label's answer is a micro-batch of the release, and those of other labels have zero loss.
    num_labels = instance.token_counts.shape[1]
    return {name: term / num_labels for name, term in terms.items()}


def swarm_terms(instance: Instance, config: Any) -> Terms:
    r"""The method ``swarm_release``: each template learns the mixture of all of them, for every label's answer.

    .. math::
        \mathcal L_{\text{swarm}}(i) = \frac{1}{L} \sum_c \frac{1}{|C_c|} \sum_{(v,j) \in C_c}
        \mathrm{KL}(m_{c,j} \,\|\, q_{v,c,j}), \quad m_{c,j} = \frac{1}{|U_{c,j}|} \sum_{u \in U_{c,j}} q_{u,c,j}

    :math:`C_c` are the cells of label c's answers, and :math:`U_{c,j}` the templates whose answer has position j. By
    Theorem A.1 of the F2C paper this pulls as all pairs do.
    """
    divergences = []
    for label in range(instance.token_counts.shape[1]):
        answers = instance.answer_log_probs(label)
        divergences.append(divergence_from_mixture(answers, answers, reverse_kl))
    return {"swarm": torch.stack(divergences).mean()}
