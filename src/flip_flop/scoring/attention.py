"""Attention over a trie, registered through transformers' public interfaces; no model is patched.

A packed row goes through a model like one sequence. The layout of its trie travels with it as a keyword argument, which
models hand down to their attention; there each node is shown its ancestors and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from flip_flop.scoring.blocks import Block, plan_blocks
from flip_flop.scoring.flex import flex_attend, flex_mask
from flip_flop.scoring.head import unwrap
from flip_flop.scoring.trie import TokenTrie

NAME = "flip_flop_packed"
# Nanoseconds of one call beside its work; of a query-key pair for each head, and for each element of a head.
# Measured on one core of a CPU; for a GPU a guess.
COSTS = {"cpu": (25e3, 1.0, 0.04), "cuda": (20e3, 0.0, 8e-5)}
# What computes the attention, by device: "sdpa", block by block, or "flex", for GPUs.
KERNELS = {"cpu": "sdpa", "cuda": "sdpa"}
# Above so many elements a mask is not copied for each query head of a group.
MOST_FOLDED = 1 << 18
# Arguments by which some models ask their attention for more than a scaled dot product.
REFUSED = ("softcap", "s_aux", "position_bias", "cache")


class Layout:
    """The blocks of one forward over a trie, with their masks, made once for all layers.

    Args:
        trie: What is forwarded.
        start, stop: The nodes that are forwarded now; those before ``start`` are in the cache.
        call_cells: See :func:`~flip_flop.scoring.blocks.plan_blocks`; by default what is known of the device.
    """

    def __init__(self, trie: TokenTrie, start: int, stop: int, call_cells: float | None = None):
        self.trie, self.start, self.stop = trie, start, stop
        self.call_cells = call_cells
        self.blocks: list[Block] = []
        self._made_for: tuple[torch.device, torch.dtype] | None = None
        self._masks: list[Float[Tensor, "queries keys"] | None] = []
        self._flex_mask: Any = None
        self._folded: dict[tuple[int, int], Float[Tensor, "group_queries keys"]] = {}

    def prepare(self, query: Tensor) -> list[Float[Tensor, "queries keys"] | None]:
        """Plan the blocks for a model's width of attention, and make their masks; ``None`` where all is seen.

        They are made anew where the layers go on in another place.
        """
        if self._made_for != (query.device, query.dtype):
            call, per_head, per_element = COSTS.get(query.device.type, COSTS["cuda"])
            cell = query.shape[1] * (per_head + per_element * query.shape[3])
            call_cells = call / cell if self.call_cells is None else self.call_cells
            self.blocks = plan_blocks(self.trie, self.start, self.stop, call_cells)
            masks: list[Float[Tensor, "queries keys"] | None] = []
            for block in self.blocks:
                seen = torch.from_numpy(block.mask(self.trie))
                hidden = torch.zeros(seen.shape, dtype=query.dtype).masked_fill_(~seen, float("-inf"))
                masks.append(None if bool(seen.all()) else hidden.to(query.device))
            self._made_for, self._masks, self._folded = (query.device, query.dtype), masks, {}
        return self._masks

    def flex_mask(self, device: torch.device) -> Any:
        """What FlexAttention is to know of the trie."""
        if self._flex_mask is None:
            self._flex_mask = flex_mask(self.trie, self.start, self.stop, device)
        return self._flex_mask

    def folded(
        self, number: int, groups: int, mask: Float[Tensor, "queries keys"]
    ) -> Float[Tensor, "group_queries keys"]:
        """The mask of a block once for each query head of a group."""
        if (number, groups) not in self._folded:
            self._folded[number, groups] = mask.repeat(groups, 1)
        return self._folded[number, groups]

    def gather(self, states: Float[Tensor, "1 heads nodes width"], block: Block) -> Float[Tensor, "1 heads keys width"]:
        """Keys or values of a block."""
        runs = [states[:, :, start:stop] for start, stop in block.keys]
        return runs[0] if len(runs) == 1 else torch.cat(runs, dim=2)


class PathAttention(torch.autograd.Function):
    """Softmax attention of each node over its ancestors and itself, block by block.

    The backward is written out: cutting and joining under autograd would fill a tensor of the whole row with zeros for
    each block, and it keeps no block's keys.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
        """``[1, heads, nodes, width]`` to ``[1, nodes, heads, width]``, the order that transformers wants."""
        _, heads, nodes, _ = query.shape
        groups = heads // key.shape[1]
        output = query.new_empty(1, nodes, heads, value.shape[3])
        masks = layout.prepare(query)
        for number, (block, mask) in enumerate(zip(layout.blocks, masks, strict=True)):
            rows = slice(block.start - layout.start, block.stop - layout.start)
            q, k, v = query[:, :, rows], layout.gather(key, block), layout.gather(value, block)
            if mask is None or groups * mask.numel() <= MOST_FOLDED:
                # The query heads that share a key head become more queries of that head: no key is copied.
                folded = None if mask is None else layout.folded(number, groups, mask)
                grouped = q.reshape(1, key.shape[1], -1, q.shape[3])
                states = F.scaled_dot_product_attention(grouped, k, v, attn_mask=folded, scale=scale)
            else:
                k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
                states = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            # Some kernels give back a transposed tensor, of which there is no view.
            output[:, rows] = states.reshape(1, heads, -1, value.shape[3]).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output)
        ctx.layout, ctx.scale = layout, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """For P = softmax(S): dV = P^T dO, dS = P * (dO V^T - rowsum(dO * O)), dQ = dS K, dK = dS^T Q."""
        query, key, value, output = ctx.saved_tensors
        (grad_output,) = grad_outputs
        layout, scale = ctx.layout, ctx.scale
        heads, width, value_width = key.shape[1], query.shape[3], value.shape[3]
        exact = torch.promote_types(query.dtype, torch.float32)
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key, dtype=exact)
        grad_value = torch.zeros_like(value, dtype=exact)
        masks = layout.prepare(query)
        for block, mask in zip(layout.blocks, masks, strict=True):
            rows = slice(block.start - layout.start, block.stop - layout.start)
            # Products of half precision would be rounded before the softmax, and by more than its differences.
            q = query[0, :, rows].reshape(heads, -1, width).to(exact)
            o, do = (
                t[0, rows].transpose(0, 1).reshape(heads, -1, value_width).to(exact) for t in (output, grad_output)
            )
            k, v = layout.gather(key, block)[0].to(exact), layout.gather(value, block)[0].to(exact)
            logits = (q @ k.transpose(1, 2)).mul_(scale)
            if mask is not None:
                logits.view(heads, -1, *mask.shape).add_(mask)
            weights = logits.softmax(dim=-1)
            change = do @ v.transpose(1, 2)
            change -= (do * o).sum(dim=-1, keepdim=True)
            change.mul_(weights).mul_(scale)
            grad_query[0, :, rows] = (change @ k).view(query.shape[1], -1, width)
            _scatter(grad_key[0], block, change.transpose(1, 2) @ q)
            _scatter(grad_value[0], block, weights.transpose(1, 2) @ do)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _scatter(total: Float[Tensor, "heads nodes width"], block: Block, part: Float[Tensor, "heads keys width"]) -> None:
    place = 0
    for start, stop in block.keys:
        total[:, start:stop] += part[:, place : place + stop - start]
        place += stop - start


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
    """What transformers calls in place of its own attention; without a layout it is transformers' own.

    Raises:
        NotImplementedError: Where the model asks for something that is not a scaled dot product.
    """
    if packed is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **arguments
        )
    if attention_mask is not None:
        raise NotImplementedError("attention with a mask of its own")
    for name in REFUSED:
        if arguments.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if KERNELS.get(query.device.type) == "flex" and not dropout:
        return flex_attend(query, key, value, packed.flex_mask(query.device), scale), None
    packed.prepare(query)
    if dropout:
        return _attend_with_dropout(query, key, value, packed, scale, dropout), None
    return cast(Tensor, PathAttention.apply(query, key, value, packed, scale)), None


