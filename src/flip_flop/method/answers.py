"""From the tokens of an answer to one distribution over the vocabulary."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from flip_flop.method.divergences import mixture_log_probs
from flip_flop.method.instance import Aggregation
from flip_flop.method.precision import at_least_float32


def aggregate_answer_log_probs(
    token_log_probs: Float[Tensor, "positions vocab"], *, reading: Aggregation = "mean_log_prob"
) -> Float[Tensor, " vocab"]:
    r"""One distribution for an answer of several tokens: :math:`\log \mathbf q^\star_{i,v}`.

    .. math::
        \text{mean\_log\_prob:} \quad \log q(y) = \frac{1}{P} \sum_p \log q_p(y) - \log Z, \qquad
        \text{mean\_prob:} \quad q(y) = \frac{1}{P} \sum_p q_p(y)

    The paper says "token-level log-softmax ... aggregated over answer positions" (Method, before Case 1)
    and not how. The default takes its words: log-probabilities are averaged. Their mean is no distribution
    until it is divided by its sum :math:`Z`; without that, a "divergence" of two of them can be negative.
    For an answer of one token the two readings are the same. Positions are those that predict the answer's tokens;
    with ``mean_log_prob`` some token must be possible at every one. Gradients flow.

    Raises:
        ValueError: The answer has no token, or ``reading`` is neither of the two.

    Example:
        >>> import torch
        >>> two_tokens = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> aggregate_answer_log_probs(two_tokens).exp()
        tensor([0.7500, 0.2500])
        >>> aggregate_answer_log_probs(two_tokens, reading="mean_prob").exp()
        tensor([0.7000, 0.3000])
    """
    if token_log_probs.shape[0] == 0:
        raise ValueError("An answer has at least one token; this one has none.")
    if reading == "mean_prob":
        return mixture_log_probs(token_log_probs)
    if reading == "mean_log_prob":
        return functional.log_softmax(at_least_float32(token_log_probs).mean(dim=0), dim=-1)
    raise ValueError(f"reading is {reading!r}; known are 'mean_log_prob' and 'mean_prob'.")
