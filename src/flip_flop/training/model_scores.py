"""Scores of the model in training with and without its adapter, and the votes of the base model."""

from collections.abc import Sequence
from functools import cached_property

from peft import PeftModel

from flip_flop.metrics import Scores, find_offsets
from flip_flop.scoring import distributed
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.options import Backend
from flip_flop.scoring.scores import Visit, score_in_parts, score_instances
from flip_flop.training.adapter import weights_digest
from flip_flop.training.config import F2CConfig
from flip_flop.training.votes import VoteTable


class ModelScores:
    """Scores instances with a model in training. All processes take part.

    Args:
        adapted: The model.
        args: The settings of the training.
        backend: The back end of all scores.
        voters: The training instances of which the base model votes.
        validation: The validation split, which the same weights score once.
        content_free: Inputs without content, for contextual calibration.
        starts_as_base: Whether the adapter still has no effect, so that the scores are those of the base model.
    """

    def __init__(
        self,
        adapted: PeftModel,
        args: F2CConfig,
        backend: Backend,
        voters: Sequence[EncodedInstance],
        validation: Sequence[EncodedInstance],
        content_free: Sequence[EncodedInstance],
        *,
        starts_as_base: bool,
    ):
        self.adapted, self.args, self.backend = adapted, args, backend
        self.voters, self.validation, self.content_free = voters, validation, content_free
        self._of_validation: dict[str, Scores] = {}  # by the digest of the adapter's weights
        self._base = weights_digest(adapted) if starts_as_base else "base"

    def score(self, instances: Sequence[EncodedInstance], label: str, visit: Visit | None = None) -> Scores:
        """Score instances. ``label`` names the progress bar; ``visit`` as in :func:`score_instances`."""
        return score_in_parts(
            instances,
            lambda part: score_instances(
                self.adapted,
                part,
                backend=self.backend,
                batch_tokens=self.args.batch_tokens,
                label=label,
                quiet=bool(self.args.disable_tqdm),
                visit=visit,
            ),
        )

    def score_base(self, instances: Sequence[EncodedInstance], label: str) -> Scores:
        """Score instances with the model without its adapter."""
        with self.adapted.disable_adapter():
            return self.score(instances, label)

    def score_validation(self, visit: Visit | None = None) -> Scores:
        """Return the scores of the validation split. Only a ``visit`` needs another pass with the same weights."""
        weights = distributed.all_gather(weights_digest(self.adapted))[0]
        if visit is not None or weights not in self._of_validation:
            self._of_validation[weights] = self.score(self.validation, "validation", visit)
        return self._of_validation[weights]

    @cached_property
    def first_votes(self) -> VoteTable:
        """The base model's votes on the training instances, calibrated."""
        base, method = self.score_base(self.voters, "base votes"), self.args.vote_calibration
        votes = VoteTable(base.ids, base.scores)
        if method == "none":
            return votes
        offsets = find_offsets(
            method,
            base.scores,
            self.args.label_prior,
            content_free=lambda: self.score_base(self.content_free, "calibration").scores,
        )
        return votes.with_offsets(offsets)

    @cached_property
    def validation_votes(self) -> VoteTable:
        """The base model's votes on the validation split, calibrated like the training votes."""
        if self._base not in self._of_validation:
            self._of_validation[self._base] = self.score_base(self.validation, "base votes")
        base = self._of_validation[self._base]
        votes = VoteTable(base.ids, base.scores)
        return votes if self.args.vote_calibration == "none" else votes.with_offsets(self.first_votes.offsets)
