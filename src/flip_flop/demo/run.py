"""The demo's main job: audit the embedded model, train it three ways without labels, audit again."""

import logging
from pathlib import Path
from typing import Any

import torch

from flip_flop.evaluation.audit import audit
from flip_flop.scoring import LoadedModel, load_model
from flip_flop.tasks import Task, load_task
from flip_flop.training import make_config, train

log = logging.getLogger("flip_flop")

# What suits each method on this task, chosen on the validation split with seed 0 (docs/decisions.md has the figures).
COMMON = {
    "protocol": "paper",
    "use_cpu": True,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
    "num_train_epochs": 3,
    "eval_strategy": "epoch",
    "logging_steps": 21,
    "unanimous_margin": 1.0,
    "max_cc_size": 4,
    "flip_temperature": 1.0,
}
METHODS: dict[str, dict[str, Any]] = {
    "swarm": {"method": "swarm", "learning_rate": 1e-4},
    "cce": {"method": "cce"},
    # The paper's reading at the weights of ours: the demo's templates answer in different words, and it shows.
    "f2c_vocab": {"method": "f2c", "jsd_weight": 1.0, "flip_weight_min": 0.1, "flip_weight_max": 1.0},
    "f2c": {"method": "f2c", "protocol": "recommended"},
}


def run_demo(out: Path, *, seed: int = 0, quiet: bool = False) -> dict[str, list[Path]]:
    """Audit, train, audit, into an empty or new folder. The ``seed`` is the training's.

    Gives the audits' run directories, base first: ``train`` on the training templates, ``held_out`` on the others.
    """
    torch.set_num_threads(1)  # a model so small gains nothing from a second thread
    task = load_task("demo", templates="all")
    audits: dict[str, list[Path]] = {"train": [], "held_out": []}
    _audit_both(_load(), task, out / "base", "base", audits)
    for number, (name, settings) in enumerate(METHODS.items(), start=1):
        log.info("%d of %d: training %s", number, len(METHODS), name)
        config = make_config(COMMON | settings | {"seed": seed}, "the demo's settings")
        run = train(_load(), task, config, out / name, quiet=quiet, keep_worse=True)
        if run.stopped_by is not None:
            raise KeyboardInterrupt
        _audit_both(_load(run.adapter), task, out / name, name, audits)
    return audits


def _load(adapter: Path | None = None) -> LoadedModel:
    return load_model("demo", adapter=adapter, dtype="float32", device="cpu")


def _audit_both(loaded: LoadedModel, task: Task, folder: Path, name: str, audits: dict[str, list[Path]]) -> None:
    chosen = {"train": task.training_templates.names, "held_out": task.held_out_templates}
    for kind, names in chosen.items():
        found = audit(loaded, task.with_templates(names), name=name, quiet=True, calibrate="none")
        audits[kind].append(found.write(folder / ("audit" if kind == "train" else "audit_held_out")))
