"""The types that methods read: an instance under all its templates, its votes, and its CC and NC sets."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

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
