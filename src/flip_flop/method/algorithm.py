"""An instance as methods read it, its votes, and Algorithm 1 of the F2C paper: which templates lead, which follow."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from flip_flop.method.divergences import at_least_float32
from flip_flop.method.settings import Reduction


@dataclass(frozen=True, eq=False)
class Consensus:
    r"""The templates' votes on each instance of a batch, without gradient.

    ``predictions`` are :math:`\hat y_{i,v}` and ``vote_counts`` :math:`n_{i,c}`. ``label`` has the most votes, *even
    without a strict majority*. Read it together with ``exists``, :math:`n_{i,c^\star} > V/2`.
    """

    predictions: Int[Tensor, "*batch templates"]
    vote_counts: Int[Tensor, "*batch labels"]
    label: Int[Tensor, "*batch"]
    exists: Bool[Tensor, "*batch"]

    def under(self, templates: Sequence[int]) -> "Consensus":
        """Return the consensus of all templates with the predictions of some."""
        return replace(self, predictions=self.predictions[..., list(templates)])


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


@runtime_checkable
class DrawsPermutations(Protocol):
    """A source of random permutations, such as a ``numpy.random.Generator``."""

    def permutation(self, x: int, /) -> Any:
        """A random order of ``range(x)``."""
        ...


@runtime_checkable
class Instance(Protocol):
    """One instance under all its templates.

    ``split`` is the result of Algorithm 1, and ``token_counts`` the number of tokens of each answer. ``vote_scores``
    are the scores of the votes, without gradient: with frozen votes the scores of the base model, calibrated as the
    votes. ``gold`` is the index of the gold label, and always ``None`` for a method without ``uses_labels``. Methods
    compute their results on demand. Scores, nll and distributions carry gradient. Consensus, split and ``vote_scores``
    are on the CPU; all other tensors are on the model's device.
    """

    id: str
    consensus: Consensus
    split: TemplateSplit
    token_counts: Int[Tensor, "templates labels"]
    vote_scores: Float[Tensor, "templates labels"]
    gold: int | None

    def scores(self) -> Float[Tensor, "templates labels"]:
        """Mean log-probability of each answer's tokens, in nats (Eq. 13)."""
        ...

    def nll(self, label: int, reduction: Reduction = "mean") -> Float[Tensor, " templates"]:
        """Negative log-likelihood of a label's answer under each template: its tokens' mean or sum."""
        ...

    def answer_log_probs(self, label: int) -> list[Float[Tensor, "_positions vocab"]]:
        """A label's answer under each template: the distribution over the vocabulary at each of its tokens."""
        ...

    def random(self, purpose: str) -> DrawsPermutations:
        """Return a generator that depends only on the run's seed, the purpose, the epoch and the id."""
        ...


def find_consensus(
    scores: Float[Tensor, "*batch templates labels"], predictions: Int[Tensor, "*batch templates"] | None = None
) -> Consensus:
    r"""Let each template vote for its best label, and find the label of the strict majority.

    .. math::
        \hat y_{i,v} = \arg\max_c \pi_{i,v,c}, \quad
        n_{i,c} = \sum_v \mathbf 1[\hat y_{i,v} = c], \quad
        c_i^\star = \arg\max_c n_{i,c} \;\text{ with }\; n_{i,c_i^\star} > V/2

    Eqs. 3, 4 and 5 of the F2C paper. Equal scores within a template go to the lowest label index. A tie of votes has
    no consensus, nor has an exact half. The argmax is taken of the scores themselves (mean log-probabilities, where
    ``-inf`` is a probability of zero): the softmax keeps their order, but its rounding can tie two. ``predictions`` of
    generated answers replace it, with -1 for an answer that cannot be read.

    Raises:
        ValueError: A score is NaN: it would win every argmax.

    Example:
        >>> votes = find_consensus(torch.tensor([[-0.1, -2.0], [-0.3, -1.0], [-3.0, -0.2]]))
        >>> votes.predictions, votes.vote_counts, votes.label, votes.exists
        (tensor([0, 0, 1]), tensor([2, 1]), tensor(0), tensor(True))
    """
    scores = scores.detach()
    if scores.isnan().any():
        raise ValueError("A score is NaN: no vote can be taken from the model's output.")
    predictions = scores.argmax(dim=-1) if predictions is None else predictions
    vote_counts = (predictions[..., None] == torch.arange(scores.shape[-1], device=predictions.device)).sum(dim=-2)
    label = vote_counts.argmax(dim=-1)
    exists = 2 * vote_counts.amax(dim=-1) > scores.shape[-2]
    return Consensus(predictions, vote_counts, label, exists)


