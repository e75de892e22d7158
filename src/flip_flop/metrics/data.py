"""Scores and gold labels, which metrics read, and what a scorer says about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from flip_flop.errors import InputError
from flip_flop.metrics.agreement import label_probs, majority_vote, predicted, vote_weights
from flip_flop.metrics.f1 import Average, resolve_average


def gold_of(rows: Iterable[Any]) -> Int64[np.ndarray, " instances"]:
    """Return the label indices of rows, -1 for a row without a label."""
    return np.array([-1 if row.label is None else row.label for row in rows], dtype=np.int64)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return the array, which cannot be changed any more."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one model on instances under templates, with their gold labels and the scorer's record.

    ``len(data)`` is the number of instances, and ``data[rows]`` has the arrays that metrics read, of some instances.
    Predictions, votes and the arrays of ``data[rows]`` are read-only, because all metrics share them.

    Attributes:
        scores: Mean log-probability of each answer's tokens, in nats. For a generated answer 0, and ``-inf`` for the
            other labels.
        gold: Label indices, -1 without a gold label.
        average: The F1 by which the task is measured.
        token_counts: The number of tokens of each answer, 0 for generated answers.
        ids: The ids of the instances.
        factors: The ``wording`` and the ``order`` of each template, for flip rates.
        is_scale: Whether the labels are grades in order.
        answered: Of open answers, ``[instances, templates]``: the ``key`` as a number, -1 for an answer that cannot be
            read; ``exact`` and ``token_f1`` against the references; and the ``length`` in characters. The labels of an
            instance are then its different keys, in the order of the templates.
        prompt_tokens: The number of tokens of each prompt, if a local model scored it.
        instances: The instances as the model reads them, for example in a chat template.
        too_long: Prompts that exceed the model's context, :class:`~flip_flop.scoring.too_long.TooLong`. Their
            instances have no scores.
        settings: ``scoring`` in ``run.json``.
        calibration: ``method``, ``label_prior`` and ``offsets``, ``[templates, labels]`` in nats. The offsets are not
            added to ``scores``.
        preferred_tokens: The most probable first tokens of the answer under each template, if known.
        resampled: Values of statistics on the bootstrap's resamples.

    Raises:
        InputError: ``E-SCORER``: a score is NaN or +inf, or the number of gold labels is not the number of instances.

    Example:
        >>> data = Scores(np.log([[[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]]]), np.array([0, -1]))
        >>> data.predictions.tolist(), data.votes.tolist(), len(data.labelled)
        ([[0, 1], [1, 1]], [0, 1], 1)
    """

    scores: Float[np.ndarray, "instances templates labels"]
    gold: Int[np.ndarray, " instances"]
    average: Average = "auto"
    token_counts: Int[np.ndarray, "instances templates labels"] | None = None
    ids: tuple[str, ...] = ()
    factors: Mapping[str, Sequence[str | None]] = field(default_factory=dict, repr=False)
    is_scale: bool = False
    answered: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    prompt_tokens: Int[np.ndarray, "instances templates"] | None = None
    instances: Iterable[Any] = ()
    too_long: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None
    preferred_tokens: tuple[tuple[str, ...], ...] = ()
    resampled: dict[Any, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.gold) != len(self.scores):
            raise InputError(
                "E-SCORER", f"Scores are of {len(self.scores)} instances, gold labels of {len(self.gold)}."
            )
        if self.scores.size and not self.scores.max() < np.inf:
            place = np.argwhere(~np.less(self.scores, np.inf))[0]
            row = (self.ids or range(len(self.gold)))[place[0]]
            raise InputError("E-SCORER", f"A score of instance {row!r} is NaN or +inf, and so not a log-probability.")

    @classmethod
    def of(
        cls,
        rows: Sequence[Any],
        scores: Float[np.ndarray, "instances templates labels"],
        token_counts: Int[np.ndarray, "instances templates labels"],
        **more: Any,
    ) -> "Scores":
        """Return scores with the ids and gold labels of their instances, ``rows``."""
        ids = tuple(row.id for row in rows)
        return cls(scores, gold_of(rows), token_counts=token_counts, ids=ids, **more)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: Any) -> "Scores":
        counts = None if self.token_counts is None else self.token_counts[rows]
        ids = tuple(np.array(self.ids, dtype=object)[rows]) if self.ids else ()
        answered = {name: values[rows] for name, values in self.answered.items()}
        same = (self.average, counts, ids, self.factors, self.is_scale, answered)
        return Scores(read_only(self.scores[rows]), read_only(self.gold[rows]), *same)

    @property
    def num_labels(self) -> int:
        """L."""
        return self.scores.shape[2]

    @property
    def is_binary(self) -> bool:
        """Whether F1 is the F1 of label 1 only."""
        return resolve_average(self.average, self.num_labels) == "binary"

    @property
    def own_label_mass(self) -> Float[np.ndarray, "instances templates"]:
        """Probability of all labels of a template together: sum over labels of p(y_c | x)."""
        assert self.token_counts is not None
        return np.exp(self.scores.astype(np.float64) * np.maximum(self.token_counts, 1)).sum(axis=-1)

    @cached_property
    def predictions(self) -> Int[np.ndarray, "instances templates"]:
        """The label with the highest score. Ties resolve to the lowest index. -1: the answer does not match a label."""
        return read_only(predicted(self.scores))

    @property
    def answer_keys(self) -> Int[np.ndarray, "instances templates"]:
        """Predictions that can be compared between runs: labels, or the keys of open answers."""
        return self.answered.get("key", self.predictions)

    @cached_property
    def answers(self) -> Int[np.ndarray, "instances templates"]:
        """Predictions that can be compared between instances: labels, or open answers by number."""
        if not self.answered:
            return self.predictions
        keys, numbers = np.unique(self.answer_keys, return_inverse=True)
        return numbers.reshape(self.predictions.shape) - (keys[:1] < 0)

    @property
    def num_answers(self) -> int:
        """The number of different ``answers``, or of labels if that is larger."""
        return max(self.num_labels, int(self.answers.max()) + 1)

    @cached_property
    def right(self) -> Bool[np.ndarray, "instances templates"]:
        """Whether each prediction is the gold label, or each open answer one of the references."""
        return self.answered["exact"] if self.answered else self.predictions == self.gold[:, None]

    @cached_property
    def is_generated(self) -> bool:
        """Whether the scores are of generated answers, which have no probabilities."""
        return bool(((self.scores == 0) | (self.scores == -np.inf)).all())

    @cached_property
    def votes(self) -> Int[np.ndarray, " instances"]:
        """:func:`~flip_flop.metrics.majority_vote` of the templates."""
        return read_only(majority_vote(self.scores))

    @cached_property
    def labelled(self) -> "Scores":
        """The instances with a gold label."""
        return self[self.gold >= 0]

    def single(self, template: int) -> "Scores":
        """One template."""
        answered = {name: values[:, [template]] for name, values in self.answered.items()}
        one = self.scores[:, [template]]
        return Scores(one, self.gold, self.average, is_scale=self.is_scale, answered=answered)

    @cached_property
    def voted(self) -> "Scores":
        """The majority vote as the answer of a single template."""
        return self._answered(self.votes)

    @cached_property
    def ensembled(self) -> "Scores":
        """The label with the largest mean probability over templates, as the answer of a single template."""
        return self._answered(vote_weights(label_probs(self.scores)).argmax(axis=1))

    def _answered(self, answers: Int[np.ndarray, " instances"]) -> "Scores":
        certain = np.where(answers[:, None] == np.arange(self.num_labels), 0.0, -np.inf)
        first = (self.predictions == answers[:, None]).argmax(axis=1)[:, None]  # a template with this answer
        answered = {name: np.take_along_axis(values, first, axis=1) for name, values in self.answered.items()}
        return Scores(certain[:, None], self.gold, self.average, is_scale=self.is_scale, answered=answered)
