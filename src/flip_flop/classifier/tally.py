"""The last line of ``flip-flop predict``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flip_flop.console import count
from flip_flop.tasks import Task


@dataclass
class Tally:
    """How many rows have each vote, and how many have none, and why."""

    task: Task
    labels: Sequence[Any]
    votes: Counter[Any] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, predictions: Sequence[Mapping[str, Any]], abstain_below: float) -> None:
        """Count predictions."""
        split = "without a strict majority of the templates"
        none = "without a readable answer" if self.task.answer else "without an answer that is a label"
        self.notes.update(dict.fromkeys([split, "abstained", "too long", none], 0))  # in this order
        for row in predictions:
            self.votes[row["vote"]] += 1
            self.notes[split] += row["consensus"] is False
            if row.get("note"):
                self.notes["too long"] += 1
            elif row["vote"] is None:
                self.notes["abstained" if 0 < row["confidence"] < abstain_below else none] += 1

    def __str__(self) -> str:
        shares = ", ".join(f"{label}: {self.votes[label]}" for label in self.labels)
        if self.task.answer:
            shares = count(len(self.votes.keys() - {None}), "different vote")
        notes = [f"{number} {what}" for what, number in self.notes.items() if number]
        return f"{self.votes.total()} rows ({'; '.join([shares, *notes])})"
