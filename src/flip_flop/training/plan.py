"""A training run's plan: whether a resumed run is still the same run."""

import json
import math
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from flip_flop.errors import InputError
from flip_flop.files import read_object
from flip_flop.method import find_method
from flip_flop.record import TRAINING_PARTS, changed_parts, refuse_changed
from flip_flop.training.config import F2CConfig
from flip_flop.training.output import PLAN, holds_run

# Its objects; ``task`` is there in those of earlier versions.
SECTIONS = ("settings", "task", "model", "digests")
# The inherited settings that are in a run's record.
RECORDED = (
    *("seed", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "bf16", "eval_strategy", "eval_steps", "save_strategy", "save_steps"),
)
# What all runs had before these were settings, or before their default changed and they were recorded: a record or a
# key that does not name one means this value.
FORMER: dict[str, Any] = {
    **{"eval_strategy": "epoch", "eval_steps": None, "save_strategy": "epoch", "save_steps": 500},
    **{"cc_size_bound": "templates", "jsd": "mean", "flip_direction": "forward", "divide_by_labels": False},
    **{"swarm_space": "labels", "early_stopping_patience": 0, "early_stopping_start": 20},
    **{"votes": "online", "refresh_steps": 50, "vocab_weight": 1.0, "labels_weight": 1.0, "stop_on_collapse": False},
    **{"vote_calibration": "none", "label_prior": None, "too_long": "refuse", "model_init_kwargs": None},
    "cce_space": "vocab",
}
# Settings of how the same work is executed. After an out-of-memory error they are changed, and the run resumed.
EXECUTION_ONLY = ("per_device_eval_batch_size", "torch_empty_cache_steps", "batch_tokens")
# The same, but a study's keys have held them since the first ones.
ALSO_EXECUTION = (
    "ddp_timeout",
    *(f"{name}_checkpointing{more}" for name in ("gradient", "activation") for more in ("", "_kwargs")),
)
# What may change besides: where things go, what is shown, and the name of a bundle of settings that are compared.
MAY_CHANGE_ON_RESUME = (
    *EXECUTION_ONLY,
    "protocol",
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "save_total_limit", "use_cpu", "debug"),
)
MAY_CHANGE_PREFIXES = ("log", "hub_", "push_to", "trackio", "dataloader_num", "dataloader_p", "include_", "resume")


def recorded_settings(config: F2CConfig) -> dict[str, Any]:
    """The method's own settings and the main ones of the rest, for the run's record."""
    inherited = {item.name for item in fields(TrainingArguments)}
    own = [item.name for item in fields(F2CConfig) if item.name not in inherited]
    settings = {name: _as_json(getattr(config, name)) for name in (*own, *RECORDED)}
    return settings | {"method": find_method(config.method).name}


def resume_settings(config: F2CConfig) -> dict[str, Any]:
    """Every setting that a resumed run must share, as JSON values."""
    return {
        item.name: _as_json(getattr(config, item.name))
        for item in fields(F2CConfig)
        if item.name not in MAY_CHANGE_ON_RESUME and not item.name.startswith(MAY_CHANGE_PREFIXES)
    }


def _as_json(value: Any) -> Any:
    """A JSON value: enumerations by their value, infinities and everything else as text."""
    value = getattr(value, "value", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.loads(json.dumps(value, default=str))


def check_plan(out: Path, plan: dict[str, Any], *, resume: bool, allowed: Collection[str] = ()) -> list[str]:
    """Refuse a folder that holds something else, or another run than the one to resume; return its allowed changes.

    A run of which nothing is kept yet, no checkpoint and no result, binds nobody: it begins anew. Settings that
    earlier versions had, and that are since removed, are not compared, nor are parts that they had no digest of.

    Raises:
        InputError: ``E-OUT-USED`` where the folder holds something else, or a run and ``resume`` is false;
            ``E-RESUME-CHANGED`` where the run to resume had other settings, or parts that are not ``allowed``;
            ``E-RUN-BROKEN`` where that cannot be read.
    """
    path = out / PLAN
    if not holds_run(out, resume=resume):
        return []
    before = read_object(path)
    if before is None or not all(isinstance(before.setdefault(section, {}), dict) for section in SECTIONS):
        raise InputError("E-RUN-BROKEN", f"{path} cannot be read.", "Restore it, or give another --out.")
    before["settings"] = FORMER | before["settings"]
    task, model = before["task"], before["model"]
    # Earlier versions had these three alone.
    former = {"weights": model.get("digest"), "task": task.get("digest"), "rows": task.get("instances_digest")}
    changed = [
        f"{section}.{name} ({before[section].get(name)!r}, now {plan[section][name]!r})"
        for section in ("settings", "model")
        for name in sorted(plan[section])
        if name not in ALSO_EXECUTION and before[section].get(name) != plan[section][name]
    ]
    parts = changed_parts(former | before["digests"], plan["digests"], TRAINING_PARTS)
    message = f"Since {out} was started, these have changed"
    if changed:
        words = [words for name, words in parts.items() if name not in allowed]
        hint = "Resume with the same settings and number of processes, or give another --out."
        raise InputError("E-RESUME-CHANGED", f"{message}: {', '.join([*words, *changed[:3]])}.", hint)
    refuse_changed("E-RESUME-CHANGED", message, parts, allowed, "Restore them, or give another --out.")
    known = before.get("allowed_changes")
    return [name for name in TRAINING_PARTS if name in parts or (isinstance(known, list) and name in known)]
