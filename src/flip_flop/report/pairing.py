"""Pairs of runs: whether they have the same rows, which prompts differ, and their answers side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flip_flop.arrays import InstanceLabels
from flip_flop.console import on_one_line
from flip_flop.evaluation.result import Audit
from flip_flop.record import TaskRecord

MAX_NAMED = 3
VOTE = "majority vote"
_KINDS = {(True, True): "changed", (False, True): "added", (True, False): "removed"}
# The keys of a task file besides its templates that change every prompt, or the reading of every answer.
SETTINGS = ("system", "assistant_prefix", "chat_template_kwargs", "extract", "answer")


def changed_prompts(before: Audit, after: Audit) -> dict[str, str]:
    """The templates that were ``changed``, ``added`` or ``removed``, by name, and the task file's keys that changed."""
    one, other = _prompts(before), _prompts(after)
    names = sorted(name for name in one | other if one.get(name) != other.get(name))
    return {name: _KINDS[name in one, name in other] for name in names}


def _prompts(run: Audit) -> dict[str, object]:
    task = run.record.task
    templates = {template.name: template for template in task.templates if template.name in run.template_names}
    return {name: getattr(task, name) for name in SETTINGS} | templates


def data_differences(left: Audit, right: Audit) -> str:
    """The differences of the rows and labels, in words, that prevent a comparison. Empty if there is none."""
    return differing(same_rows(left, right))


def differing(parts: Mapping[str, bool]) -> str:
    """The names of the parts that are not the same."""
    return " and ".join(name for name, same in parts.items() if not same)


def may_be_same(one: str | None, other: str | None) -> bool:
    """Whether two digests are equal, or one of them is unknown."""
    return not one or not other or one == other


def same_rows(left: Audit, right: Audit) -> dict[str, bool]:
    """Whether two runs have the same rows with the same labels, part by part. Their prompts may differ."""
    one, other = left.record.task, right.record.task
    ids, only = sorted(left.instance_ids), {*left.instance_ids} ^ {*right.instance_ids}
    same = {
        "split": one.split == other.split,
        "labels, F1 or scale": _labels(one) == _labels(other),
        "held-out templates": _is_held_out(left) == _is_held_out(right),
        f"instances{_listed(sorted(only))}": len(left.scores) == len(right.scores) and not only,
    }
    if differing(same):
        return same
    # The digest of the instances covers their prompts, the digest of the data file covers the rows only.
    has_other_prompts = bool(changed_prompts(left, right))
    same["instances"] = has_other_prompts or may_be_same(one.instances_digest, other.instances_digest)
    if has_other_prompts or one.answer:
        same["data file"] = may_be_same(one.data.get("sha256"), other.data.get("sha256"))
    gold, other_gold = (np.minimum(run.gold, 0 if one.answer else np.inf)[_by_id(run)] for run in (left, right))
    named = np.array(ids)[gold != other_gold].tolist()
    return same | {f"gold labels{_listed(named)}": not named}


def _labels(task: TaskRecord) -> tuple[object, ...]:
    """The labels, F1 and scale that all numbers depend on. A run numbers its open answers."""
    return (task.answer["kind"] if task.answer else task.labels), task.f1, task.scale


def in_order_of(base: Audit, run: Audit) -> Audit:
    """The run with its instances in the order of the baseline, which has the same instances."""
    if base.instance_ids == run.instance_ids:
        return run
    rows = _by_id(run)[np.argsort(_by_id(base))]
    instances = [*run.instances]
    return replace(run, data=run.data[rows], instances=[instances[row] for row in rows] if instances else ())


def _by_id(run: Audit) -> InstanceLabels:
    return np.argsort(np.array(run.instance_ids))


def side_by_side(runs: Sequence[Audit]) -> list[Audit]:
    """The runs with the templates whose names all have, in one order. Without any, they have their majority vote."""
    shared = set.intersection(*(set(run.template_names) for run in runs))
    names = tuple(name for name in runs[0].template_names if name in shared)
    views = []
    for run in runs:
        data = run.data.select([run.template_names.index(name) for name in names]) if names else run.data.voted
        metrics = run.metrics | {"calibrated": None}  # of all templates
        views.append(replace(run, data=data, template_names=names or (VOTE,), metrics=metrics, instances=()))
    return views


def _is_held_out(run: Audit) -> bool:
    held_out = run.record.task.held_out_templates
    return bool(held_out) and set(held_out).issuperset(run.template_names)


def _listed(ids: Sequence[str]) -> str:
    return on_one_line(f" ({', '.join(ids[:MAX_NAMED])}{', ...' * (len(ids) > MAX_NAMED)})") if ids else ""
