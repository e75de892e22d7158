"""F2C with as many confident templates as the margins of an instance suggest, instead of at most ``max_cc_size``."""

from copy import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.method import Method
from flip_flop.method.algorithm import Instance, split_templates
from flip_flop.method.losses import f2c_terms


def adaptive_size(scores: Float[Tensor, "templates labels"], label: int) -> int:
    """Return how many templates are above the largest gap between the margins of a label, at least two.

    Example:
        >>> adaptive_size(torch.tensor([[5.0, 0.0], [4.8, 0.0], [4.5, 0.0], [1.0, 0.0], [0.0, 0.2]]), 0)
        3
    """
    is_label = torch.arange(scores.shape[1]) == label
    margins = scores[:, label] - scores.masked_fill(is_label, float("-inf")).amax(dim=1)
    ordered = margins.sort(descending=True).values
    gaps = ordered[1:-1] - ordered[2:]  # below the second template, the third, ...
    if not len(gaps):
        return 2
    return 2 + int(gaps.argmax())


def adaptive_terms(instance: Instance, config: Any) -> dict[str, Tensor]:
    """The terms of F2C after Algorithm 1 with this number of templates. The log counts cases without it."""
    settings = copy(config)
    settings.max_cc_size = adaptive_size(instance.vote_scores, int(instance.consensus.label))
    other = copy(instance)
    other.split = split_templates(instance.vote_scores, settings, instance.consensus)
    return f2c_terms(other, config)


F2C_ADAPTIVE = Method("f2c_adaptive", "F2C, adaptive", "#56b4e9", adaptive_terms)
