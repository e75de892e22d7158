"""Tolerances between two computations of the same number, from the arithmetic and for any processor."""

import numpy as np
import torch
from torch import nn

from flip_flop.scoring.causal_lm import unwrap

# Relative, in float64: thousands of roundings of 2**-53 each.
EXACT = 1e-12
# Relative, of float64 results rounded once to float32.
ROUNDED = 2.0**-23


def in_float64(model):
    """The model, changed in place, in float64 all through: transformers' RMS norms would round to float32."""
    for module in list(model.modules()):
        for name, part in module.named_children():
            kind = type(part).__name__
            if kind.endswith("RMSNorm"):
                norm = nn.RMSNorm(part.weight.shape, eps=getattr(part, "variance_epsilon", None) or part.eps)
                norm.weight.data = part.weight.data + (1 if kind.startswith("Gemma") else 0)
                setattr(module, name, norm)
    return model.double()


def float32_bound(model, passes=1):
    """Relative. A float32 product of n terms is off by at most n units of 2**-24 (Higham 2002, section 3.5).

    A state is behind 6 products a layer and the head's. A gradient takes 3 passes: forward, backward, weights.
    """
    causal_lm = unwrap(model)
    terms = max(value.shape[-1] for value in causal_lm.parameters() if value.dim() == 2)
    return passes * (6 * causal_lm.config.num_hidden_layers + 1) * terms * 2.0**-24


def assert_scores(model, found, expected):
    """Scores of a model in float64 are exact up to the table's rounding, those in float32 within its bound."""
    double = unwrap(model).dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=ROUNDED if double else float32_bound(model), atol=0)
