"""The splits of the paper, as laws over made rows. The splits of the release, against a slow implementation."""

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flip_flop.paper.data.splits import Duplicates, SplitPolicy, divide, find_duplicates, name_rows
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import Rows, RowsSource, load_task
from tests.paper.made_datasets import change_rows
from tests.refused import refused

SPLITS = ("train", "validation", "test")
Prompts = Sequence[Sequence[str]]


def rows_of(made: list[dict], split: str, id_field: str | None = None, named_by: Sequence[str] = ()) -> Rows:
    return name_rows(RowsSource(made, split).load(), split, id_field, named_by)


@pytest.mark.parametrize(
    ("policy", "train", "test", "size"),
    [
        (SplitPolicy(None), 40_000, 5000, 1000),
        # Parts of a split: a tenth, so that there is something to train on.
        (SplitPolicy(1000), 1000, 1000, 100),
        (SplitPolicy(600), 600, 400, 60),
        (SplitPolicy(1000), 5, 5, 1),
    ],
)
def test_number_of_held_out_rows(policy, train, test, size):
    assert policy.held_out(train, test) == size


@given(st.integers(0, 9), st.integers(30, 80), st.integers(1, 20), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_a_split_is_a_function_of_ids_and_seed(seed, train, test, shuffler: random.Random):
    policy = SplitPolicy(10, max_train=15, max_test=8)
    made = [{"idx": number, "label": number % 3} for number in range(train)]
    tested = rows_of([{"idx": number, "label": 0} for number in range(test)], "dev", "idx")
    drawn = []
    for _ in range(2):
        labels = [row["label"] for row in made]
        drawn.append(divide(rows_of(made, "train", "idx"), tested, labels, policy, duplicates=Duplicates(), seed=seed))
        shuffler.shuffle(made)
    first, second = drawn
    assert {split: set(first[split].ids) for split in SPLITS} == {split: set(second[split].ids) for split in SPLITS}
    assert [len(first[split]) for split in SPLITS] == [15, 10, min(test, 8)]
    assert set(first["train"].ids).isdisjoint(first["validation"].ids)
    assert first["train"].provenance["split_ids_sha256"] == second["train"].provenance["split_ids_sha256"]
    for label in range(3):
        held_out = sum(row.fields["label"] == label for row in first["validation"].rows)
        share = 10 * sum(number % 3 == label for number in range(train)) / train
        assert abs(held_out - share) < 1


def test_a_name_does_not_depend_on_the_label_or_on_outer_white_space():
    made = [{"text": "tea ", "uid": 1, "label": 0}, {"text": "tea", "uid": 2, "label": 1}, {"text": "ice", "label": 0}]
    named = [rows_of([row], "train", None, ["text"]).ids for row in made]
    assert named[0] == named[1] != named[2]
    assert rows_of(made[:2], "train", None, ["text"]).ids == (named[0][0], f"{named[0][0]}-2")


def test_rows_with_two_equal_answers_are_in_no_split():
    templates = TemplateSet((Template("pick", "{{ a }}", "{{ b }} ||| {{ c }}"),))
    made = [{"a": str(n), "b": "tea", "c": "tea" if n in (2, 5) else "ice", "label": n % 2} for n in range(12)]
    train, test = rows_of(made, "train"), rows_of([row | {"a": f"t{row['a']}"} for row in made], "dev")
    doubles = find_duplicates(train, test, templates, "label")
    assert doubles.unanswerable == (2, 5, 14, 17)
    splits = divide(train, test, [row["label"] for row in made], SplitPolicy(3), duplicates=doubles)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 7, "validation": 3, "test": 10}
    assert splits["test"].provenance["unanswerable"] == 4


def test_train_and_validation_share_no_prompt():
    templates = TemplateSet(
        (Template("short", "{{ a }}", "No ||| Yes"), Template("drawn", "{{ ['x', 'y'] | choice }} {{ b }}", "0 ||| 1"))
    )
    train, test = (
        rows_of([{"a": a, "b": b, "label": index} for index, (a, b) in enumerate(pairs)], split)
        for split, pairs in {
            "train": [("1", "1"), ("1", "2"), ("1", "1"), ("2", "2"), ("3", "3"), ("3", "3 ")],
            "dev": [("2", "2"), ("1", "3"), ("3", "4"), ("2", "2")],
        }.items()
    )
    # Test has row 3 twice under both templates. Rows 0, 1 and 2 share a, and 4 and 5 share both.
    doubles = find_duplicates(train, test, templates, "label")
    assert (doubles.in_test, doubles.within_train) == ((3,), (0, 1, 2, 4, 5))


# ---- the release ----


def first_of_their_prompts(prompts: Prompts) -> list[int]:
    kept: list[int] = []
    for index, own in enumerate(prompts):
        if all(prompt not in prompts[earlier] for earlier in kept for prompt in own):
            kept.append(index)
    return kept