def _attend_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, packed: Layout, scale: float, dropout: float
) -> Float[Tensor, "1 nodes heads width"]:
    """The same under autograd, for the few models whose attention drops weights in training."""
    groups = query.shape[1] // key.shape[1]
    parts = []
    for block, mask in zip(packed.blocks, packed.prepare(query), strict=True):
        k, v = (packed.gather(part, block).repeat_interleave(groups, dim=1) for part in (key, value))
        q = query[:, :, block.start - packed.start : block.stop - packed.start]
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """What a node sees is in the layout; a plain forward with padding has transformers' own mask."""
    return None if keywords.get("attention_mask") is None else sdpa_mask(*arguments, **keywords)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Attention over packed rows while the context is open; the model's own is restored after it.

    Where layers are computed anew in the backward (gradient checkpointing), it has to be open there too.
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


def forward_row(
    decoder: nn.Module, trie: TokenTrie, start: int, stop: int, *, call_cells: float | None = None, **arguments: Any
) -> tuple[Float[Tensor, "nodes width"], Any]:
    """Hidden states of the nodes from ``start`` to ``stop``, and the cache where one was asked for."""
    device = next(decoder.parameters()).device
    ids: Int64[Tensor, "1 nodes"] = torch.from_numpy(trie.ids[start:stop].astype(np.int64))[None].to(device)
    positions: Int64[Tensor, "1 nodes"] = torch.from_numpy(trie.depth[start:stop].astype(np.int64))[None].to(device)
    layout = Layout(trie, start, stop, call_cells)
    arguments = {"use_cache": False} | arguments
    output = decoder(input_ids=ids, position_ids=positions, packed=layout, **arguments)
    return output.last_hidden_state[0], arguments.get("past_key_values")
