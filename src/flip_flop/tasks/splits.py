"""Splits: the paper's from the official ones, a validation split for tasks that have none, no instance twice.

Which rows go where depends on their ids and the seed, never on their order or on the machine.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import sha256_json, sha256_text
from flip_flop.prompts import RenderedInstance, TemplateSet
from flip_flop.randomness import derive_seed
from flip_flop.tasks.sources import Rows

MAX_VALIDATION = 1000
MAX_TRAIN = 10_000


def holdout(
    instances: Sequence[RenderedInstance], *, seed: int, stratify: bool = True
) -> tuple[list[RenderedInstance], list[RenderedInstance]]:
    """Hold a tenth of training instances out for validation, at least one and at most :data:`MAX_VALIDATION`.

    ``stratify`` keeps the shares of the labels; False does not read them. Both splits keep the order given.

    Raises:
        InputError: ``E-DATA-TOO-FEW``: one of the two would be empty.
    """
    wanted = min(max(round(len(instances) * 0.1), 1), MAX_VALIDATION)
    if len(instances) <= wanted:
        message = f"{wanted} of {len(instances)} training instances cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Add training rows, or a validation split.")
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    held_out = draw_stratified(labelled, wanted, seed)
    train = [instance for instance in instances if instance.id not in held_out]
    return train, [instance for instance in instances if instance.id in held_out]


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw ``wanted`` of the ids of ``labels`` so that every label has its share, by largest remainder."""
    strata: dict[int, list[str]] = {}
    for identity, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(identity)
    quotas = {label: wanted * len(members) // len(labels) for label, members in strata.items()}
    by_remainder = sorted(strata, key=lambda label: (-(wanted * len(strata[label]) % len(labels)), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    drawn: set[str] = set()
    for label, members in strata.items():
        by_chance = sorted(members, key=lambda member: derive_seed(seed, "holdout", member))
        drawn.update(by_chance[: quotas[label]])
    return drawn


def deduplicate(
    instances: Sequence[RenderedInstance], *, against: Sequence[RenderedInstance] = ()
) -> tuple[list[RenderedInstance], int]:
    """The instances that render like no earlier one and like none of ``against``, and how many were dropped."""
    excluded = {(instance.prompts, instance.choices) for instance in against}
    first: dict[tuple[object, ...], RenderedInstance] = {}
    for instance in instances:
        if (rendered := (instance.prompts, instance.choices)) not in excluded:
            first.setdefault(rendered, instance)
    return list(first.values()), len(instances) - len(first)


@dataclass(frozen=True)
class SplitPolicy:
    """How many rows of train are held out (None: as many as test has), and trained and tested on at most."""

    validation: int | None = MAX_VALIDATION
    max_train: int = MAX_TRAIN
    max_test: int | None = None

    def held_out(self, num_train: int, num_test: int) -> int:
        """How many of ``num_train`` rows are held out for validation.

        If only a part of the rows is available and the policy's number would leave less than half of itself to train
        on, a tenth is held out.
        """
        wanted = min(num_test if self.validation is None else self.validation, MAX_VALIDATION)
        return wanted if wanted <= 2 * (num_train - wanted) else max(num_train // 10, 1)

    def describe(self, train: str, test: str) -> str:
        """The policy in words, for two official splits of these names."""
        size = f"as many as {test} has" if self.validation is None else f"{self.validation:,}"
        sample = "" if self.max_test is None else f", a sample of {self.max_test:,}"
        return (
            f"test: the official {test}{sample}; validation: {size}, out of the official {train}, stratified by label; "
            f"train: the rest of it, a sample of at most {self.max_train:,}"
        )


def name_rows(rows: Rows, split: str, id_field: str | None, named_by: Sequence[str] = ()) -> Rows:
    """The rows of an official split, each named by the split and its ``id_field``, or by its content without one.

    Its content are the fields ``named_by``, or all, but for outer white space, in which copies of a dataset differ.

    Raises:
        InputError: ``E-DATA-DUPID`` or ``E-DATA-COLUMN``: two rows have one id, or a row has none.
    """
    if id_field is not None:
        return replace(rows, ids=tuple(f"{split}-{name}" for name in rows.ids_from(id_field)))
    seen: Counter[str] = Counter()
    ids = []
    for row in rows.rows:
        content = {name: _stripped(row.fields[name]) for name in named_by or row.fields}
        name = f"{split}-{sha256_text(json.dumps(content, sort_keys=True, default=str))[:16]}"
        seen[name] += 1  # equal rows have equal names: number them
        ids.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return replace(rows, ids=tuple(ids))


def _stripped(value: Any) -> Any:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


@dataclass(frozen=True)
class Duplicates:
    """Rows that cannot go into any split, by their indices in the official train followed by the official test.

    Attributes:
        in_test: Rows of train that render like a row of test, under every template: they are left out.
        within_train: Rows of train that render like another one of it, under some template: they all stay in train, so
            that no prompt is in train and in validation.
        unanswerable: Rows for which some template has two equal answers: nothing can be voted on.
    """

    in_test: tuple[int, ...] = ()
    within_train: tuple[int, ...] = ()
    unanswerable: tuple[int, ...] = ()


def find_duplicates(
    train: Rows,
    test: Rows,
    templates: TemplateSet,
    label_field: str,
    *,
    advance: Callable[[int], object] = lambda done: None,
) -> Duplicates:
    """Find the rows of two official splits that would bring one prompt into two splits, and those without an answer.

    A template's random choice is the same for all rows here, so that it does not tell equal rows apart. ``advance`` is
    called with the number of renderings just made.
    """
    rendered: list[list[str]] = [[] for _ in range(len(train) + len(test))]
    within_train: set[int] = set()
    unanswerable: set[int] = set()
    for template in templates:
        first: dict[str, int] = {}
        for index, (source, row) in enumerate([(rows, row) for rows in (train, test) for row in rows.rows]):
            prompt, choices = template.render(row.fields, label_field, instance_id="double", row=source.location(row))
            digest = sha256_text(json.dumps([prompt, choices]))
            rendered[index].append(digest)
            if len(set(choices)) < len(choices):
                unanswerable.add(index)
            if index < len(train) and first.setdefault(digest, index) != index:
                within_train.update((index, first[digest]))
            advance(1)
    of_test = {tuple(texts) for texts in rendered[len(train) :]}
    in_test = {index for index in range(len(train)) if tuple(rendered[index]) in of_test}
    return Duplicates(*(tuple(sorted(found)) for found in (in_test, within_train - in_test, unanswerable)))


def divide(
    train: Rows, test: Rows, labels: Sequence[int | None], policy: SplitPolicy, *, duplicates: Duplicates, seed: int = 0
) -> dict[str, Rows]:
    """The paper's three splits. No prompt is in train and in validation; no row of them renders like one of test.

    ``train`` and ``test`` are the named rows of two official splits, ``labels`` the label indices of ``train``. Each
    split has the order of its official split, and its provenance the digest of the ids of all three.

    Raises:
        InputError: ``E-DATA-TOO-FEW``.
    """
    assert train.ids is not None
    assert test.ids is not None
    left_out = {*duplicates.in_test, *duplicates.unanswerable}
    pool = [index for index in range(len(train)) if index not in left_out]
    repeated = set(duplicates.within_train)
    single = {train.ids[index]: labels[index] for index in pool if index not in repeated}
    wanted = policy.held_out(len(pool), len(test))
    if not 0 < wanted < len(pool) or wanted > len(single):
        message = f"{wanted} of {len(pool)} rows of {train.source} cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Give the whole dataset.")
    held_out = draw_stratified(single, wanted, seed)
    kept = [index for index in pool if train.ids[index] not in held_out]
    answerable = [index for index in range(len(test)) if len(train) + index not in left_out]
    splits = {
        "train": _take(train, _sample(train.ids, kept, policy.max_train, seed)),
        "validation": _take(train, [index for index in pool if train.ids[index] in held_out]),
        "test": _take(test, _sample(test.ids, answerable, policy.max_test, seed)),
    }
    record = {
        "left_out": len(duplicates.in_test),
        "unanswerable": len(duplicates.unanswerable),
        "split_seed": seed,
        "split_sizes": {split: len(rows) for split, rows in splits.items()},
        "split_ids_sha256": {split: sha256_json(sorted(rows.ids or ())) for split, rows in splits.items()},
    }
    return {split: replace(rows, provenance={**rows.provenance, **record}) for split, rows in splits.items()}


def _take(rows: Rows, indices: Iterable[int]) -> Rows:
    assert rows.ids is not None
    ids, indices = rows.ids, list(indices)
    return replace(rows, rows=tuple(rows.rows[at] for at in indices), ids=tuple(ids[at] for at in indices))


def _sample(ids: Sequence[str], indices: list[int], maximum: int | None, seed: int) -> list[int]:
    """A uniform sample of at most ``maximum``, in the order given."""
    by_chance = sorted(indices, key=lambda index: (derive_seed(seed, "sample", ids[index]), index))
    return sorted(by_chance[:maximum])
