"""Pairs of runs: whether they have the same rows, which prompts differ, and their answers side by side."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flip_flop.console import on_one_line
from flip_flop.errors import InputError
from flip_flop.evaluation.result import Audit
from flip_flop.record import TaskRecord

MAX_NAMED = 3
VOTE = "majority vote"
# The keys of a task file besides its templates that change every prompt, or the reading of every answer.
SETTINGS = ("system", "assistant_prefix", "chat_template_kwargs", "extract", "answer")


def prompt_changes(before: Audit, after: Audit) -> str:
    """The templates that were changed, added or removed, and the task file's keys that changed. Empty without any.

    Example: ``plain changed, short added``.
    """
    one = _prompts(before)
    other = _prompts(after)
    changes = []
    for name in sorted(one | other):
        if name not in other:
            changes.append(f"{name} removed")
        elif name not in one:
            changes.append(f"{name} added")
        elif one[name] != other[name]:
            changes.append(f"{name} changed")
    return on_one_line(", ".join(changes))


def _prompts(run: Audit) -> dict[str, object]:
    task = run.record.task
    templates = {template.name: template for template in task.templates if template.name in run.template_names}
    return {name: getattr(task, name) for name in SETTINGS} | templates


def data_differences(left: Audit, right: Audit) -> str:
    """The differences of the rows and labels, in words, that prevent a comparison. Empty if there is none.

    Prompts may differ.
    """
    one = left.record.task
    other = right.record.task
    found = []
    if one.split != other.split:
        found.append("split")
    if _labels(one) != _labels(other):
        found.append("labels, F1 or scale")
    if is_held_out(left) != is_held_out(right):
        found.append("held-out templates")
    ids = sorted({*left.instance_ids} ^ {*right.instance_ids})
    if ids or len(left.scores) != len(right.scores):
        found.append(f"instances{_listed(ids)}")
    if found:
        return " and ".join(found)
    # The digest of the instances covers their prompts, the digest of the data file covers the rows only.
    has_other_prompts = bool(prompt_changes(left, right))
    if not has_other_prompts and not may_be_same(one.instances_digest, other.instances_digest):
        found.append("instances")
    has_file_only = has_other_prompts or one.answer
    if has_file_only and not may_be_same(one.data.get("sha256"), other.data.get("sha256")):
        found.append("data file")
    is_other = _golds(left) != _golds(in_order_of(left, right))
    if is_other.any():
        ids = sorted(np.array(left.instance_ids)[is_other].tolist())
        found.append(f"gold labels{_listed(ids)}")
    return " and ".join(found)


def require_same_rows(left: Audit, right: Audit, words: str) -> None:
    """Refuse runs of other rows or labels (``E-RUN-MISMATCH``); ``words`` name them."""
    if differing := data_differences(left, right):
        hint = "Audit both on the same rows: the same data, split, limit and seed."
        raise InputError("E-RUN-MISMATCH", f"{words} differ in their {differing}.", hint)


def may_be_same(one: str | None, other: str | None) -> bool:
    """Whether two digests are equal, or one of them is unknown."""
    return not one or not other or one == other


def _labels(task: TaskRecord) -> tuple[object, ...]:
    """The labels, F1 and scale that all numbers depend on. A run numbers its open answers."""
    return (task.answer["kind"] if task.answer else task.labels), task.f1, task.scale


def _golds(run: Audit) -> np.ndarray:
    """The gold labels. Each run numbers its open answers, so that only their presence can be compared."""
    if run.data.answered:
        return np.minimum(run.gold, 0)
    return run.gold


def in_order_of(base: Audit, run: Audit) -> Audit:
    """The run with its instances in the order of the baseline, which has the same instances."""
    if base.instance_ids == run.instance_ids:
        return run
    places = {name: row for row, name in enumerate(run.instance_ids)}
    rows = [places[name] for name in base.instance_ids]
    instances = [*run.instances]
    return replace(run, data=run.data[rows], instances=[instances[row] for row in rows] if instances else ())


def side_by_side(runs: Sequence[Audit]) -> list[Audit]:
    """The runs with the templates whose names all have, in one order. Without any, they have their majority vote."""
    shared = set.intersection(*(set(run.template_names) for run in runs))
    names = tuple(name for name in runs[0].template_names if name in shared)
    views = []
    for run in runs:
        if names:
            data = run.data.select([run.template_names.index(name) for name in names])
        else:
            data = run.data.voted
        metrics = run.metrics | {"calibrated": None}  # of all templates
        views.append(replace(run, data=data, template_names=names or (VOTE,), metrics=metrics, instances=()))
    return views


def is_held_out(run: Audit) -> bool:
    """Whether training used none of the templates."""
    held_out = run.record.task.held_out_templates
    return bool(held_out) and set(held_out).issuperset(run.template_names)


def _listed(ids: Sequence[str]) -> str:
    named = ", ".join(ids[:MAX_NAMED])
    more = ", ..." if len(ids) > MAX_NAMED else ""
    return on_one_line(f" ({named}{more})") if ids else ""
