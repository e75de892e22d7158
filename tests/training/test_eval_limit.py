"""``--eval-limit``: checkpoints are chosen on a sample of the validation split; training data stay the same."""

from collections import Counter

import pytest

from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import RowsSource, Task
from flip_flop.training import F2CConfig, load_training_data

TEMPLATES = TemplateSet(
    (Template("a", "{{ text }}?", "No ||| Yes ||| So"), Template("b", "{{ text }}!", "0 ||| 1 ||| 2"))
)
LABELS = [0] * 30 + [1] * 18 + [2] * 12


def data(eval_limit: int | None, **settings: object):
    rows = {
        "train": RowsSource([{"text": f"t{n}", "label": n % 3} for n in range(7)], "train"),
        "validation": RowsSource([{"text": f"v{n}", "label": label} for n, label in enumerate(LABELS)], "validation"),
    }
    task = Task("toy", TEMPLATES, rows, labels=(0, 1, 2), label_field="label")
    return load_training_data(task, F2CConfig(use_cpu=True, **settings), eval_limit=eval_limit)


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
    assert len({tuple(sorted(Counter(instance.label for instance in each).items())) for each in samples}) > 1


@pytest.mark.parametrize("eval_limit", [60, 61])
def test_limit_above_the_size_of_the_split_keeps_all_rows(eval_limit: int):
    assert data(eval_limit).validation == data(None).validation
