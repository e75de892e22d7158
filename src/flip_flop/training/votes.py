"""Scores of the model in training, with and without its adapter, and pseudo-labels: the votes of the base model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor

from flip_flop.arrays import LabelScores, Offsets, PerLabel
from flip_flop.errors import InputError, first_repeated, log
from flip_flop.files import Json, generator, read_arrays, sha256_json, write_arrays
from flip_flop.method import find_method
from flip_flop.method.algorithm import find_consensus, split_templates
from flip_flop.metrics import (
    METRICS,
    Design,
    OptionPlaces,
    Scores,
    answers_by_position,
    batch_offsets,
    calibrated,
    find_offsets,
    label_shares,
    majority_vote,
    share_drift,
    vote_changes,
)
from flip_flop.prompts import RenderedInstance, templates_differ_in_answer_words
from flip_flop.scoring import distributed
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.options import Backend
from flip_flop.scoring.scores import Visit, score_in_parts, score_instances
from flip_flop.training.adapter import weights_digest
from flip_flop.training.config import F2CConfig

VOTES = "votes.npz"
# Instances of a sample: enough to estimate shares to within a few points.
SAMPLE_SIZE = 200


@dataclass(frozen=True, eq=False)
class VoteTable:
    """Scores that vote, by instance id. The scores include the ``offsets`` of a calibration, maybe by instance."""

    ids: tuple[str, ...]
    scores: LabelScores
    offsets: Float[np.ndarray, "*instances templates labels"] | None = None

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {identifier: row for row, identifier in enumerate(self.ids)}

    def scores_for(self, instances: Sequence[EncodedInstance]) -> Float[Tensor, "instances templates labels"]:
        """Return the scores of these instances."""
        return torch.from_numpy(self.scores[[self._rows[instance.id] for instance in instances]])

    @cached_property
    def shares(self) -> PerLabel:
        """Label frequencies of the majority votes."""
        return label_shares(majority_vote(self.scores)[:, None], self.scores.shape[-1])

    @cached_property
    def uncalibrated(self) -> "VoteTable":
        """The scores without calibration."""
        if self.offsets is None:
            return self
        return VoteTable(self.ids, self.scores - self.offsets)

    @property
    def is_open(self) -> bool:
        """Whether the labels are open answers, which no offset calibrates. Each instance lacks some of them."""
        return bool(np.isinf(self.scores).any())

    @cached_property
    def batch_calibrated(self) -> "VoteTable":
        """These scores if they are calibrated or of open answers, otherwise with batch calibration."""
        is_final = self.offsets is not None or self.is_open
        if is_final:
            return self
        return self.with_offsets(batch_offsets(self.scores))

    def with_offsets(self, offsets: Offsets | None) -> "VoteTable":
        """Calibrate raw scores with these offsets, if any."""
        if offsets is None:
            return self
        return VoteTable(self.ids, calibrated(self.scores, offsets), offsets)

    def drift(self, shares: PerLabel) -> float:
        """Compute the total variation distance of label frequencies from those of these votes.

        For calibrated votes it is the distance from the nearest point on the segment between the raw and the
        calibrated frequencies, because training moves the model along it.
        """
        start = self.uncalibrated.shares
        end = self.shares
        return min(share_drift(shares, start + part * (end - start)) for part in np.linspace(0.0, 1.0, 101))

    def drawn(self, count: int | None, seed: int) -> "VoteTable":
        """Return the scores of the templates that :func:`draw_templates` draws in the first epoch."""
        num_templates = self.scores.shape[1]
        templates = np.array([draw_templates(name, num_templates, count, seed, epoch=0) for name in self.ids])
        offsets = None if self.offsets is None else self.offsets[templates]
        return VoteTable(self.ids, np.take_along_axis(self.scores, templates[:, :, None], axis=1), offsets)

    @property
    def digest(self) -> str:
        """SHA-256 of ids and scores."""
        return sha256_json([self.ids, self.scores.tolist()])

    def write(self, path: Path, prompts: str) -> None:
        """Write ``ids``, ``scores``, ``offsets`` and the digest of the ``prompts`` and their answers as arrays."""
        more = {} if self.offsets is None else {"offsets": self.offsets}
        write_arrays(path, ids=np.array(self.ids), scores=self.scores, prompts=np.array(prompts), **more)

    @classmethod
    def read(cls, path: Path, ids: Sequence[str], prompts: str) -> "VoteTable | None":
        """Read a table of these instances; ``None`` if the file is damaged, or has other instances or answers."""
        try:
            arrays = read_arrays(path)
            table = cls(tuple(map(str, arrays["ids"].tolist())), arrays["scores"], arrays.get("offsets"))
            is_same = table.ids == tuple(ids) and str(arrays["prompts"]) == prompts
        except (OSError, ValueError, KeyError):
            return None
        return table if is_same else None


@dataclass(eq=False)
class ModelScores:
    """Scores instances with a model in training. All processes take part.

    Attributes:
        adapted: The model.
        args: The settings of the training.
        backend: The back end of all scores.
        voters: The training instances of which the base model votes.
        validation: The validation split, which the same weights score once.
        content_free: Inputs without content, for contextual calibration.
        places: The positions of the options, for calibration by position.
        base_weights: The digest of the adapter's weights as long as it has no effect, or another text.
        of_validation: The scores of the validation split by the digest of the adapter's weights.
    """

    adapted: PeftModel
    args: F2CConfig
    backend: Backend
    voters: Sequence[EncodedInstance]
    validation: Sequence[EncodedInstance]
    content_free: Sequence[EncodedInstance]
    places: OptionPlaces | None
    base_weights: str
    of_validation: dict[str, Scores] = field(default_factory=dict)

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
        if visit is not None or weights not in self.of_validation:
            self.of_validation[weights] = self.score(self.validation, "validation", visit)
        return self.of_validation[weights]

    @cached_property
    def first_votes(self) -> VoteTable:
        """The base model's votes on the training instances, calibrated."""
        base = self.score_base(self.voters, "base votes")
        method = self.args.vote_calibration
        votes = VoteTable(base.ids, base.values)
        if method == "none":
            return votes
        offsets = find_offsets(
            method,
            base.values,
            self.args.label_prior,
            content_free=lambda: self.score_base(self.content_free, "calibration").values,
            places=self.places,
        )
        return votes.with_offsets(offsets)

    @cached_property
    def validation_votes(self) -> VoteTable:
        """The base model's votes on the validation split, calibrated like the training votes."""
        if self.base_weights not in self.of_validation:
            self.of_validation[self.base_weights] = self.score_base(self.validation, "base votes")
        base = self.of_validation[self.base_weights]
        votes = VoteTable(base.ids, base.values)
        is_raw = self.args.vote_calibration == "none" or not self.voters
        if is_raw:
            return votes
        return votes.with_offsets(self.first_votes.offsets)


