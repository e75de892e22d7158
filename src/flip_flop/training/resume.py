"""The folder of a training run: lock, plan, and the check that a resumed run has not changed."""

import contextlib
import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from flip_flop import files
from flip_flop.errors import InputError
from flip_flop.manifest import MANIFEST
from flip_flop.method import find_method
from flip_flop.record import RUN_FILE, TRAINING_PARTS, changed_parts, refuse_changed
from flip_flop.scoring.distributed import rank
from flip_flop.training.checkpoints import list_checkpoints
from flip_flop.training.config import F2CConfig

PLAN, LOCK = "plan.json", ".lock"
# Changes with the files of a checkpoint.
FORMAT = 2
# Inherited settings that a run's record includes.
RECORDED = (
    *("seed", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "bf16", "eval_strategy", "eval_steps", "save_strategy", "save_steps"),
)
# Settings that change only the execution. After an out-of-memory error they may be changed.
EXECUTION_ONLY = ("per_device_eval_batch_size", "torch_empty_cache_steps", "batch_tokens")
# Other settings that may change on resume: destinations, display, and the bundle's name.
MAY_CHANGE_ON_RESUME = (
    *EXECUTION_ONLY,
    *("protocol", "ddp_timeout", "output_dir", "run_name", "project", "report_to", "disable_tqdm", "save_total_limit"),
    *("use_cpu", "debug"),
)
MAY_CHANGE_PREFIXES = (
    *("log", "hub_", "push_to", "trackio", "dataloader_num", "dataloader_p", "include_", "resume"),
    *("gradient_checkpointing", "activation_checkpointing"),
)


@contextlib.contextmanager
def lock(out: Path) -> Iterator[None]:
    """Lock the folder as long as this process lives. Rank 0 holds the lock for all processes.

    Raises:
        InputError: ``E-OUT-BUSY`` if another process holds it, ``E-OUT-PATH`` if it cannot be written.
    """
    if rank() > 0:
        yield
        return
    files.check_output(out, is_folder=True)
    out.resolve().mkdir(parents=True, exist_ok=True)
    with files.lock(out / LOCK, out):
        for leftover in _leftovers(out):
            files.remove(leftover)
        yield


def _leftovers(out: Path) -> set[Path]:
    """Return the temporary files of processes that were killed while writing."""
    return {*out.glob(".*.tmp"), *out.glob(".*.old")}


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse an unusable folder before any other work, and leave it unchanged.

    Raises:
        InputError: ``E-OUT-BUSY`` if another process writes there, ``E-OUT-USED`` as in :func:`check_plan`.
    """
    # The processes have not joined yet, so only the launcher's environment has the rank.
    if (out / LOCK).exists() and os.environ.get("RANK", "0") == "0":
        with files.lock(out / LOCK, out):
            pass
    _holds_run(out, resume=resume)


def _holds_run(out: Path, *, resume: bool) -> bool:
    """Whether the folder has a result or a checkpoint. A run without either restarts."""
    if not (out / PLAN).exists():
        own = (LOCK, "checkpoints") if not any((out / "checkpoints").glob("*")) else (LOCK,)
        others = sorted(item.name for item in {*out.glob("*")} - _leftovers(out) if item.name not in own)
        if others:
            message = f"{out} is not empty: {', '.join(others[:3])}."
            raise InputError("E-OUT-USED", message, "Choose another --out, or empty it.")
        return False
    checkpoints = list_checkpoints(out / "checkpoints")
    if not (out / RUN_FILE).exists() and not any((path / MANIFEST).exists() for path in checkpoints):
        return False
    if not resume:
        hint = "Add --resume to continue it, or choose another --out."
        raise InputError("E-OUT-USED", f"{out} already contains a run.", hint)
    return True


def recorded_settings(config: F2CConfig) -> dict[str, Any]:
    """Return the settings for the run's record: the methods' own and the main inherited ones."""
    inherited = {item.name for item in fields(TrainingArguments)}
    own = [item.name for item in fields(F2CConfig) if item.name not in inherited]
    settings = {name: _as_json(getattr(config, name)) for name in (*own, *RECORDED)}
    return settings | {"method": find_method(config.method).name}


def resume_settings(config: F2CConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share, as JSON values."""
    return {
        item.name: _as_json(getattr(config, item.name))
        for item in fields(F2CConfig)
        if item.name not in MAY_CHANGE_ON_RESUME and not item.name.startswith(MAY_CHANGE_PREFIXES)
    }


def _as_json(value: Any) -> Any:
    """Convert to JSON: enumerations by value, infinities and unknown types as text."""
    value = getattr(value, "value", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.loads(json.dumps(value, default=str))


def check_plan(out: Path, plan: dict[str, Any], *, resume: bool, allowed: Collection[str] = ()) -> list[str]:
    """Compare a run with the plan of the run in the folder, if there is one; return the allowed changes.

    A plan without a date gets that of the other.

    Raises:
        InputError: ``E-OUT-USED`` if the folder has other files, or a run without ``resume``;
            ``E-RESUME-CHANGED`` for other settings or parts that are not ``allowed``; ``E-RUN-BROKEN`` for an
            unreadable plan.
    """
    path = out / PLAN
    if not _holds_run(out, resume=resume):
        return []
    before = files.read_object(path)
    if before is None or not all(isinstance(before.get(section), dict) for section in ("settings", "model", "digests")):
        raise InputError("E-RUN-BROKEN", f"{path} cannot be read.", "Restore it, or choose another --out.")
    if before.get("format") != FORMAT and not (out / RUN_FILE).exists():
        message = f"cannot resume {out}: its checkpoints are those of another version of flip-flop."
        raise InputError("E-RESUME-CHANGED", message, "Finish it with that version, or choose another --out.")
    # A run keeps the date of its start.
    plan["settings"]["prompt_date"] = plan["settings"]["prompt_date"] or before["settings"].get("prompt_date")
    changed = [
        f"{section}.{name} ({before[section].get(name)!r}, now {plan[section][name]!r})"
        for section in ("settings", "model")
        for name in sorted(plan[section])
        if before[section].get(name) != plan[section][name]
    ]
    parts = changed_parts(before["digests"], plan["digests"], TRAINING_PARTS)
    message = f"cannot resume {out}, because these have changed"
    if changed:
        words = [words for name, words in parts.items() if name not in allowed]
        hint = "Resume with the same settings and number of processes, or choose another --out."
        raise InputError("E-RESUME-CHANGED", f"{message}: {', '.join([*words, *changed[:3]])}.", hint)
    refuse_changed("E-RESUME-CHANGED", message, parts, allowed, "Restore them, or choose another --out.")
    return [name for name in TRAINING_PARTS if name in parts or name in before.get("allowed_changes", ())]
