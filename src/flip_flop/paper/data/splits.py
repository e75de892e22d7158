"""The splits of the paper and of the authors' release, from two official splits.

The paper's splits depend on the ids of the rows and the seed, and not on the order of the rows. The release's splits
depend on the order.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flip_flop.errors import InputError
from flip_flop.files import derive_seed, sha256_json, sha256_text
from flip_flop.prompts import TemplateSet
from flip_flop.tasks import MAX_VALIDATION, Rows, draw_stratified, strata_of

MAX_TRAIN = 10_000
RELEASE_SEED = 42


@dataclass(frozen=True)
class SplitPolicy:
    """The size of validation (None: the size of test), and the maximum sizes of train and test."""

    validation: int | None = MAX_VALIDATION
    max_train: int = MAX_TRAIN
    max_test: int | None = None

    def held_out(self, num_train: int, num_test: int) -> int:
        """Return the number of rows held out for validation.

        A tenth is held out if only a part of the rows is available, and the policy's number would leave less than half
        of itself for training.
        """
        wanted = min(num_test if self.validation is None else self.validation, MAX_VALIDATION)
        if wanted <= 2 * (num_train - wanted):
            return wanted
        return max(num_train // 10, 1)


def name_rows(rows: Rows, split: str, id_field: str | None, named_by: Sequence[str] = ()) -> Rows:
    """Name the rows of an official split by the ``id_field``, or without it by their content.

    The content is the fields ``named_by``, or all fields, without outer white space: copies of a dataset differ in it.

    Raises:
        InputError: ``E-DATA-ROWS`` or ``E-DATA-COLUMN``: two rows have one id, or a row has none.
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
    """Indices of duplicate rows, counted over the official train and then the official test.

    Attributes:
        in_test: Rows of train that render like a row of test under every template. The paper's splits exclude them.
        within_train: Rows of train that render like another row of train under some template. They all stay in train,
            so that train and validation share no prompt.
        unanswerable: Rows with two equal answers under some template. All splits exclude them.
        repeated: Rows with a prompt of an earlier, included row of the same official split. The release's splits
            exclude them, and ignore ``in_test`` and ``within_train``.
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
    """Find the duplicate rows of two official splits by their prompts.

    A template's random choice is the same for all rows here, so that equal rows render alike. Each row is rendered
    once. ``advance`` is called with the number of new renderings.
    """
    rendered: list[tuple[str, ...]] = []
    first: dict[tuple[int, str], int] = {}
    within_train = set[int]()
    unanswerable = set()
    repeated = set()
    for rows in (train, test):
        prompts_kept: set[str] = set()
        for index, row in enumerate(rows.rows, start=len(rendered)):
            place = rows.location(row)
            limit = templates.value_limit
            texts = [
                template.render(row.fields, label_field, instance_id="double", row=place, value_limit=limit)
                for template in templates
            ]
            rendered.append(tuple(sha256_text(json.dumps(text)) for text in texts))
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
    return Duplicates(
        *(tuple(sorted(indices)) for indices in (in_test, within_train - in_test, unanswerable, repeated))
    )


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
    """Return train, validation and test, in the order of the official splits. Train and validation share no prompt.

    Args:
        train: The named rows of the official train.
        test: The named rows of the official test.
        labels: The label indices of ``train``.
        policy: The sizes.
        duplicates: The result of :func:`find_duplicates`.
        splits: ``"paper"``: no row of train or validation renders like a row of test. ``"release"``: the splits of
            :func:`draw_as_released`, which do not depend on the seed.
        seed: The seed of the paper's splits.

    Raises:
        InputError: ``E-DATA-ROWS``.
    """
    ids = train.ids
    released = splits == "release"
    left_out = duplicates.repeated if released else duplicates.in_test
    unused = {*left_out, *duplicates.unanswerable}
    pool = {index: labels[index] for index in range(len(train)) if index not in unused}
    tested = [index for index in range(len(test)) if len(train) + index not in unused]
    repeated = set(duplicates.within_train) & set(pool)
    wanted = policy.held_out(len(pool), len(tested))
    if not 0 < wanted < len(pool) or (wanted > len(pool) - len(repeated) and not released):
        raise InputError(
            "E-DATA-ROWS",
            f"{wanted} of {len(pool)} rows of {train.source} cannot be held out for validation.",
            "Give the whole dataset.",
        )
    if released:
        selection = draw_as_released(pool, tested, wanted, policy)
    else:
        held_out = draw_stratified(
            {ids[index]: label for index, label in pool.items() if index not in repeated}, wanted, seed
        )
        selection = {
            "train": _sample(ids, [index for index in pool if ids[index] not in held_out], policy.max_train, seed),
            "validation": [index for index in pool if ids[index] in held_out],
            "test": _sample(test.ids, tested, policy.max_test, seed),
        }
    rows_of = {split: _take(test if split == "test" else train, indices) for split, indices in selection.items()}
    record = {
        "splits": splits,
        "left_out": len(left_out),
        "unanswerable": len(duplicates.unanswerable),
        "split_seed": RELEASE_SEED if released else seed,
        "split_sizes": {split: len(rows) for split, rows in rows_of.items()},
        "split_ids_sha256": {split: sha256_json(sorted(rows.ids)) for split, rows in rows_of.items()},
    }
    return {split: replace(rows, provenance={**rows.provenance, **record}) for split, rows in rows_of.items()}


def draw_as_released(
    pool: Mapping[int, int | None], tested: Sequence[int], wanted: int, policy: SplitPolicy
) -> dict[str, list[int]]:
    """Return the indices of the release's three splits, each in the order of the rows.

    One ``RandomState(42)`` samples ``wanted`` rows for validation, label by label in the order of their first
    appearance. It then samples ``max_train`` of the other rows. A new state samples ``max_test`` of ``tested``.

    Args:
        pool: The label of each included row of the official train, in order.
        tested: The included rows of the official test, in order.
        wanted: The size of validation.
        policy: The maxima of train and test.
    """
    generator = np.random.RandomState(RELEASE_SEED)
    held_out = {index for members, quota in strata_of(pool, wanted) for index in _choice(generator, members, quota)}
    rest = [index for index in pool if index not in held_out]
    return {
        "train": _choice(generator, rest, min(policy.max_train, len(rest))),
        "validation": sorted(held_out),
        "test": _choice(np.random.RandomState(RELEASE_SEED), tested, min(policy.max_test or len(tested), len(tested))),
    }


def _choice(generator: np.random.RandomState, indices: Sequence[int], size: int) -> list[int]:
    """Sample ``size`` of the indices, in their order."""
    return sorted(map(int, generator.choice(indices, size, replace=False)))


def _take(rows: Rows, indices: Sequence[int]) -> Rows:
    ids = tuple(rows.ids[index] for index in indices)
    return replace(rows, rows=tuple(rows.rows[index] for index in indices), ids=ids)


def _sample(ids: Sequence[str], indices: list[int], maximum: int | None, seed: int) -> list[int]:
    """Return a uniform sample of at most ``maximum``, in the given order."""
    by_chance = sorted(indices, key=lambda index: (derive_seed(seed, "sample", ids[index]), index))
    return sorted(by_chance[:maximum])
