"""What the log says of training steps: loss terms, shares of the cases, votes, pseudo-labels, own-label mass."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flip_flop.method import Consensus, TemplateSplit
from flip_flop.scoring.tokens import EncodedInstance


class StepStatistics:
    """Means over the instances of the steps since the last log line.

    Keys:
        cce, jsd, flip, swarm: The loss's terms, weights included.
        case_1, case_2, case_3: Shares of the instances in each case of the paper.
        flip_weight: Mean w_flip over the instances of case 3.
        pseudo_label_accuracy: Share of consensus labels that equal the gold label, where there are gold labels.
        own_label_mass, own_label_mass_min: Probability that an answer is one of the template's own labels, over all
            templates, and for the template with the least. Above 1 where one label is the beginning of another.
    """

    def __init__(self):
        self._values: dict[str, list[float]] = defaultdict(list)
        self._masses: list[Tensor] = []

    def add(
        self,
        instances: Sequence[EncodedInstance],
        consensus: Consensus,
        splits: Sequence[TemplateSplit],
        scores: Float[Tensor, "instances templates labels"],
        token_counts: Int[Tensor, "instances templates labels"],
        losses: Sequence[tuple[Tensor, dict[str, float]]],
    ) -> None:
        """Note a micro-batch."""
        self._masses.append((scores * token_counts).exp().sum(dim=-1).cpu())
        for number, (split, (_, terms)) in enumerate(zip(splits, losses, strict=True)):
            for case in (1, 2, 3):
                self._values[f"case_{case}"].append(float(split.case == case))
            for name, value in terms.items():
                self._values[name].append(value)
            if split.case == 3:
                self._values["flip_weight"].append(float(split.flip_weight))
            gold = instances[number].label
            if gold is not None and bool(consensus.exists[number]):
                self._values["pseudo_label_accuracy"].append(float(int(consensus.label[number]) == gold))

    def flush(self) -> dict[str, float]:
        """The means since the last flush. Terms are averaged over all instances: a skipped one counts as zero."""
        if not self._masses:
            return {}
        num_instances = len(self._values["case_1"])
        terms = ("cce", "jsd", "flip", "swarm")
        logs = {
            name: sum(values) / (num_instances if name in terms else len(values))
            for name, values in self._values.items()
            if values
        }
        per_template = torch.cat(self._masses).mean(dim=0)
        logs |= {
            "own_label_mass": float(per_template.mean()),
            "own_label_mass_min": float(per_template.min()),
        }
        self.clear()
        return logs

    def clear(self) -> None:
        """Forget what was noted."""
        self._values.clear()
        self._masses.clear()

    @classmethod
    def merged(cls, parts: Sequence["StepStatistics"]) -> "StepStatistics":
        """What several processes noted, as if one had."""
        whole = cls()
        for part in parts:
            whole._masses.extend(part._masses)
            for name, values in part._values.items():
                whole._values[name].extend(values)
        return whole
