"""The paper's splits, as laws over made rows."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.paper.data.splits import Duplicates, SplitPolicy, divide, find_duplicates, name_rows
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import Rows, RowsSource

TEMPLATES = TemplateSet(
    (Template("short", "{{ a }}", "No ||| Yes"), Template("drawn", "{{ ['x', 'y'] | choice }} {{ b }}", "0 ||| 1"))
)


def rows_of(numbers: list[int], split: str) -> Rows:
    made = [{"idx": number, "label": number % 3} for number in numbers]
    return name_rows(RowsSource(made, split).load(), split, "idx")


@pytest.mark.parametrize(
    ("policy", "train", "test", "size"),
    [
        (SplitPolicy(1000), 2490, 277, 1000),
        (SplitPolicy(None), 554, 104, 104),
        (SplitPolicy(None), 400, 100, 100),
        (SplitPolicy(600, max_test=600), 39905, 10042, 600),
        (SplitPolicy(1000), 1871, 1871, 1000),
        (SplitPolicy(None), 40_000, 5000, 1000),
        # Parts of a split: a tenth, so that there is something to train on.
        (SplitPolicy(1000), 1000, 1000, 100),
        (SplitPolicy(600), 600, 400, 60),
        (SplitPolicy(1000), 5, 5, 1),
    ],
)
def test_number_of_held_out_rows(policy: SplitPolicy, train: int, test: int, size: int) -> None:
    assert policy.held_out(train, test) == size


@given(st.integers(0, 9), st.integers(30, 80), st.integers(1, 20), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_split_is_a_function_of_ids_and_seed(seed: int, train: int, test: int, shuffler: random.Random) -> None:
    policy = SplitPolicy(10, max_train=15, max_test=8)
    numbers = list(range(train))
    drawn = []
    for _ in range(2):
        official = rows_of(numbers, "train")
        labels = [row.fields["label"] for row in official.rows]
        tested = rows_of(list(range(test)), "dev")
        drawn.append(divide(official, tested, labels, policy, duplicates=Duplicates(), seed=seed))
        shuffler.shuffle(numbers)
    first, second = ({split: set(rows.ids or ()) for split, rows in each.items()} for each in drawn)
    assert first == second
    assert [len(first[split]) for split in ("train", "validation", "test")] == [15, 10, min(test, 8)]
    assert not first["train"] & first["validation"]
    assert drawn[0]["train"].provenance["split_ids_sha256"] == drawn[1]["train"].provenance["split_ids_sha256"]
    for label in range(3):
        held_out = sum(row.fields["label"] == label for row in drawn[0]["validation"].rows)
        share = 10 * sum(number % 3 == label for number in range(train)) / train
        assert abs(held_out - share) < 1


def test_a_name_does_not_depend_on_the_label_or_on_outer_white_space() -> None:
    made = [{"text": "tea ", "uid": 1, "label": 0}, {"text": "tea", "uid": 2, "label": 1}, {"text": "ice", "label": 0}]
    named = [name_rows(RowsSource([row], "x").load(), "train", None, ["text"]).ids for row in made]
    assert named[0] == named[1] != named[2]
    equal = name_rows(RowsSource(made[:2], "x").load(), "train", None, ["text"]).ids
    assert equal == (named[0][0], f"{named[0][0]}-2")


def test_rows_with_two_equal_answers_are_in_no_split() -> None:
    templates = TemplateSet((Template("pick", "{{ a }}", "{{ b }} ||| {{ c }}"),))
    made = [{"a": str(n), "b": "tea", "c": "tea" if n in (2, 5) else "ice", "label": n % 2} for n in range(12)]
    train = name_rows(RowsSource(made, "train").load(), "train", None, ["a"])
    test = name_rows(RowsSource([row | {"a": f"t{row['a']}"} for row in made], "dev").load(), "dev", None, ["a"])
    doubles = find_duplicates(train, test, templates, "label")
    assert doubles.unanswerable == (2, 5, 14, 17)
    splits = divide(train, test, [row["label"] for row in made], SplitPolicy(3), duplicates=doubles)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 7, "validation": 3, "test": 10}
    assert splits["test"].provenance["unanswerable"] == 4


def test_train_and_validation_share_no_prompt() -> None:
    def rows(pairs: list[tuple[str, str]], split: str) -> Rows:
        made = [{"a": a, "b": b, "label": index} for index, (a, b) in enumerate(pairs)]
        return name_rows(RowsSource(made, split).load(), split, None)

    train = rows([("1", "1"), ("1", "2"), ("1", "1"), ("2", "2"), ("3", "3"), ("3", "3 ")], "train")
    test = rows([("2", "2"), ("1", "3"), ("3", "4"), ("2", "2")], "dev")
    # Test has row 3 twice under both templates. Rows 0, 1 and 2 share a, and 4 and 5 share both.
    found = find_duplicates(train, test, TEMPLATES, "label")
    assert (found.in_test, found.within_train) == ((3,), (0, 1, 2, 4, 5))
