"""Splits: the paper's from the official ones, a validation split for tasks that have none, no instance twice.

Which rows go where depends on their ids and the seed, never on their order or on the machine. The
release's splits are the exception: they depend on the rows' order.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flip_flop.errors import InputError
from flip_flop.files import derive_seed, sha256_json, sha256_text
from flip_flop.prompts import RenderedInstance, TemplateSet
from flip_flop.tasks.sources import Rows

MAX_VALIDATION = 1000
MAX_TRAIN = 10_000
SPLITS = ("paper", "release")
RELEASE_SEED = 42


def holdout_size(num_instances: int) -> int:
    """A tenth, at least one and at most :data:`MAX_VALIDATION`."""
    return min(max(round(num_instances * 0.1), 1), MAX_VALIDATION)


def holdout(
    instances: Sequence[RenderedInstance], *, seed: int, stratify: bool = True
) -> tuple[list[RenderedInstance], list[RenderedInstance]]:
    """Hold out a tenth of the training instances for validation, at least one and at most :data:`MAX_VALIDATION`.

    ``stratify`` keeps the shares of the labels, and draws from the labelled instances if there are enough of them.
    False does not read labels. Both splits keep the order given.

    Raises:
        InputError: ``E-DATA-TOO-FEW``: one of the two would be empty.
    """
    wanted = holdout_size(len(instances))
    if len(instances) <= wanted:
        message = f"{wanted} of {len(instances)} training instances cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Add training rows, or a validation split.")
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    known = {name: label for name, label in labelled.items() if label is not None}
    held_out = draw_stratified(known if len(known) >= wanted else labelled, wanted, seed)
    train = [instance for instance in instances if instance.id not in held_out]
    return train, [instance for instance in instances if instance.id in held_out]


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw ``wanted`` of the ids of ``labels`` so that every label has its share, by largest remainder."""
    strata: dict[int, list[str]] = {}
    for identity, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(identity)
    quotas = label_quotas({label: len(members) for label, members in strata.items()}, wanted)
    return {
        member
        for label, members in strata.items()
        for member in sorted(members, key=lambda each: derive_seed(seed, "holdout", each))[: quotas[label]]
    }


