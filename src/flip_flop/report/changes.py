"""What happened to each instance between two audits, and which instances to show."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from flip_flop.metrics import majority_vote
from flip_flop.report.runs import Run

WITH_GOLD = ("agreed wrong", "split, vote wrong", "split, vote right", "agreed right")
WITHOUT_GOLD = ("no majority", "majority", "agreed")
MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Kind:
    """One way in which an instance's answers changed; ``tone`` is better, worse or other."""

    before: str | None
    after: str
    tone: str

    @property
    def title(self) -> str:
        """The kind in words."""
        return self.after if self.before is None else f"{self.before} → {self.after}"


@dataclass(frozen=True)
class Change:
    """An instance to show: its row in the scores, its kind, and how many of its templates answered anew."""

    instance: int
    kind: Kind
    num_changed: int


@dataclass(frozen=True)
class VoteCounts:
    """The V x N single answers before and after, against the gold labels."""

    stayed_right: int
    wrong_to_right: int
    right_to_wrong: int
    stayed_wrong: int


def states(run: Run) -> list[str | None]:
    """Each instance's state by its templates' answers; ``None`` where it alone lacks a gold label."""
    votes = majority_vote(run.scores)
    predictions = run.predictions
    found: list[str | None] = []
    for row, vote, gold in zip(predictions, votes, run.gold, strict=True):
        size = int(np.bincount(row).max())
        if not run.has_gold:
            found.append("agreed" if size == len(row) else "majority" if 2 * size > len(row) else "no majority")
        elif gold < 0:
            found.append(None)
        else:
            verdict = "right" if int(vote) == gold else "wrong"
            found.append(f"agreed {verdict}" if size == len(row) else f"split, vote {verdict}")
    return found


def state_names(run: Run) -> tuple[str, ...]:
    """The states in order, the worst first."""
    return WITH_GOLD if run.has_gold else WITHOUT_GOLD


def transition_counts(before: Run, after: Run) -> list[list[int]]:
    """How many instances went from each state (rows) to each state (columns)."""
    names = state_names(before)
    pairs = Counter(zip(states(before), states(after), strict=True))
    return [[pairs[row, column] for column in names] for row in names]


def state_counts(run: Run) -> list[int]:
    """How many instances are in each state."""
    counts = Counter(states(run))
    return [counts[name] for name in state_names(run)]


def vote_counts(before: Run, after: Run) -> VoteCounts:
    """The single answers of all templates that turned right or wrong."""
    labelled = before.gold >= 0
    gold = before.gold[labelled, None]
    was, now = before.predictions[labelled] == gold, after.predictions[labelled] == gold
    return VoteCounts(
        stayed_right=int((was & now).sum()),
        wrong_to_right=int((~was & now).sum()),
        right_to_wrong=int((was & ~now).sum()),
        stayed_wrong=int((~was & ~now).sum()),
    )


def label_probs(
    scores: Float[np.ndarray, "instances templates labels"],
) -> Float[np.ndarray, "instances templates labels"]:
    """The scores normalised over the labels."""
    peak = scores.max(axis=-1, keepdims=True)
    # A template may rule out every label (-inf throughout): no label leads there.
    powers = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = powers.sum(axis=-1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def margins(run: Run) -> Float[np.ndarray, "instances templates"]:
    """The lead of the best label's probability over the second's, 0 to 1; 1 where there is only one label."""
    probs = np.sort(label_probs(run.scores), axis=-1)
    return probs[..., -1] - probs[..., -2] if probs.shape[-1] > 1 else np.ones(probs.shape[:-1], dtype=probs.dtype)


def wrong_answers(run: Run) -> Bool[np.ndarray, "instances templates"]:
    """Which answers are known to be wrong."""
    return (run.gold[:, None] >= 0) & (run.predictions != run.gold[:, None])


def find_changes(base: Run, after: Run | None) -> list[Change]:
    """The instances whose answers changed; of one run alone, those that are split or wrong."""
    names = state_names(base)
    if after is None:
        kinds = [None if state in (None, names[-1]) else Kind(None, state, "other") for state in states(base)]
        disagreeing = [_num_disagreeing(row) for row in base.predictions]
        return [Change(i, kind, n) for i, (kind, n) in enumerate(zip(kinds, disagreeing, strict=True)) if kind]
    changed: Int[np.ndarray, " instances"] = (base.predictions != after.predictions).sum(axis=1)
    votes_before, votes_after = majority_vote(base.scores), majority_vote(after.scores)
    found = []
    for index, (was, now) in enumerate(zip(states(base), states(after), strict=True)):
        if was is None or now is None or not changed[index]:
            continue
        had_answers = not base.has_gold and "no majority" not in (was, now)
        same_answer = not had_answers or int(votes_before[index]) == int(votes_after[index])
        if was == now and same_answer:
            continue
        found.append(Change(index, _kind(was, now, names, same_answer), int(changed[index])))
    return found


def _num_disagreeing(row: Int[np.ndarray, " templates"]) -> int:
    return len(row) - int(np.bincount(row).max())


def _kind(was: str, now: str, names: Sequence[str], same_answer: bool) -> Kind:
    if not same_answer:
        return Kind(was, f"{now} on another label", "other")
    return Kind(was, now, "better" if names.index(now) > names.index(was) else "worse")


def select_examples(changes: Sequence[Change], limit: int = MAX_EXAMPLES) -> list[Change]:
    """A few changes of every kind: one of each in turn, the most changed first, until the limit is reached.

    The choice depends on nothing but the two runs, and bad kinds get as many places as good ones.
    """
    by_kind: dict[Kind, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (-change.num_changed, change.instance)):
        by_kind.setdefault(change.kind, []).append(change)
    order = sorted(by_kind, key=lambda kind: ("better", "worse", "other").index(kind.tone) * 1000 - len(by_kind[kind]))
    chosen: dict[Kind, int] = dict.fromkeys(order, 0)
    while sum(chosen.values()) < min(limit, len(changes)):
        for kind in order:
            if sum(chosen.values()) < limit and chosen[kind] < len(by_kind[kind]):
                chosen[kind] += 1
    return [change for kind in order for change in by_kind[kind][: chosen[kind]]]
