"""Votes that stand: taken from the model before the first step, and kept, or taken again from time to time."""

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
from transformers import TrainerCallback, TrainerState

from flip_flop.errors import InputError
from flip_flop.files import read_arrays, sha256_json, write_arrays
from flip_flop.metrics import batch_offsets, calibrated, find_offsets, label_shares, majority_vote, share_drift
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.distributed import all_gather, rank
from flip_flop.training.config import F2CConfig

log = logging.getLogger("flip_flop")

VOTES = "votes.npz"
# Scores of instances, with the label of the progress shown.
Score = Callable[[Sequence[EncodedInstance], str], np.ndarray]


@dataclass(frozen=True, eq=False)
class VoteTable:
    """The scores that templates vote by, by the instances' ids; ``offsets`` of a calibration are in the scores."""

    ids: tuple[str, ...]
    scores: Float[np.ndarray, "instances templates labels"]
    offsets: Float[np.ndarray, "templates labels"] | None = None

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {each: row for row, each in enumerate(self.ids)}

    def of(self, instances: Sequence[EncodedInstance]) -> Float[Tensor, "instances templates labels"]:
        """Those of some instances."""
        return torch.from_numpy(self.scores[[self._rows[instance.id] for instance in instances]])

    @cached_property
    def shares(self) -> Float[np.ndarray, " labels"]:
        """The share of each label among the majority votes."""
        return label_shares(majority_vote(self.scores)[:, None], self.scores.shape[-1])

    @cached_property
    def uncalibrated(self) -> "VoteTable":
        """The scores as the model gave them."""
        return self if self.offsets is None else VoteTable(self.ids, self.scores - self.offsets)

    @cached_property
    def batch_calibrated(self) -> "VoteTable":
        """These scores if they are calibrated, otherwise with batch calibration."""
        if self.offsets is not None:
            return self
        offsets = batch_offsets(self.scores)
        return VoteTable(self.ids, calibrated(self.scores, offsets), offsets)

    def drift(self, shares: Float[np.ndarray, " labels"]) -> float:
        """How far label shares are from those of these votes (total variation).

        Where the votes are calibrated: from the nearest point on the way from the model's own shares to the calibrated
        ones, as training has yet to follow.
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
        """What was written for these instances; None where it cannot be read or is of others."""
        try:
            found = read_arrays(path)
            table = cls(tuple(map(str, found["ids"].tolist())), found["scores"], found.get("offsets"))
        except (OSError, ValueError, KeyError):
            return None
        return table if table.ids == tuple(ids) else None


class StandingVotes(TrainerCallback):
    """The votes of a run that takes them once (``frozen``), or again every ``refresh_steps`` (``refreshed``).

    The first ones are those of the base: of the model without its adapter. New votes are accepted while the shares of
    their labels are those of the first ones to within ``max_share_drift`` (total variation): so they cannot run away.
    Each checkpoint of ``refreshed`` holds the votes of its step.
    """

    def __init__(
        self,
        instances: Sequence[EncodedInstance],
        config: F2CConfig,
        score: Score,
        score_base: Score,
        content_free: Sequence[EncodedInstance] = (),
    ):
        self.instances = instances
        self.config = config
        self.score = score
        self.score_base = score_base
        self.content_free = content_free
        self.ids = tuple(instance.id for instance in instances)
        if len(set(self.ids)) < len(self.ids):
            twice = next(each for each in self.ids if self.ids.count(each) > 1)
            message = f"Two rows have the id {twice!r}, and votes {config.votes} are kept by id."
            raise InputError("E-ROW", message, "Give each row an id of its own.")
        if config.vote_calibration == "contextual" and not content_free:
            message = "vote_calibration is contextual, and the rows come without inputs that have no content."
            hint = "Train on a Task, give F2CTrainer content_free, or use batch or prior."
            raise InputError("E-CONTENT-FREE", message, hint)
        self.first: VoteTable | None = None
        self.current: VoteTable | None = None
        self.anew = False

    def take(self, path: Path | None = None, *, anew: bool = False) -> VoteTable:
        """The first votes: those in the file of a run that is resumed, or the base's; ``anew``, no kept ones later."""
        self.anew = anew
        known = VoteTable.read(path, self.ids) if path and rank() == 0 else None
        self.first = self.current = all_gather(known)[0] or self._vote(self.score_base, "base votes")
        return self.first

    def of(self, instances: Sequence[EncodedInstance]) -> Float[Tensor, "instances templates labels"]:
        """The scores that the templates of these instances vote by now."""
        return (self.current or self.take()).of(instances)

    def calibrated(self, votes: VoteTable) -> VoteTable:
        """The base's votes on other instances, such as the validation split's, with the first votes' offsets."""
        if self.config.vote_calibration == "none":
            return votes
        offsets = (self.first or self.take()).offsets
        return votes if offsets is None else VoteTable(votes.ids, calibrated(votes.scores, offsets), offsets)

    def _vote(self, score: Score, label: str) -> VoteTable:
        scores, method = score(self.instances, label), self.config.vote_calibration
        if method == "none":
            return VoteTable(self.ids, scores)
        offsets = find_offsets(method, scores, self.config.label_prior, lambda: score(self.content_free, "calibration"))
        return VoteTable(self.ids, calibrated(scores, offsets), offsets)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Take the first votes where they are not taken; of a resumed run, find those of its checkpoint."""
        first = self.first or self.take()
        if state.global_step and self.config.votes == "refreshed" and not self.anew:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / VOTES
            self.current = all_gather(VoteTable.read(path, self.ids) if rank() == 0 else None)[0] or first

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Take the votes again where it is time, and keep them where their labels' shares have not moved too far."""
        if self.config.votes != "refreshed" or not state.global_step or state.global_step % self.config.refresh_steps:
            return
        assert self.first is not None, "on_train_begin has taken them"
        found = self._vote(self.score, "refreshed votes")
        drift = self.first.drift(found.uncalibrated.shares)
        if drift > self.config.max_share_drift:
            message = "step %d: the votes stay as they were: new ones move the label shares by %.2f from the first"
            log.warning(message, state.global_step, drift)
        else:
            self.current = found

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write the votes of this step, before the checkpoint's manifest."""
        if self.config.votes == "refreshed" and self.current is not None and rank() == 0:
            self.current.write(Path(args.output_dir) / f"checkpoint-{state.global_step}" / VOTES)


class BaseVotes:
    """The votes of the model without its adapter, each taken once, when it is first asked for.

    ``standing`` is None where a run votes online: then the first votes are those on ``sample``. ``evaluated`` are the
    instances of the validation split, and ``score_base`` scores instances by that model.
    """

    def __init__(
        self,
        sample: Sequence[EncodedInstance],
        evaluated: Sequence[EncodedInstance],
        standing: StandingVotes | None,
        score_base: Score,
    ):
        self.sample = sample
        self.evaluated = evaluated
        self.standing = standing
        self.score_base = score_base

    @cached_property
    def first(self) -> VoteTable:
        """Those that stand from the beginning, or on a sample of the training instances."""
        if self.standing is not None:
            return self.standing.first or self.standing.take()
        return self._of(self.sample)

    @cached_property
    def validation(self) -> VoteTable:
        """On the validation split, calibrated as the run's are."""
        found = self._of(self.evaluated)
        return self.standing.calibrated(found) if self.standing else found

    def _of(self, instances: Sequence[EncodedInstance]) -> VoteTable:
        return VoteTable(tuple(each.id for each in instances), self.score_base(instances, "base votes"))