def label_log_probs(scores: Float[Tensor, "*batch labels"]) -> Float[Tensor, "*batch labels"]:
    r"""The distribution over labels that the scores induce, as log-probabilities.

    .. math:: \log \pi_{i,v,c} = \mathrm{LL}_i[v,c] - \log \sum_{c'} \exp \mathrm{LL}_i[v,c']

    Eq. 14 of the F2C paper, in log space; float32, or float64 if the scores are. Gradients flow.

    Example:
        >>> label_log_probs(torch.tensor([-1.0, -1.0])).exp()
        tensor([0.5000, 0.5000])
    """
    return functional.log_softmax(at_least_float32(scores), dim=-1)


def split_templates(
    scores: Float[Tensor, "templates labels"],
    settings: Any,
    consensus: Consensus | None = None,
) -> TemplateSplit:
    r"""Algorithm 1: split one instance's templates into the CC and the NC set, and weigh the flip term.

    .. math::
        m_v = \mathrm{LL}_i[v, c^\star] - \max_{c \ne c^\star} \mathrm{LL}_i[v, c], \quad
        w_{\text{flip}} = f_{\min} + (f_{\max} - f_{\min}) \, \sigma(\Delta / t), \quad
        \Delta = \bar\ell_T - \bar\ell_S

    ``scores`` are :math:`\mathrm{LL}_i`, mean log-probabilities of each answer's tokens in nats. The median of an even
    count is the mean of the middle two. Templates of equal margin enter the CC set in the order of their index; where
    fewer than ``max_cc_size`` templates voted for the consensus, all of them enter. ``consensus`` is by default that of
    these scores; it may be that of more templates, with the predictions of these. Everything is decided on the CPU in
    float64, so the same scores give the same sets on every device; the masks are there, too.

    ``settings`` is an ``F2CConfig``, or any object with these attributes:

    - ``unanimous_margin``: :math:`\tau_{\text{unanimous}}`, in nats; ``inf`` for no Case 2.
    - ``max_cc_size``: :math:`k_{\max}`, at least 2.
    - ``flip_weight_min``: :math:`f_{\min}`, at least 0.
    - ``flip_weight_max``: :math:`f_{\max}`, at least :math:`f_{\min}`.
    - ``flip_temperature``: :math:`t`, above 0, in nats.
    - ``cc_size_bound``: Line 10. ``templates``: :math:`k = \min(k_{\max}, V - 1)`, the paper's; ``group``:
      :math:`k = \min(k_{\max}, |G| - 1)`, the release's row "k, line 10".

    Raises:
        ValueError: A score is not finite, or a setting is out of its range.

    Example:
        >>> scores = torch.tensor([[-0.1, -3.0], [-0.2, -2.0], [-0.6, -0.8], [-1.5, -0.3]])
        >>> from types import SimpleNamespace
        >>> flip = {"flip_weight_min": 0.0, "flip_weight_max": 1.0, "flip_temperature": 1.0}
        >>> settings = SimpleNamespace(unanimous_margin=1.0, max_cc_size=2, cc_size_bound="templates", **flip)
        >>> split = split_templates(scores, settings)
        >>> split.case, split.cc_mask.tolist(), split.nc_mask.tolist(), round(split.flip_weight, 4)
        (3, [True, True, False, False], [False, False, True, True], 0.7109)
    """
    is_ordered = 0 <= settings.flip_weight_min <= settings.flip_weight_max < math.inf
    is_split = settings.max_cc_size >= 2 and not math.isnan(settings.unanimous_margin)
    if not (is_ordered and is_split and 0 < settings.flip_temperature < math.inf):
        raise ValueError("A setting of Algorithm 1 is out of its range.")
    num_templates, num_labels = scores.shape
    scores = scores.detach().to("cpu", torch.float64)
    if not scores.isfinite().all():
        raise ValueError("A score is not finite: its margin, and so the split, is not defined.")

    if consensus is None:
        consensus = find_consensus(scores)
    majority_mask = consensus.predictions == consensus.label
    majority_size = int(majority_mask.sum())
    empty = torch.zeros_like(majority_mask)
    if not consensus.exists:  # line 1
        return TemplateSplit(1, empty, empty, 0.0)  # line 2

    consensus_scores = scores[:, consensus.label]
    other_labels = torch.arange(num_labels) != consensus.label
    rivals = functional.pad(scores[:, other_labels], (1, 0), value=-math.inf)  # with one label, margins are infinite
    margins = consensus_scores - rivals.amax(dim=1)  # lines 3, 4
    is_unanimous = majority_size == num_templates
    if is_unanimous and statistics.median(margins.tolist()) >= settings.unanimous_margin:  # lines 5, 6
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
    low = settings.flip_weight_min
    high = settings.flip_weight_max
    flip_weight = low + (high - low) * steepness  # line 18
    # Rounding must not lift the weight over its bound.
    return TemplateSplit(3, cc_mask, nc_mask, min(flip_weight, high))  # line 19
