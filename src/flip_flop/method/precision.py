"""The floor of precision for everything that is a log-probability."""

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in float32 if it is narrower than that; float64 stays, for checks of gradients."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
