"""Whether a training has run away to few of the labels. No gold label is needed to see it."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from transformers import TrainerCallback, TrainerControl, TrainerState

from flip_flop.training.config import F2CConfig
from flip_flop.training.votes import VoteTable

log = logging.getLogger("flip_flop")

# With fewer votes the shares of a log line say nothing.
MIN_VOTES = 50


def drift_beyond_chance(vote_counts: Int[np.ndarray, " labels"], first: VoteTable) -> float:
    r"""How far label shares of votes are from those of the first votes, beyond what two samples differ by.

    .. math:: \max\Bigl(0, \tfrac12 \sum_c |a_c - b_c| - \tfrac12 \sum_c \sqrt{\tfrac{2}{\pi} b_c (1 - b_c)
        (\tfrac1n + \tfrac1m)}\Bigr)

    a and b are the shares among n votes and among the m first ones. The first part is the total variation distance
    (:meth:`~flip_flop.training.votes.VoteTable.drift`); the second is about its expectation where both are samples of
    one distribution.
    """
    num_votes, num_first = vote_counts.sum(), len(first.ids)
    spread = np.sqrt(2 / np.pi * first.shares * (1 - first.shares) * (1 / num_votes + 1 / num_first))
    return max(0.0, first.drift(vote_counts / num_votes) - float(spread.sum()) / 2)


class StopOnCollapse(TrainerCallback):
    """Ends a training whose votes have left the label shares of the base's (``W-COLLAPSE``).

    The votes of the steps since the last log line are compared with the base's (:func:`drift_beyond_chance`). They are
    few, and of other instances than the base was asked about: past the bound they ask for an evaluation, which decides
    on the same rows. Without evaluations the log line decides. What was logged decides, and each checkpoint has a line
    of its step: a run that is resumed from one decides alike.
    """

    def __init__(self, config: F2CConfig, first_votes: Callable[[], VoteTable]):
        self.bound = config.max_share_drift
        self.is_enabled = config.stop_on_collapse
        self.evaluates = config.eval_strategy != "no"
        self.first_votes = first_votes
        frozen = "" if config.votes == "frozen" else "Use --votes frozen, or l"
        self.hint = f"{frozen or 'L'}ower --learning-rate, or train for less."

    def line(self, vote_counts: Int[np.ndarray, " labels"]) -> dict[str, float]:
        """What a log line says of the votes of its steps; called by every process at the same time."""
        if not vote_counts.sum():
            return {}
        shares = {
            f"vote_share_{label}": share for label, share in enumerate((vote_counts / vote_counts.sum()).tolist())
        }
        if vote_counts.sum() < MIN_VOTES:
            return shares
        return shares | {"vote_drift": drift_beyond_chance(vote_counts, self.first_votes())}

    def step(self, state: TrainerState) -> int | None:
        """The optimizer step at which the training had collapsed."""
        key, bound = ("eval_collapsed", 0.0) if self.evaluates else ("vote_drift", self.bound)
        return next((int(entry["step"]) for entry in state.log_history if entry.get(key, 0.0) > bound), None)

    def is_due(self, state: TrainerState) -> bool:
        """Whether what was logged ends the training."""
        return self.is_enabled and self.step(state) is not None

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for an evaluation, or stop where there is none."""
        drift = state.log_history[-1].get("vote_drift", 0.0)
        if not self.is_enabled or drift <= self.bound:
            return
        if self.evaluates:
            control.should_evaluate, control.should_save = True, args.save_strategy != "no"
        else:
            self._stop(state, control, f"the label shares of the votes are {drift:.2f}")

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where the evaluation has found a collapse."""
        entry = state.log_history[-1]
        if self.is_enabled and entry.get("eval_collapsed"):
            drift = entry["eval_vote_drift"]
            self._stop(state, control, f"the label shares of the votes on validation are {drift:.2f}")

    def _stop(self, state: TrainerState, control: TrainerControl, found: str) -> None:
        message = "W-COLLAPSE: stopped at step %d: %s from the base's (max_share_drift %g). %s"
        log.warning(message, state.global_step, found, self.bound, self.hint)
        # With a checkpoint to resume from: to write the adapter after all takes no second training.
        control.should_training_stop, control.should_save = True, True
