"""Evaluations: metrics, selection of the checkpoint, early stopping, collapse, and adapters worse than the base."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from transformers import TrainerCallback, TrainerControl, TrainerState

from flip_flop.arrays import InstanceLabels, LabelScores, Predictions
from flip_flop.console import percent
from flip_flop.errors import InputError, log
from flip_flop.files import Json
from flip_flop.metrics import (
    METRICS,
    Average,
    Design,
    Scores,
    is_collapsed,
    label_shares,
    majority_vote,
    summarise,
)
from flip_flop.record import Facts
from flip_flop.training.config import F2CConfig
from flip_flop.training.settings import SelectBy
from flip_flop.training.votes import VoteTable

# The label frequencies of fewer votes are too noisy.
MIN_VOTES = 50
# Answers that grow more repeat themselves without an end. Runs that gained had 0.5 to 1.1 (docs/evidence.md).
MAX_LENGTH_RATIO = 2
# The least share of the new answers that the base gives under some template. Runs that gained had 0.4 or more, and at
# least 0.2 with any three of their templates; runs whose answers became wrong had 0.08 or less.
MIN_BASE_ANSWERS = 0.15


def evaluation_metrics(table: Scores, gold: np.ndarray, names: Sequence[str], f1: Average = "auto") -> dict[str, float]:
    """Compute the metrics of one evaluation, flat and without those that have no value.

    The evaluation before the first step has the label frequencies of the base model's votes, so that other selection
    criteria can be computed from the log.
    """
    summary = summarise(table.values, gold, names, average=f1, intervals=False)
    metrics = {name: summary[name] for name in METRICS if summary[name] is not None}
    metrics |= {f"label_share_{label}": share for label, share in enumerate(summary["label_shares"])}
    vote_shares = label_shares(majority_vote(table.values)[:, None], table.values.shape[-1])
    metrics |= {f"vote_share_{label}": float(share) for label, share in enumerate(vote_shares)}
    mass = table.own_label_mass.mean(axis=0)
    metrics |= {"own_label_mass": float(mass.mean()), "own_label_mass_min": float(mass.min())}
    return metrics | {f"own_label_mass/{name}": float(value) for name, value in zip(names, mass, strict=True)}


def vote_agreement(predictions: Predictions, votes: InstanceLabels, num_labels: int) -> float:
    r"""Compute Cohen's kappa of predictions and votes: their agreement beyond chance.

    .. math:: \kappa = \frac{p_o - p_e}{1 - p_e}, \qquad p_e = \sum_c a_c b_c

    with :math:`p_o` the share of predictions that equal the vote of their instance, and a and b the label frequencies
    of predictions and votes. It is 1 for predictions that follow the votes, and exactly 0 for constant predictions.

    Example:
        >>> votes = np.array([0, 1, 1, 1])
        >>> vote_agreement(votes[:, None], votes, 2), vote_agreement(np.ones((4, 3), dtype=int), votes, 2)
        (1.0, 0.0)

    Reference: Cohen, "A coefficient of agreement for nominal scales", 1960.
    """
    counts, vote_counts = (np.bincount(labels_of.ravel(), minlength=num_labels) for labels_of in (predictions, votes))
    # Both are integers.
    agreed = (predictions == votes[:, None]).sum() * len(votes)
    by_chance = counts @ vote_counts
    pairs = predictions.size * len(votes)
    if by_chance < pairs:
        return float((agreed - by_chance) / (pairs - by_chance))
    return 0.0


@dataclass
class CheckpointCriterion:
    """The value by which a checkpoint is selected, or the last one compared with the base model; higher is better.

    Constant predictions cannot win by ``macro_f1``, the mean over templates, or by ``vote_agreement`` with the base
    model's calibrated majority votes on the validation split, which needs no labels. By ``mean_f1``, the paper's
    criterion, they can: the F1 of label 1 is high if every prediction is label 1. ``worst_f1`` and ``worst_agreement``
    are the least macro-F1 and agreement of a template.
    """

    by: SelectBy
    max_share_drift: float

    @classmethod
    def of(cls, config: F2CConfig, gold: Sequence[int | None] | None) -> "CheckpointCriterion":
        """Resolve ``select_by`` for validation rows with these labels: ``auto`` uses labels if most rows have one."""
        by = config.select_by
        if by == "last" or config.eval_strategy == "no":
            by = "auto"
        if gold is None:
            return cls("last", config.max_share_drift)
        labelled = sum(label is not None for label in gold)
        if by.endswith("f1") and not labelled:
            raise InputError(
                "E-NO-GOLD",
                f"select_by is {by}, but the validation rows have no labels.",
                "Use --select-by vote_agreement or worst_agreement.",
            )
        if by == "auto" and 2 * labelled > len(gold):
            by = "macro_f1" if config.stop_on_collapse else "mean_f1"
        return cls("vote_agreement" if by == "auto" else by, config.max_share_drift)

    @property
    def measure(self) -> Literal["macro_f1", "vote_agreement"]:
        """The measure of quality that constant predictions cannot win."""
        if self.by.endswith("f1"):
            return "macro_f1"
        return "vote_agreement"

    def constant_value(self, gold: InstanceLabels, num_labels: int) -> float:
        """The value of the best constant predictions by :attr:`measure`, not to be reached by rounding."""
        if self.measure == "vote_agreement":
            return 1e-9
        share = float(label_shares(gold[gold >= 0][:, None], num_labels).max())
        return 2 * share / (1 + share) / num_labels + 1e-9

    def judge(
        self,
        scores: LabelScores,
        base: VoteTable,
        gold: InstanceLabels,
        f1: Average = "auto",
    ) -> dict[str, float]:
        """Compare a checkpoint with the base model, whose calibrated scores are ``base``, on the validation split.

        Predictions have collapsed if they are worse than the base model's and have drifted or are nearly all one label.
        Drifted predictions that do not exceed constant ones have collapsed too.

        Returns:
            ``vote_agreement``, ``vote_drift`` (label drift of the majority votes) and ``collapsed`` (0 or 1);
            ``selection`` and ``base_selection``, the values of the criterion.
        """
        num_labels = scores.shape[-1]
        votes = majority_vote(base.scores)

        def values(scores: LabelScores) -> dict[str, float]:
            data = Scores(scores, gold, design=Design(f1))
            found = {name: METRICS[name].value(data) or 0.0 for name in ("mean_f1", "macro_f1")}
            by_template = data.by_f1("macro").f1
            return found | {
                "worst_f1": 0.0 if by_template is None else float(by_template.min()),
                "vote_agreement": vote_agreement(data.predictions, votes, num_labels),
                "worst_agreement": min(
                    vote_agreement(column[:, None], votes, num_labels) for column in data.predictions.T
                ),
            }

        after = values(scores)
        before = values(base.uncalibrated.scores)
        value = after[self.measure]
        labels = gold if self.measure == "macro_f1" else None
        drift = base.drift(label_shares(majority_vote(scores)[:, None], num_labels))
        drifted = drift > self.max_share_drift
        one_label = is_collapsed(scores.argmax(axis=-1), num_labels, labels)
        worse = value < before[self.measure]
        constant = value <= self.constant_value(gold, num_labels)
        collapsed = ((drifted or one_label) and worse) or (drifted and constant)
        return {
            "vote_agreement": after["vote_agreement"],
            "vote_drift": drift,
            "collapsed": float(collapsed),
            "selection": after[self.by],
            "base_selection": before[self.by],
        }


def drift_beyond_chance(vote_counts: Int[np.ndarray, " labels"], first: VoteTable) -> float:
    r"""Compute the label drift of votes from the first votes, less its expectation under sampling noise.

    .. math:: \max\Bigl(0, \tfrac12 \sum_c |a_c - b_c| - \tfrac12 \sum_c \sqrt{\tfrac{2}{\pi} b_c (1 - b_c)
        (\tfrac1n + \tfrac1m)}\Bigr)

    a and b are the label frequencies of n votes and of the m first ones. The first part is the total variation distance
    (:meth:`~flip_flop.training.votes.VoteTable.drift`); the second is about its expectation if both are samples of one
    distribution.
    """
    num_votes = vote_counts.sum()
    num_first = len(first.ids)
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
        self.config = config
        self.first_votes = first_votes
        self.is_extra_line = False  # of a signal: the run without it has no line at this step
        self.hint = f"Lower --learning-rate{'' if config.votes == 'frozen' else ' or use --votes frozen'}."

    def line(self, vote_counts: Int[np.ndarray, " labels"], log_history: list[Json]) -> dict[str, float]:
        """Return the vote statistics of a log line; every process calls this at the same time.

        The votes of an extra line are counted again in the next one.
        """
        last: Json = next((entry for entry in reversed(log_history) if "loss" in entry), {})
        vote_counts = vote_counts + [last.get(f"votes_so_far_{label}", 0) for label in range(len(vote_counts))]
        if self.is_extra_line:
            self.is_extra_line = False
            return {f"votes_so_far_{label}": count for label, count in enumerate(vote_counts.tolist())}
        if not vote_counts.sum():
            return {}
        frequencies = (vote_counts / vote_counts.sum()).tolist()
        shares = {f"vote_share_{label}": share for label, share in enumerate(frequencies)}
        if vote_counts.sum() < MIN_VOTES:
            return shares
        return shares | {"vote_drift": drift_beyond_chance(vote_counts, self.first_votes())}

    def _collapsed(self, state: TrainerState) -> dict[int, bool]:
        """Whether the predictions had collapsed, by the step of each evaluation or log line."""
        is_logged = self.config.eval_strategy == "no"
        key, bound = ("vote_drift", self.config.max_share_drift) if is_logged else ("eval_collapsed", 0.0)
        return {int(entry["step"]): entry[key] > bound for entry in state.log_history if key in entry}

    def step(self, state: TrainerState) -> int | None:
        """The optimizer step of the second collapsed evaluation in a row."""
        evaluations = self._collapsed(state).items()
        return next((step for (_, before), (step, now) in pairwise(evaluations) if before and now), None)

    def is_due(self, state: TrainerState) -> bool:
        """Whether training has to stop."""
        return self.config.stop_on_collapse and self.step(state) is not None

    def has_collapsed(self, state: TrainerState, last: int) -> bool:
        """Whether the predictions had collapsed at the last evaluation up to a step."""
        return next((now for step, now in reversed(self._collapsed(state).items()) if step <= last), False)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for an evaluation, or stop if there are none."""
        has_drifted = state.log_history[-1].get("vote_drift", 0.0) > self.config.max_share_drift
        if self.config.stop_on_collapse and has_drifted and self.config.eval_strategy != "no":
            control.should_evaluate = True
            control.should_save = args.save_strategy != "no"
        elif has_drifted:
            self.on_evaluate(args, state, control)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop if this evaluation is the second in a row that has collapsed."""
        if self.config.stop_on_collapse and self.step(state) == state.global_step:
            log.warning("W-COLLAPSE: stopped at step %d: the predictions collapsed. %s", state.global_step, self.hint)
            # The checkpoint lets --keep-worse save the adapter without training again.
            control.should_training_stop = True
            control.should_save = True


@dataclass(eq=False)
class StopEarly(TrainerCallback):
    """Ends training when the unsupervised validation loss has stopped falling, as the authors' release does.

    Training ends at the ``patience``-th evaluation in a row without a new minimum of the loss. Evaluations up to step
    ``start`` are not counted. Only logged values decide, so a resumed run stops at the same step.
    """

    patience: int
    start: int

    def on_evaluate(self, args, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """End the training if it is due."""
        if self.is_due(state):
            control.should_training_stop = True

    def is_due(self, state: TrainerState) -> bool:
        """Whether the evaluations so far end the training."""
        losses = {entry["step"]: entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry}
        finite = [step for step, loss in losses.items() if math.isfinite(loss)]
        lowest = min(finite, key=losses.__getitem__, default=0)  # the first of equal ones
        return 0 < self.patience <= sum(step > max(lowest, self.start) for step in losses)


def selected_evaluation(state: TrainerState) -> Json:
    """Return the log entry of the selected checkpoint's evaluation, an empty one without an evaluation at its step."""
    step = state.best_global_step or state.global_step
    evaluations = (entry for entry in reversed(state.log_history) if "eval_selection" in entry)
    return next((entry for entry in evaluations if entry["step"] == step), {})


