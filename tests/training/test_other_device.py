"""On a device that is not the CPU: the same numbers, no operation of two devices, and hardly a wait for it.

No GPU computes here. ``main`` runs in a process whose tensors PyTorch takes for those of another device
(tests/other_device.py). It reads ``instances.pt``; it writes results and waits for the device to ``results.pt``.
"""

import numpy as np
import pytest
import torch

from flip_flop import audit
from flip_flop.scoring import score_instances
from flip_flop.scoring.packed import pack
from tests.exact import float32_bound
from tests.other_device import Device, OnOther, make_known
from tests.processes import end, start
from tests.tiny import tiny_model
from tests.training.conftest import adapter_weights, load_tiny, make_task, training_rows
from tests.training.naive_step import LOSSES, distance, made_instances, made_trainer, step

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("other_device")]
SCORINGS = ("packed", "padded")
KINDS = ("f2c over both", "f2c, votes of a separate pass")
STEPS = {kind: LOSSES[kind] for kind in KINDS} | {"derangement": {"method": "swarm", "swarm_pairs": "derangement"}}
NOT_SAVED = {"save_strategy": "no", "select_by": "last"}
ROW_TOKENS = 60


def train(folder, **settings):
    """Two steps with dropout, and an evaluation after each."""
    trainer = made_trainer(
        folder, rows=training_rows(count=4), eval_rows=training_rows(count=3), lora_dropout=0.2, **NOT_SAVED, **settings
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def instances():
    return made_instances()


@pytest.fixture(scope="module")
def results(tmp_path_factory, instances):
    folder = tmp_path_factory.mktemp("other")
    torch.save(instances, folder / "instances.pt")
    assert end([start(main, folder, output=folder / "output.txt")]) == [0], (folder / "output.txt").read_text()[-3000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.parametrize("backend", SCORINGS)
def test_scores_match_the_cpu_with_one_wait_per_window(results, instances, backend):
    model = tiny_model("qwen2")
    scores, waits = results[backend]
    expected = score_instances(model, instances, backend=backend, quiet=True).scores
    np.testing.assert_allclose(scores, expected, rtol=float32_bound(model))
    if backend == "packed":  # transformers' own masks wait
        assert waits == ["scoring/scores.py: score_instances"]


@pytest.mark.parametrize("name", STEPS)
def test_gradients_match_the_cpu_with_one_wait_per_row(tmp_path, results, instances, name):
    trainer = made_trainer(tmp_path, **STEPS[name])
    expected_loss, expected = step(trainer, instances)
    loss, gradients, waits = results[name]
    assert loss == pytest.approx(expected_loss, rel=float32_bound(trainer.adapted))
    assert distance(gradients, expected) < float32_bound(trainer.adapted, passes=3)
    rows = len(list(pack([len(instance.trie) for instance in instances], ROW_TOKENS)))
    assert waits == rows * ["training/trainer.py: _scores"]


def test_audit_matches_the_cpu(results):
    loaded = load_tiny()
    expected = audit(loaded, make_task(), quiet=True).scores
    np.testing.assert_allclose(results["audit"], expected, rtol=float32_bound(loaded.model))


def test_training_matches_the_cpu(tmp_path, results):
    adapter, evaluations = results["training"]
    trainer = train(tmp_path, method="f2c", divergence_space="both")
    # AdamW's first steps divide a gradient by its own size, which spreads what rounding leaves of the small ones.
    assert distance(adapter, adapter_weights(trainer)) < 0.01
    expected = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    for ours, theirs in zip(evaluations, expected, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=0.01)


# ---- in the process ----


def main(folder):
    results, instances = {}, torch.load(folder / "instances.pt", weights_only=False)
    known = make_known()
    with Device() as device:
        model = tiny_model("qwen2").to(known)
        for backend in SCORINGS:
            device.waits.clear()
            table = score_instances(model, instances, backend=backend, batch_tokens=ROW_TOKENS, quiet=True)
            results[backend] = table.scores, list(device.waits)
        for name, settings in STEPS.items():
            trainer = made_trainer(folder / name, eval_strategy="no", use_cpu=False, **NOT_SAVED, **settings)
            assert trainer.args.device == next(trainer.adapted.parameters()).device == known
            trainer._row_tokens = ROW_TOKENS
            device.waits.clear()
            loss, gradients = step(trainer, instances)
            results[name] = loss, raw(gradients), list(device.waits)
        trainer = train(folder / "training", use_cpu=False, method="f2c", divergence_space="both")
        loaded = load_tiny()
        loaded.model.to(known)
        results["audit"] = audit(loaded, make_task(), quiet=True).scores
        evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
        results["training"] = raw(adapter_weights(trainer)), evaluations
    torch.save(results, folder / "results.pt")


def raw(tensors):
    return {name: value.raw if isinstance(value, OnOther) else value for name, value in tensors.items()}
