"""Algorithm 1 of the F2C paper: which templates lead, which follow, and how strongly."""

import math
import statistics
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flip_flop.method.consensus import find_consensus
from flip_flop.method.settings import SplitSettings


@dataclass(frozen=True, eq=False)
class TemplateSplit:
    r"""The result of Algorithm 1 for one instance, without gradient.

    Case 1 has no majority, Case 2 is unanimous and confident, Case 3 has a split consensus. With too few templates
    for a split (lines 9 and 12), Case 3 has empty sets, so only the cross-entropy remains. ``cc_mask``
    are the consensus-confident templates :math:`T_i`, ``nc_mask`` the non-confident or non-consensus ones
    :math:`S_i`; ``flip_weight`` is :math:`w_{\text{flip}}`, 0 where ``nc_mask`` is empty.
    """

    case: int
    cc_mask: Bool[Tensor, " templates"]
    nc_mask: Bool[Tensor, " templates"]
    flip_weight: float


def split_templates(scores: Float[Tensor, "templates labels"], settings: SplitSettings) -> TemplateSplit:
    r"""Algorithm 1: split one instance's templates into the CC and the NC set, and weigh the flip term.

    .. math::
        m_v = \mathrm{LL}_i[v, c^\star] - \max_{c \ne c^\star} \mathrm{LL}_i[v, c], \quad
        w_{\text{flip}} = f_{\min} + (f_{\max} - f_{\min}) \, \sigma(\Delta / t), \quad
        \Delta = \bar\ell_T - \bar\ell_S

    ``scores`` are :math:`\mathrm{LL}_i`, mean log-probabilities of each answer's tokens in nats. The median of an even
    count is the mean of the middle two. Templates of equal margin enter the CC set in the order of their index; where
    fewer than ``max_cc_size`` templates voted for the consensus, all of them enter. Everything is decided on the CPU
    in float64, so the same scores give the same sets on every device; the masks are there, too.

    Raises:
        ValueError: A score is not finite, or there is only one label.

    Example:
        >>> scores = torch.tensor([[-0.1, -3.0], [-0.2, -2.0], [-0.6, -0.8], [-1.5, -0.3]])
        >>> settings = SplitSettings(
        ...     unanimous_margin=1.0, max_cc_size=2, flip_weight_min=0.0, flip_weight_max=1.0, flip_temperature=1.0
        ... )
        >>> split = split_templates(scores, settings)
        >>> split.case, split.cc_mask.tolist(), split.nc_mask.tolist(), round(split.flip_weight, 4)
        (3, [True, True, False, False], [False, False, True, True], 0.7109)
    """
    num_templates, num_labels = scores.shape
    if num_labels < 2:
        raise ValueError("A margin needs at least two labels.")
    scores = scores.detach().to("cpu", torch.float64)
    if not scores.isfinite().all():
        raise ValueError("A score is not finite: its margin, and so the split, is not defined.")

    consensus = find_consensus(scores)
    majority_mask = consensus.predictions == consensus.label
    majority_size = int(majority_mask.sum())
    empty = torch.zeros_like(majority_mask)
    if not consensus.exists:  # line 1
        return TemplateSplit(1, empty, empty, 0.0)  # line 2

    consensus_scores = scores[:, consensus.label]
    other_labels = torch.arange(num_labels) != consensus.label
    margins = consensus_scores - scores[:, other_labels].amax(dim=1)  # lines 3, 4
    median_margin = statistics.median(margins[majority_mask].tolist())  # line 5
    if majority_size == num_templates and median_margin >= settings.unanimous_margin:  # line 6
        return TemplateSplit(2, majority_mask, empty, 0.0)  # line 7
    if majority_size < 2:  # line 8
        return TemplateSplit(3, empty, empty, 0.0)  # line 9
    bound = num_templates if settings.cc_size_bound == "templates" else majority_size
    cc_size = min(settings.max_cc_size, bound - 1)  # line 10
    if cc_size < 2:  # line 11
        return TemplateSplit(3, empty, empty, 0.0)  # line 12

    ranking = margins.masked_fill(~majority_mask, -math.inf).argsort(descending=True, stable=True)
    cc_mask = empty.scatter(0, ranking[: min(cc_size, majority_size)], True)  # line 13
    nc_mask = ~cc_mask  # line 14
    cc_level = consensus_scores[cc_mask].mean()  # line 15
    nc_level = consensus_scores[nc_mask].mean()  # line 16
    consensus_gap = cc_level - nc_level  # line 17
    steepness = float(torch.sigmoid(consensus_gap / settings.flip_temperature))
    low, high = settings.flip_weight_min, settings.flip_weight_max
    flip_weight = low + (high - low) * steepness  # line 18
    # Rounding must not lift the weight over its bound.
    return TemplateSplit(3, cc_mask, nc_mask, min(flip_weight, high))  # line 19
