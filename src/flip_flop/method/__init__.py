"""The method: consensus, Algorithm 1, divergences and losses. Pure functions, tensors in, tensors out.

Names are imported on first use: the module ``settings`` needs no torch.
"""

from typing import TYPE_CHECKING

from flip_flop import exports

if TYPE_CHECKING:
    from flip_flop.method.consensus import Consensus, find_consensus, label_log_probs
    from flip_flop.method.controls import TemplateSplit, split_templates
    from flip_flop.method.distributions import Distributions, answer_distributions, as_distributions
    from flip_flop.method.divergences import aggregate_answer_log_probs, kl_divergence, mixture_log_probs
    from flip_flop.method.instance import Instance
    from flip_flop.method.losses import cce_loss, f2c_loss, flip_loss, jsd_loss
    from flip_flop.method.settings import SplitSettings
    from flip_flop.method.swarm import swarm_loss, swarm_mixture_loss, swarm_teachers
    from flip_flop.method.table import BASE, METHODS, Method, find_method
    from flip_flop.method.variant import LossVariant

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "consensus": ("Consensus", "find_consensus", "label_log_probs"),
        "controls": ("TemplateSplit", "split_templates"),
        "distributions": ("Distributions", "answer_distributions", "as_distributions"),
        "divergences": ("aggregate_answer_log_probs", "kl_divergence", "mixture_log_probs"),
        "instance": ("Instance",),
        "losses": ("cce_loss", "f2c_loss", "flip_loss", "jsd_loss"),
        "settings": ("SplitSettings",),
        "swarm": ("swarm_loss", "swarm_mixture_loss", "swarm_teachers"),
        "table": ("BASE", "METHODS", "Method", "find_method"),
        "variant": ("LossVariant",),
    },
)