def votes_of(
    row: EncodedInstance, scores: Float[Tensor, "templates labels"]
) -> tuple[Float[Tensor, "templates present"], Int[Tensor, " templates"] | None, int | None]:
    """Return an instance's scores, generated predictions and gold label among the labels that it has.

    Without open answers it has all labels, and its scores predict. A gold label that it lacks is -1.
    """
    if not row.votes:
        return scores, None, row.label
    has_label = scores.isfinite().any(dim=0)
    places = [*torch.where(has_label, has_label.cumsum(0) - 1, -1).tolist(), -1]  # the last for a vote of -1
    label = None if row.label is None else places[row.label]
    return scores[:, has_label], torch.tensor([places[vote] for vote in row.votes]), label


def draw_templates(identifier: str, num_templates: int, count: int | None, seed: int, epoch: int) -> list[int]:
    """Draw templates of an instance for (seed, epoch, id), in their order; all of them without a ``count``."""
    drawn = generator(seed, "variants", epoch, identifier).permutation(num_templates)[:count]
    return sorted(drawn.tolist())


def draw_sample(instances: Sequence[EncodedInstance], seed: int) -> list[EncodedInstance]:
    """Draw a seeded sample of the instances, in their order."""
    drawn = generator(seed, "survey").permutation(len(instances))[:SAMPLE_SIZE]
    return [instances[number] for number in sorted(drawn)]