def label_quotas(counts: Mapping[int, int], wanted: int) -> dict[int, int]:
    """How many of each label are among ``wanted``, by largest remainder; the smaller label wins a tie.

    Example:
        >>> label_quotas({2: 5, 0: 3, 1: 2}, 4)
        {2: 2, 0: 1, 1: 1}
    """
    total = sum(counts.values())
    quotas = {label: wanted * count // total for label, count in counts.items()}
    by_remainder = sorted(counts, key=lambda label: (-(wanted * counts[label] % total), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    return quotas


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

    def describe(self, train: str, test: str, splits: str = "paper") -> str:
        """The policy in words, for two official splits of these names, and one of :data:`SPLITS`."""
        size = f"as many as {test} has" if self.validation is None else f"{self.validation:,}"
        sample = "" if self.max_test is None else f", a sample of {self.max_test:,}"
        alone = "" if splits == "paper" else "in each official split, rows that repeat a prompt are left out; "
        return alone + (
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
        repeated: Rows with a prompt of an earlier row of the same official split, where that row is itself not left
            out: the release leaves them out, and does not look at the two above.
    """

    in_test: tuple[int, ...] = ()
    within_train: tuple[int, ...] = ()
    unanswerable: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()


def find_duplicates(
    train: Rows,
    test: Rows,
    templates: TemplateSet,
    label_field: str,
    *,
    advance: Callable[[int], object] = lambda done: None,
) -> Duplicates:
    """Find the rows of two official splits that would bring one prompt into two splits, and those without an answer.

    A template's random choice is the same for all rows here, so that it does not tell equal rows apart. Each row is
    rendered once; ``advance`` is called with the number of renderings just made.
    """
    rendered: list[tuple[str, ...]] = []
    first: dict[tuple[int, str], int] = {}
    within_train, unanswerable, repeated = set[int](), set[int](), set[int]()
    for rows in (train, test):
        prompts_kept: set[str] = set()
        for index, row in enumerate(rows.rows, start=len(rendered)):
            place, limit = rows.location(row), templates.value_limit
            texts = [
                template.render(row.fields, label_field, instance_id="double", row=place, value_limit=limit)
                for template in templates
            ]
            rendered.append(tuple(sha256_text(json.dumps(each)) for each in texts))
            if index < len(train):
                for key in enumerate(rendered[index]):
                    if first.setdefault(key, index) != index:
                        within_train.update((index, first[key]))
            prompts = {sha256_text(prompt) for prompt, _ in texts}
            if any(len(set(choices)) < len(choices) for _, choices in texts):
                unanswerable.add(index)
            elif prompts.isdisjoint(prompts_kept):
                prompts_kept |= prompts
            else:
                repeated.add(index)
            advance(len(texts))
    of_test = set(rendered[len(train) :])
    in_test = {index for index in range(len(train)) if rendered[index] in of_test}
    return Duplicates(*(tuple(sorted(found)) for found in (in_test, within_train - in_test, unanswerable, repeated)))


def divide(
    train: Rows,
    test: Rows,
    labels: Sequence[int | None],
    policy: SplitPolicy,
    *,
    duplicates: Duplicates,
    splits: str = "paper",
    seed: int = 0,
) -> dict[str, Rows]:
    """The three splits of the paper or of the release. No prompt is in train and in validation.

    ``train`` and ``test`` are the named rows of two official splits, ``labels`` the label indices of ``train``. Each
    split has the order of its official split, and its provenance the digest of the ids of all three. ``splits`` is one
    of :data:`SPLITS`. In the paper's, drawn by ``seed``, no row of train or validation renders like one of test; the
    release's are those of :func:`draw_as_released`, whatever ``seed`` is.

    Raises:
        InputError: ``E-DATA-TOO-FEW``.
    """
    assert train.ids is not None
    assert test.ids is not None
    ids, released = train.ids, splits == "release"
    left_out = duplicates.repeated if released else duplicates.in_test
    unused = {*left_out, *duplicates.unanswerable}
    pool = {index: labels[index] for index in range(len(train)) if index not in unused}
    tested = [index for index in range(len(test)) if len(train) + index not in unused]
    repeated = set(duplicates.within_train) & set(pool)
    wanted = policy.held_out(len(pool), len(tested))
    if not 0 < wanted < len(pool) or (wanted > len(pool) - len(repeated) and not released):
        message = f"{wanted} of {len(pool)} rows of {train.source} cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Give the whole dataset.")
    if released:
        chosen = draw_as_released(pool, tested, wanted, policy)
    else:
        held_out = draw_stratified({ids[at]: label for at, label in pool.items() if at not in repeated}, wanted, seed)
        chosen = {
            "train": _sample(ids, [index for index in pool if ids[index] not in held_out], policy.max_train, seed),
            "validation": [index for index in pool if ids[index] in held_out],
            "test": _sample(test.ids, tested, policy.max_test, seed),
        }
    taken = {split: _take(test if split == "test" else train, indices) for split, indices in chosen.items()}
    record = {
        "splits": splits,
        "left_out": len(left_out),
        "unanswerable": len(duplicates.unanswerable),
        "split_seed": RELEASE_SEED if released else seed,
        "split_sizes": {split: len(rows) for split, rows in taken.items()},
        "split_ids_sha256": {split: sha256_json(sorted(rows.ids or ())) for split, rows in taken.items()},
    }
    return {split: replace(rows, provenance={**rows.provenance, **record}) for split, rows in taken.items()}


def draw_as_released(
    pool: Mapping[int, int | None], tested: Sequence[int], wanted: int, policy: SplitPolicy
) -> dict[str, list[int]]:
    """The indices of the release's three splits, each in the rows' order.

    ``pool`` has the label of each row that is left of the official train, ``tested`` the rows that are left of the
    official test, both in order. One ``RandomState(42)`` draws validation, ``wanted`` rows, label by label in the order
    in which the labels first appear, and then ``max_train`` of the rest; a new one draws ``max_test`` of ``tested``.
    """
    generator = np.random.RandomState(RELEASE_SEED)
    strata: dict[int, list[int]] = {}
    for index, label in pool.items():
        strata.setdefault(-1 if label is None else label, []).append(index)
    quotas = label_quotas({label: len(members) for label, members in strata.items()}, wanted)
    held_out = {index for label in strata for index in _choice(generator, strata[label], quotas[label])}
    rest = [index for index in pool if index not in held_out]
    return {
        "train": _choice(generator, rest, min(policy.max_train, len(rest))),
        "validation": sorted(held_out),
        "test": _choice(np.random.RandomState(RELEASE_SEED), tested, min(policy.max_test or len(tested), len(tested))),
    }


def _choice(generator: np.random.RandomState, indices: Sequence[int], size: int) -> list[int]:
    """``size`` of the indices, in their order."""
    return sorted(map(int, generator.choice(indices, size, replace=False)))


def _take(rows: Rows, indices: Iterable[int]) -> Rows:
    assert rows.ids is not None
    ids, indices = rows.ids, list(indices)
    return replace(rows, rows=tuple(rows.rows[at] for at in indices), ids=tuple(ids[at] for at in indices))


def _sample(ids: Sequence[str], indices: list[int], maximum: int | None, seed: int) -> list[int]:
    """A uniform sample of at most ``maximum``, in the order given."""
    by_chance = sorted(indices, key=lambda index: (derive_seed(seed, "sample", ids[index]), index))
    return sorted(by_chance[:maximum])
