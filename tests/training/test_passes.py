"""The same weights score the same rows once."""

from collections import Counter
from dataclasses import replace

import pytest

from flip_flop.tasks import RowsSource
from flip_flop.training import make_config, train
from flip_flop.training import trainer as trainer_module
from tests.training.conftest import load_tiny, make_task, record_of, rows
from tests.training.test_trainer import make_trainer, training_rows


@pytest.fixture
def passes(monkeypatch):
    """The scoring passes, by the label of their progress bar."""
    counted, score_instances = Counter(), trainer_module.score_instances

    def counting(*arguments, label, **keywords):
        counted[label] += 1
        return score_instances(*arguments, label=label, **keywords)

    monkeypatch.setattr(trainer_module, "score_instances", counting)
    return counted


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"base votes": 1, "validation": 16}),  # 17 evaluations: the learning rate of the first step is 0
        ({"eval_steps": 8}, {"base votes": 1, "validation": 3}),
        ({"eval_strategy": "no"}, {"base votes": 1, "calibration": 1}),
        ({"protocol": "release", "eval_steps": 8}, {"base votes": 1, "validation": 3}),  # a sample for first votes
    ],
)
def test_a_training_of_16_steps_scores_each_state_once(out, passes, changes, expected):
    task = make_task(64)
    task = replace(task, data={**task.data, "validation": RowsSource(rows(60, 100), "made rows")})
    settings = {"max_steps": 16, "per_device_train_batch_size": 4, "lora_r": 4, "stop_on_collapse": False}
    config = make_config({**settings, "early_stopping_start": 20, "use_cpu": True, **changes})
    train(load_tiny(), task, config, out, quiet=True, keep_worse=True)
    assert dict(passes) == expected
    validation = record_of(out)["training"]["validation"]
    assert (validation is None) is (changes.get("eval_strategy") == "no")


def test_changed_weights_are_scored_again(tmp_path, passes):
    trainer = make_trainer(tmp_path, eval_rows=training_rows(count=5))
    before = [trainer.evaluate(), trainer.evaluate()]
    assert passes == {"validation": 1}
    assert before[0] == before[1]
    for name, value in trainer.adapted.named_parameters():
        if "lora_B" in name:
            value.data.normal_(0, 1.0)
    assert trainer.evaluate() != before[0]
    assert passes == {"validation": 2}