def reason_to_withhold(
    state: TrainerState,
    guard: StopOnCollapse,
    criterion: CheckpointCriterion,
    gold: InstanceLabels | None,
    num_labels: int,
) -> str | None:
    """Return the reason against saving the selected checkpoint; ``None`` if it may be saved."""
    step = state.best_global_step or state.global_step
    evaluation = selected_evaluation(state)
    if guard.has_collapsed(state, last=step):
        return f"W-COLLAPSE: the predictions of the selected checkpoint, of step {step}, have collapsed. {guard.hint}"
    if not evaluation or gold is None:
        return None
    selected = evaluation["eval_selection"]
    rivals = {"the base model's": evaluation["eval_base_selection"]}
    if criterion.by == criterion.measure:
        rivals["that of constant predictions"] = criterion.constant_value(gold, num_labels)
    rival = max(rivals, key=rivals.__getitem__)
    stopped = guard.is_due(state)
    if selected > rivals[rival] or (selected == rivals[rival] and not stopped):
        return None
    ours = 100 * selected
    theirs = 100 * rivals[rival]
    digits = next((number for number in range(1, 5) if round(ours, number) != round(theirs, number)), 1)
    values = f"{ours:.{digits}f}, {rival} {theirs:.{digits}f}"
    comparison = f"the selected checkpoint's {criterion.by} on validation is {values}."
    if stopped:
        return f"W-COLLAPSE: {comparison} {guard.hint}"
    return f"W-WORSE: {comparison}"


