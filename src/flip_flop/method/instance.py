"""The interface of one training instance for a method."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from flip_flop.method.consensus import Consensus
from flip_flop.method.controls import TemplateSplit
from flip_flop.method.settings import Reduction


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
