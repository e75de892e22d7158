"""Detection of collapse: a model in training that predicts few of the labels. No gold label is needed."""

import logging
from collections.abc import Callable
from itertools import pairwise
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
    """Stops training after two collapsed evaluations in a row (``W-COLLAPSE``).

    One rough evaluation early in training is normal. A log line asks for an evaluation if the majority votes of its
    steps have drifted from the base model's (:func:`drift_beyond_chance`). Without evaluations, two such lines in a row
    stop the training. Only logged values decide, and each checkpoint has a line of its step. So a resumed run stops at
    the same step.
    """

    def __init__(self, config: F2CConfig, first_votes: Callable[[], VoteTable]):
        self.bound = config.max_share_drift
        self.is_enabled = config.stop_on_collapse
        self.evaluates = config.eval_strategy != "no"
        self.first_votes = first_votes
        self.hint = f"Lower --learning-rate{'' if config.votes == 'frozen' else ' or use --votes frozen'}."

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

    def _collapsed(self, state: TrainerState) -> dict[int, bool]:
        """Whether the predictions had collapsed, by the step of each evaluation or log line."""
        key, bound = ("eval_collapsed", 0.0) if self.evaluates else ("vote_drift", self.bound)
        return {int(entry["step"]): entry[key] > bound for entry in state.log_history if key in entry}

    def step(self, state: TrainerState) -> int | None:
        """The optimizer step of the second collapsed evaluation in a row."""
        found = self._collapsed(state).items()
        return next((step for (_, before), (step, now) in pairwise(found) if before and now), None)

    def is_due(self, state: TrainerState) -> bool:
        """Whether training has to stop."""
        return self.is_enabled and self.step(state) is not None

    def has_collapsed(self, state: TrainerState, at: int) -> bool:
        """Whether the predictions had collapsed at the last evaluation up to a step."""
        return next((now for step, now in reversed(self._collapsed(state).items()) if step <= at), False)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for an evaluation, or stop if there are none."""
        if not self.is_enabled or state.log_history[-1].get("vote_drift", 0.0) <= self.bound:
            return
        if self.evaluates:
            control.should_evaluate, control.should_save = True, args.save_strategy != "no"
        else:
            self._stop_if_due(state, control)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop if this evaluation is the second in a row that has collapsed."""
        self._stop_if_due(state, control)

    def _stop_if_due(self, state: TrainerState, control: TrainerControl) -> None:
        if self.is_enabled and self.step(state) == state.global_step:
            message = "W-COLLAPSE: stopped at step %d: the predictions collapsed. %s"
            log.warning(message, state.global_step, self.hint)
            # With a checkpoint to resume from: to write the adapter after all takes no second training.
            control.should_training_stop, control.should_save = True, True
