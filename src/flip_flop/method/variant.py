"""Variants of the losses: choices that the paper leaves open, and those of the authors' release."""

from dataclasses import dataclass, fields
from typing import Any

from flip_flop.method.settings import Aggregation, DivergenceSpace, FlipDirection, JsdForm, Reduction, Space, SwarmPairs


@dataclass(frozen=True)
class LossVariant:
    """One variant of the losses. The defaults are the paper's text and our decisions (docs/release.md has both).

    Args:
        divergence_space: Divergences over the vocabulary, on the consensus answer's tokens, over the labels, or both.
        answer_aggregation: How the distributions at an answer's positions are compared (:class:`Distributions`).
        cce_space: Eq. 6 over the vocabulary (the answer's tokens), over the labels (Eq. 14), or the sum of both.
        cce_reduction: Mean or sum over the answer's tokens, in Eq. 6.
        jsd: The form of Eq. 8 (:func:`jsd_loss`).
        flip_direction: The direction of Eq. 9 (:func:`flip_loss`).
        detach_cc_mixture: The mixture of Eq. 9 carries no gradient.
        divide_by_labels: The terms of ``cce`` and ``f2c`` are divided by the number of labels.
        swarm_pairs: Who teaches whom in swarm distillation (:func:`swarm_teachers`, :func:`swarm_mixture_loss`).
        swarm_space: Outcomes of the mixture in ``swarm_pairs: mixture``; over the vocabulary, every label's answer.
    """

    divergence_space: DivergenceSpace = "vocab"
    answer_aggregation: Aggregation = "mean_log_prob"
    cce_space: DivergenceSpace = "vocab"
    cce_reduction: Reduction = "mean"
    jsd: JsdForm = "mean"
    flip_direction: FlipDirection = "forward"
    detach_cc_mixture: bool = True
    divide_by_labels: bool = False
    swarm_pairs: SwarmPairs = "derangement"
    swarm_space: Space = "labels"

    @classmethod
    def of(cls, settings: Any) -> "LossVariant":
        """Take each field from settings by its name."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(cls)})
