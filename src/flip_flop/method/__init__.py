"""The method: votes, Algorithm 1, divergences and losses. Pure functions, tensors in, tensors out.

Names are imported on first use: the module ``settings`` needs no torch.
"""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.method.algorithm import (
        Consensus,
        Instance,
        TemplateSplit,
        find_consensus,
        label_log_probs,
        split_templates,
    )
    from flip_flop.method.divergences import (
        Distributions,
        aggregate_answer_log_probs,
        answer_distributions,
        as_distributions,
        kl_divergence,
        mixture_log_probs,
    )
    from flip_flop.method.losses import cce_loss, f2c_loss, flip_loss, jsd_loss
    from flip_flop.method.others import swarm_loss, swarm_mixture_loss, swarm_teachers
    from flip_flop.method.settings import PAPER_METHODS, TrainingProtocol, row_protocol_of
    from flip_flop.method.table import BASE, METHODS, Method, find_method

__all__ = [
    "BASE",
    "METHODS",
    "PAPER_METHODS",
    "Consensus",
    "Distributions",
    "Instance",
    "Method",
    "TemplateSplit",
    "TrainingProtocol",
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
    "row_protocol_of",
    "split_templates",
    "swarm_loss",
    "swarm_mixture_loss",
    "swarm_teachers",
]

_, __getattr__, __dir__ = exports(
    __name__,
    {
        "algorithm": (
            *("Consensus", "Instance", "TemplateSplit"),
            *("find_consensus", "label_log_probs", "split_templates"),
        ),
        "divergences": (
            "Distributions",
            "aggregate_answer_log_probs",
            "answer_distributions",
            "as_distributions",
            "kl_divergence",
            "mixture_log_probs",
        ),
        "losses": ("cce_loss", "f2c_loss", "flip_loss", "jsd_loss"),
        "settings": ("PAPER_METHODS", "TrainingProtocol", "row_protocol_of"),
        "others": ("swarm_loss", "swarm_mixture_loss", "swarm_teachers"),
        "table": ("BASE", "METHODS", "Method", "find_method"),
    },
)
