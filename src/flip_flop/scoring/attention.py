"""Attention over a token trie, cut into dense calls and registered through transformers' public interface.

A packed row is computed like one sequence. Its layout is a keyword argument that models pass to their attention, where
each node attends to itself and its ancestors. A *block* is a run of consecutive nodes, computed by a single call. Its
keys are the ancestors of its first node and the nodes of the block. Small blocks need many calls. Large blocks compute
pairs that the mask hides. The division minimizes the estimated time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor, nn
from transformers import AttentionInterface

from flip_flop.method.divergences import to_device
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.trie import TokenTrie

# Chains of nodes are divided into pieces of this length, so that few pairs above the diagonal are computed.
PIECE = 128
# The maximum number of query-key pairs of a block, which limits the memory of its mask.
MAX_CELLS = 1 << 20


@dataclass(frozen=True)
class Block:
    """One call.

    Attributes:
        start, stop: The nodes of the queries.
        keys: Runs of nodes that the queries attend to, in order. The last run ends with the queries.
    """

    start: int
    stop: int
    keys: tuple[tuple[int, int], ...]

    def key_nodes(self) -> ndarray:
        """Return the nodes of the keys."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.keys])

    def mask(self, trie: TokenTrie) -> Bool[ndarray, "queries keys"]:
        """Return the mask: True if the query attends to the key."""
        enter, keys = trie.enter[self.start : self.stop, None], self.key_nodes()
        return (trie.enter[keys] <= enter) & (enter < trie.leave[keys])


def plan_blocks(trie: TokenTrie, call_cells: float) -> list[Block]:
    """Return the cheapest division of a trie into blocks. A call costs as much as ``call_cells`` query-key pairs."""
    numbers = np.arange(len(trie))
    # The first node of each node's chain. In a chain, each node is the parent of the next node.
    chain_start = np.maximum.accumulate(np.where((numbers > 0) & (trie.parent == numbers - 1), 0, numbers))
    begins = np.flatnonzero((numbers - chain_start) % PIECE == 0)
    pieces = list(zip(begins.tolist(), [*begins[1:].tolist(), len(trie)], strict=True))
    parents, depths = trie.parent[begins].tolist(), trie.depth[begins].tolist()
    # Dynamic programming: the minimum cost of the first n pieces, and the first piece of their last block.
    best = [0.0] + [np.inf] * len(pieces)
    first_piece = [0] * (len(pieces) + 1)
    for first, (begin, _) in enumerate(pieces):
        nodes, apart = 0, 0.0
        for last in range(first, len(pieces)):
            a, b = pieces[last]
            if last > first and parents[last] < begin and not _is_ancestor(trie, parents[last], parents[first]):
                break
            nodes += b - a
            cells = nodes * (depths[first] + nodes)
            apart += (b - a) * (depths[last] + b - a) + call_cells
            if last > first and (cells > apart or cells > MAX_CELLS):
                break
            if best[first] + call_cells + cells < best[last + 1]:
                best[last + 1], first_piece[last + 1] = best[first] + call_cells + cells, first
    blocks, end = [], len(pieces)
    while end:
        first = first_piece[end]
        begin, stop = pieces[first][0], pieces[end - 1][1]
        blocks.append(Block(begin, stop, _with_ancestors(trie, chain_start, begin, stop)))
        end = first
    return blocks[::-1]


def _is_ancestor(trie: TokenTrie, node: int, other: int) -> bool:
    """Return whether ``node`` is ``other`` or one of its ancestors. -1 is an ancestor of all nodes."""
    return node < 0 or (other >= 0 and bool(trie.enter[node] <= trie.enter[other] < trie.leave[node]))


def _with_ancestors(trie: TokenTrie, chain_start: ndarray, begin: int, stop: int) -> tuple[tuple[int, int], ...]:
    runs = [(begin, stop)]
    node = int(trie.parent[begin])
    while node >= 0:
        chain = int(chain_start[node])
        if node + 1 == runs[-1][0]:
            runs[-1] = (chain, runs[-1][1])
        else:
            runs.append((chain, node + 1))
        node = int(trie.parent[chain])
    return tuple(runs[::-1])