def reason_against_answers(change: Facts) -> str | None:
    """Log the change of open answers on validation rows, and return the reason against saving the adapter, if any."""
    numbers = {name: change[name] for name in METRICS if name in change and change[name]["after"] is not None}
    shown = []
    for name, values in numbers.items():
        factor, unit = (100, " %") if METRICS[name].in_percent else (1, "")
        shown.append(f"{METRICS[name].title} {factor * values['before']:.1f} to {factor * values['after']:.1f}{unit}")
    log.info("open answers to %d validation rows: %s", change["num_instances"], ", ".join(shown))
    if change["collapsed"]:
        return "W-COLLAPSE: after training, most answers are the same or cannot be read."
    agreement = numbers["observed_agreement"]
    if agreement["after"] < agreement["before"]:
        return "W-WORSE: after training, the answers to validation rows agree less."
    length = numbers["answer_length"]
    right = numbers.get("accuracy")
    if length["after"] > MAX_LENGTH_RATIO * length["before"] > 0:
        return (
            "W-WORSE: after training, the answers to validation rows grow from "
            f"{length['before']:.0f} to {length['after']:.0f} characters."
        )
    if right and right["interval"] and right["interval"][1] < 0:
        return "W-WORSE: after training, the answers to validation rows are less often right."
    if change["base_answer_share"] < MIN_BASE_ANSWERS:
        return (
            f"W-WORSE: only {percent(change['base_answer_share'])} % of the answers after training are answers of the "
            "base under any template."
        )
    return None
