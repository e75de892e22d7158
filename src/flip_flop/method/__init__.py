"""The method: votes, Algorithm 1, divergences and losses. Pure functions, tensors in, tensors out.

Names are imported on first use: the module ``settings`` needs no torch.
"""

from typing import TYPE_CHECKING

from flip_flop import exports

if TYPE_CHECKING:
    from flip_flop.method.algorithm import find_consensus, label_log_probs, split_templates
    from flip_flop.method.divergences import (
        Distributions,
        aggregate_answer_log_probs,
        answer_distributions,
        as_distributions,
        kl_divergence,
        mixture_log_probs,
    )
    from flip_flop.method.losses import cce_loss, f2c_loss, flip_loss, jsd_loss
    from flip_flop.method.settings import PAPER_METHODS, TrainingProtocol, row_protocol_of
    from flip_flop.method.swarm import swarm_loss, swarm_mixture_loss, swarm_teachers
    from flip_flop.method.table import BASE, METHODS, Method, find_method
    from flip_flop.method.types import Consensus, Instance, TemplateSplit

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "algorithm": ("find_consensus", "label_log_probs", "split_templates"),
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
        "swarm": ("swarm_loss", "swarm_mixture_loss", "swarm_teachers"),
        "table": ("BASE", "METHODS", "Method", "find_method"),
        "types": ("Consensus", "Instance", "TemplateSplit"),
    },
)
