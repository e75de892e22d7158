"""Which runs can be compared, and how far their metrics differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from flip_flop.console import count, point_interval, points, visible
from flip_flop.errors import InputError
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import METRICS
from flip_flop.record import MODEL_PARTS, changed_parts, digests_of


@dataclass(frozen=True)
class Difference:
    """How far a metric has moved, as a fraction, and the 95% interval of that where there is one."""

    value: float
    interval: tuple[float, float] | None

    @property
    def is_clear(self) -> bool:
        """Whether there is an interval, and it leaves out 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    def words(self) -> str:
        """The difference in points with its interval.

        Example:
            >>> Difference(0.198, (0.176, 0.22)).words()
            '+19.8, 95% CI +17.6 to +22.0'
        """
        return points(self.value) + (f", 95% CI {point_interval(self.interval)}" if self.interval else "")


def mean_difference(metric: str, before: Audit, after: Sequence[Audit]) -> Difference | None:
    """How a metric's mean over several runs differs from that of one; ``None`` where a run has no value.

    The interval is over instances: every resample draws the same ones in all runs. It says nothing about how far
    another training seed would have gone.
    """
    start = before.value(metric)
    values = [value for run in after if (value := run.value(metric)) is not None]
    if start is None or len(values) < len(after):
        return None
    interval = METRICS[metric].change_interval(before.data, *(run.data for run in after))
    return Difference(fmean(values) - start, interval)


def difference_from_vote(before: Audit, after: Audit) -> Difference:
    """How the mean F1 of single templates after differs from the F1 of the free vote before."""
    interval = METRICS["mean_f1"].change_interval(before.data.voted, after.data)
    return Difference(after.metrics["mean_f1"] - before.metrics["vote_f1"], interval)


@dataclass(frozen=True)
class Group:
    """Runs over the same instances and templates. The first is what the others are compared with."""

    runs: tuple[Audit, ...]

    @property
    def base(self) -> Audit:
        """The run that stands for *before*."""
        return self.runs[0]

    @property
    def after(self) -> Audit:
        """The run that stands for *after* in the headline: the last one given."""
        return self.runs[-1]

    @property
    def is_comparison(self) -> bool:
        """Whether there is a run beside the base."""
        return len(self.runs) > 1

    @property
    def held_out(self) -> bool:
        """Whether every template of the group was kept out of training."""
        held_out = {name for run in self.runs for name in run.record.task.held_out_templates}
        return bool(held_out) and held_out.issuperset(self.base.template_names)

    @property
    def heading(self) -> str:
        """What the runs were audited on, in one line of plain text."""
        instances, templates, _ = self.base.scores.shape
        task, kind = self.base.record.task, "held-out template" if self.held_out else "template"
        parts = [task.name, task.split, count(templates, kind), count(instances, "instance")]
        return ", ".join(visible(part, one_line=True) for part in parts)


def group_runs(runs: Sequence[Audit]) -> list[Group]:
    """Sort runs into groups over the same task, split, templates and instances, in the order given."""
    groups: list[list[Audit]] = []
    for run in _with_own_names(runs):
        same = (group for group in groups if all(_same_data(group[0], run).values()))
        group = next(same, None)
        groups.append([run]) if group is None else group.append(run)
    return [Group(tuple(group)) for group in groups]


def require_comparable(groups: Sequence[Group]) -> None:
    """Refuse several runs of which no two can be compared.

    Raises:
        InputError: ``E-RUN-MISMATCH``, with what the first two runs differ in.
    """
    if len(groups) > 1 and not any(group.is_comparison for group in groups):
        left, right = groups[0].base, groups[1].base
        raise InputError(
            "E-RUN-MISMATCH",
            f"No two of the {len(groups)} runs can be compared: {left.path} and {right.path} "
            f"differ in their {_differing(_same_data(left, right))}.",
            "Audit both models on the same task, split, templates and limit.",
        )


def what_differs(left: Audit, right: Audit) -> str:
    """What keeps two runs from being compared as one model before and after a training, in words."""
    one, other = left.record.model, right.record.model
    models = changed_parts(digests_of(model=one), digests_of(model=other), MODEL_PARTS)
    same_model = {f"model's {words}": False for words in models.values()} | {"data type": one.dtype == other.dtype}
    return _differing(_same_data(left, right) | same_model)


def _same_data(left: Audit, right: Audit) -> dict[str, bool]:
    one, other = left.record.task, right.record.task
    prompts = changed_parts(digests_of(one), digests_of(other), {"rows": "prompts"})
    return {
        "task": one.digest == other.digest,
        "split": one.split == other.split,
        "templates": left.template_names == right.template_names,
        "instances": left.instance_ids == right.instance_ids and not prompts,
        "gold labels": np.array_equal(left.gold, right.gold),
    }


def _differing(parts: Mapping[str, bool]) -> str:
    return " and ".join(name for name, same in parts.items() if not same)


def _with_own_names(runs: Sequence[Audit]) -> list[Audit]:
    """The runs under different names: of those alike on the same templates, each with its folder beside it."""
    alike: dict[Any, list[Audit]] = {}
    for run in runs:
        alike.setdefault((run.name, run.template_names), []).append(run)
    named = []
    for run in runs:
        duplicates = alike[run.name, run.template_names]
        folders = [each.path.resolve().name for each in duplicates]
        mark = run.path.resolve().name if len(set(folders)) == len(folders) else str(1 + duplicates.index(run))
        renamed = replace(run, record=replace(run.record, name=f"{run.name} ({mark})"))
        named.append(run if len(duplicates) == 1 else renamed)
    return named
