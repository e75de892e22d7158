"""Indices and masks are made on the CPU, where what they are made from is; a device that computes gets copies."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting until the device has done what it was given before.

    Apple's devices alone may still read the memory of such a copy when it is used again: there it is waited for.
    """
    return tensor.to(device, non_blocking=device.type != "mps")
