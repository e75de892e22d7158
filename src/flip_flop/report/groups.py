"""Sorting runs into groups that can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flip_flop.errors import InputError
from flip_flop.report.runs import Run
from flip_flop.text import count, visible


@dataclass(frozen=True)
class Group:
    """Runs over the same instances and templates. The first is what the others are compared with."""

    runs: tuple[Run, ...]

    @property
    def base(self) -> Run:
        """The run that stands for *before*."""
        return self.runs[0]

    @property
    def after(self) -> Run:
        """The run that stands for *after* in the headline: the last one given."""
        return self.runs[-1]

    @property
    def held_out(self) -> bool:
        """Whether every template of the group was kept out of training."""
        held_out = {name for run in self.runs for name in run.record["task"].get("held_out_templates") or ()}
        return bool(held_out) and held_out.issuperset(self.base.template_names)

    @property
    def heading(self) -> str:
        """What the runs were audited on, in one line of plain text."""
        instances, templates, _ = self.base.scores.shape
        task = self.base.record["task"]
        kind = "held-out template" if self.held_out else "template"
        parts = [str(task["name"]), str(task["split"]), count(templates, kind), count(instances, "instance")]
        return ", ".join(visible(part, one_line=True) for part in parts)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into groups over the same task, split, templates and instances, in the order given."""
    groups: dict[Any, list[Run]] = {}
    for run in _with_own_names(runs):
        task = run.record["task"]
        key = (task["digest"], task["split"], run.template_names, run.instance_ids, tuple(run.gold.tolist()))
        groups.setdefault(key, []).append(run)
    return [Group(tuple(group)) for group in groups.values()]


def require_comparable(groups: Sequence[Group]) -> None:
    """Refuse several runs of which no two can be compared.

    Raises:
        InputError: ``E-RUN-MISMATCH``, with what the first two runs differ in.
    """
    if len(groups) > 1 and all(len(group.runs) == 1 for group in groups):
        left, right = groups[0].base, groups[1].base
        raise InputError(
            "E-RUN-MISMATCH",
            f"No two of the {len(groups)} runs can be compared: {left.path} and {right.path} "
            f"differ in their {_differing(_same_data(left, right))}.",
            "Audit both models on the same task, split, templates and limit.",
        )


def what_differs(left: Run, right: Run) -> str:
    """What keeps two runs from being compared as one model before and after a training, in words."""
    models = [run.record.get("model") or {} for run in (left, right)]
    same_model = {
        "model": models[0].get("digest") == models[1].get("digest"),
        "data type": models[0].get("dtype") == models[1].get("dtype"),
    }
    return _differing(_same_data(left, right) | same_model)


def _same_data(left: Run, right: Run) -> dict[str, bool]:
    return {
        "task": left.record["task"]["digest"] == right.record["task"]["digest"],
        "split": left.record["task"]["split"] == right.record["task"]["split"],
        "templates": left.template_names == right.template_names,
        "instances": left.instance_ids == right.instance_ids,
        "gold labels": np.array_equal(left.gold, right.gold),
    }


def _differing(parts: Mapping[str, bool]) -> str:
    return " and ".join(name for name, same in parts.items() if not same)


def _with_own_names(runs: Sequence[Run]) -> list[Run]:
    """The runs under different names: of those alike on the same templates, each with its folder beside it."""
    alike: dict[Any, list[Run]] = {}
    for run in runs:
        alike.setdefault((run.name, run.template_names), []).append(run)
    named = []
    for run in runs:
        duplicates = alike[run.name, run.template_names]
        folders = [each.path.resolve().name for each in duplicates]
        mark = run.path.resolve().name if len(set(folders)) == len(folders) else str(1 + duplicates.index(run))
        named.append(run if len(duplicates) == 1 else replace(run, name=f"{run.name} ({mark})"))
    return named
