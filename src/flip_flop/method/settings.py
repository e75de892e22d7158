"""Settings of methods. Importing them needs no torch."""

from typing import Literal

Protocol = Literal["paper", "release"]
# The recommended settings use the rows and prompts of the paper.
TrainingProtocol = Literal["recommended", "paper", "release"]
# The methods of the F2C paper, which a study runs by default.
PAPER_METHODS = ("swarm", "cce", "f2c")
Reduction = Literal["mean", "sum"]
Aggregation = Literal["mean_log_prob", "mean_prob"]
DivergenceSpace = Literal["vocab", "labels", "both"]


def row_protocol_of(protocol: TrainingProtocol) -> Protocol:
    """Return the protocol of the rows and prompts of a training."""
    return "release" if protocol == "release" else "paper"
