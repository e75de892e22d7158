"""The splits of the authors' release: against a slow reading of the rule, on made rows and on real ones."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.paper.data.catalog import CatalogData, catalog_data, compare
from flip_flop.paper.data.splits import SplitPolicy, divide, find_duplicates, name_rows
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import Rows, RowsSource, Task, TaskRequest, load_task
from tests.paper.made_datasets import Made, write_rows

SPLITS = ("train", "validation", "test")
Prompts = Sequence[Sequence[str]]


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
) -> dict[str, list[int]]:
    """The rule as its description has it: indices into the two official splits."""
    pool, tested = first_of_their_prompts(train), first_of_their_prompts(test)
    size = len(tested) if validation is None else validation
    random = np.random.RandomState(42)
    found: list[int] = []
    for index in pool:
        if labels[index] not in found:
            found.append(labels[index])
    classes = [[index for index in pool if labels[index] == label] for label in found]
    # Two labels cannot tie but at a half; of more, the smaller number is served first.
    order = sorted(range(len(found)), key=lambda place: found[place])
    quotas = dict(zip(order, quotas_by_largest_remainder([len(classes[at]) for at in order], size), strict=True))
    held_out: list[int] = []
    for place, members in enumerate(classes):
        held_out += [members[at] for at in random.permutation(len(members))[: quotas[place]]]
    rest = [index for index in pool if index not in held_out]
    if len(rest) > max_train:
        rest = [rest[at] for at in random.permutation(len(rest))[:max_train]]
    if len(tested) > max_test:
        tested = [tested[at] for at in np.random.RandomState(42).permutation(len(tested))[:max_test]]
    return {"train": sorted(rest), "validation": sorted(held_out), "test": sorted(tested)}


def numbers(splits: dict[str, Rows]) -> dict[str, list[int]]:
    return {split: [row.number - 1 for row in rows.rows] for split, rows in splits.items()}


TEMPLATES = TemplateSet(
    (Template("one", "{{ a }}", "No ||| Yes ||| So"), Template("two", "{{ b }} and {{ c }}?", "0 ||| 1 ||| 2"))
)
PAIRS = st.tuples(st.integers(0, 60), st.integers(0, 5), st.integers(0, 12))


@given(
    st.lists(st.tuples(PAIRS, st.integers(0, 2)), min_size=30, max_size=60),
    st.lists(PAIRS, min_size=2, max_size=20),
    st.sampled_from([None, 3, 7]),
)
@settings(max_examples=150)
def test_splits_match_a_slow_implementation(train: list, test: list, validation: int | None) -> None:
    labels = [label for _, label in train]

    def rows(cells: list[tuple[int, int, int]], split: str) -> Rows:
        made = [{"a": f"a{a}", "b": f"b{b}", "c": f"c{c}", "idx": at} for at, (a, b, c) in enumerate(cells)]
        return name_rows(RowsSource(made, split).load(), split, "idx")

    def prompts(cells: list[tuple[int, int, int]]) -> Prompts:
        return [[f"a{a}", f"b{b} and c{c}?"] for a, b, c in cells]

    cells = [cell for cell, _ in train]
    wanted = release(prompts(cells), labels, prompts(test), validation, 11, 5)
    pool, held_out = len(first_of_their_prompts(prompts(cells))), len(wanted["validation"])
    assume(0 < held_out <= 2 * (pool - held_out))  # else it is a part of a set, of which a tenth is held out
    official = rows(cells, "train"), rows(test, "dev")
    duplicates = find_duplicates(*official, TEMPLATES, "label")
    policy = SplitPolicy(validation, max_train=11, max_test=5)
    for seed in (0, 1):
        splits = divide(*official, labels, policy, duplicates=duplicates, splits="release", seed=seed)
        assert numbers(splits) == wanted
        assert splits["train"].provenance["splits"] == "release"
        assert splits["train"].provenance["split_seed"] == 42


def change_rows(made: Made, path: str, change: Callable[[list[dict]], list[dict]]) -> None:
    file = made.mirror / f"{path}.parquet"
    write_rows(file, change(pq.read_table(file).to_pylist()))


def test_repeated_prompts_are_excluded_within_one_split(made: Made) -> None:
    def change(rows: list[dict]) -> list[dict]:
        again = {**rows[3], "idx": 100, "label": 1 - rows[3]["label"]}
        in_test = {"premise": "Fact 1000.", "hypothesis": "Claim 1000.", "idx": 101, "label": 0}
        return [*rows, again, in_test]

    change_rows(made, "aps/super_glue/rte/train", change)
    task = load_task("rte", hub_mirror=made.mirror, protocol="release")
    names = {name for split in ("train", "validation") for name in task.rows(split).ids or ()}
    assert len(names) == 61
    assert "train-100" not in names
    assert "train-101" in names
    assert task.rows("train").provenance["left_out"] == 1


def test_splits_and_limit_can_be_set_separately(made: Made) -> None:
    only_splits = load_task("cb", hub_mirror=made.mirror, splits="release").rows("test").provenance
    only_limit = load_task("cb", hub_mirror=made.mirror, prompt_value_limit=99).rows("test").provenance
    assert (only_splits["splits"], "prompt_value_limit" in only_splits) == ("release", False)
    assert (only_limit["splits"], only_limit["prompt_value_limit"]) == ("paper", 99)


def test_unknown_protocols_and_splits_are_rejected(made: Made) -> None:
    with pytest.raises(InputError, match=r"E-TASK-KEY: protocol is 'released'\. Did you mean 'release'\?"):
        load_task("cb", hub_mirror=made.mirror, protocol="released")
    with pytest.raises(InputError, match=r"E-TASK-KEY: splits is 'papers'\. Did you mean 'paper'\?"):
        load_task("cb", hub_mirror=made.mirror, splits="papers")


# The release's sizes for complete datasets, and the sizes of two partial datasets.
REAL = {
    "cb": (194, 56, 56),
    "rte": (1488, 1000, 277),
    "wsc": (430, 95, 95),
    "copa": (300, 100, 100),
    "wic": (4428, 1000, 638),
    "hellaswag": (540, 60, 400),
    "anli_r2": (900, 100, 1000),
}
COMPLETE = ("cb", "rte", "wsc", "copa", "wic")


def real_data(name: str, hub_mirror: Path, folder: Path, cache: Path, patch: pytest.MonkeyPatch) -> CatalogData:
    patch.setenv("FLIP_FLOP_PROMPTSOURCE", str(folder))
    patch.setenv("XDG_CACHE_HOME", str(cache))
    return catalog_data(TaskRequest(name=name, hub_mirror=hub_mirror, splits="release", value_limit=2048))


@pytest.mark.parametrize("name", REAL)
def test_the_releases_sizes_are_met_on_real_rows(
    name: str, hub_mirror: Path, promptsource_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = real_data(name, hub_mirror, promptsource_folder, tmp_path, monkeypatch)
    assert tuple(len(data.task.rows(split)) for split in SPLITS) == REAL[name]
    comparison = compare(data)
    assert comparison.unexplained == ()
    assert (comparison.found == comparison.published) == (name in COMPLETE)
    assert bool(comparison.reasons) == (name not in COMPLETE)


@pytest.mark.parametrize("name", ["cb", "wsc", "copa"])
def test_real_splits_match_a_slow_implementation(
    name: str, hub_mirror: Path, promptsource_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = real_data(name, hub_mirror, promptsource_folder, tmp_path, monkeypatch)

    def prompts(task: Task) -> Prompts:
        return [instance.prompts for instance in task.instances("all")]

    texts = [
        prompts(Task(name, data.task.templates, {"all": rows}, data.task.labels, data.task.label_field))
        for rows in (data.train, data.test)
    ]
    labels = [int(row.fields["label"]) for row in data.train.rows]
    wanted = release(texts[0], labels, texts[1], None, 10_000, 10_000)
    assert numbers({split: data.task.rows(split) for split in SPLITS}) == wanted