NAME = "flip_flop_packed"
# Nanoseconds of a call, of a query-key pair per head, and of a query-key pair per element of a head.
# Measured on one core of a CPU. The values of GPUs are estimates.
COSTS = {"cpu": (25e3, 1.0, 0.04), "cuda": (20e3, 0.0, 8e-5)}
# The attention kernel by device. "sdpa": one call per block, with the least arithmetic. "mask": one call with a mask
# over all nodes, with the fewest launches. It was chosen for GPUs by counted launches, not by measured times.
KERNELS = {"cpu": "sdpa", "cuda": "mask"}
# Kernels require masks whose rows have a multiple of this number of elements in memory.
ALIGNED = 16
# Arguments of attentions that are more than a scaled dot product.
REFUSED = ("softcap", "s_aux", "position_bias", "cache")

Mask = Float[Tensor, "queries keys"] | None


class Layout:
    """The blocks and masks of a trie. The first layer on each device computes them for all layers."""

    def __init__(self, trie: TokenTrie):
        self.trie = trie
        self._blocks: dict[tuple[torch.device, torch.dtype], list[tuple[Block, Mask]]] = {}
        self._whole: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def blocks(self, query: Float[Tensor, "1 heads nodes width"]) -> list[tuple[Block, Mask]]:
        """Return the blocks for queries of this width with their masks. ``None``: all keys are visible."""
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
        """Return all nodes as one block. All layers and the backward pass share its mask."""
        kind, nodes = (query.device, query.dtype), query.shape[2]
        if kind not in self._whole:
            enter, leave = (to_device(torch.from_numpy(x), query.device) for x in (self.trie.enter, self.trie.leave))
            # Without the alignment in memory, each layer would copy the mask.
            hidden = query.new_full((nodes, -(-nodes // ALIGNED) * ALIGNED), float("-inf"))[:, :nodes]
            self._whole[kind] = hidden.masked_fill_((enter <= enter[:, None]) & (enter[:, None] < leave), 0.0)
        return Block(0, nodes, ((0, nodes),)), self._whole[kind]


class PathAttention(torch.autograd.Function):
    """Softmax attention of each node over its ancestors and itself, block by block.

    The backward pass is explicit. Autograd would fill a tensor of the whole row with zeros for each block, and store
    the keys of each block.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
        """``[1, heads, nodes, width]`` to ``[1, nodes, heads, width]``, the order of transformers."""
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
        # In half precision, rounding before the softmax would be larger than its differences.
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
    # The query heads of each key head are one batch with the same keys, so that keys are not copied.
    q = query[0, :, block.start : block.stop].reshape(key.shape[1], -1, block.stop - block.start, width)
    k, v = (_gather(part, block)[0, :, None].expand(-1, q.shape[1], -1, -1) for part in (key, value))
    states = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    # Some kernels return a transposed tensor, for which view() fails.
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
    """Compute the attention of a layer. transformers calls this function.

    No mask function is registered. Transformers then creates no mask and does not synchronize with the device.

    Raises:
        NotImplementedError: The layout is missing, or the attention is not a scaled dot product.
    """
    if packed is None:
        raise NotImplementedError("its attention was not given the layout of a packed row")
    if attention_mask is not None:
        raise NotImplementedError("attention with an additional mask")
    for name in REFUSED:
        if arguments.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if KERNELS.get(query.device.type) == "mask":
        block, mask = packed.whole(query)
        return _attend_block(block, query, key, value, mask, scale, dropout), None
    if dropout:  # by autograd, for the few models with attention dropout in training
        blocks = packed.blocks(query)
        parts = [_attend_block(block, query, key, value, mask, scale, dropout) for block, mask in blocks]
        return torch.cat(parts, dim=1), None
    return cast(Tensor, PathAttention.apply(query, key, value, packed, scale)), None


AttentionInterface.register(NAME, attend)


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Replace the attention of a model by attention over packed rows, and restore it afterwards.

    With gradient checkpointing, the context must include the backward pass.
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
