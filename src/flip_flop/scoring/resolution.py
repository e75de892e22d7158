"""How small a margin between two labels' scores a model's dtype resolves."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32
from torch import nn

from flip_flop.metrics import Resolution
from flip_flop.scoring.causal_lm import HALF, InFloat32, decoder_of, unwrap
from flip_flop.scoring.scorer import ScoreTable, score_instances
from flip_flop.scoring.tokens import EncodedInstance

# The sample: so many of the run's first instances, and the first of them whatever its length.
SAMPLE_INSTANCES, SAMPLE_TOKENS = 24, 16_384
# In units of eps, the dtype's spacing above 1. A logit from 16 to 32 is a multiple of 16 eps; the margin is the
# difference of two, each off by half of that. The layers below are taken to add as much again.
STATED_EPS = 32


def find_resolution(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    table: ScoreTable,
    batch_tokens: int,
    *,
    quiet: bool = True,
) -> Resolution:
    """The least margin that a run's dtype resolves.

    In half precision it is measured: the first instances are scored a second time with all computed in float32, and the
    largest change of the margin between an answer's two best labels is the resolution. The weights stay as they are:
    each is made float32 for the one operation that reads it. Where that cannot be done (no memory for it, a
    kernel of half precision alone), and in float32, it is :func:`stated_resolution`.

    ``table`` has the run's scores of these instances; ``batch_tokens`` are those of one forward.
    """
    if unwrap(model).dtype not in HALF:
        return Resolution(stated_resolution(model), "stated")
    sizes = np.cumsum([len(instance.trie) for instance in instances[:SAMPLE_INSTANCES]])
    sample = instances[: max(1, int((sizes <= SAMPLE_TOKENS).sum()))]
    try:
        with InFloat32():
            exact = score_instances(
                model, sample, backend=table.backend, batch_tokens=batch_tokens, label="float32 sample", quiet=quiet
            ).scores
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError):
        return Resolution(stated_resolution(model), "stated")
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    nats = largest_change(table.scores[: len(sample)], exact)
    return Resolution(max(nats, STATED_EPS * torch.finfo(torch.float32).eps), "measured")


def stated_resolution(model: nn.Module) -> float:
    """32 eps of the model's dtype: 0.25 nats in bfloat16, 0.031 in float16, 4e-6 in float32."""
    dtype, device = unwrap(model).dtype, next(decoder_of(model).parameters()).device
    if dtype == torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        dtype = torch.float16  # TF32 multiplies with as many digits
    return STATED_EPS * torch.finfo(dtype).eps


def largest_change(
    scores: Float32[np.ndarray, "instances templates labels"], exact: Float32[np.ndarray, "instances templates labels"]
) -> float:
    """The largest change of the margin between an answer's two best labels, in nats."""
    two = np.argsort(scores, axis=2)[:, :, -2:]
    kept, other = (np.diff(np.take_along_axis(each.astype(np.float64), two, axis=2)) for each in (scores, exact))
    return float(np.abs(kept - other).max())
