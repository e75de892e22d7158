"""Few labelled rows: the labels that a training run reads."""

from dataclasses import replace

import pytest

from flip_flop.tasks import RowsSource
from flip_flop.training import load_training_data
from tests.training.conftest import make_task, rows, settings


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
    labels = {each.prompts[0].removesuffix(". Good?"): each.label for each in data.train if each.label is not None}
    assert labels == {row["text"]: 1 - row["label"] for row in paid}
    assert [each.label for each in data.validation] == [None, None]
    assert len(data.train) == 38
    relabelled = [row | {"label": 0} for row in made]
    other = replace(task, data={"train": RowsSource(relabelled, "made rows")})
    again = load_training_data(other, config, few_labels=few)
    assert (again.train, again.validation) == (data.train, data.validation)


def test_labels_of_a_validation_split_are_used_with_few_labels(tmp_path):
    (tmp_path / "few.csv").write_text(f"text,label\n{rows(12)[3]['text']},0\n")
    data = load_training_data(make_task(), settings(supervised_weight=1.0), few_labels=tmp_path / "few.csv")
    assert [each.label for each in data.train if each.label is not None] == [0]
    assert None not in [each.label for each in data.validation]
