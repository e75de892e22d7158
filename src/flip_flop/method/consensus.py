"""The consensus label: the prediction of a strict majority of an instance's templates."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from flip_flop.method.divergences import at_least_float32


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

    def __getitem__(self, index: int) -> "Consensus":
        """The votes on one instance of the batch."""
        return Consensus(self.predictions[index], self.vote_counts[index], self.label[index], self.exists[index])


def find_consensus(scores: Float[Tensor, "*batch templates labels"]) -> Consensus:
    r"""Let each template vote for its best label, and find the label of the strict majority.

    .. math::
        \hat y_{i,v} = \arg\max_c \pi_{i,v,c}, \quad
        n_{i,c} = \sum_v \mathbf 1[\hat y_{i,v} = c], \quad
        c_i^\star = \arg\max_c n_{i,c} \;\text{ with }\; n_{i,c_i^\star} > V/2

    Eqs. 3, 4 and 5 of the F2C paper. Ties go to the lowest label index; an exact half is no consensus. The
    argmax is taken of the scores themselves (mean log-probabilities, where ``-inf`` is a probability of zero): the
    softmax keeps their order, but its rounding can tie two.

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
    predictions = scores.argmax(dim=-1)
    vote_counts = functional.one_hot(predictions, scores.shape[-1]).sum(dim=-2)
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
