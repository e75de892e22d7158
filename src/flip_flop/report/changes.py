"""Changes of instances between two audits, and the choice of examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import label_probs, vote_counts

WITH_GOLD = ("unanimous, wrong", "split, vote wrong", "split, vote right", "unanimous, right")
WITHOUT_GOLD = ("no majority", "majority", "unanimous")
MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Kind:
    """A kind of change between two states; ``tone`` is better, worse or other."""

    before: str | None
    after: str
    tone: str

    @property
    def title(self) -> str:
        """The kind in words."""
        return self.after if self.before is None else f"{self.before} → {self.after}"


@dataclass(frozen=True)
class Change:
    """A changed instance: its row in the scores, its kind, and the number of templates whose answer changed."""

    instance: int
    kind: Kind
    num_changed: int


def state_names(run: Audit) -> tuple[str, ...]:
    """The states of an instance, worst first."""
    return WITH_GOLD if run.has_gold else WITHOUT_GOLD


def states(run: Audit) -> Int[np.ndarray, " instances"]:
    """Each instance's state by its templates' answers, as its index in :func:`state_names`.

    The state is -1 if the run has gold labels but this instance lacks one.
    """
    num_templates = run.scores.shape[1]
    sizes, right = _largest_groups(run), run.data.votes == run.gold
    agreed = sizes == num_templates
    if not run.has_gold:
        return np.where(agreed, 2, np.where(2 * sizes > num_templates, 1, 0))
    found = np.where(agreed, np.where(right, 3, 0), np.where(right, 2, 1))
    return np.where(run.gold >= 0, found, -1)


def state_counts(run: Audit) -> list[int]:
    """How many instances are in each state."""
    found = states(run)
    return np.bincount(found[found >= 0], minlength=len(state_names(run))).tolist()


def transition_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many instances moved from each state (rows) to each state (columns)."""
    size, was, now = len(state_names(before)), states(before), states(after)
    known = (was >= 0) & (now >= 0)
    return np.bincount(size * was[known] + now[known], minlength=size**2).reshape(size, size).tolist()


def answer_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many answers moved from wrong and right (rows) to wrong and right (columns)."""
    labelled = before.gold >= 0
    gold = before.gold[labelled, None]
    was, now = before.predictions[labelled] == gold, after.predictions[labelled] == gold
    return [[int(((was == i) & (now == j)).sum()) for j in (False, True)] for i in (False, True)]


def margins(scores: Float[np.ndarray, "instances templates labels"]) -> Float[np.ndarray, "instances templates"]:
    """The probability of the best label minus the probability of the second; 1 if there is only one label."""
    probs = np.sort(label_probs(scores), axis=-1)
    return probs[..., -1] - probs[..., -2] if probs.shape[-1] > 1 else np.ones(probs.shape[:-1])


def find_changes(base: Audit, after: Audit | None) -> list[Change]:
    """The instances whose state changed; for a single run, those that are split or wrong."""
    names, was = state_names(base), states(base)
    if after is None:
        disagreeing = base.scores.shape[1] - _largest_groups(base)
        return [
            Change(index, Kind(None, names[was[index]], "other"), int(disagreeing[index]))
            for index in np.flatnonzero((was >= 0) & (was < len(names) - 1)).tolist()
        ]
    now, no_majority = states(after), -1 if base.has_gold else names.index("no majority")
    changed: Int[np.ndarray, " instances"] = (base.predictions != after.predictions).sum(axis=1)
    other_label = (base.data.votes != after.data.votes) & (not base.has_gold)
    other_label &= (was != no_majority) & (now != no_majority)
    found = []
    for index in np.flatnonzero((was >= 0) & (now >= 0) & (changed > 0)).tolist():
        before, later = names[was[index]], names[now[index]]
        if other_label[index]:
            found.append(Change(index, Kind(before, f"{later}, another label", "other"), int(changed[index])))
        elif before != later:
            tone = "better" if now[index] > was[index] else "worse"
            found.append(Change(index, Kind(before, later, tone), int(changed[index])))
    return found


def select_examples(changes: Sequence[Change], limit: int = MAX_EXAMPLES) -> dict[Kind, list[Change]]:
    """A few changes of every kind: one of each in turn, most changed first, up to the limit.

    The choice is deterministic, and changes for the worse get as many examples as changes for the better.
    """
    by_kind: dict[Kind, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (-change.num_changed, change.instance)):
        by_kind.setdefault(change.kind, []).append(change)
    order = sorted(by_kind, key=lambda kind: (("better", "worse", "other").index(kind.tone), -len(by_kind[kind])))
    in_turn = sorted((rank, index) for index, kind in enumerate(order) for rank in range(len(by_kind[kind])))
    chosen = Counter(order[index] for _, index in in_turn[:limit])
    return {kind: by_kind[kind][: chosen[kind]] for kind in order if chosen[kind]}


def _largest_groups(run: Audit) -> Int[np.ndarray, " instances"]:
    return vote_counts(run.predictions, run.scores.shape[2]).max(axis=1)
