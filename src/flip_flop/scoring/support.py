"""Choose the packed backend for models whose packed scores are exact, and the padded backend for others."""

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flip_flop.scoring.answers import answer_states, rotary_limit
from flip_flop.scoring.boundary import EncodedAnswer, EncodedInstance
from flip_flop.scoring.causal_lm import (
    InFloat32,
    check_head,
    decoder_of,
    evaluation_mode,
    is_tested,
    unwrap,
    without_adapter,
)
from flip_flop.scoring.options import Backend

log = logging.getLogger("flip_flop")


# Kinds of layers in which tokens interact only by attention to earlier tokens.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
# The probe: branches at several depths, answers of one to three tokens, two roots.
PROBE = EncodedInstance(
    "the probe",
    (
        (EncodedAnswer((1, 2, 3, 4), (5,)), EncodedAnswer((1, 2, 3, 4), (6, 7, 8))),
        (EncodedAnswer((1, 2, 5), (6, 2)), EncodedAnswer((1, 2, 5), (6, 3, 1))),
        (EncodedAnswer((3, 2, 1, 4, 4), (7, 1)), EncodedAnswer((3, 2, 1, 4, 4), (2,))),
    ),
)
# Tolerance of packed scores in float32, absolute in nats and relative. Rounding is about 1e-7 of the logits.
SAME_NATS, SAME_SHARE = 1e-3, 1e-5
PROBE_TOKENS = 1000  # of one forward of separate sequences

# Results of the probe by decoder.
_PROBED: "WeakKeyDictionary[nn.Module, str | None]" = WeakKeyDictionary()


def choose_backend(model: nn.Module, instances: Sequence[EncodedInstance], wanted: Backend) -> Backend:
    """Return ``wanted``, or ``padded`` with a warning ``W-PADDED``.

    Raises:
        InputError: ``E-MODEL-KIND`` if both backends would be wrong.
    """
    check_head(model)
    if wanted == "padded" or not instances:
        return wanted
    longest = max(instance.longest for instance in instances) if any(_limits(model)) else 0  # encodes all instances
    obstacle = packed_obstacle(model, longest, instances[0])
    if obstacle is None:
        return "packed"
    _say(f"W-PADDED: {type(unwrap(model)).__name__}: {obstacle}; the slower padded back end is used.")
    return "padded"


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


def packed_obstacle(model: nn.Module, longest: int, first: EncodedInstance = PROBE) -> str | None:
    """Return the reason why the packed backend is not exact for a model, or ``None``.

    The configuration has the kinds of layers and the limits of length. Models that are not tested are also probed: a
    few tokens, and the first templates of the ``first`` instance, are scored packed and separately. ``longest`` is the
    number of tokens of the longest sequence.
    """
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if kinds:
        return f"it has layers of kind {sorted(kinds)[0]}"
    for limit, what in _limits(model):
        if longest > limit:
            return f"{what} ends at {limit} tokens, and the longest prompt with its answer is read in {longest}"
    if is_tested(model):
        return None
    decoder = decoder_of(model)
    if decoder not in _PROBED:
        with evaluation_mode(model):
            _PROBED[decoder] = _probe(model, replace(first, answers=first.answers[:2]))
    return _PROBED[decoder]


def _limits(model: nn.Module) -> Iterator[tuple[int, str]]:
    """Yield the lengths above which attention is more than causal attention with fixed positions."""
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if window and slides:
        yield int(window), "its attention window"
    if chunk := getattr(config, "attention_chunk_size", None):
        yield int(chunk), "its attention chunk"
    if limit := rotary_limit(model):
        yield limit, "what its rotary positions keep fixed"


@torch.no_grad()
def _probe(model: nn.Module, first: EncodedInstance) -> str | None:
    # transformers warns if a model cannot switch its attention. W-PADDED reports it.
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.CRITICAL)
    try:
        if unwrap(model).config.get_text_config().vocab_size < 9:
            return "its vocabulary is too small to try it"
        with without_adapter(model), InFloat32():
            for instance in (PROBE, first):
                packed = answer_states(model, [instance]).scores(model)
                separate = answer_states(model, [instance], backend="padded", batch_tokens=PROBE_TOKENS).scores(model)
                if not torch.allclose(packed, separate, atol=SAME_NATS, rtol=SAME_SHARE):
                    return "a packed row does not give it the scores of separate sequences"
    except torch.OutOfMemoryError:  # the padded backend needs as much memory
        raise
    except (NotImplementedError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        return f"it cannot be given a packed row ({' '.join(str(error).split())[:80] or type(error).__name__})"
    finally:
        library.setLevel(level)
    return None
