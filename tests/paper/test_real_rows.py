"""The datasets on real rows with PromptSource's templates."""

import functools

import pytest

from flip_flop.paper.data.catalog import catalog_data, catalog_entry, catalog_names, compare
from flip_flop.tasks import TaskRequest
from flip_flop.tasks.loading import VALUE_LIMITS
from tests.paper.test_splits import SPLITS

NAMES = tuple(name for name in catalog_names() if name != "storycloze")
PARTS = ("anli_r1", "anli_r2", "anli_r3", "hellaswag", "winogrande")
# The sizes of the splits by protocol. The paper's are those of its table but for two datasets, and for parts.
SIZES = {
    "paper": {"cb": (194, 56, 56), "wic": (4428, 1000, 638)},
    # Those of CB and WiC are as in the paper's protocol.
    "release": {
        "rte": (1488, 1000, 277),
        "wsc": (430, 95, 95),
        "copa": (300, 100, 100),
        "hellaswag": (540, 60, 400),
        "anli_r2": (900, 100, 1000),
    },
}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real_rows")]  # a dataset is rendered once

# Official split, id, template and the answer that a reader gives; the label fields' encodings all differ.
READ_BY_HAND = [
    ("rte", "train", "train-0", "does it follow that", "No"),
    ("cb", "test", "validation-0", "does it follow that", "No"),
    ("wic", "test", "validation-0", "same_sense", "No"),
    ("wsc", "test", "validation-0", "the pronoun refers to", "False"),
    ("copa", "test", "validation-0", "choose", "{choice2}"),
]


@pytest.fixture(scope="module")
def real(hub_mirror, promptsource_folder, tmp_path_factory):
    """Load a dataset by name and protocol."""

    @functools.cache
    def load(name, protocol="paper"):
        request = TaskRequest(name=name, hub_mirror=hub_mirror, splits=protocol, value_limit=VALUE_LIMITS[protocol])
        return catalog_data(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIP_FLOP_PROMPTSOURCE", str(promptsource_folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield load


@pytest.mark.parametrize(
    ("name", "protocol"), [*((name, "paper") for name in NAMES), *((name, "release") for name in SIZES["release"])]
)
def test_sizes_match_the_published_ones_or_have_a_reason(name, protocol, real):
    data = real(name, protocol)
    comparison, sizes = compare(data), tuple(len(data.task.rows(split)) for split in SPLITS)
    assert comparison.unexplained == ()
    for column in ("templates", "labels"):
        assert comparison.found[column] == comparison.published[column]
    is_published = comparison.found == comparison.published
    assert (
        is_published
        == (not comparison.reasons)
        == (name not in PARTS and not (protocol == "paper" and name in SIZES["paper"]))
    )
    assert sizes == SIZES[protocol].get(name, sizes)
    if name in PARTS:
        assert comparison.reasons[0].startswith(f"{catalog_entry(name).train_from.split} has ")


@pytest.mark.parametrize(("name", "split", "identity", "template", "answer"), READ_BY_HAND)
def test_the_gold_label_is_the_answer_that_a_reader_gives(name, split, identity, template, answer, real):
    task = real(name).task
    splits = [split] if split == "test" else ["train", "validation"]
    pairs = [pair for part in splits for pair in zip(task.rows(part).rows, task.instances(part), strict=True)]
    row, instance = next(pair for pair in pairs if pair[1].id == identity)
    choices = instance.choices[task.templates.names.index(template)]
    assert choices[instance.label] == answer.format(**row.fields)


def test_the_gold_ending_of_hellaswag_has_the_index_of_its_label(real):
    task = real("hellaswag").task
    place = task.templates.names.index("complete_first_then")
    for row, instance in zip(task.rows("test").rows[:50], task.instances("test"), strict=False):
        assert instance.choices[place][instance.label] == row.fields["endings"][int(row.fields["label"])].strip()
