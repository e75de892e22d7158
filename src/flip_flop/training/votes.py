"""Votes of the base model: pseudo-labels that are computed once, before the first step."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from flip_flop.errors import InputError
from flip_flop.files import generator, read_arrays, sha256_json, write_arrays
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.metrics import (
    batch_offsets,
    calibrated,
    find_offsets,
    label_shares,
    majority_vote,
    share_drift,
    vote_changes,
)
from flip_flop.scoring.distributed import all_gather, rank
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.training.config import F2CConfig
from flip_flop.training.data import SAMPLE_SIZE

log = logging.getLogger("flip_flop")
VOTES = "votes.npz"
# Scores of instances; the text labels the progress bar.
Score = Callable[[Sequence[EncodedInstance], str], np.ndarray]


@dataclass(frozen=True, eq=False)
class VoteTable:
    """Scores that vote, by instance id. The scores include the ``offsets`` of a calibration."""

    ids: tuple[str, ...]
    scores: Float[np.ndarray, "instances templates labels"]
    offsets: Float[np.ndarray, "templates labels"] | None = None

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {identifier: row for row, identifier in enumerate(self.ids)}

    def scores_for(self, instances: Sequence[EncodedInstance]) -> Float[Tensor, "instances templates labels"]:
        """Return the scores of these instances."""
        return torch.from_numpy(self.scores[[self._rows[instance.id] for instance in instances]])

    @cached_property
    def shares(self) -> Float[np.ndarray, " labels"]:
        """Label frequencies of the majority votes."""
        return label_shares(majority_vote(self.scores)[:, None], self.scores.shape[-1])

    @cached_property
    def uncalibrated(self) -> "VoteTable":
        """The scores without calibration."""
        return self if self.offsets is None else VoteTable(self.ids, self.scores - self.offsets)

    @cached_property
    def batch_calibrated(self) -> "VoteTable":
        """These scores if they are calibrated, otherwise with batch calibration."""
        return self if self.offsets is not None else self.with_offsets(batch_offsets(self.scores))

    def with_offsets(self, offsets: Float[np.ndarray, "templates labels"] | None) -> "VoteTable":
        """Calibrate raw scores with these offsets, if any."""
        return self if offsets is None else VoteTable(self.ids, calibrated(self.scores, offsets), offsets)

    def drift(self, shares: Float[np.ndarray, " labels"]) -> float:
        """Compute the total variation distance of label frequencies from those of these votes.

        For calibrated votes it is the distance from the nearest point on the segment between the raw and the
        calibrated frequencies, because training moves the model along it.
        """
        start, end = self.uncalibrated.shares, self.shares
        return min(share_drift(shares, start + part * (end - start)) for part in np.linspace(0.0, 1.0, 101))

    @property
    def digest(self) -> str:
        """SHA-256 of ids and scores."""
        return sha256_json([self.ids, self.scores.tolist()])

    def write(self, path: Path) -> None:
        """Write ``ids``, ``scores`` and ``offsets`` as arrays."""
        more = {} if self.offsets is None else {"offsets": self.offsets}
        write_arrays(path, ids=np.array(self.ids), scores=self.scores, **more)

    @classmethod
    def read(cls, path: Path, ids: Sequence[str]) -> "VoteTable | None":
        """Read a table of these instances; ``None`` if the file is damaged or has other instances."""
        try:
            arrays = read_arrays(path)
            table = cls(tuple(map(str, arrays["ids"].tolist())), arrays["scores"], arrays.get("offsets"))
        except (OSError, ValueError, KeyError):
            return None
        return table if table.ids == tuple(ids) else None


class FrozenVotes:
    """Pseudo-labels of the base model on the training instances, calibrated as ``vote_calibration`` says.

    Args:
        instances: The instances that the run will see.
        config: The settings.
        score_base: Scores instances with the base model, which is the model without its adapter.
        content_free: Inputs without content, for contextual calibration.

    Raises:
        InputError: ``E-DATA-ROWS`` for two rows with one id, ``E-CALIBRATION`` if inputs without content are missing.
    """

    def __init__(
        self,
        instances: Sequence[EncodedInstance],
        config: F2CConfig,
        score_base: Score,
        content_free: Sequence[EncodedInstance] = (),
    ):
        self.instances = instances
        self.config = config
        self.score_base = score_base
        self.content_free = content_free
        self.ids = tuple(instance.id for instance in instances)
        if len(set(self.ids)) < len(self.ids):
            twice = next(identifier for identifier in self.ids if self.ids.count(identifier) > 1)
            raise InputError(
                "E-DATA-ROWS",
                f"Two rows have the id {twice!r}, but frozen votes are stored by id.",
                "Give each row its own id.",
            )
        if config.vote_calibration == "contextual" and not content_free:
            raise InputError(
                "E-CALIBRATION",
                "vote_calibration is contextual, but inputs without content are missing.",
                "Train on a Task, give F2CTrainer content_free, or use batch or prior.",
            )

    @cached_property
    def table(self) -> VoteTable:
        """The votes, computed when first needed. All processes take part."""
        scores, method = self.score_base(self.instances, "base votes"), self.config.vote_calibration
        votes = VoteTable(self.ids, scores)
        if method == "none":
            return votes
        prior = self.config.label_prior
        offsets = find_offsets(method, scores, prior, lambda: self.score_base(self.content_free, "calibration"))
        return votes.with_offsets(offsets)

    def restore(self, path: Path) -> None:
        """Use the stored votes of a resumed run, if they can be read."""
        stored = all_gather(VoteTable.read(path, self.ids) if rank() == 0 else None)[0]
        if stored is not None:
            self.table = stored


def draw_sample(instances: Sequence[EncodedInstance], seed: int) -> list[EncodedInstance]:
    """Draw a seeded sample of the instances, in their order."""
    drawn = generator(seed, "survey").permutation(len(instances))[:SAMPLE_SIZE]
    return [instances[number] for number in sorted(drawn)]


def initial_vote_stats(votes: VoteTable, config: F2CConfig) -> dict[str, Any]:
    """Compute and log shares of the first votes: of a consensus, of each case, and of each label.

    Without labels, a label bias that all templates share cannot be distinguished from class imbalance, so the user sees
    the label frequencies. For calibrated votes, the effect of the calibration is included.

    Raises:
        InputError: ``E-NO-CONSENSUS`` if no instance has a consensus and the method needs it.
    """
    scores = torch.from_numpy(votes.scores)
    num_with_consensus = int(find_consensus(scores).exists.sum())
    hint = "Run an audit first: look for reversed answer choices, or use a stronger model."
    if num_with_consensus == 0 and find_method(config.method).needs_consensus:
        raise InputError("E-NO-CONSENSUS", f"none of the {len(scores)} instances has a strict majority.", hint)
    cases = [split_templates(votes, config.split_settings).case for votes in scores]
    consensus_share = num_with_consensus / len(scores)
    case_shares = [cases.count(case) / len(cases) for case in (1, 2, 3)]
    shares = votes.shares.tolist()
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%, labels %s",
        len(scores),
        100 * consensus_share,
        100 * case_shares[1],
        " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if case_shares[1] == 1.0:
        log.warning("W-TRAINING: every instance is unanimous and confident, so training has almost no effect.")
    if max(shares) > 0.9:
        log.warning(
            "W-COLLAPSE: one label has %.0f %% of the votes. If the data are not that imbalanced, training amplifies "
            "the bias.",
            100 * max(shares),
        )
    calibration = None if votes.offsets is None else vote_changes(votes.uncalibrated.scores, votes.scores)
    if calibration is not None:
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
