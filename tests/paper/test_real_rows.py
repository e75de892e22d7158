"""The datasets on real rows with PromptSource's templates."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flip_flop.paper.data.catalog import CatalogData, catalog_data, catalog_entry, catalog_names, compare
from flip_flop.tasks import TaskRequest

NAMES = tuple(name for name in catalog_names() if name != "storycloze")
OFFICIAL = {"cb": (194, 56, 56), "wic": (4428, 1000, 638)}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real_rows")]  # each dataset is rendered once
PARTS = ("anli_r1", "anli_r2", "anli_r3", "hellaswag", "winogrande")

# Official split, id, template and the answer that a reader gives; the label fields' encodings all differ.
READ_BY_HAND = [
    ("rte", "train", "train-0", "does it follow that", "No"),
    ("cb", "test", "validation-0", "does it follow that", "No"),
    ("wic", "test", "validation-0", "same_sense", "No"),
    ("wsc", "test", "validation-0", "the pronoun refers to", "False"),
    ("copa", "test", "validation-0", "choose", "{choice2}"),
]


Real = Callable[[str], CatalogData]


@pytest.fixture(scope="module")
def real(hub_mirror: Path, promptsource_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIP_FLOP_PROMPTSOURCE", str(promptsource_folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield functools.cache(lambda name: catalog_data(TaskRequest(name=name, hub_mirror=hub_mirror)))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_match_the_papers_table_or_have_a_reason(name: str, real: Real) -> None:
    comparison = compare(real(name))
    assert comparison.unexplained == ()
    assert comparison.found["templates"] == comparison.published["templates"]
    assert comparison.found["labels"] == comparison.published["labels"]
    if name not in (*PARTS, *OFFICIAL):
        assert comparison.found == comparison.published
        assert comparison.reasons == ()
    if name in PARTS:
        assert comparison.reasons[0].startswith(f"{catalog_entry(name).train_from.split} has ")
    if name in OFFICIAL:
        assert tuple(comparison.found[split] for split in ("train", "validation", "test")) == OFFICIAL[name]


@pytest.mark.parametrize("name", ["rte", "cb", "wsc", "copa", "hellaswag"])
def test_no_rendered_prompt_is_in_two_splits(name: str, real: Real) -> None:
    task = real(name).task
    splits = [{(each.prompts, each.choices) for each in task.instances(split)} for split in task.data]
    assert len(splits) == 3
    assert len(set.union(*splits)) == sum(map(len, splits))


@pytest.mark.parametrize("name", NAMES)
def test_validation_has_every_label_in_its_share(name: str, real: Real) -> None:
    data = real(name)
    official = data.task.gold_labels(data.train)
    held_out = data.task.gold_labels(data.task.rows("validation"))
    for label in range(len(data.entry.labels)):
        assert abs(held_out.count(label) - len(held_out) * official.count(label) / len(official)) < 1.5


@pytest.mark.parametrize(("name", "split", "identity", "template", "answer"), READ_BY_HAND)
def test_the_gold_label_is_the_answer_that_a_reader_gives(
    name: str, split: str, identity: str, template: str, answer: str, real: Real
) -> None:
    task = real(name).task
    splits = [split] if split == "test" else ["train", "validation"]
    pairs = [pair for each in splits for pair in zip(task.rows(each).rows, task.instances(each), strict=True)]
    row, instance = next(pair for pair in pairs if pair[1].id == identity)
    choices = instance.choices[task.templates.names.index(template)]
    assert instance.label is not None
    assert choices[instance.label] == answer.format(**row.fields)


def test_the_gold_ending_of_hellaswag_has_the_index_of_its_label(real: Real) -> None:
    task = real("hellaswag").task
    for row, instance in zip(task.rows("test").rows[:50], task.instances("test"), strict=False):
        place = task.templates.names.index("complete_first_then")
        assert instance.label is not None
        assert instance.choices[place][instance.label] == row.fields["endings"][int(row.fields["label"])].strip()
