"""Scores and gold labels, which metrics read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from flip_flop.arrays import CellFlags, CellValues, FlipCounts, InstanceLabels, LabelScores, PerTemplate, Predictions
from flip_flop.errors import InputError
from flip_flop.metrics.agreement import group_flips, label_probs, majority_vote, predicted, vote_weights
from flip_flop.metrics.f1 import Average, f1_per_template, resolve_average

AXES = ("wording", "order", "format", "examples", "example_order", "typos")  # of templates, with a flip rate each
TAGS = ("language", "source")  # of a wording


def gold_of(rows: Iterable[Any]) -> InstanceLabels:
    """Return the label indices of rows, -1 for a row without a label."""
    return np.array([-1 if row.label is None else row.label for row in rows], dtype=np.int64)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return the array, which cannot be changed any more."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True)
class Design:
    """The design of the scores of a task.

    Attributes:
        average: The F1 by which the task is measured.
        levels: The level of each template on each of :data:`AXES`, for flip rates, and its :data:`TAGS`; empty if no
            template has one.
        is_scale: Whether the labels are grades in order.
    """

    average: Average = "auto"
    levels: Sequence[Mapping[str, str]] = ()
    is_scale: bool = False

    def groups(self, axis: str) -> list[dict[str, list[int]]]:
        """Return groups of templates that differ only along an axis, by their level on it.

        All other levels of a group are the same, or none. Tags may differ, and along a tag the wording, too.

        Example:
            >>> levels = [{"wording": name, "order": order} for name in ("plain", "short") for order in ("1 2", "2 1")]
            >>> Design(levels=levels).groups("order")
            [{'1 2': [0], '2 1': [1]}, {'1 2': [2], '2 1': [3]}]
        """
        fixed = [name for name in AXES if name != axis and (name != "wording" or axis not in TAGS)]
        groups: dict[tuple[Any, ...], dict[str, list[int]]] = {}
        for template, own in enumerate(self.levels):
            if axis in own:
                group = groups.setdefault(tuple(map(own.get, fixed)), {})
                group.setdefault(own[axis], []).append(template)
        return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one model on instances under templates, with their gold labels.

    ``len(data)`` is the number of instances, and ``data[rows]`` are some of them. Predictions, votes and the arrays of
    ``data[rows]`` are read-only, because all metrics share them.

    Attributes:
        values: Mean log-probability of each answer's tokens, in nats. For a generated answer 0, and ``-inf`` for the
            other labels.
        gold: Label indices, -1 without a gold label.
        token_counts: The number of tokens of each answer, 0 for generated answers.
        ids: The ids of the instances.
        design: The F1 of the task, and the levels of its templates.
        answered: Of open answers, ``[instances, templates]``: the ``key`` as a number, -1 for an answer that cannot be
            read; ``exact`` and ``token_f1`` against the references; and the ``length`` in characters. The labels of an
            instance are then its different keys, in the order of the templates.
        resampled: Values of statistics on the bootstrap's resamples.

    Raises:
        InputError: ``E-SCORER``: a score is NaN or +inf, or the number of gold labels is not the number of instances.

    Example:
        >>> data = Scores(np.log([[[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]]]), np.array([0, -1]))
        >>> data.predictions.tolist(), data.votes.tolist(), len(data.labelled)
        ([[0, 1], [1, 1]], [0, 1], 1)
    """

    values: LabelScores
    gold: InstanceLabels
    token_counts: Int[np.ndarray, "instances templates labels"] | None = None
    ids: tuple[str, ...] = ()
    design: Design = Design()
    answered: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    resampled: dict[Any, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.gold) != len(self.values):
            raise InputError(
                "E-SCORER", f"Scores are of {len(self.values)} instances, gold labels of {len(self.gold)}."
            )
        if self.values.size and not self.values.max() < np.inf:
            place = np.argwhere(~np.less(self.values, np.inf))[0]
            row = (self.ids or range(len(self.gold)))[place[0]]
            raise InputError("E-SCORER", f"A score of instance {row!r} is NaN or +inf, and so not a log-probability.")

    @classmethod
    def of(
        cls,
        rows: Sequence[Any],
        scores: LabelScores,
        token_counts: Int[np.ndarray, "instances templates labels"],
        answered: Mapping[str, np.ndarray] | None = None,
    ) -> "Scores":
        """Return scores with the ids and gold labels of their instances, ``rows``."""
        ids = tuple(row.id for row in rows)
        return cls(scores, gold_of(rows), token_counts, ids, answered=answered or {})

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Scores":
        counts = None if self.token_counts is None else self.token_counts[rows]
        ids = tuple(np.array(self.ids, dtype=object)[rows]) if self.ids else ()
        answered = {name: values[rows] for name, values in self.answered.items()}
        return Scores(read_only(self.values[rows]), read_only(self.gold[rows]), counts, ids, self.design, answered)

    @property
    def num_labels(self) -> int:
        """L."""
        return self.values.shape[2]

    @property
    def is_binary(self) -> bool:
        """Whether F1 is the F1 of label 1 only."""
        return resolve_average(self.design.average, self.num_labels) == "binary"

    @property
    def own_label_mass(self) -> CellValues:
        """Probability of all labels of a template together: sum over labels of p(y_c | x)."""
        assert self.token_counts is not None
        return np.exp(self.values.astype(np.float64) * np.maximum(self.token_counts, 1)).sum(axis=-1)

    @cached_property
    def predictions(self) -> Predictions:
        """The label with the highest score. Ties resolve to the lowest index. -1: the answer does not match a label."""
        return read_only(predicted(self.values))

    @property
    def answer_keys(self) -> Predictions:
        """Predictions that can be compared between runs: labels, or the keys of open answers."""
        return self.answered.get("key", self.predictions)

    @cached_property
    def answers(self) -> Predictions:
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
    def right(self) -> CellFlags:
        """Whether each prediction is the gold label, or each open answer one of the references."""
        if self.answered:
            return self.answered["exact"]
        return self.predictions == self.gold[:, None]

    @cached_property
    def f1(self) -> PerTemplate | None:
        """:func:`~flip_flop.metrics.f1_per_template` of these scores."""
        return f1_per_template(self.predictions, self.gold, num_labels=self.num_labels, average=self.design.average)

    @cached_property
    def is_generated(self) -> bool:
        """Whether the scores are of generated answers, which have no probabilities."""
        return bool(((self.values == 0) | (self.values == -np.inf)).all())

    @cached_property
    def votes(self) -> InstanceLabels:
        """:func:`~flip_flop.metrics.majority_vote` of the templates."""
        return read_only(majority_vote(self.values))

    @cached_property
    def labelled(self) -> "Scores":
        """The instances with a gold label."""
        return self[self.gold >= 0]

    def single(self, template: int) -> "Scores":
        """One template."""
        return self.select([template])

    def select(self, templates: Sequence[int]) -> "Scores":
        """Some templates."""
        answered = {name: values[:, templates] for name, values in self.answered.items()}
        levels = [self.design.levels[template] for template in templates if self.design.levels]
        return self._of_templates(self.values[:, templates], answered, levels)

    @cached_property
    def voted(self) -> "Scores":
        """The majority vote as the answer of a single template."""
        return self._answered(self.votes)

    @cached_property
    def ensembled(self) -> "Scores":
        """The label with the largest mean probability over templates, as the answer of a single template."""
        return self._answered(vote_weights(label_probs(self.values)).argmax(axis=1))

    def _answered(self, answers: InstanceLabels) -> "Scores":
        certain = np.where(answers[:, None] == np.arange(self.num_labels), 0.0, -np.inf)
        first = (self.predictions == answers[:, None]).argmax(axis=1)[:, None]  # a template with this answer
        answered = {name: np.take_along_axis(values, first, axis=1) for name, values in self.answered.items()}
        return self._of_templates(certain[:, None], answered)

    def _of_templates(
        self, scores: LabelScores, answered: Mapping[str, np.ndarray], levels: Sequence[Mapping[str, str]] = ()
    ) -> "Scores":
        design = replace(self.design, levels=levels)
        return Scores(scores, self.gold, ids=self.ids, design=design, answered=answered)

    def flips_along(self, axis: str) -> FlipCounts:
        """The counts of :func:`~flip_flop.metrics.agreement.group_flips` of these templates."""
        return group_flips(self.predictions, self.design.groups(axis))

    def by_f1(self, average: Average) -> "Scores":
        """The same scores, measured by another F1."""
        return replace(self, design=replace(self.design, average=average))
