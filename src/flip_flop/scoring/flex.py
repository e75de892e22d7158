"""Attention over a trie by FlexAttention: one compiled call for the whole row, for GPUs.

Not the default anywhere: its forward is checked for exactness on a CPU, uncompiled; it has no backward there, and
nothing of it has been measured.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.scoring.trie import TokenTrie


def visible(trie: TokenTrie, start: int, device: torch.device) -> Callable[..., Tensor]:
    """FlexAttention's rule for a trie whose queries begin at node ``start``."""
    enter = torch.from_numpy(trie.enter).to(device)
    leave = torch.from_numpy(trie.leave).to(device)

    # A lambda, as FlexAttention counts a rule's parameters, which a checking wrapper hides.
    return lambda batch, head, query, key: (enter[key] <= enter[query + start]) & (enter[query + start] < leave[key])


def flex_mask(trie: TokenTrie, start: int, stop: int, device: torch.device) -> Any:
    """The blocks that FlexAttention may skip, made once for all layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    rule = visible(trie, start, device)
    return create_block_mask(rule, None, None, stop - start, stop, device=str(device))


def flex_attend(
    query: Float[Tensor, "1 heads nodes width"],
    key: Float[Tensor, "1 key_heads keys width"],
    value: Float[Tensor, "1 key_heads keys value_width"],
    mask: Any,
    scale: float,
) -> Float[Tensor, "1 nodes heads value_width"]:
    """Softmax attention of each node over its ancestors and itself."""
    output = _kernel(query.device.type)(
        query, key, value, block_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return cast(Tensor, output).transpose(1, 2)


@functools.cache
def _kernel(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Without dynamic shapes each new length would be compiled anew, which takes longer than most rows.
    chosen = torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention
    return cast(Callable[..., Any], chosen)
