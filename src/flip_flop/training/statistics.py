"""Statistics of training steps for the log (docs/reference/log_keys.md)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from flip_flop.metrics import majority_vote
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.training.instance import TrainingInstance


class StepStatistics:
    """Means over the instances of the steps since the last log line.

    Loss terms are averaged over all instances, with zeros for skipped ones. Other values are averaged over the
    instances that have one.
    """

    def __init__(self):
        self._values: dict[str, list[float]] = defaultdict(list)
        self._unread: list[tuple[str, Tensor]] = []  # loss terms, still on their device
        self._terms: set[str] = set()
        self._masses: list[Tensor] = []
        self._votes: list[Int64[np.ndarray, " instances"]] = []

    def add(
        self,
        encoded: Sequence[EncodedInstance],
        instances: Sequence[TrainingInstance],
        scores: Float[Tensor, "instances templates labels"],
        token_counts: Int[Tensor, "instances templates labels"],
        losses: Sequence[dict[str, Tensor]],
        *,
        uses_labels: bool = False,
    ) -> None:
        """Add a micro-batch, with scores and token counts on the CPU."""
        self._masses.append((scores * token_counts).exp().sum(dim=-1))
        self._votes.append(majority_vote(scores.float().numpy()))
        for source, instance, terms in zip(encoded, instances, losses, strict=True):
            consensus, split = instance.consensus, instance.split
            for case in (1, 2, 3):
                self._values[f"case_{case}"].append(float(split.case == case))
            for name, value in terms.items():
                self._terms.add(name)
                self._unread.append((name, value.detach()))
            if uses_labels:
                self._values["no_gold"].append(float(source.label is None))
            if split.case == 3:
                self._values["flip_weight"].append(split.flip_weight)
            if source.label is not None and bool(consensus.exists):
                self._values["pseudo_label_accuracy"].append(float(int(consensus.label) == source.label))

    def read(self) -> "StepStatistics":
        """Copy the loss terms from their device, all at once to wait for it only once; return itself."""
        if self._unread:
            names, values = zip(*self._unread, strict=True)
            read = torch.stack([value.to(values[0].device).reshape(()) for value in values]).tolist()
            for name, value in zip(names, read, strict=True):
                self._values[name].append(value)
            self._unread = []
        return self

    def means(self) -> dict[str, float]:
        """Return the means by log key."""
        if not self._masses:
            return {}
        self.read()
        num_instances = len(self._values["case_1"])
        logs = {
            name: sum(values) / (num_instances if name in self._terms else len(values))
            for name, values in self._values.items()
        }
        per_template = torch.cat(self._masses).mean(dim=0)
        return logs | {"own_label_mass": float(per_template.mean()), "own_label_mass_min": float(per_template.min())}

    def vote_counts(self, num_labels: int) -> Int64[np.ndarray, " labels"]:
        """Count the model's majority votes for each label."""
        return np.bincount(np.concatenate([np.empty(0, dtype=np.int64), *self._votes]), minlength=num_labels)

    @classmethod
    def merged(cls, parts: Sequence["StepStatistics"]) -> "StepStatistics":
        """Merge the statistics of several processes or rows."""
        whole = cls()
        for part in parts:
            whole._masses.extend(part._masses)
            whole._votes.extend(part._votes)
            whole._unread.extend(part._unread)
            whole._terms |= part._terms
            for name, values in part._values.items():
                whole._values[name].extend(values)
        return whole


def mean_loss(log_history: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean loss of all logged steps, including those before a resume."""
    total, last = 0.0, 0
    for entry in log_history:
        if "loss" in entry:
            total, last = total + entry["loss"] * (entry["step"] - last), entry["step"]
    return total / max(last, 1)
