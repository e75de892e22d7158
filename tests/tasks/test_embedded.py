"""The embedded tasks: reviews that are the same for everyone, differ between splits, and read well."""

import re

import pytest
from evidence.demo_reviews import SPLIT_SIZES, make_rows, stream_reviews

from flip_flop.files import generator, sha256_json
from flip_flop.tasks import load_task

DIGESTS = {
    "train": "fde8a9c9aa7bbd4f42372ea44819e8bb449444d946af556f1f4f346a35a2c338",
    "validation": "51db3047538ab7ba7cd179f9319dd5320beabc98f8935905b5beaf89a1ce5f18",
    "test": "29f43c0dbffaecaf37733d0b27a4172cdf16f63676a34da3ba84c3cec405165e",
}


# The arguments of the generator: seed, number of remarks, and the least sum of their strengths.
MADE = {"demo": (0, 3, 0.5), "demo_remarks": (1000, 1, 0.5), "demo_clear": (2000, 3, 1.5)}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("split", sorted(SPLIT_SIZES))
def test_the_stored_rows_are_those_of_the_generator(name, split):
    made = make_rows(split, *MADE[name])
    assert [row.fields for row in load_task(name).rows(split).rows] == made
    if name == "demo":
        assert sha256_json(made) == DIGESTS[split]


@pytest.mark.parametrize("name", MADE)
def test_texts_are_unique_and_splits_balanced(name):
    task = load_task(name)
    splits = {split: [row.fields for row in task.rows(split).rows] for split in SPLIT_SIZES}
    assert len({row["text"] for rows in splits.values() for row in rows}) == sum(SPLIT_SIZES.values())
    for split, size in SPLIT_SIZES.items():
        assert len(splits[split]) == size == len({row["id"] for row in splits[split]})
        assert sum(row["label"] for row in splits[split]) == size // 2


@pytest.mark.parametrize("num_clauses", [1, 3])
def test_the_english_reads_naturally(num_clauses):
    stream = stream_reviews(generator(3, "test english", num_clauses), num_clauses)
    for text in [next(stream).text for _ in range(700)]:
        assert all(re.fullmatch(r"[A-Z][A-Za-z,]*( [A-Za-z,]+)*\.", each) for each in re.split(r"(?<=\.) ", text)), text
        # A verb agrees with its subject, and "slightly" is not praise.
        for subject, verb in re.findall(r"\b[Tt]he (\w+) (was|were)\b", text):
            assert (verb == "were") == (subject in {"towels", "staff", "neighbours"}), text
        assert not re.search(r"slightly (clean|good|friendly|quiet|fresh)", text), text
        # "a" is never followed by a vowel.
        assert not re.search(r"\ba [aeiou]", text), text


def test_the_label_is_the_sign_of_the_summed_strengths():
    stream = stream_reviews(generator(0, "test labels"))
    for _ in range(500):
        review = next(stream)
        assert abs(review.strength) >= 0.5 - 1e-9
        assert review.label == int(sum(clause.strength for clause in review.clauses) > 0)


def test_the_embedded_task_has_eight_templates_and_three_held_out():
    task = load_task("demo", templates="all")
    assert len(task.training_templates) >= 8
    assert len(task.held_out_templates) == 3
    instances = task.instances("test")
    assert [instance.label for instance in instances] == [row["label"] for row in make_rows("test")]
    assert [instance.id for instance in instances] == [row["id"] for row in make_rows("test")]
