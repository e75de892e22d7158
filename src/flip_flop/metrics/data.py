"""What the metrics are computed from: scores or generated answers, and gold labels."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flip_flop.metrics.agreement import label_probs, majority_vote, predicted
from flip_flop.metrics.f1 import Average, resolve_average


@dataclass(frozen=True, eq=False)
class EvalData:
    """One model's scores on instances under templates, and their gold labels.

    ``len(data)`` and ``data[rows]`` count and take instances, as for an array: so the bootstrap resamples it.

    ``scores`` are the mean log-probabilities of each answer's tokens, in nats; ``gold`` is -1 where there is none;
    ``average`` is which F1 the task is measured by; ``resolution`` is the least margin that the scores' arithmetic
    resolves, in nats, where that is known; ``resampled`` keeps statistics' values on the bootstrap's resamples.

    Raises:
        ValueError: A score is NaN or +inf, or there are more or fewer gold labels than instances.

    Example:
        >>> data = EvalData(np.log([[[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]]]), np.array([0, -1]))
        >>> data.predictions.tolist(), data.votes.tolist(), len(data.labelled)
        ([[0, 1], [1, 1]], [0, 1], 1)
    """

    scores: Float[np.ndarray, "instances templates labels"]
    gold: Int[np.ndarray, " instances"]
    average: Average = "auto"
    resolution: float | None = None
    resampled: dict[Any, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.gold) != len(self.scores):
            raise ValueError(f"Scores are of {len(self.scores)} instances, gold labels of {len(self.gold)}.")
        if self.scores.size and not self.scores.max() < np.inf:
            raise ValueError("A score is NaN or +inf; scores are log-probabilities.")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: Any) -> "EvalData":
        return replace(self, scores=self.scores[rows], gold=self.gold[rows])

    @property
    def num_labels(self) -> int:
        """L."""
        return self.scores.shape[2]

    @property
    def is_binary(self) -> bool:
        """Whether F1 is of label 1 alone."""
        return resolve_average(self.average, self.num_labels) == "binary"

    @cached_property
    def predictions(self) -> Int[np.ndarray, "instances templates"]:
        """The label with the highest score; ties go to the lowest index; -1 where an answer is none of the labels."""
        return predicted(self.scores)

    @cached_property
    def is_generated(self) -> bool:
        """Whether the scores are answers (0, the others ``-inf``), and there are no probabilities."""
        return bool(((self.scores == 0) | (self.scores == -np.inf)).all())

    @cached_property
    def votes(self) -> Int[np.ndarray, " instances"]:
        """:func:`~flip_flop.metrics.majority_vote` of the templates."""
        return majority_vote(self.scores)

    @cached_property
    def labelled(self) -> "EvalData":
        """The instances that have a gold label."""
        return self[self.gold >= 0]

    @cached_property
    def voted(self) -> "EvalData":
        """The majority vote as if it were one template's answers."""
        return self._answered(self.votes)

    @cached_property
    def ensembled(self) -> "EvalData":
        """The label with the largest mean probability over templates, as if it were one template's answer."""
        return self._answered(label_probs(self.scores).mean(axis=1).argmax(axis=1))

    def _answered(self, answers: Int[np.ndarray, " instances"]) -> "EvalData":
        certain = np.where(answers[:, None] == np.arange(self.num_labels), 0.0, -np.inf)
        return replace(self, scores=certain[:, None])
