"""The instances of a report: their changes between two audits, examples, and all of them for the page's script."""

import base64
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from flip_flop.arrays import CellValues, InstanceLabels, LabelScores, Predictions
from flip_flop.console import on_one_line, visible
from flip_flop.evaluation.result import Audit
from flip_flop.evaluation.run_directory import StoredInstances
from flip_flop.files import compress
from flip_flop.metrics import label_probs, vote_counts
from flip_flop.report.compare import AuditComparison

WITH_GOLD = ("unanimous, wrong", "split, vote wrong", "split, vote right", "unanimous, right")
WITHOUT_GOLD = ("no majority", "majority", "unanimous")
MAX_EXAMPLES = 20
Choices = tuple[tuple[str, ...], ...]
Cell = tuple[str, tuple[str, ...], str | None]  # of a template: its prompt, its answer choices and the written answer
# The runs that read a prompt (none if all did), the prompt, and the answers that these runs wrote, by name.
Block = tuple[list[str], str, list[tuple[str, str]]]
PAGE_SIZE = 4_000_000  # characters of a page's instances, compressed and in Base64


@dataclass(frozen=True)
class Kind:
    """A kind of change between two states; ``tone`` is better, worse or other."""

    before: str | None
    after: str
    tone: str

    @property
    def title(self) -> str:
        """The kind in words."""
        if self.before is None:
            return self.after
        return f"{self.before} → {self.after}"


@dataclass(frozen=True)
class Change:
    """A changed instance: its row in the scores, its kind, and the number of templates whose answer changed."""

    instance: int
    kind: Kind
    num_changed: int


def state_names(run: Audit) -> tuple[str, ...]:
    """The states of an instance, worst first."""
    return WITH_GOLD if run.has_gold else WITHOUT_GOLD


def states(run: Audit) -> InstanceLabels:
    """Each instance's state by its templates' answers, as its index in :func:`state_names`.

    The state is -1 if the run has gold labels but this instance lacks one.
    """
    num_templates = run.scores.shape[1]
    sizes = _largest_groups(run)
    right = run.data.voted.right[:, 0]
    agreed = sizes == num_templates
    if not run.has_gold:
        return np.where(agreed, 2, np.where(2 * sizes > num_templates, 1, 0))
    kinds = np.where(agreed, np.where(right, 3, 0), np.where(right, 2, 1))
    return np.where(run.gold >= 0, kinds, -1)


def state_counts(run: Audit) -> list[int]:
    """How many instances are in each state."""
    numbers = states(run)
    return np.bincount(numbers[numbers >= 0], minlength=len(state_names(run))).tolist()


