"""A faster matrix product for frozen weights, on processors whose stock one is slow (opt-in).

PyTorch's CPU builds hand float32 products to MKL, which takes a slower path on processors that are not its maker's. The
same build holds oneDNN, which does not. Only frozen float32 weights go that way: LoRA's own do not.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

log = logging.getLogger("flip_flop")

# The product that decides, and how much faster it has to be to be worth a copy of the weights.
TRIAL = (256, 896, 4864)
WORTHWHILE = 1.2
# Relative to the largest entry.
TOLERANCE = 1e-5


def onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``inputs @ weight.T + bias`` by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: "FrozenLinear") -> Tensor:
        ctx.layer = layer
        return onednn_linear(inputs, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad_output,) = grad_outputs
        return onednn_linear(grad_output.contiguous(), ctx.layer.transposed(), None), None


class FrozenLinear(nn.Linear):
    """A linear layer whose weights never change; made out of an ordinary one, and turned back into it."""

    _transposed: Tensor | None

    def forward(self, input: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The layer's output; an input of another dtype, or weights that learn, take the stock product."""
        if input.dtype != torch.float32 or not _is_frozen(self):
            return F.linear(input, self.weight, self.bias)
        if torch.is_grad_enabled() and input.requires_grad:
            return _FrozenProduct.apply(input, self)
        return onednn_linear(input, self.weight, self.bias)

    def transposed(self) -> Float[Tensor, "inputs outputs"]:
        """The copy that the backward multiplies with, made when it is first needed."""
        if self._transposed is None:
            self._transposed = self.weight.detach().t().contiguous()
        return self._transposed


@contextmanager
def fast_frozen_linears(model: nn.Module, wanted: bool = True) -> Iterator[bool]:
    """Send the frozen float32 linear layers of a model on a CPU through oneDNN while the context is open.

    Args:
        model: Any module; layers that an adapter wraps are among its own.
        wanted: ``False`` leaves the model as it is.

    Yields:
        Whether it is in use: it is not where the build has no oneDNN, where its product differs by more than 1e-5, or
        where it is less than 1.2 times as fast as the stock one.

    Note:
        Training with it holds a transposed copy of the frozen weights.
    """
    if not wanted:
        yield False
        return
    obstacle = fast_linear_obstacle()
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _is_eligible(layer)]
    if obstacle is None and not layers:
        obstacle = "the model has no frozen float32 linear layer on a CPU"
    if obstacle is not None:
        log.info("faster linear layers are off: %s", obstacle)
        yield False
        return
    for layer in layers:
        layer.__class__ = FrozenLinear
        layer._transposed = None  # type: ignore[assignment]
    try:
        yield True
    finally:
        for layer in layers:
            layer.__class__ = nn.Linear
            del layer._transposed


def _is_eligible(layer: nn.Linear) -> bool:
    return layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu" and _is_frozen(layer)


def _is_frozen(layer: nn.Linear) -> bool:
    return not layer.weight.requires_grad and (layer.bias is None or not layer.bias.requires_grad)


def fast_linear_obstacle() -> str | None:
    """Why oneDNN's product is not to be used here, or ``None``; a trial of a few milliseconds."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this build of PyTorch has no oneDNN"
    rows, inputs, outputs = TRIAL
    left = torch.linspace(-1, 1, rows * inputs).view(rows, inputs)
    weight = torch.linspace(1, -1, outputs * inputs).cos().view(outputs, inputs)
    try:
        ours, stock = onednn_linear(left, weight, None), F.linear(left, weight)
    except (RuntimeError, NotImplementedError) as error:
        return f"its oneDNN product cannot be called ({' '.join(str(error).split())[:80]})"
    if not torch.allclose(ours, stock, rtol=0, atol=TOLERANCE * float(stock.abs().max())):
        return "its oneDNN product differs from the stock one"
    ratio = _times_faster(lambda: F.linear(left, weight), lambda: onednn_linear(left, weight, None))
    if ratio < WORTHWHILE:
        return f"oneDNN is {ratio:.2f} times as fast as the stock product here"
    return None


def _times_faster(slow: Callable[[], Tensor], fast: Callable[[], Tensor]) -> float:
    """The ratio of the best of several times, taken in turns: other processes disturb both alike."""
    best = [math.inf, math.inf]
    for _ in range(10):
        for number, product in enumerate((slow, fast)):
            start = time.perf_counter()
            product()
            best[number] = min(best[number], time.perf_counter() - start)
    return best[0] / best[1]
