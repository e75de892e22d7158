"""The embedded tasks: reviews that are the same for everyone, differ between splits, and read well."""

import pytest
from evidence.demo_reviews import SPLIT_SIZES, make_rows

from flip_flop.files import sha256_json
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


def test_the_embedded_task_has_eight_templates_and_three_held_out():
    task = load_task("demo", templates="all")
    assert len(task.training_templates) >= 8
    assert len(task.held_out_templates) == 3
    instances = task.instances("test")
    assert [instance.label for instance in instances] == [row["label"] for row in make_rows("test")]
    assert [instance.id for instance in instances] == [row["id"] for row in make_rows("test")]
