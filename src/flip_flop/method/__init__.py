"""The method: consensus, Algorithm 1, divergences and losses. Pure functions, tensors in, tensors out."""

from flip_flop.method.consensus import Consensus, find_consensus, label_log_probs
from flip_flop.method.controls import SplitSettings, TemplateSplit, split_templates
from flip_flop.method.distributions import Distributions, answer_distributions, as_distributions
from flip_flop.method.divergences import (
    aggregate_answer_log_probs,
    kl_divergence,
    mixture_log_probs,
)
from flip_flop.method.instance import Instance
from flip_flop.method.losses import cce_loss, f2c_loss, flip_loss, jsd_loss
from flip_flop.method.swarm import swarm_loss, swarm_mixture_loss, swarm_teachers
from flip_flop.method.table import BASE, METHODS, Method, find_method
from flip_flop.method.variant import LossVariant

__all__ = [
    "BASE",
    "METHODS",
    "Consensus",
    "Distributions",
    "Instance",
    "LossVariant",
    "Method",
    "SplitSettings",
    "TemplateSplit",
    "aggregate_answer_log_probs",
    "answer_distributions",
    "as_distributions",
    "cce_loss",
    "f2c_loss",
    "find_consensus",
    "find_method",
    "flip_loss",
    "jsd_loss",
    "kl_divergence",
    "label_log_probs",
    "mixture_log_probs",
    "split_templates",
    "swarm_loss",
    "swarm_mixture_loss",
    "swarm_teachers",
]