def transition_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many instances moved from each state (rows) to each state (columns)."""
    size = len(state_names(before))
    was = states(before)
    now = states(after)
    known = (was >= 0) & (now >= 0)
    return np.bincount(size * was[known] + now[known], minlength=size**2).reshape(size, size).tolist()


def answer_counts(before: Audit, after: Audit) -> list[list[int]]:
    """How many answers moved from wrong and right (rows) to wrong and right (columns)."""
    labelled = before.gold >= 0
    was = before.data.right[labelled]
    now = after.data.right[labelled]
    return np.bincount(2 * was.ravel() + now.ravel(), minlength=4).reshape(2, 2).tolist()


def margins(scores: LabelScores) -> CellValues:
    """The probability of the best label minus the probability of the second; 1 if there is only one label."""
    probs = np.sort(label_probs(scores), axis=-1)
    if probs.shape[-1] > 1:
        return probs[..., -1] - probs[..., -2]
    return np.ones(probs.shape[:-1])


def find_changes(base: Audit, after: Audit | None) -> list[Change]:
    """The instances whose state changed; for a single run, those that are split or wrong."""
    names = state_names(base)
    was = states(base)
    if after is None:
        disagreeing = base.scores.shape[1] - _largest_groups(base)
        return [
            Change(index, Kind(None, names[was[index]], "other"), int(disagreeing[index]))
            for index in np.flatnonzero((was >= 0) & (was < len(names) - 1)).tolist()
        ]
    now = states(after)
    no_majority = -1 if base.has_gold else names.index("no majority")
    changed: InstanceLabels = (base.data.answer_keys != after.data.answer_keys).sum(axis=1)
    other_label = (base.data.voted.answer_keys != after.data.voted.answer_keys)[:, 0] & (not base.has_gold)
    other_label &= (was != no_majority) & (now != no_majority)
    changes = []
    for index in np.flatnonzero((was >= 0) & (now >= 0) & (changed > 0)).tolist():
        before = names[was[index]]
        later = names[now[index]]
        if other_label[index]:
            changes.append(Change(index, Kind(before, f"{later}, another label", "other"), int(changed[index])))
        elif before != later:
            tone = "better" if now[index] > was[index] else "worse"
            changes.append(Change(index, Kind(before, later, tone), int(changed[index])))
    return changes


def select_examples(changes: Sequence[Change]) -> dict[Kind, list[Change]]:
    """A few changes of every kind: one of each in turn, most changed first, up to :data:`MAX_EXAMPLES`.

    The choice is deterministic, and changes for the worse get as many examples as changes for the better.
    """
    by_kind: dict[Kind, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (-change.num_changed, change.instance)):
        by_kind.setdefault(change.kind, []).append(change)
    order = sorted(by_kind, key=lambda kind: (("better", "worse", "other").index(kind.tone), -len(by_kind[kind])))
    in_turn = sorted((rank, index) for index, kind in enumerate(order) for rank in range(len(by_kind[kind])))
    counts = Counter(order[index] for _, index in in_turn[:MAX_EXAMPLES])
    return {kind: by_kind[kind][: counts[kind]] for kind in order if counts[kind]}


def _largest_groups(run: Audit) -> InstanceLabels:
    return vote_counts(run.predictions, run.scores.shape[2]).max(axis=1)


@dataclass(frozen=True)
class RowLabels:
    """The answers of a group's runs by labels that the runs share.

    Attributes:
        predictions, votes: Of each run.
        gold: The gold labels. An open answer may have other right answers too.
        words: Of open answers, the different answers to each instance, and a right one.
    """

    predictions: Sequence[Predictions]
    votes: Sequence[InstanceLabels]
    gold: InstanceLabels
    words: Sequence[tuple[str, ...]] = ()

    @classmethod
    def of(cls, runs: Sequence[Audit]) -> "RowLabels":
        """Number the open answers of each instance over all runs, by their keys."""
        gold = runs[0].gold.copy()
        size = runs[0].predictions.shape[1]
        if not runs[0].data.answered:
            return cls([run.predictions for run in runs], [run.data.votes for run in runs], gold)
        keys = np.concatenate([run.data.answer_keys for run in runs], axis=1).tolist()
        exact = np.concatenate([run.data.answered["exact"] for run in runs], axis=1)
        voted = np.concatenate([run.data.voted.answer_keys for run in runs], axis=1).tolist()
        numbers = []
        votes = []
        all_words = []
        for row, answers in enumerate(keys):
            known = {-1: -1}
            words = list[str]()
            for place, key in enumerate(answers):
                if key not in known:
                    known[key] = len(words)
                    run = runs[place // size]
                    words.append(run.label_name(int(run.predictions[row, place % size]), row))
            numbers.append([known[key] for key in answers])
            votes.append([known[key] for key in voted[row]])
            if gold[row] >= 0:
                right = np.array(numbers[row])[exact[row]]
                if not len(right):
                    right = [len(words)]
                    words.append(runs[0].label_name(int(gold[row]), row))
                gold[row] = right[0]
            all_words.append(tuple(words))
        return cls(np.split(np.array(numbers), len(runs), axis=1), [*np.array(votes).T], gold, all_words)


@dataclass(frozen=True)
class Embedded:
    """The instances of a group that the page contains.

    Attributes:
        content: Base64 of gzip of JSON.
        printed: The printed instances that have prompts, by position: the blocks of each template, and the choices.
        around: What all prompts of the first template begin with, and what they end with, reversed.
        held: The number of instances in the page; ``with_prompts`` of them have prompts.
        labels: The answers of all instances.
    """

    content: str
    printed: dict[int, tuple[dict[int, list[Block]], Choices]]
    around: list[str]
    held: int
    with_prompts: int
    labels: RowLabels

    def preview(self, index: int) -> str:
        """The text of a printed instance: its prompt without what all prompts have in common."""
        _, prompt, _ = next(iter(self.printed[index][0].values()))[0]
        start, end = map(len, self.around)
        return " ".join((prompt[start : len(prompt) - end].strip() or prompt).split())[:400]


def embed(group: AuditComparison, order: list[int], printed: Collection[int], size: int | None) -> Embedded:
    """Compress a group's instances into at most ``size`` characters, or all of them if ``size`` is None.

    Instances with changed answers come first, then those with the smallest margins. The page prints those at the
    positions ``printed``, which are always embedded; ``order`` is the order of the templates of ``group.aligned``.
    """
    ranked = np.concatenate([np.array(sorted(printed), dtype=np.int64), _by_interest(group.aligned.advised)])
    ranked = ranked[np.sort(np.unique(ranked, return_index=True)[1])]
    labels = RowLabels.of(group.aligned.row_forms)
    number = len(ranked)
    while True:
        packed = _pack(group, order, np.sort(ranked[:number]), printed, labels)
        if size is None or len(packed.content) <= size or number <= len(printed):
            return packed
        number = max(len(printed), int(0.95 * number * size / len(packed.content)))


def _by_interest(group: AuditComparison) -> InstanceLabels:
    answers, *others = (run.data.answer_keys for run in group.runs)
    changed = np.any([(answers != other).any(axis=1) for other in others or [answers[:, :1]]], axis=0)
    lead = np.min([margins(run.scores).min(axis=1) for run in group.runs], axis=0)
    return np.lexsort((lead, ~changed))


def _pack(
    group: AuditComparison,
    order: list[int],
    positions: InstanceLabels,
    printed: Collection[int],
    labels: RowLabels,
) -> Embedded:
    """Embed the instances at these positions. A table is a flat list, instance by instance."""
    kept: dict[int, tuple[dict[int, list[Block]], Choices]] = {}
    around: list[str] = []
    choices: dict[Any, int] = {}
    prompts_of: list[int] = []
    choice_of: list[int] = []
    place = {index: position for position, index in enumerate(positions.tolist())}

    def texts() -> Iterator[str]:  # one instance at a time, because all prompts can exceed the memory
        yield f'{_json(_columns(group.aligned, order, positions, labels))[:-1]},"prompts":['
        names = ["the model"] if len(group.runs) == 1 else _names(run.name for run in group.runs)
        shown = group.aligned.base.template_names
        # A run may lack the last prompts.
        texts_of_runs = zip_longest(*(_read(run, place, shown) for run in group.runs))
        for index, rows in zip(place, texts_of_runs, strict=False):
            read = [(name, row) for name, row in zip(names, rows, strict=True) if row]
            blocks = {template: _blocks(read, template, len(names)) for template in order}
            words = tuple(choices for _, choices, _ in read[0][1])
            if labels.words:
                words = (labels.words[index],) * len(order)
            if index in printed:
                kept[index] = blocks, words
            prompt = blocks[order[0]][0][1]
            around[:] = map(_shared_words, around or (prompt, prompt[::-1]), (prompt, prompt[::-1]))
            yield ("," if prompts_of else "") + _json([*blocks.values()])
            prompts_of.append(place[index])
            choice_of.append(choices.setdefault(words, len(choices)))
        listed = []
        for choice in choices:
            words_of_templates = [_names(choice[template]) for template in order]
            listed.append(words_of_templates)
        more = {"promptsOf": prompts_of, "choices": listed, "choiceOf": choice_of, "around": around}
        yield "]," + _json(more)[1:]

    content = base64.b64encode(b"".join(compress(texts()))).decode("ascii")
    return Embedded(content, kept, around, len(positions), len(prompts_of), labels)


def _columns(group: AuditComparison, order: list[int], positions: InstanceLabels, labels: RowLabels) -> dict[str, Any]:
    """Return the answers of the instances at these positions, and the names that they refer to."""

    def flat(values: np.ndarray) -> list[Any]:
        return values[positions][:, order].ravel().tolist()

    base = group.base
    forms = group.row_forms
    templates = [base.template_names[index] for index in order]
    columns: dict[str, Any] = {
        "runs": _names(form.name for form in forms),
        "first": forms.index(group.advised.base),
        "last": forms.index(group.advised.after),
        "labels": _names(base.label_names),
        "templates": _names(templates),
        "states": state_names(base),
        "total": len(base.instance_ids),
    }
    columns |= {
        "ids": _names(base.instance_ids[index] for index in positions),
        "gold": labels.gold[positions].tolist(),
        "answers": [flat(values) for values in labels.predictions],
    }
    columns |= {
        "margins": [flat(np.rint(1000 * margins(form.scores)).astype(int)) for form in forms],
        "votes": [votes[positions].tolist() for votes in labels.votes],
        "standing": [states(form)[positions].tolist() for form in forms],
    }
    if group.is_open:  # several answers can be right
        columns["right"] = [flat(form.data.right.astype(int)) for form in forms]
    return columns


def _shared_words(one: str, other: str) -> str:
    """The words that both texts begin with."""
    shared = os.path.commonprefix([one, other])  # noqa: RUF071 - letters, not folders
    return shared[: 1 + max(shared.rfind(" "), shared.rfind("\n"))]


def _blocks(read: Sequence[tuple[str, Sequence[Cell]]], template: int, num_runs: int) -> list[Block]:
    """Return each different prompt of a template, with the runs that read it and the answers that they wrote."""
    by_prompt: dict[str, list[tuple[str, str | None]]] = {}
    for name, cells in read:
        prompt, _, written = cells[template]
        by_prompt.setdefault(prompt, []).append((name, written))
    blocks = []
    for prompt, answers in by_prompt.items():
        names = [] if len(answers) == num_runs else [name for name, _ in answers]
        shown = [(name, visible(text)) for name, text in answers if text is not None]
        blocks.append((names, visible(prompt), shown))
    return blocks


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read(run: Audit, wanted: Collection[int], names: Sequence[str]) -> Iterator[list[Cell]]:
    """The wanted instances under the templates of these names, or the first for those that the run does not have."""
    if isinstance(run.instances, StoredInstances):
        rows = run.instances.chosen(wanted)
    else:
        rows = ((index, instance) for index, instance in enumerate(run.instances) if index in wanted)
    columns = [run.template_names.index(name) if name in run.template_names else 0 for name in names]
    for _, instance in rows:
        written = instance.written or [None] * len(instance.prompts)
        cells = [*zip(instance.prompts, instance.choices, written, strict=True)]
        yield [cells[column] for column in columns]


def _names(texts: Iterable[str]) -> list[str]:
    return [on_one_line(text) for text in texts]
