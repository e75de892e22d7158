"""Calibration: offsets per template and label, in nats, that correct the label bias of the templates.

Without labels, a shared label bias cannot be distinguished from class imbalance. Every method therefore assumes label
frequencies, the prior, unless each label is in each position equally often.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from flip_flop.arrays import InstanceLabels, InstanceScores, LabelScores, Offsets, PerLabel
from flip_flop.errors import InputError, log, require_known
from flip_flop.metrics.agreement import label_shares, majority_vote, predicted, share_drift
from flip_flop.metrics.data import Design

# See the table in docs/calibration.md.
Calibration = Literal["batch", "contextual", "prior", "position"]
# auto: batch, if it changes a prediction.
CalibrationChoice = Literal["auto", "none", Calibration]
# Of each option a number that is the same for all labels at this position in the orders of a template.
OptionPlaces = Int[np.ndarray, "templates labels"]

# Of fewer instances a mean probability says little: with labels at 50 %, 50 of them miss it by 7 points.
MIN_INSTANCES = 50
# What shares written with two decimals may miss of 1.
ROUNDING = 0.01
# Of prior_offsets: temperatures of the probabilities, how many instances they may miss the prior by, Newton's steps.
TEMPERATURES = tuple(4.0**-power for power in range(12))
TOLERANCE = 0.1
MAX_STEP = 10.0
MAX_STEPS = 1000
PRIOR_HINT = "Give one positive share per label, in the labels' order, that sum to 1, such as 0.3,0.7."


def check_prior(prior: str | Sequence[float], num_labels: int | None = None) -> tuple[float, ...]:
    """Return the shares of a prior, numbers or a comma-separated text, scaled to sum to 1.

    Raises:
        InputError: ``E-LABEL-PRIOR`` for a share that is not positive, a sum that differs from 1 by more than 0.01, or
            another number of labels.

    Example:
        >>> check_prior("0.2,0.8", 2), round(check_prior([0.19, 0.8])[0], 4)
        ((0.2, 0.8), 0.1919)
    """
    words = prior if isinstance(prior, str) else ",".join(map(str, prior))
    try:
        shares = np.array(words.split(","), dtype=np.float64)
    except ValueError:
        shares = np.zeros(0)
    if len(shares) < 2 or not (shares > 0).all() or not abs(shares.sum() - 1) <= ROUNDING + 1e-9:
        raise InputError("E-LABEL-PRIOR", f"The label prior is {words!r}.", PRIOR_HINT)
    if num_labels is not None and len(shares) != num_labels:
        raise InputError("E-LABEL-PRIOR", f"The label prior {words} is not of {num_labels} labels.", PRIOR_HINT)
    return tuple((shares / shares.sum()).tolist())  # which leaves a sum of 1 as it is


def check_calibration(
    method: CalibrationChoice, prior: str | Sequence[float] | None, num_labels: int | None = None
) -> tuple[float, ...] | None:
    """Check that a method and a prior fit each other, and return the prior as :func:`check_prior` does.

    Raises:
        InputError: ``E-CONFIG`` for an unknown method, ``E-LABEL-PRIOR`` if the prior is invalid, missing or without
            effect.
    """
    require_known([str(method)], get_args(CalibrationChoice), "E-CONFIG", "calibrate: there is no method")
    if method in ("none", "position") and prior is not None:
        raise InputError(
            "E-LABEL-PRIOR",
            "a label prior has no effect with --calibrate none or position.",
            "Add --calibrate batch, contextual or prior.",
        )
    if method == "prior" and prior is None:
        raise InputError("E-LABEL-PRIOR", "--calibrate prior needs a prior.", "Add --label-prior or --few-labels.")
    if prior is None:
        return None
    return check_prior(prior, num_labels)


def uniform_prior(num_labels: int) -> tuple[float, ...]:
    """Return equal shares, the default prior."""
    return (1 / num_labels,) * num_labels


def prior_of_labels(labels: InstanceLabels, num_labels: int) -> tuple[float, ...]:
    """Estimate the label frequencies from a few gold labels. Each count is increased by 1 (Laplace smoothing).

    Example:
        >>> prior_of_labels(np.array([1, 1, 0, 1, 1, 1, 1, 1]), 2)
        (0.2, 0.8)
    """
    counts = np.bincount(labels, minlength=num_labels) + 1.0
    return tuple((counts / counts.sum()).tolist())


def option_places(method: str, templates: Sequence[Any], num_labels: int) -> OptionPlaces | None:
    """Number the positions of the options, in each group of templates that differ only in the order.

    The orders of a group are complete if they put each label in each position equally often.

    Args:
        method: Without ``"position"`` the result is None.
        templates: Each has a ``name`` and ``levels``.
        num_labels: L.

    Returns:
        The number of each option. Options at the same position in the same group have the same number.

    Raises:
        InputError: ``E-CALIBRATION`` for a template without complete orders.
    """
    if method != "position":
        return None
    levels = [template.levels or {} for template in templates]
    places = np.full((len(templates), num_labels), -1)
    for group in Design(levels=levels).groups("order"):
        members = [first for first, *_ in group.values()]
        expected = dict.fromkeys(map(str, range(1, num_labels + 1)), len(group) / num_labels)
        for position, listed in enumerate(zip(*map(str.split, group), strict=False)):
            if Counter(listed) == expected:
                places[members, np.array(listed, dtype=int) - 1] = members[0] * num_labels + position
    if (places < 0).any():
        first = places.min(axis=1).argmin()
        raise InputError(
            "E-CALIBRATION",
            "position calibration needs orders that put each label in each position equally often, which template "
            f"{templates[first].name!r} lacks.",
            "Add --axis order=N for N labels, select other templates, or use batch calibration.",
        )
    return places


def batch_offsets(
    scores: LabelScores, prior: Sequence[float] | None = None, places: OptionPlaces | None = None
) -> Offsets:
    r"""Batch calibration: minus the log of a label's mean probability over the instances.

    .. math:: b_{v,c} = \log \rho_c - \log \frac1N \sum_i q_{i,v}(c)

    with :math:`q_{i,v}` the softmax over labels (Eq. 14) and :math:`\rho` the prior, uniform by default; less their
    mean over labels. To be *added* to the scores, in nats. Zhou et al., "Batch Calibration: Rethinking Calibration for
    In-Context Learning and Prompt Engineering", ICLR 2024.

    Position calibration: with the ``places`` of :func:`option_places`, the mean is over all labels at the same place.
    In complete orders it does not depend on the label frequencies.

    Unread answers, with scores of ``-inf``, are left out. A template without others has offsets of 0.

    Example:
        >>> scores = np.log([[[0.8, 0.2]], [[0.6, 0.4]]])  # on average 0.7 and 0.3
        >>> (scores + batch_offsets(scores)).argmax(axis=2).tolist()
        [[0], [1]]
    """
    sums = np.logaddexp.reduce(_log_probs(scores), axis=0)
    if places is not None:
        at_place = np.full(places.size, -np.inf)
        np.logaddexp.at(at_place, places, sums)
        sums = at_place[places]
    offsets = np.where(sums == -np.inf, 0.0, -sums)  # the mean over labels takes log N out
    if prior is not None:
        offsets = offsets + np.log(check_prior(prior, scores.shape[2]))
    return _centred(offsets)


def prior_offsets(scores: LabelScores, prior: Sequence[float]) -> Offsets:
    r"""Compute the offsets for which the label shares of a template's answers equal the prior.

    .. math:: \sum_i \mathbf 1[\arg\max_{c'} (\mathrm{LL}_i[v, c'] + b_{v,c'}) = c] = N \rho_c

    to the nearest integers, except for instances with equal scores. With two labels, the offset is a quantile of the
    margins. Answers do not depend on the confidence of a model, unlike mean probabilities. Matching the mean
    probability of an uncertain model to a skewed prior would suppress rare labels (docs/calibration.md). If the shares
    already match, the offsets are 0. Offsets are *added* to the scores, in nats. Their mean over the labels is 0.

    Raises:
        InputError: ``E-LABEL-PRIOR``.

    Example:
        >>> scores = np.log([[[0.9, 0.1]], [[0.8, 0.2]], [[0.7, 0.3]], [[0.6, 0.4]]])
        >>> (scores + prior_offsets(scores, [0.25, 0.75])).argmax(axis=2).tolist()
        [[0], [1], [1], [1]]
    """
    shares = np.array(check_prior(prior, scores.shape[2]))
    return np.stack([_cut(log_probs, shares) for log_probs in _log_probs(scores).swapaxes(0, 1)])


def _cut(log_probs: InstanceScores, shares: PerLabel) -> PerLabel:
    """Return the offsets of a template: match increasingly sharp probabilities to the shares, until answers match."""
    log_probs = log_probs[log_probs.max(axis=1) > -np.inf]  # the answers that were read
    exact = len(log_probs) * shares
    counts = np.floor(exact)
    rest = round(exact.sum() - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1  # the largest remainders
    offsets = np.zeros(len(counts))
    for temperature in TEMPERATURES:
        if (np.bincount((log_probs + offsets).argmax(axis=1), minlength=len(counts)) == counts).all():
            break
        offsets = temperature * _matched(log_probs / temperature, counts / counts.sum(), offsets / temperature)
    return _centred(offsets)


def _matched(
    scores: InstanceScores,
    target: PerLabel,
    offsets: PerLabel,
) -> PerLabel:
    """Return the offsets whose mean probabilities are the target: Newton's method on a convex function."""

    def objective(offsets: PerLabel) -> float:
        return float(np.logaddexp.reduce(scores + offsets, axis=1).mean() - target @ offsets)

    for _ in range(MAX_STEPS):
        moved = scores + offsets
        probs = np.exp(moved - np.logaddexp.reduce(moved, axis=1, keepdims=True))
        gradient = probs.mean(axis=0) - target
        if np.abs(gradient).max() <= TOLERANCE / len(scores):
            break
        curvature = np.diag(probs.mean(axis=0)) - probs.T @ probs / len(probs)
        step = _centred(-np.linalg.pinv(curvature + 1e-12 * np.eye(len(target)), hermitian=True) @ gradient)
        # Where all answers are certain the curvature is next to nothing, and the step would be endless.
        step *= min(1.0, MAX_STEP / np.abs(step).max())
        before = objective(offsets)
        slope = float(gradient @ step)
        while objective(offsets + step) > before + 1e-4 * slope and abs(slope) > 1e-15:
            step = step / 2
            slope = slope / 2
        offsets = offsets + step
    return offsets


def find_offsets(
    method: Calibration,
    scores: LabelScores,
    prior: Sequence[float] | None,
    content_free: Callable[[], Float[np.ndarray, "inputs templates labels"]],
    places: OptionPlaces | None = None,
) -> Offsets:
    """Compute the offsets of a method. ``content_free`` returns the scores of inputs without content.

    ``places`` are the positions of the options, for ``position``.

    For fewer than 50 instances, ``batch`` and ``prior`` warn: ``W-CALIBRATION-ROWS``.

    Raises:
        InputError: ``E-LABEL-PRIOR`` for an invalid or missing prior.
    """
    if method == "contextual":
        return batch_offsets(content_free(), prior)  # Zhao et al., "Calibrate Before Use", ICML 2021
    if places is not None:
        return batch_offsets(scores, places=places)
    if len(scores) < MIN_INSTANCES:
        log.warning(
            "W-CALIBRATION-ROWS: %s calibration reads %d instances; below %d its offsets are mostly chance.",
            method,
            len(scores),
            MIN_INSTANCES,
        )
    if method == "batch":
        return batch_offsets(scores, prior)
    if prior is None:
        raise InputError("E-LABEL-PRIOR", "Calibration to the prior needs a prior.", PRIOR_HINT)
    return prior_offsets(scores, prior)


def offsets_that_change(
    scores: LabelScores,
) -> Offsets | None:
    """Compute uniform batch offsets; return None for few instances, and if no prediction changes (as if generated)."""
    if len(scores) < MIN_INSTANCES:
        return None
    offsets = batch_offsets(scores)
    if (predicted(calibrated(scores, offsets)) != predicted(scores)).any():
        return offsets
    return None


def calibrated(scores: LabelScores, offsets: Offsets) -> LabelScores:
    """Add offsets to scores, in the precision of the scores."""
    return (scores + offsets).astype(scores.dtype)


def vote_changes(before: LabelScores, after: LabelScores) -> dict[str, float]:
    """Return the changes of the majority votes: ``votes_changed``, a share, and ``vote_share_drift``.

    The drift is :func:`~flip_flop.metrics.share_drift` of the label shares. If it is large and the prior is only an
    assumption, the votes may have been correct before. A few labelled rows show which.
    """
    votes = majority_vote(before)
    now = majority_vote(after)
    drift = share_drift(*(label_shares(labels[:, None], before.shape[2]) for labels in (votes, now)))
    return {"votes_changed": float((votes != now).mean()), "vote_share_drift": drift}


def _log_probs(
    scores: LabelScores,
) -> LabelScores:
    """The log of Eq. 14, which does not underflow; ``-inf`` for unread answers."""
    scores = scores.astype(np.float64)
    totals = np.logaddexp.reduce(scores, axis=2, keepdims=True)
    return scores - np.nan_to_num(totals)


def _centred(offsets: Float[np.ndarray, "*templates labels"]) -> Float[np.ndarray, "*templates labels"]:
    return offsets - offsets.mean(axis=-1, keepdims=True)
