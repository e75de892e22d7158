"""How far an answer's probability moves when another template asks."""

import numpy as np
from jaxtyping import Float

from flip_flop.metrics.sums import mean_statistic


def instance_posix(
    scores: Float[np.ndarray, "instances templates labels"],
) -> Float[np.ndarray, " instances"] | None:
    r"""POSIX, the prompt sensitivity index, of each instance, over labels.

    .. math:: \psi = \frac{1}{V(V-1)} \sum_{u \ne v}
        \left| \log q_u(\hat y_v) - \log q_v(\hat y_v) \right|

    with :math:`q_v` the softmax of template v's scores over the labels and :math:`\hat y_v` its prediction.
    Definition 3 of Chatterjee et al., "POSIX: A Prompt Sensitivity Index For Large Language Models", 2024, with
    a label as the response: each template words it in its own way, so its probability is that among the labels.
    The paper's division by the response's length is in the scores, which are means over an answer's tokens.

    Returns:
        Nats, 0 or more; NaN where a template gives some prediction no probability at all. None for a single
        template.

    Example:
        >>> instance_posix(np.log([[[0.8, 0.2], [0.4, 0.6]]])).round(4).tolist()  # (log 2 + log 3) / 2
        [0.8959]
    """
    num_templates = scores.shape[1]
    if num_templates < 2:
        return None
    scores = scores.astype(np.float64)
    predictions = scores.argmax(axis=2)[:, None, :]
    with np.errstate(invalid="ignore"):  # a template that rules out every label
        log_probs = scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)
        asked = np.take_along_axis(log_probs, predictions, axis=2)  # [instances, asking u, answering v]
        moved = np.abs(asked - np.diagonal(asked, axis1=1, axis2=2)[:, None, :])
    total = moved.sum(axis=(1, 2)) / (num_templates * (num_templates - 1))
    return np.where(np.isfinite(total), total, np.nan)


POSIX = mean_statistic(lambda data: instance_posix(data.scores))  # of EvalData
