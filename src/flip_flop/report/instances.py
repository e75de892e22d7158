"""The instances behind a report's numbers, compressed into the page: what its script shows."""

import base64
import json
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from flip_flop.console import visible
from flip_flop.evaluation.instances import StoredInstances
from flip_flop.evaluation.run_directory import Audit
from flip_flop.files import compress
from flip_flop.prompts import RenderedInstance
from flip_flop.report import changes
from flip_flop.report.compare import Group

PAGE_SIZE = 4_000_000  # characters of a page's instances, compressed and in Base64
READ_SIZE = 24_000_000  # bytes of prompts that are tried


@dataclass
class Embedded:
    """A group's instances as the page holds them, and the prompts of those that it prints.

    Attributes:
        content: Base64 of gzip of JSON.
        printed: The instances asked for that have prompts, by place.
        held: How many instances the page holds, ``with_prompts`` of them with their prompts.
        read_by: The run whose prompts they are.
    """

    content: str = ""
    printed: dict[int, RenderedInstance] = field(default_factory=dict)
    held: int = 0
    with_prompts: int = 0
    read_by: str = ""


def embed(group: Group, order: list[int], printed: Collection[int], size: int | None = PAGE_SIZE) -> Embedded:
    """Put a group's instances into at most ``size`` characters, or all of them where it is None.

    Where not all have room, those whose answers changed come first, then those with the smallest margin. Templates
    stand in this ``order``; ``printed`` are the instances to print, which are always among those held.
    """
    run, stored = max(((run, _sizes(run)) for run in group.runs), key=lambda each: len(each[1]))
    sizes = np.full(len(run.instance_ids), 8 * len(group.runs) * len(order))
    sizes[: len(stored)] += np.array(stored, dtype=np.int64)
    ranked = np.concatenate([np.array(sorted(printed), dtype=np.int64), _by_interest(group)])
    ranked = ranked[np.sort(np.unique(ranked, return_index=True)[1])]
    number = len(ranked)
    if size is not None:
        number = max(len(printed), int(np.searchsorted(sizes[ranked].cumsum(), READ_SIZE, side="right")))
    while True:
        found = _pack(group, run, order, np.sort(ranked[:number]), printed)
        if size is None or len(found.content) <= size or number <= len(printed):
            return found
        number = max(len(printed), int(0.95 * number * size / len(found.content)))


def _sizes(run: Audit) -> list[int]:
    return run.instances.sizes() if isinstance(run.instances, StoredInstances) else []


def _by_interest(group: Group) -> Int[np.ndarray, " instances"]:
    base = group.base
    others = [run.predictions for run in group.runs[1:]] or [base.predictions[:, :1]]
    changed = np.any([(base.predictions != other).any(axis=1) for other in others], axis=0)
    lead = np.min([changes.margins(run.scores).min(axis=1) for run in group.runs], axis=0)
    return np.lexsort((lead, ~changed))


def _pack(
    group: Group, run: Audit, order: list[int], places: Int[np.ndarray, " instances"], printed: Collection[int]
) -> Embedded:
    found = Embedded(held=len(places), read_by=run.name)
    content = b"".join(compress(_json(group, run, order, places, printed, found)))
    found.content = base64.b64encode(content).decode("ascii")
    return found


def _json(
    group: Group,
    run: Audit,
    order: list[int],
    places: Int[np.ndarray, " instances"],
    printed: Collection[int],
    found: Embedded,
) -> Iterator[str]:
    """The page's JSON in parts; a table is a flat list, instance by instance."""
    names = changes.state_names(group.base)
    yield json.dumps(
        {
            "runs": _names(each.name for each in group.runs),
            "labels": _names(group.base.label_names),
            "templates": _names(group.base.template_names[index] for index in order),
            "states": names,
            "total": len(run.instance_ids),
            "ids": _names(run.instance_ids[index] for index in places.tolist()),
            "gold": group.base.gold[places].tolist(),
            "answers": [each.predictions[places][:, order].ravel().tolist() for each in group.runs],
            "margins": [_per_mille(each, places, order) for each in group.runs],
            "votes": [each.data.votes[places].tolist() for each in group.runs],
            "standing": [changes.states(each)[places].tolist() for each in group.runs],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )[:-1]
    yield ',"prompts":['
    position = {index: position for position, index in enumerate(places.tolist())}
    choices: dict[Any, int] = {}
    at: list[int] = []
    choice_of: list[int] = []
    for index, instance in _read(run, position):
        if index in printed:
            found.printed[index] = instance
        texts = [f"\n[the model wrote] {text}" for text in instance.written] or [""] * len(order)
        prompts = [visible(instance.prompts[template] + texts[template]) for template in order]
        yield ("," if at else "") + json.dumps(prompts, ensure_ascii=False)
        at.append(position[index])
        choice_of.append(choices.setdefault(instance.choices, len(choices)))
    found.with_prompts = len(at)
    listed = [[_names(each[template]) for template in order] for each in choices]
    rest = {"promptsOf": at, "choices": listed, "choiceOf": choice_of}
    yield "]," + json.dumps(rest, ensure_ascii=False, separators=(",", ":"))[1:]


def _read(run: Audit, wanted: Container[int]) -> Iterator[tuple[int, RenderedInstance]]:
    if isinstance(run.instances, StoredInstances):
        return run.instances.chosen(wanted)
    return ((index, each) for index, each in enumerate(run.instances) if index in wanted)


def _per_mille(run: Audit, places: Int[np.ndarray, " instances"], order: list[int]) -> list[int]:
    leads = changes.margins(run.scores[places])[:, order]
    return np.rint(1000 * leads).astype(int).ravel().tolist()


def _names(texts: Any) -> list[str]:
    return [visible(text, one_line=True) for text in texts]
