"""From the official splits to the paper's: test as published, validation held out of train, train capped.

Which rows go where depends on their ids and the seed, never on their order or on the machine.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flip_flop.errors import InputError
from flip_flop.files import sha256_json, sha256_text
from flip_flop.prompts import TemplateSet
from flip_flop.randomness import derive_seed
from flip_flop.tasks.readers import NumberedRow
from flip_flop.tasks.sources import Rows
from flip_flop.tasks.splits import MOST_HELD_OUT, draw_stratified

MOST_TRAINED_ON = 10_000

Item = TypeVar("Item")


@dataclass(frozen=True)
class SplitPolicy:
    """How many rows a split gets.

    Attributes:
        validation: How many are held out of the official train split; None for as many as the test split has.
        max_train: The most that are trained on.
        max_test: The most that are tested on; None for all.
    """

    validation: int | None = MOST_HELD_OUT
    max_train: int = MOST_TRAINED_ON
    max_test: int | None = None

    def held_out(self, num_train: int, num_test: int) -> int:
        """How many of ``num_train`` rows are held out for validation.

        Where the rows at hand are a part only and the policy's number would leave less than half of itself to
        train on, a tenth is held out.

        Example:
            >>> SplitPolicy(1000).held_out(1871, 1871), SplitPolicy(1000).held_out(1200, 1198)
            (1000, 120)
        """
        wanted = min(num_test if self.validation is None else self.validation, MOST_HELD_OUT)
        return wanted if wanted <= 2 * (num_train - wanted) else max(num_train // 10, 1)

    def describe(self, train: str, test: str) -> str:
        """The policy in words, for two official splits of these names."""
        size = f"as many as {test} has" if self.validation is None else f"{self.validation:,}"
        sample = "" if self.max_test is None else f", a sample of {self.max_test:,}"
        return (
            f"test: the official {test}{sample}; validation: {size}, out of the official {train}, stratified by label; "
            f"train: the rest of it, a sample of {self.max_train:,} at most"
        )


def name_rows(rows: Rows, split: str, id_field: str | None, named_by: Sequence[str] = ()) -> Rows:
    """The rows, each named by the split it was published in and its ``id_field``, or by its content without one.

    A name never depends on the gold label, on how its annotators explained it, or on outer white space: copies of a
    dataset differ in those.

    Args:
        rows: The rows of one official split.
        split: The split's name.
        id_field: The field that names a row.
        named_by: Without one, the fields whose texts name it; all fields where none are given.

    Raises:
        InputError: ``E-DATA-DUPID`` or ``E-DATA-COLUMN``: two rows have one id, or a row has none.

    Example:
        >>> from flip_flop.tasks import RowsSource
        >>> rows = RowsSource([{"x": "tea", "idx": 7}, {"x": "ice", "idx": 9}], "drinks").load()
        >>> name_rows(rows, "train", "idx").ids, name_rows(rows, "train", None, ["x"]).ids
        (('train-7', 'train-9'), ('train-6432e820b7f448bb', 'train-4b1e0559f138b0e4'))
    """
    seen: Counter[str] = Counter()
    ids = []
    for row in rows.rows:
        if id_field is None:
            content = {name: _stripped(row.fields[name]) for name in named_by or row.fields}
            name = sha256_text(json.dumps(content, sort_keys=True, default=str))[:16]
        else:
            name = _id_of(rows, row, id_field, seen)
        seen[name] += 1  # equal rows have equal names: number them
        ids.append(f"{split}-{name}" if seen[name] == 1 else f"{split}-{name}-{seen[name]}")
    return replace(rows, ids=tuple(ids))


def _stripped(value: Any) -> Any:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def _id_of(rows: Rows, row: NumberedRow, id_field: str, seen: Counter[str]) -> str:
    value = row.fields[id_field]
    if value is None or not str(value).strip():
        raise InputError("E-DATA-COLUMN", f"{rows.place(row)} has no {id_field!r}.", "Get the official rows anew.")
    if str(value) in seen:
        message = f"{rows.place(row)} has the {id_field} {value!r} of an earlier row."
        raise InputError("E-DATA-DUPID", message, "Get the official rows anew.")
    return str(value)


@dataclass(frozen=True)
class Doubles:
    """Rows that cannot go just anywhere, by their indices.

    Attributes:
        of_test: Rows of the official train that render like a row of the test split, under every template: they are
            left out.
        of_train: Rows of the official train that render like another one of it, under some template: they all stay
            in train, so that no prompt is in train and in validation.
        unanswerable_train, unanswerable_test: Rows for which some template offers two equal answers: no vote can be
            taken on them.
    """

    of_test: tuple[int, ...] = ()
    of_train: tuple[int, ...] = ()
    unanswerable_train: tuple[int, ...] = ()
    unanswerable_test: tuple[int, ...] = ()


def find_doubles(
    train: Rows,
    test: Rows,
    templates: TemplateSet,
    label_field: str,
    *,
    advance: Callable[[int], None] = lambda done: None,
) -> Doubles:
    """Find the rows that would bring one prompt into two splits, and those that have no answer.

    A template's random choice is the same for all rows here, so that it does not tell equal rows apart.

    Args:
        train: The rows of the official train split.
        test: Those of the test split.
        templates: The templates.
        label_field: The gold label's field.
        advance: Called with the number of renderings just made.
    """
    everywhere: list[list[str]] = [[] for _ in range(len(train) + len(test))]
    twins: set[int] = set()
    unanswerable: set[int] = set()
    for template in templates:
        first: dict[str, int] = {}
        for index, (source, row) in enumerate([(rows, row) for rows in (train, test) for row in rows.rows]):
            prompt, choices = template.render(row.fields, label_field, instance_id="double", row=source.place(row))
            rendered = sha256_text(json.dumps([prompt, choices]))
            everywhere[index].append(rendered)
            if len(set(choices)) < len(choices):
                unanswerable.add(index)
            if index < len(train) and first.setdefault(rendered, index) != index:
                twins.update((index, first[rendered]))
            advance(1)
    in_test = {tuple(texts) for texts in everywhere[len(train) :]}
    of_test = {index for index in range(len(train)) if tuple(everywhere[index]) in in_test}
    return Doubles(
        of_test=tuple(sorted(of_test)),
        of_train=tuple(sorted(twins - of_test)),
        unanswerable_train=tuple(sorted(index for index in unanswerable if index < len(train))),
        unanswerable_test=tuple(sorted(index - len(train) for index in unanswerable if index >= len(train))),
    )


def divide(
    train: Rows,
    test: Rows,
    labels: Sequence[int | None],
    policy: SplitPolicy,
    *,
    doubles: Doubles,
    seed: int = 0,
) -> dict[str, Rows]:
    """The paper's three splits. No prompt is in train and in validation; no row of them renders like one of test.

    Args:
        train: The named rows of the official train split.
        test: Those of the official split that is tested on.
        labels: The label indices of ``train``.
        policy: The sizes.
        doubles: From :func:`find_doubles`.
        seed: The seed of the hold-out and of the samples.

    Returns:
        ``train``, ``validation`` and ``test``, each in the order of its official split; the provenance of each
        holds the digest of the ids of all three.

    Raises:
        InputError: ``E-DATA-TOO-FEW``.
    """
    assert train.ids is not None
    assert test.ids is not None
    left_out, twins = {*doubles.of_test, *doubles.unanswerable_train}, set(doubles.of_train)
    answerable = [index for index in range(len(test)) if index not in set(doubles.unanswerable_test)]
    pool = [index for index in range(len(train)) if index not in left_out]
    single = {train.ids[index]: labels[index] for index in pool if index not in twins}
    wanted = policy.held_out(len(pool), len(test))
    if not 0 < wanted < len(pool) or wanted > len(single):
        message = f"{wanted} of {len(pool)} rows of {train.source} cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Give the whole data set.")
    held_out = draw_stratified(single, wanted, seed)
    chosen = {
        "train": _sample(train, [index for index in pool if train.ids[index] not in held_out], policy.max_train, seed),
        "validation": [index for index in pool if train.ids[index] in held_out],
        "test": _sample(test, answerable, policy.max_test, seed),
    }
    ids = {split: _take(test.ids if split == "test" else train.ids, places) for split, places in chosen.items()}
    record = {
        "left_out": len(doubles.of_test),
        "unanswerable": len(doubles.unanswerable_train) + len(doubles.unanswerable_test),
        "split_seed": seed,
        "split_sizes": {split: len(names) for split, names in ids.items()},
        "split_ids_sha256": {split: sha256_json(sorted(names)) for split, names in ids.items()},
    }
    splits = {}
    for split, places in chosen.items():
        rows = test if split == "test" else train
        provenance = {**rows.provenance, **record}
        splits[split] = replace(rows, rows=_take(rows.rows, places), ids=ids[split], provenance=provenance)
    return splits


def _take(items: Sequence[Item], places: Iterable[int]) -> tuple[Item, ...]:
    return tuple(items[place] for place in places)


def _sample(rows: Rows, places: Sequence[int], most: int | None, seed: int) -> list[int]:
    """A uniform sample of at most ``most``, in the order given."""
    if most is None or len(places) <= most:
        return list(places)
    assert rows.ids is not None
    ids = rows.ids
    by_chance = sorted(places, key=lambda place: (derive_seed(seed, "sample", ids[place]), place))
    return sorted(by_chance[:most])
