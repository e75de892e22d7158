"""What happened to each instance between two audits, and which instances to show."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import label_probs, vote_counts

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
    """An instance to show: its row in the scores, its kind, and how many of its templates changed their answer."""

    instance: int
    kind: Kind
    num_changed: int


def state_names(run: Audit) -> tuple[str, ...]:
    """The states in order, the worst first."""
    return WITH_GOLD if run.has_gold else WITHOUT_GOLD


def states(run: Audit) -> list[str | None]:
    """Each instance's state by its templates' answers; ``None`` where it alone lacks a gold label."""
    num_templates = run.scores.shape[1]
    found: list[str | None] = []
    for size, vote, gold in zip(_largest_groups(run).tolist(), run.data.votes, run.gold, strict=True):
        agreed = size == num_templates
        if not run.has_gold:
            found.append("agreed" if agreed else "majority" if 2 * size > num_templates else "no majority")
        elif gold < 0:
            found.append(None)
        else:
            verdict = "right" if vote == gold else "wrong"
            found.append(f"agreed {verdict}" if agreed else f"split, vote {verdict}")
    return found


def state_counts(run: Audit) -> list[int]:
    """How many instances are in each state."""
    return list(map(states(run).count, state_names(run)))


def transition_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many instances went from each state (rows) to each state (columns)."""
    names = state_names(before)
    pairs = Counter(zip(states(before), states(after), strict=True))
    return [[pairs[row, column] for column in names] for row in names]


def answer_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many single answers went from wrong and right (rows) to wrong and right (columns)."""
    labelled = before.gold >= 0
    gold = before.gold[labelled, None]
    was, now = before.predictions[labelled] == gold, after.predictions[labelled] == gold
    return [[int(((was == i) & (now == j)).sum()) for j in (False, True)] for i in (False, True)]


def margins(scores: Float[np.ndarray, "instances templates labels"]) -> Float[np.ndarray, "instances templates"]:
    """The lead of the best label's probability over the second's, 0 to 1; 1 where there is only one label."""
    probs = np.sort(label_probs(scores), axis=-1)
    return probs[..., -1] - probs[..., -2] if probs.shape[-1] > 1 else np.ones(probs.shape[:-1])


def find_changes(base: Audit, after: Audit | None) -> list[Change]:
    """The instances whose answers changed; of one run alone, those that are split or wrong."""
    names = state_names(base)
    if after is None:
        disagreeing = base.scores.shape[1] - _largest_groups(base)
        return [
            Change(index, Kind(None, state, "other"), int(disagreeing[index]))
            for index, state in enumerate(states(base))
            if state not in (None, names[-1])
        ]
    changed: Int[np.ndarray, " instances"] = (base.predictions != after.predictions).sum(axis=1)
    same_votes = base.data.votes == after.data.votes
    found = []
    for index, (was, now) in enumerate(zip(states(base), states(after), strict=True)):
        if was is None or now is None or not changed[index]:
            continue
        had_answers = not base.has_gold and "no majority" not in (was, now)
        if had_answers and not same_votes[index]:
            found.append(Change(index, Kind(was, f"{now} on another label", "other"), int(changed[index])))
        elif was != now:
            tone = "better" if names.index(now) > names.index(was) else "worse"
            found.append(Change(index, Kind(was, now, tone), int(changed[index])))
    return found


def select_examples(changes: Sequence[Change], limit: int = MAX_EXAMPLES) -> dict[Kind, list[Change]]:
    """A few changes of every kind: one of each in turn, the most changed first, until the limit is reached.

    The choice depends on nothing but the two runs, and bad kinds get as many examples as good ones.
    """
    by_kind: dict[Kind, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (-change.num_changed, change.instance)):
        by_kind.setdefault(change.kind, []).append(change)
    order = sorted(by_kind, key=lambda kind: (("better", "worse", "other").index(kind.tone), -len(by_kind[kind])))
    in_turn = sorted((rank, at) for at, kind in enumerate(order) for rank in range(len(by_kind[kind])))
    chosen = Counter(order[at] for _, at in in_turn[:limit])
    return {kind: by_kind[kind][: chosen[kind]] for kind in order if chosen[kind]}


def _largest_groups(run: Audit) -> Int[np.ndarray, " instances"]:
    return vote_counts(run.predictions, run.scores.shape[2]).max(axis=1)
