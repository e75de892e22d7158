"""The demo's main job: audit the embedded model, train it three ways without labels, audit again."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flip_flop.demo.task import demo_task
from flip_flop.evaluation import audit
from flip_flop.scoring import LoadedModel
from flip_flop.tasks import Task
from flip_flop.training import make_config, train

log = logging.getLogger("flip_flop")

# What suits each method on this task, chosen on the validation split with seed 0 (docs/decisions.md has the figures).
COMMON = {
    "use_cpu": True,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-4,
    "num_train_epochs": 3,
    "logging_steps": 21,
}
F2C = {"method": "f2c", "jsd_weight": 1.0, "flip_weight_min": 0.1, "flip_weight_max": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "swarm": {"method": "swarm", "learning_rate": 1e-4},
    "cce": {"method": "cce"},
    # The paper's reading at the same weights: the demo's templates answer in different words, and it shows.
    "f2c_vocab": F2C | {"divergence_space": "vocab"},
    "f2c": F2C | {"divergence_space": "labels"},
}


def run_demo(
    out: Path, open_model: Callable[[Path | None], LoadedModel], *, seed: int = 0, quiet: bool = False
) -> dict[str, list[Path]]:
    """Audit, train, audit.

    Args:
        out: An empty folder, or one that is not there.
        open_model: Gives the embedded model, with an adapter or without.
        seed: The training's seed; data and model stay those that are shipped.
        quiet: Show no progress.

    Returns:
        Run directories of the audits, base first: ``train`` on the training templates, ``held_out`` on the others.
    """
    torch.set_num_threads(1)  # the products of so small a model are not worth a second thread's waiting
    task = demo_task()
    audits: dict[str, list[Path]] = {"train": [], "held_out": []}
    _audit_both(open_model(None), task, out / "base", "base", audits)
    for number, (name, settings) in enumerate(METHODS.items(), start=1):
        log.info("%d of %d: training %s", number, len(METHODS), name)
        config = make_config(COMMON | settings | {"seed": seed}, "the demo's settings")
        run = train(open_model(None), task, config, out / name, quiet=quiet)
        if run.stopped_by is not None:
            raise KeyboardInterrupt
        _audit_both(open_model(run.adapter), task, out / name, name, audits)
    return audits


def _audit_both(loaded: LoadedModel, task: Task, folder: Path, name: str, audits: dict[str, list[Path]]) -> None:
    chosen = {"train": task.training_templates.names, "held_out": task.held_out_templates}
    for kind, names in chosen.items():
        found = audit(loaded, task.with_templates(names), name=name, quiet=True)
        audits[kind].append(found.write(folder / ("audit" if kind == "train" else "audit_held_out")))