def quotas_by_largest_remainder(counts: list[int], wanted: int) -> list[int]:
    shares = [Fraction(wanted * count, sum(counts)) for count in counts]
    quotas = [int(share) for share in shares]
    while sum(quotas) < wanted:
        remainders = [share - quota for share, quota in zip(shares, quotas, strict=True)]
        quotas[remainders.index(max(remainders))] += 1
    return quotas


def release(
    train: Prompts, labels: Sequence[int], test: Prompts, validation: int | None, max_train: int, max_test: int
):
    """The rule as its description has it: indices into the two official splits."""
    pool, tested = first_of_their_prompts(train), first_of_their_prompts(test)
    size = len(tested) if validation is None else validation
    generator = np.random.RandomState(42)

    def draw(indices, number):
        return [indices[place] for place in generator.permutation(len(indices))[:number]]

    seen = list(dict.fromkeys(labels[index] for index in pool))
    classes = {label: [index for index in pool if labels[index] == label] for label in seen}
    # Two labels cannot tie but at a half; of more, the smaller number is served first.
    counts = [len(classes[label]) for label in sorted(seen)]
    quotas = dict(zip(sorted(seen), quotas_by_largest_remainder(counts, size), strict=True))
    held_out = [index for label in seen for index in draw(classes[label], quotas[label])]
    rest = [index for index in pool if index not in held_out]
    if len(rest) > max_train:
        rest = draw(rest, max_train)
    generator = np.random.RandomState(42)
    if len(tested) > max_test:
        tested = draw(tested, max_test)
    return {"train": sorted(rest), "validation": sorted(held_out), "test": sorted(tested)}


def numbers(splits: dict[str, Rows]) -> dict[str, list[int]]:
    return {split: [row.number - 1 for row in rows.rows] for split, rows in splits.items()}


TEMPLATES = TemplateSet(
    (Template("one", "{{ a }}", "No ||| Yes ||| So"), Template("two", "{{ b }} and {{ c }}?", "0 ||| 1 ||| 2"))
)
PAIRS = st.tuples(st.integers(0, 60), st.integers(0, 5), st.integers(0, 12))


@pytest.mark.slow
@given(
    st.lists(st.tuples(PAIRS, st.integers(0, 2)), min_size=30, max_size=60),
    st.lists(PAIRS, min_size=2, max_size=20),
    st.sampled_from([None, 3, 7]),
)
@settings(max_examples=50)
def test_splits_match_a_slow_implementation(train, test, validation):
    cells, labels = [cell for cell, _ in train], [label for _, label in train]
    prompts, tested = ([[f"a{a}", f"b{b} and c{c}?"] for a, b, c in part] for part in (cells, test))
    wanted = release(prompts, labels, tested, validation, 11, 5)
    pool, held_out = len(first_of_their_prompts(prompts)), len(wanted["validation"])
    assume(0 < held_out <= 2 * (pool - held_out))  # else it is a part of a set, of which a tenth is held out
    official = [
        rows_of(
            [{"a": f"a{a}", "b": f"b{b}", "c": f"c{c}", "idx": n} for n, (a, b, c) in enumerate(part)], split, "idx"
        )
        for split, part in (("train", cells), ("dev", test))
    ]
    duplicates = find_duplicates(*official, TEMPLATES, "label")
    policy = SplitPolicy(validation, max_train=11, max_test=5)
    for seed in (0, 1):
        splits = divide(*official, labels, policy, duplicates=duplicates, splits="release", seed=seed)
        assert numbers(splits) == wanted
        provenance = splits["train"].provenance
        assert (provenance["splits"], provenance["split_seed"]) == ("release", 42)


def test_repeated_prompts_are_excluded_within_one_split(made):
    def change(rows):
        again = {**rows[3], "idx": 100, "label": 1 - rows[3]["label"]}
        in_test = {"premise": "Fact 1000.", "hypothesis": "Claim 1000.", "idx": 101, "label": 0}
        return [*rows, again, in_test]

    change_rows(made, "aps/super_glue/rte/train", change)
    task = load_task("rte", hub_mirror=made.mirror, protocol="release")
    names = {name for split in ("train", "validation") for name in task.rows(split).ids or ()}
    assert (len(names), "train-100" in names, "train-101" in names) == (61, False, True)
    assert task.rows("train").provenance["left_out"] == 1


def test_splits_and_limit_can_be_set_separately(made):
    only_splits = load_task("cb", hub_mirror=made.mirror, splits="release").rows("test").provenance
    only_limit = load_task("cb", hub_mirror=made.mirror, prompt_value_limit=99).rows("test").provenance
    assert (only_splits["splits"], "prompt_value_limit" in only_splits) == ("release", False)
    assert (only_limit["splits"], only_limit["prompt_value_limit"]) == ("paper", 99)


def test_unknown_protocols_and_splits_are_rejected(made):
    refused(
        r"E-TASK-KEY: protocol is 'released'\. Did you mean 'release'\?",
        load_task,
        "cb",
        hub_mirror=made.mirror,
        protocol="released",
    )
    refused(
        r"E-TASK-KEY: splits is 'papers'\. Did you mean 'paper'\?",
        load_task,
        "cb",
        hub_mirror=made.mirror,
        splits="papers",
    )
