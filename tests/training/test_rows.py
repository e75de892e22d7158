"""Rows that exceed the device's memory are split, with the same results if there is no dropout."""

import pytest
import torch

from tests.exact import EXACT, in_float64
from tests.training.naive_step import LOSSES, distance, lora_gradients, made_instances, made_trainer

pytestmark = pytest.mark.slow


def refuse_beyond(trainer, limit, *, backward):
    """Simulate memory for rows up to this size; a backward fails when all layers but the first have a gradient."""
    seen = []

    def before(module, given, named):
        seen.append(named["input_ids"].shape[1])
        if not backward and seen[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def after(parameter):
        if backward and seen[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    trainer.adapted.get_base_model().model.register_forward_pre_hook(before, with_kwargs=True)
    first = next(value for value in trainer.adapted.parameters() if value.requires_grad)
    first.register_post_accumulate_grad_hook(after)


def steps(trainer, instances):
    """Losses, gradients and statistics of two micro-batches of one optimizer step."""
    trainer.adapted.zero_grad()
    losses = [
        float(trainer.training_step(trainer.adapted, {"instances": part}, num_items_in_batch=len(instances)))
        for part in (instances[:1], instances[1:])
    ]
    return losses, lora_gradients(trainer.adapted), trainer.statistics.means()


@pytest.mark.parametrize("backward", [False, True])
def test_row_that_exceeds_the_memory_is_split(tmp_path, caplog, backward):
    instances = made_instances()
    longest = max(len(each.trie) for each in instances)
    plain, short = (made_trainer(tmp_path / name, **LOSSES["f2c over both"]) for name in ("plain", "short"))
    for trainer in (plain, short):
        in_float64(trainer.adapted)
        trainer._row_tokens = 100_000
    refuse_beyond(short, longest, backward=backward)
    losses, gradients, log = steps(short, instances)
    expected_losses, expected, expected_log = steps(plain, instances)
    assert longest // 2 <= short._row_tokens < sum(len(each.trie) for each in instances)
    assert "W-MEMORY: a row of" in caplog.text
    assert losses == pytest.approx(expected_losses, rel=EXACT)
    assert distance(gradients, expected) < EXACT
    assert log == pytest.approx(expected_log, rel=EXACT)


def test_single_instance_that_exceeds_the_memory_fails(tmp_path, caplog):
    trainer, instances = made_trainer(tmp_path, **LOSSES["cce"]), made_instances()[:1]
    refuse_beyond(trainer, len(instances[0].trie) - 1, backward=True)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.training_step(trainer.adapted, {"instances": instances}, num_items_in_batch=1)
    assert "W-MEMORY" not in caplog.text
