"""Which models the packed back end serves exactly, and the one line for those that it does not."""

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flip_flop.options import Backend
from flip_flop.scoring.answers import packed_states, padded_states
from flip_flop.scoring.causal_lm import HALF, check_head, decoder_of, evaluation_mode, unwrap
from flip_flop.scoring.tokens import EncodedInstance
from flip_flop.scoring.trie import Pair, build_trie

log = logging.getLogger("flip_flop")


# Kinds of layers in which a token's state depends on the tokens before it through attention alone.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
# Prompts and answers of the probe: branches at several depths, answers of one to three tokens, two roots.
PROBE: list[list[Pair]] = [
    [((1, 2, 3, 4), (5,)), ((1, 2, 3, 4), (6, 7, 8))],
    [((1, 2, 5), (6, 2)), ((1, 2, 5), (6, 3, 1))],
    [((3, 2, 1, 4, 4), (7, 1)), ((3, 2, 1, 4, 4), (2,))],
]
PROBE_TOKENS = 1000  # all of its sequences in one batch

# What the probe found, by decoder: it costs as much as reading the weights a few times.
_PROBED: "WeakKeyDictionary[nn.Module, str | None]" = WeakKeyDictionary()


def choose_backend(model: nn.Module, instances: Sequence[EncodedInstance], wanted: Backend) -> Backend:
    """``wanted``, or ``padded`` with one line that says why.

    Raises:
        InputError: ``E-MODEL-KIND`` where neither would be exact.
    """
    check_head(model)
    if wanted == "padded" or not instances:
        return wanted
    obstacle = packed_obstacle(model, max(instance.longest for instance in instances))
    if obstacle is None:
        return "packed"
    _say(f"W-PADDED: {type(unwrap(model)).__name__}: {obstacle}; the slower padded back end is used.")
    return "padded"


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


def packed_obstacle(model: nn.Module, longest: int) -> str | None:
    """Why the packed back end would not be exact for a model, or ``None``.

    What a configuration tells is read; the rest is tried on a few tokens: positions that are not per token, attention
    that does not go through transformers' interface, layers that mix neighbours. ``longest``: the longest sequence's
    number of tokens.
    """
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if kinds:
        return f"it has layers of kind {sorted(kinds)[0]}"
    for limit, what in _limits(config):
        if longest > limit:
            return f"{what} ends at {limit} tokens, and the longest prompt with its answer is read in {longest}"
    decoder = decoder_of(model)
    if decoder not in _PROBED:
        with evaluation_mode(model):
            _PROBED[decoder] = _probe(model)
    return _PROBED[decoder]


def _limits(config: Any) -> Iterator[tuple[int, str]]:
    """Up to which length a model's attention is plain causal attention with fixed positions."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if window and slides:
        yield int(window), "its attention window"
    if chunk := getattr(config, "attention_chunk_size", None):
        yield int(chunk), "its attention chunk"
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if settings.get("rope_type") in ("dynamic", "longrope"):
            original = settings.get("original_max_position_embeddings") or config.max_position_embeddings
            yield int(original), "what its rotary positions keep fixed"


@torch.no_grad()
def _probe(model: nn.Module) -> str | None:
    trie = build_trie(PROBE)
    # transformers warns where a model cannot switch its attention: the probe says it in our own line.
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.CRITICAL)
    try:
        if unwrap(model).config.get_text_config().vocab_size < 9:
            return "its vocabulary is too small to try it"
        separate = padded_states(model, trie, PROBE_TOKENS)
        packed = packed_states(model, trie)
    except (NotImplementedError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        return f"it cannot be given a packed row ({' '.join(str(error).split())[:80] or type(error).__name__})"
    finally:
        library.setLevel(level)
    tolerance = (5e-2 if separate.dtype in HALF else 1e-4) * separate.float().abs().max().clamp(min=1e-6)
    if bool((packed.float() - separate.float()).abs().max() > tolerance):
        return "a packed row does not give it the states of separate sequences"
    return None
