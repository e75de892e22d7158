"""Settings of methods, and the names of the variants of their losses. Importing them needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal

Protocol = Literal["paper", "release"]
# The recommended settings use the rows and prompts of the paper.
TrainingProtocol = Literal["recommended", "paper", "release"]
# The methods of the F2C paper, which a study runs by default.
PAPER_METHODS = ("swarm", "cce", "f2c")
Reduction = Literal["mean", "sum"]
Aggregation = Literal["mean_log_prob", "mean_prob", "per_position"]
Space = Literal["vocab", "labels"]
DivergenceSpace = Literal["vocab", "labels", "both"]
JsdForm = Literal["mean", "symmetric"]
FlipDirection = Literal["forward", "reverse"]
SwarmPairs = Literal["derangement", "all", "mixture"]
CcSizeBound = Literal["templates", "group"]


def row_protocol_of(protocol: TrainingProtocol) -> Protocol:
    """Return the protocol of the rows and prompts of a training."""
    return "release" if protocol == "release" else "paper"


@dataclass(frozen=True)
class SplitSettings:
    r"""The settings of Algorithm 1.

    Args:
        unanimous_margin: :math:`\tau_{\text{unanimous}}`, in nats; ``inf`` for no Case 2.
        max_cc_size: :math:`k_{\max}`, at least 2.
        flip_weight_min: :math:`f_{\min}`, at least 0.
        flip_weight_max: :math:`f_{\max}`, at least :math:`f_{\min}`.
        flip_temperature: :math:`t`, above 0, in nats.
        cc_size_bound: Line 10. ``templates``: :math:`k = \min(k_{\max}, V - 1)`, the paper's; ``group``:
            :math:`k = \min(k_{\max}, |G| - 1)`, the release's row "k, line 10".

    Raises:
        ValueError: A setting is out of its range.
    """

    unanimous_margin: float
    max_cc_size: int
    flip_weight_min: float
    flip_weight_max: float
    flip_temperature: float
    cc_size_bound: CcSizeBound = "templates"

    def __post_init__(self) -> None:
        # Written as `not (...)`, so that a NaN fails each of them.
        if math.isnan(self.unanimous_margin):
            raise ValueError("unanimous_margin is nan. It must be a number.")
        if not self.max_cc_size >= 2:
            raise ValueError(f"max_cc_size is {self.max_cc_size}. It must be at least 2.")
        if not 0 <= self.flip_weight_min <= self.flip_weight_max < math.inf:
            raise ValueError(
                f"flip_weight_min is {self.flip_weight_min} and flip_weight_max {self.flip_weight_max}. "
                "They must be finite, with 0 <= flip_weight_min <= flip_weight_max."
            )
        if not 0 < self.flip_temperature < math.inf:
            raise ValueError(f"flip_temperature is {self.flip_temperature}. It must be above 0 and finite.")
