"""Attention over a trie by FlexAttention: one compiled call for the whole row, for GPUs.

Not the default anywhere: its forward is checked for exactness on a CPU, uncompiled; it has no backward there.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.scoring.trie import TokenTrie


def flex_mask(trie: TokenTrie, device: torch.device) -> Any:
    """What each node sees, and the blocks that FlexAttention may skip; one for all layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    enter, leave = (torch.from_numpy(part).to(device) for part in (trie.enter, trie.leave))
    # A lambda, as FlexAttention counts a rule's parameters, which a checking wrapper hides.
    rule = lambda batch, head, query, key: (enter[key] <= enter[query]) & (enter[query] < leave[key])  # noqa: E731
    return create_block_mask(rule, None, None, len(trie), len(trie), device=str(device))


def flex_attend(
    query: Float[Tensor, "1 heads nodes width"],
    key: Float[Tensor, "1 key_heads nodes width"],
    value: Float[Tensor, "1 key_heads nodes value_width"],
    mask: Any,
    scale: float,
) -> Float[Tensor, "1 nodes heads value_width"]:
    """Softmax attention of each node over its ancestors and itself."""
    grouped = query.shape[1] != key.shape[1]
    output = _kernel(query.device.type)(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return cast(Tensor, output).transpose(1, 2)


@functools.cache
def _kernel(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Without dynamic shapes each new length would be compiled, which takes longer than most rows.
    chosen = torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention
    return cast(Callable[..., Any], chosen)