def check_frozen_votes(instances: Sequence[EncodedInstance], config: F2CConfig, *, has_content_free: bool) -> None:
    """Refuse training instances of which the base model's votes cannot be stored or calibrated.

    Raises:
        InputError: ``E-DATA-ROWS`` for two rows with one id, ``E-CALIBRATION`` if inputs without content are missing.
    """
    repeated = first_repeated(instance.id for instance in instances)
    if repeated is not None:
        raise InputError(
            "E-DATA-ROWS",
            f"Two rows have the id {repeated!r}, but frozen votes are stored by id.",
            "Give each row its own id.",
        )
    if config.vote_calibration == "contextual" and not has_content_free:
        raise InputError(
            "E-CALIBRATION",
            "vote_calibration is contextual, but inputs without content are missing.",
            "Train on a Task, give F2CTrainer content_free, or use batch or prior.",
        )


def warn_of_templates(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Warn if a divergence over the vocabulary mixes the templates' answer words, or if two templates can tie."""
    method = find_method(config.method)
    mixes = method.mixes_answer_vocabularies
    if mixes and mixes(config) and templates_differ_in_answer_words(instances[:SAMPLE_SIZE]):
        log.warning(
            "W-TRAINING: templates use different answer words, so a vocabulary-level divergence mixes them. "
            "Use --divergence-space labels (swarm: --protocol paper), or watch own_label_mass."
        )
    if instances and len(instances[0].prompts) == 2:
        log.warning(
            "W-TRAINING: two templates cannot break a tie: if they disagree, %s. Add a third template.",
            "these instances get no loss" if method.needs_consensus else "both count equally",
        )


def initial_vote_stats(
    votes: VoteTable, config: F2CConfig, design: Mapping[str, Any], voters: Sequence[EncodedInstance]
) -> Json:
    """Compute and log shares of the first votes: of a consensus, of each case, and of each label.

    Without labels, a label bias that all templates share cannot be distinguished from class imbalance, so the user sees
    the label frequencies. For calibrated votes, the effect of the calibration is included. ``design`` has the levels of
    the templates.

    Raises:
        InputError: ``E-POSITION`` if the answers depend on the order of the options, and labels do not train;
            ``E-NO-CONSENSUS`` if no instance has a consensus and the method needs it.
    """
    unlabelled = np.full(len(votes.ids), -1)
    tables = (votes.uncalibrated.scores, votes.scores)
    raw, final = (Scores(scores, unlabelled, design=Design(**design)) for scores in tables)
    if not config.uses_labels and answers_by_position(raw, final):
        rate = METRICS["order_flips"].value(raw) or 0.0
        raise InputError(
            "E-POSITION",
            f"the model answers by position, not by content: the order of the options changes {100 * rate:.1f} % of "
            "its answers.",
            "Use a stronger model, or a method with labels, such as supervised.",
        )
    scores = [votes_of(row, table)[:2] for row, table in zip(voters, torch.from_numpy(votes.scores), strict=True)]
    found = [find_consensus(*row) for row in scores]
    num_with_consensus = sum(bool(consensus.exists) for consensus in found)
    if num_with_consensus == 0 and find_method(config.method).needs_consensus:
        raise InputError(
            "E-NO-CONSENSUS",
            f"none of the {len(scores)} instances has a strict majority.",
            "Run an audit first: look for reversed answer choices, or use a stronger model.",
        )
    cases = [split_templates(table, config, own).case for (table, _), own in zip(scores, found, strict=True)]
    consensus_share = num_with_consensus / len(scores)
    case_shares = [cases.count(case) / len(cases) for case in (1, 2, 3)]
    shares = [] if votes.is_open else votes.shares.tolist()
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%%s",
        len(scores),
        100 * consensus_share,
        100 * case_shares[1],
        ", labels " * bool(shares) + " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if case_shares[1] == 1.0:
        log.warning("W-TRAINING: every instance is unanimous and confident, so training has almost no effect.")
    if max(shares, default=0.0) > 0.9:
        log.warning(
            "W-COLLAPSE: one label has %.0f %% of the votes. If the data are not that imbalanced, training amplifies "
            "the bias.",
            100 * max(shares),
        )
    calibration = None
    if votes.offsets is not None:
        calibration = vote_changes(votes.uncalibrated.scores, votes.scores)
        log.info(
            "%s calibration changes %.0f %% of these votes; label drift %.2f",
            config.vote_calibration,
            100 * calibration["votes_changed"],
            calibration["vote_share_drift"],
        )
    return {
        "num_instances": len(scores),
        "consensus_share": consensus_share,
        "case_shares": case_shares,
        "vote_label_shares": shares,
        "calibration": calibration,
    }
