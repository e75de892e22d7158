"""``python -m tests.training.on_other_device FOLDER``: scores, steps and training on a device that is not the CPU.

Reads instances from ``FOLDER/instances.pt``; writes results and waits for the device to ``found.pt``.
"""

import sys
from pathlib import Path

import torch

from flip_flop import audit
from flip_flop.scoring import score_instances
from tests.other_device import Device, OnOther, make_known
from tests.tiny import tiny_model
from tests.training.conftest import load_tiny, make_task
from tests.training.naive_step import made_trainer, step
from tests.training.test_other_device import NOT_SAVED, ROW_TOKENS, SCORINGS, STEPS, train
from tests.training.test_trainer import adapter_weights


def main(folder):
    found, instances = {}, torch.load(folder / "instances.pt", weights_only=False)
    known = make_known()
    with Device() as device:
        model = tiny_model("qwen2").to(known)
        for backend in SCORINGS:
            device.waits.clear()
            table = score_instances(model, instances, backend=backend, batch_tokens=ROW_TOKENS, quiet=True)
            found[backend] = table.scores, list(device.waits)
        for name, settings in STEPS.items():
            trainer = made_trainer(folder / name, eval_strategy="no", use_cpu=False, **NOT_SAVED, **settings)
            assert trainer.args.device == next(trainer.adapted.parameters()).device == known
            trainer._row_tokens = ROW_TOKENS
            device.waits.clear()
            loss, gradients = step(trainer, instances)
            found[name] = loss, raw(gradients), list(device.waits)
        trainer = train(folder / "training", use_cpu=False, method="f2c", divergence_space="both")
        loaded = load_tiny()
        loaded.model.to(known)
        found["audit"] = audit(loaded, make_task(), quiet=True).scores
        evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
        found["training"] = raw(adapter_weights(trainer)), evaluations
    torch.save(found, folder / "found.pt")


def raw(tensors):
    return {name: value.raw if isinstance(value, OnOther) else value for name, value in tensors.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
