"""The instances of a report, compressed into the page for its script."""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from jaxtyping import Int

from flip_flop.console import visible
from flip_flop.evaluation.instances import StoredInstances
from flip_flop.evaluation.run_directory import Audit
from flip_flop.files import compress
from flip_flop.prompts import RenderedInstance
from flip_flop.report import changes
from flip_flop.report.compare import AuditComparison

Choices = tuple[tuple[str, ...], ...]
PAGE_SIZE = 4_000_000  # characters of a page's instances, compressed and in Base64
READ_SIZE = 24_000_000  # bytes of prompts to try


@dataclass(frozen=True)
class Embedded:
    """The instances of a group that the page contains.

    Attributes:
        content: Base64 of gzip of JSON.
        printed: The printed instances that have prompts, by position: the blocks of each template, and the choices.
        held: The number of instances in the page; ``with_prompts`` of them have prompts.
    """

    content: str
    printed: dict[int, tuple[dict[int, list[str]], Choices]]
    held: int
    with_prompts: int


def embed(group: AuditComparison, order: list[int], printed: Collection[int], size: int | None = PAGE_SIZE) -> Embedded:
    """Compress a group's instances into at most ``size`` characters, or all of them if ``size`` is None.

    Instances with changed answers come first, then those with the smallest margins. The page prints those at the
    positions ``printed``, which are always embedded; ``order`` is the order of the templates.
    """
    stored = max(map(_sizes, group.runs), key=len)
    sizes = np.full(len(group.base.instance_ids), 8 * len(group.runs) * len(order))
    sizes[: len(stored)] += np.array(stored, dtype=np.int64)
    ranked = np.concatenate([np.array(sorted(printed), dtype=np.int64), _by_interest(group)])
    ranked = ranked[np.sort(np.unique(ranked, return_index=True)[1])]
    number = len(ranked)
    if size is not None:
        number = max(len(printed), int(np.searchsorted(sizes[ranked].cumsum(), READ_SIZE, side="right")))
    while True:
        found = _pack(group, order, np.sort(ranked[:number]), printed)
        if size is None or len(found.content) <= size or number <= len(printed):
            return found
        number = max(len(printed), int(0.95 * number * size / len(found.content)))


def _sizes(run: Audit) -> list[int]:
    return run.instances.sizes() if isinstance(run.instances, StoredInstances) else []


def _by_interest(group: AuditComparison) -> Int[np.ndarray, " instances"]:
    base = group.base
    others = [run.predictions for run in group.runs[1:]] or [base.predictions[:, :1]]
    changed = np.any([(base.predictions != other).any(axis=1) for other in others], axis=0)
    lead = np.min([changes.margins(run.scores).min(axis=1) for run in group.runs], axis=0)
    return np.lexsort((lead, ~changed))


def _pack(
    group: AuditComparison,
    order: list[int],
    positions: Int[np.ndarray, " instances"],
    printed: Collection[int],
) -> Embedded:
    """Embed the instances at these positions. A table is a flat list, instance by instance."""
    kept: dict[int, tuple[dict[int, list[str]], Choices]] = {}
    choices: dict[Any, int] = {}
    prompts_of: list[int] = []
    choice_of: list[int] = []
    place = {index: at for at, index in enumerate(positions.tolist())}

    def texts() -> Iterator[str]:  # one instance at a time, because all prompts can exceed the memory
        answers = {
            "runs": _names(run.name for run in group.runs),
            "labels": _names(group.base.label_names),
            "templates": _names(group.base.template_names[index] for index in order),
            "states": changes.state_names(group.base),
            "total": len(group.base.instance_ids),
            "ids": _names(group.base.instance_ids[index] for index in place),
            "gold": group.base.gold[positions].tolist(),
            "answers": [run.predictions[positions][:, order].ravel().tolist() for run in group.runs],
            "margins": [_per_mille(run, positions, order) for run in group.runs],
            "votes": [run.data.votes[positions].tolist() for run in group.runs],
            "standing": [changes.states(run)[positions].tolist() for run in group.runs],
        }
        yield f'{_json(answers)[:-1]},"prompts":['
        names = ["the model"] if len(group.runs) == 1 else _names(run.name for run in group.runs)
        texts_of_runs = zip_longest(*(_read(run, place) for run in group.runs))  # a run may lack the last prompts
        for index, rows in zip(place, texts_of_runs, strict=False):
            read = [(name, row[1]) for name, row in zip(names, rows, strict=True) if row]
            blocks = {template: _blocks(read, template, len(names)) for template in order}
            if index in printed:
                kept[index] = blocks, read[0][1].choices
            yield ("," if prompts_of else "") + _json(["\n\n".join(parts) for parts in blocks.values()])
            prompts_of.append(place[index])
            choice_of.append(choices.setdefault(read[0][1].choices, len(choices)))
        listed = [[_names(choice[template]) for template in order] for choice in choices]
        yield "]," + _json({"promptsOf": prompts_of, "choices": listed, "choiceOf": choice_of})[1:]

    content = base64.b64encode(b"".join(compress(texts()))).decode("ascii")
    return Embedded(content, kept, len(positions), len(prompts_of))


def _blocks(read: Sequence[tuple[str, RenderedInstance]], template: int, num_runs: int) -> list[str]:
    """Return each different prompt of a template, with the answers that the models of its runs wrote."""
    by_prompt: dict[str, list[tuple[str, RenderedInstance]]] = {}
    for name, instance in read:
        by_prompt.setdefault(instance.prompts[template], []).append((name, instance))
    blocks = []
    for prompt, runs in by_prompt.items():
        head = "" if len(runs) == num_runs else f"[prompt of {', '.join(name for name, _ in runs)}]\n"
        written = (f"\n[{name} wrote] {instance.written[template]}" for name, instance in runs if instance.written)
        blocks.append(visible(head + prompt + "".join(written)))
    return blocks


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read(run: Audit, wanted: Collection[int]) -> Iterator[tuple[int, RenderedInstance]]:
    if isinstance(run.instances, StoredInstances):
        return run.instances.chosen(wanted)
    return ((index, instance) for index, instance in enumerate(run.instances) if index in wanted)


def _per_mille(run: Audit, positions: Int[np.ndarray, " instances"], order: list[int]) -> list[int]:
    leads = changes.margins(run.scores[positions])[:, order]
    return np.rint(1000 * leads).astype(int).ravel().tolist()


def _names(texts: Iterable[str]) -> list[str]:
    return [visible(text, one_line=True) for text in texts]
