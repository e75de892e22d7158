"""Training data: few labelled rows, and a sample of the validation split."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from flip_flop.prompts import TemplateSet
from flip_flop.tasks import FileSource, RowsSource
from flip_flop.training import load_training_data
from tests.training.conftest import make_task, rows, settings

# Three labels of the validation rows, in the order of the rows.
LABELS = [0] * 30 + [1] * 18 + [2] * 12
SPLITS = ("train", "validation", "test")


def write_rows(path, first):
    made = [{"text": f"{row['text']} {first}", "label": row["label"]} for row in rows(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return FileSource(path)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("select_by", ["auto", "last"])
def test_rows_of_few_labels_are_not_held_out_and_no_other_label_is_used(tmp_path, seed, select_by):
    made = rows(40)
    paid = made[:38:2]
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "".join(f"{row['text']},{1 - row['label']}\n" for row in paid))
    config = settings(seed=seed, select_by=select_by, supervised_weight=1.0)
    task = replace(make_task(), data={"train": RowsSource(made, "made rows")})
    data = load_training_data(task, config, few_labels=few)
    labels = {row.prompts[0].removesuffix(". Good?"): row.label for row in data.train if row.label is not None}
    assert labels == {row["text"]: 1 - row["label"] for row in paid}
    assert [row.label for row in data.validation] == [None, None]
    assert len(data.train) == 38
    relabelled = [row | {"label": 0} for row in made]
    other = replace(task, data={"train": RowsSource(relabelled, "made rows")})
    again = load_training_data(other, config, few_labels=few)
    assert (again.train, again.validation) == (data.train, data.validation)


def test_labels_of_a_validation_split_are_used_with_few_labels(tmp_path):
    (tmp_path / "few.csv").write_text(f"text,label\n{rows(12)[3]['text']},0\n")
    data = load_training_data(make_task(), settings(supervised_weight=1.0), few_labels=tmp_path / "few.csv")
    assert [row.label for row in data.train if row.label is not None] == [0]
    assert None not in [row.label for row in data.validation]


def data(eval_limit, **changes):
    task = make_task(7)
    validation = [{"text": f"v{number}", "label": label} for number, label in enumerate(LABELS)]
    templates = [replace(template, answer_choices="No ||| Yes ||| So") for template in task.templates]
    task = replace(
        task,
        templates=TemplateSet(tuple(templates)),
        data={**task.data, "validation": RowsSource(validation, "made rows")},
        labels=(0, 1, 2),
    )
    return load_training_data(task, settings(**changes), eval_limit=eval_limit)


@pytest.mark.parametrize("same", ["train", "validation"])
def test_training_on_the_rows_of_the_audit_is_warned_about(tmp_path, caplog, same):
    data = {split: write_rows(tmp_path / f"{split}.jsonl", first) for first, split in enumerate(SPLITS)}
    load_training_data(replace(make_task(), data=data), settings())
    assert "W-TRAINING" not in caplog.text
    load_training_data(replace(make_task(), data=data | {"test": replace(data[same])}), settings())
    assert f"W-TRAINING: the splits {same} and test have the same rows" in caplog.text


def test_sample_is_stratified_and_keeps_the_order_of_the_rows():
    whole, sample = data(None), data(20)
    assert Counter(instance.label for instance in sample.validation) == {0: 10, 1: 6, 2: 4}
    order = [instance.id for instance in whole.validation]
    places = [order.index(instance.id) for instance in sample.validation]
    assert places == sorted(places)
    assert sample.train == whole.train
    assert sample.record.num_validation == sample.record.eval_limit == 20
    assert whole.record.eval_limit is None


def test_sample_depends_on_the_seed():
    drawn = [{instance.id for instance in data(20, seed=seed).validation} for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_sample_ignores_labels_if_they_do_not_select_the_checkpoint():
    samples = [data(20, seed=seed, select_by="vote_agreement").validation for seed in range(6)]
    assert len({tuple(sorted(Counter(instance.label for instance in sample).items())) for sample in samples}) > 1


@pytest.mark.parametrize("eval_limit", [60, 61])
def test_limit_above_the_size_of_the_split_keeps_all_rows(eval_limit):
    assert data(eval_limit).validation == data(None).validation
