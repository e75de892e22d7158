"""On a device that is not the CPU: the same numbers, no operation of two devices, and hardly a wait for it.

No GPU computes here. It is a process whose tensors PyTorch takes for those of another device (tests/other_device.py).
"""

import subprocess
import sys

import numpy as np
import pytest
import torch

from flip_flop import audit
from flip_flop.scoring import score_instances
from flip_flop.scoring.packed import pack
from tests.exact import float32_bound
from tests.tiny import tiny_model
from tests.training.conftest import load_tiny, make_task
from tests.training.naive_step import LOSSES, distance, made_instances, made_trainer, step
from tests.training.test_trainer import adapter_weights, training_rows

pytestmark = pytest.mark.slow
SCORINGS = ("packed", "padded")
STEPS = LOSSES | {
    "f2c, positions apart": {"method": "f2c", "answer_aggregation": "per_position"},
    "swarm, mixture": {"method": "swarm", "swarm_pairs": "mixture", "swarm_space": "vocab"},
    "swarm, derangement": {"method": "swarm", "swarm_pairs": "derangement"},
    "votes of a separate pass": {"method": "f2c", "vote_pass": "separate"},
}
NOT_SAVED = {"save_strategy": "no", "select_by": "last"}
ROW_TOKENS = 60


def train(folder, **settings):
    """Two epochs with dropout, and an evaluation after each."""
    trainer = made_trainer(
        folder, rows=training_rows(), eval_rows=training_rows(count=5), lora_dropout=0.2, **NOT_SAVED, **settings
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def instances():
    return made_instances()


@pytest.fixture(scope="module")
def found(tmp_path_factory, instances):
    folder = tmp_path_factory.mktemp("other")
    torch.save(instances, folder / "instances.pt")
    command = [sys.executable, "-m", "tests.training.on_other_device", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "found.pt", weights_only=False)


@pytest.mark.parametrize("backend", SCORINGS)
def test_scores_match_the_cpu_with_one_wait_per_window(found, instances, backend):
    model = tiny_model("qwen2")
    scores, waits = found[backend]
    expected = score_instances(model, instances, backend=backend, quiet=True).scores
    np.testing.assert_allclose(scores, expected, rtol=float32_bound(model))
    if backend == "packed":  # transformers' own masks wait
        assert waits == ["scoring/scores.py: score_instances"]


@pytest.mark.parametrize("name", STEPS)
def test_gradients_match_the_cpu_with_one_wait_per_row(tmp_path, found, instances, name):
    trainer = made_trainer(tmp_path, **STEPS[name])
    expected_loss, expected = step(trainer, instances)
    loss, gradients, waits = found[name]
    assert loss == pytest.approx(expected_loss, rel=float32_bound(trainer.adapted))
    assert distance(gradients, expected) < float32_bound(trainer.adapted, passes=3)
    rows = len(list(pack([len(each.trie) for each in instances], ROW_TOKENS)))
    assert waits == rows * ["training/trainer.py: _scores"]


def test_audit_matches_the_cpu(found):
    loaded = load_tiny()
    expected = audit(loaded, make_task(), quiet=True).scores
    np.testing.assert_allclose(found["audit"], expected, rtol=float32_bound(loaded.model))


def test_training_matches_the_cpu(tmp_path, found):
    adapter, evaluations = found["training"]
    trainer = train(tmp_path, method="f2c", divergence_space="both")
    # AdamW's first steps divide a gradient by its own size, which spreads what rounding leaves of the small ones.
    assert distance(adapter, adapter_weights(trainer)) < 0.01
    expected = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    for ours, theirs in zip(evaluations, expected, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=0.01)
