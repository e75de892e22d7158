"""Attention over a trie, registered through transformers' public interface; no model is patched.

A packed row goes through a model like one sequence. The layout of its trie travels with it as a keyword argument, which
models hand down to their attention; there each node is shown its ancestors and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface

from flip_flop.method.divergences import to_device
from flip_flop.scoring.blocks import Block, plan_blocks
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.trie import TokenTrie

NAME = "flip_flop_packed"
# Nanoseconds of one call beside its work; of a query-key pair for each head, and for each element of a head.
# Measured on one core of a CPU; for a GPU a guess.
COSTS = {"cpu": (25e3, 1.0, 0.04), "cuda": (20e3, 0.0, 8e-5)}
# The attention kernel by device. "sdpa": one call per block, with the least arithmetic. "mask": one call with a mask
# over all nodes, with the fewest launches. It was chosen for GPUs by counted launches, not by measured times.
KERNELS = {"cpu": "sdpa", "cuda": "mask"}
# Elements of a mask's row, of which kernels want a multiple.
ALIGNED = 16
# Arguments by which some models ask their attention for more than a scaled dot product.
REFUSED = ("softcap", "s_aux", "position_bias", "cache")

Mask = Float[Tensor, "queries keys"] | None


class Layout:
    """What the layers' attention has to know of a trie; made in the first layer on each device, kept for the others."""

    def __init__(self, trie: TokenTrie):
        self.trie = trie
        self._blocks: dict[tuple[torch.device, torch.dtype], list[tuple[Block, Mask]]] = {}
        self._whole: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def blocks(self, query: Float[Tensor, "1 heads nodes width"]) -> list[tuple[Block, Mask]]:
        """The calls for an attention of this width, each with its mask; ``None`` where all is seen."""
        kind = (query.device, query.dtype)
        if kind not in self._blocks:
            call, per_head, per_element = COSTS.get(query.device.type, COSTS["cuda"])
            cell = query.shape[1] * (per_head + per_element * query.shape[3])
            self._blocks[kind] = [(block, self._mask(block, *kind)) for block in plan_blocks(self.trie, call / cell)]
        return self._blocks[kind]

    def _mask(self, block: Block, device: torch.device, dtype: torch.dtype) -> Mask:
        seen = torch.from_numpy(block.mask(self.trie))
        hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
        return None if bool(seen.all()) else to_device(hidden, device)

    def whole(self, query: Float[Tensor, "1 heads nodes width"]) -> tuple[Block, Mask]:
        """All nodes as one block, for one call. Its mask is kept for the backward, once for all layers."""
        kind, nodes = (query.device, query.dtype), query.shape[2]
        if kind not in self._whole:
            enter, leave = (to_device(torch.from_numpy(x), query.device) for x in (self.trie.enter, self.trie.leave))
            # As wide as kernels want it in memory: else each layer would make a copy of its own.
            hidden = query.new_full((nodes, -(-nodes // ALIGNED) * ALIGNED), float("-inf"))[:, :nodes]
            self._whole[kind] = hidden.masked_fill_((enter <= enter[:, None]) & (enter[:, None] < leave), 0.0)
        return Block(0, nodes, ((0, nodes),)), self._whole[kind]


class PathAttention(torch.autograd.Function):
    """Softmax attention of each node over its ancestors and itself, block by block.

    The backward is written out: cutting and joining under autograd would fill a tensor of the whole row with zeros for
    each block, and it keeps no block's keys.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
        """``[1, heads, nodes, width]`` to ``[1, nodes, heads, width]``, the order that transformers wants."""
        output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for block, mask in layout.blocks(query):
            output[:, block.start : block.stop] = _attend_block(block, query, key, value, mask, scale)
        ctx.save_for_backward(query, key, value, output)
        ctx.layout, ctx.scale = layout, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """For P = softmax(S): dV = P^T dO, dS = P * (dO V^T - rowsum(dO * O)), dQ = dS K, dK = dS^T Q."""
        query, key, value, output = ctx.saved_tensors
        (grad_output,) = grad_outputs
        heads, width, value_width = key.shape[1], query.shape[3], value.shape[3]
        # Products of half precision would be rounded before the softmax, and by more than its differences.
        exact = torch.promote_types(query.dtype, torch.float32)
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key, dtype=exact)
        grad_value = torch.zeros_like(value, dtype=exact)
        for block, mask in ctx.layout.blocks(query):
            rows = slice(block.start, block.stop)
            q = query[0, :, rows].reshape(heads, -1, width).to(exact)
            o, do = (
                t[0, rows].transpose(0, 1).reshape(heads, -1, value_width).to(exact) for t in (output, grad_output)
            )
            k, v = (_gather(part, block)[0].to(exact) for part in (key, value))
            logits = (q @ k.transpose(1, 2)).mul_(ctx.scale)
            if mask is not None:
                logits.view(heads, -1, *mask.shape).add_(mask)
            weights = logits.softmax(dim=-1)
            change = do @ v.transpose(1, 2)
            change -= (do * o).sum(dim=-1, keepdim=True)
            change.mul_(weights).mul_(ctx.scale)
            grad_query[0, :, rows] = (change @ k).view(query.shape[1], -1, width)
            _scatter(grad_key[0], block, change.transpose(1, 2) @ q)
            _scatter(grad_value[0], block, weights.transpose(1, 2) @ do)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _attend_block(
    block: Block, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float = 0.0
) -> Float[Tensor, "1 queries heads width"]:
    _, heads, _, width = query.shape
    # The query heads of each key head are a batch of their own, which reads the same keys: none is copied.
    q = query[0, :, block.start : block.stop].reshape(key.shape[1], -1, block.stop - block.start, width)
    k, v = (_gather(part, block)[0, :, None].expand(-1, q.shape[1], -1, -1) for part in (key, value))
    states = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    # Some kernels give back a transposed tensor, of which there is no view.
    return states.reshape(1, heads, -1, value.shape[3]).transpose(1, 2)


def _gather(states: Float[Tensor, "1 heads nodes width"], block: Block) -> Float[Tensor, "1 heads keys width"]:
    runs = [states[:, :, start:stop] for start, stop in block.keys]
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim=2)


def _scatter(total: Float[Tensor, "heads nodes width"], block: Block, part: Float[Tensor, "heads keys width"]) -> None:
    pieces = part.split([stop - start for start, stop in block.keys], dim=1)
    for (start, stop), piece in zip(block.keys, pieces, strict=True):
        total[:, start:stop] += piece


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads nodes width"],
    key: Float[Tensor, "batch key_heads keys width"],
    value: Float[Tensor, "batch key_heads keys value_width"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed: Layout | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention.

    No mask function is registered beside it: so transformers makes none, nor looks at the positions for one, which
    would wait for the device.

    Raises:
        NotImplementedError: Where the row has no layout, or the model asks for something that is not a scaled dot
            product.
    """
    if packed is None:
        raise NotImplementedError("its attention was not given the layout of a packed row")
    if attention_mask is not None:
        raise NotImplementedError("attention with a mask of its own")
    for name in REFUSED:
        if arguments.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if KERNELS.get(query.device.type) == "mask":
        block, mask = packed.whole(query)
        return _attend_block(block, query, key, value, mask, scale, dropout), None
    if dropout:  # by autograd, for the few models whose attention drops weights in training
        blocks = packed.blocks(query)
        parts = [_attend_block(block, query, key, value, mask, scale, dropout) for block, mask in blocks]
        return torch.cat(parts, dim=1), None
    return cast(Tensor, PathAttention.apply(query, key, value, packed, scale)), None


AttentionInterface.register(NAME, attend)


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Attention over packed rows, and no other, while the context is open; the model's own is restored after it.

    Where layers are computed again in the backward (gradient checkpointing), it has to be open there too.
    """
    causal_lm = unwrap(model)
    before = causal_lm.config._attn_implementation
    if before == NAME:
        yield
        return
    causal_lm.set_attn_implementation(NAME)
    try:
        yield
    finally:
        causal_lm.set_attn_implementation(before)
