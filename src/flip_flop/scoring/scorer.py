"""The base class of all sources of scores, and of custom ones."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flip_flop.errors import InputError
from flip_flop.metrics import Scores, gold_of
from flip_flop.prompts import RenderedInstance
from flip_flop.record import AdapterRecord, Facts, ModelRecord
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.too_long import TooLong, ids_of

# The largest log-probability of an answer, because half precision may round up.
MAX_SCORE = 0.05


@dataclass(frozen=True, eq=False)
class Scored:
    """The result of a scorer: scores, and how they were computed.

    Attributes:
        scores: The scores of the instances that fit the model's context.
        instances: These instances as the model reads them, for example in a chat template.
        too_long: Prompts that exceed the model's context. Their instances have no scores.
        settings: ``scoring`` in ``run.json``.
        prompt_tokens: The number of tokens of each prompt, if a local model scored it.
        preferred_tokens: The most probable first tokens of the answer under each template, if known.
        calibration: ``method``, ``label_prior`` and ``offsets``, ``[templates, labels]`` in nats. The offsets are not
            added to the scores.
        passes: The number of passes of each instance, if an average stops early.
    """

    scores: Scores
    instances: Sequence[RenderedInstance] = ()
    too_long: tuple[TooLong, ...] = ()
    settings: Facts = field(default_factory=dict)
    prompt_tokens: Int[np.ndarray, "instances templates"] | None = None
    preferred_tokens: tuple[tuple[str, ...], ...] = ()
    calibration: Facts | None = None
    passes: Int[np.ndarray, " instances"] | None = None


class Scorer(abc.ABC):
    """A model as a source of scores. A subclass defines ``record`` and ``scores``. The rest has defaults.

    Attributes:
        store: The file of the stored answers of a served model.
        record: The model in ``run.json``.
        adapter: The adapter in ``run.json``.
        allowed_changes: ``("weights",)`` if the adapter was trained on other weights.
        is_instruct: Whether the model has a chat template, as far as known. Without it, a warning follows.
    """

    record: ModelRecord
    adapter: AdapterRecord | None = None
    allowed_changes: tuple[str, ...] = ()
    is_instruct = False
    store: Path | None = None

    @abc.abstractmethod
    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scored:
        """Score every label of every instance under every template.

        All instances have the same numbers of templates and labels. Instances that are too long are refused, or left
        out of the scores and listed in their ``too_long``, as the options say. ``names`` are template names, for
        errors. ``label`` names the progress bar.

        Returns:
            ``Scored(Scores.of(instances, scores, token_counts))``, both arrays ``[instances, templates, labels]``.
            The ids and gold labels are those of the instances, in their order. A score is a log-probability in nats,
            at most 0; ``-inf`` is allowed. ``token_counts`` are 0 where they are unknown. Open answers have labels of
            their own,
            see ``answered``.

        Raises:
            InputError: The instances cannot be scored. No part of them is returned.
        """

    def checked_scores(self, instances: Sequence[RenderedInstance], *options: ScoringOptions, **how: Any) -> Scored:
        """Return the :meth:`scores` of the same arguments, or refuse those that break its contract (``E-SCORER``)."""
        scored = self.scores(instances, *options, **how)
        if fault := _fault(scored, instances):
            raise InputError("E-SCORER", f"{type(self).__name__}.scores returned {fault}.")
        return scored

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance as the model reads it, for example in a chat template."""
        return instance


def _fault(scored: object, instances: Sequence[RenderedInstance]) -> str:
    """Return how the result of a scorer breaks the contract of :meth:`Scorer.scores`, or an empty text."""
    if not isinstance(scored, Scored):
        return f"an object of type {type(scored).__name__}, not Scored"
    scores = scored.scores
    skipped = ids_of(scored.too_long)
    rows = [instance for instance in instances if instance.id not in skipped]
    if not rows or [*scores.ids] != [row.id for row in rows]:
        return f"{len(scores.ids)} ids, which differ from the ids of the {len(rows)} instances or their order"
    arrays: list[Any] = [scores.values, scores.token_counts, scores.gold]
    kinds = [array.dtype.kind if isinstance(array, np.ndarray) else "" for array in arrays]
    if kinds[0] != "f" or not {*kinds[1:]} <= {*"iu"}:
        return "scores, token_counts and gold labels that are not numpy arrays of floats and of whole numbers"
    shape, *shapes = (len(rows), len(rows[0].prompts), len(rows[0].choices[0])), *map(np.shape, arrays[:2])
    if shapes != [shape] * 2:
        return f"scores and token_counts of shapes {shapes[0]} and {shapes[1]}, not {shape}"
    if not scores.answered and not np.array_equal(scores.gold, gold_of(rows)):
        return "gold labels that differ from the labels of the instances"
    highest = scores.values.max()
    if highest <= MAX_SCORE:
        return ""
    return f"the score {highest:g}, which is not a log-probability"
