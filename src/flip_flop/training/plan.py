"""The folder of a training run: who may write into it, and whether a resumed run is still the same run."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from flip_flop.errors import InputError
from flip_flop.files import write_json
from flip_flop.training.config import F2CConfig

# What changes the result, beside the method's own fields.
INHERITED = (
    "seed",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bf16",
    "fp16",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_steps",
)


def resolved_settings(config: F2CConfig) -> dict[str, Any]:
    """Every setting that changes the result, as JSON values."""
    inherited = {item.name for item in fields(TrainingArguments)}
    own = [item.name for item in fields(F2CConfig) if item.name not in inherited]
    return {name: _plain(getattr(config, name)) for name in (*own, *INHERITED)}


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


@contextlib.contextmanager
def lock(out: Path) -> Iterator[None]:
    """Hold the folder as long as this process lives; a killed holder leaves nothing to clean up.

    Raises:
        InputError: ``E-OUT-BUSY`` where another process holds it.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "E-OUT-BUSY", f"Another process is writing to {out}.", "Wait for it, or give another --out."
            ) from None
        yield


def open_plan(out: Path, plan: dict[str, Any], *, resume: bool) -> None:
    """Note what is to be run, or compare with what was.

    Raises:
        InputError: ``E-OUT-USED`` where the folder holds something else or a run that ``resume`` was not asked for;
            ``E-RESUME-CHANGED`` where the run to go on with had other settings, data, templates or model.
    """
    path = out / "plan.json"
    if not path.exists():
        others = sorted(item.name for item in out.iterdir() if item.name != ".lock")
        if others:
            raise InputError(
                "E-OUT-USED",
                f"{out} is not empty: {', '.join(others[:3])}.",
                "Give another --out, or empty it.",
            )
        write_json(path, plan)
        return
    if not resume:
        raise InputError(
            "E-OUT-USED",
            f"{out} holds a run already.",
            "Add --resume to go on with it, or give another --out.",
        )
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [
        f"{section}.{name} ({before.get(section, {}).get(name)!r}, now {plan[section].get(name)!r})"
        for section in plan
        for name in sorted({*plan[section], *before.get(section, {})})
        if before.get(section, {}).get(name) != json.loads(json.dumps(plan[section].get(name)))
    ]
    if changed:
        raise InputError(
            "E-RESUME-CHANGED",
            f"{out} was started with another {'; '.join(changed[:3])}.",
            "Resume with the same settings, or give another --out.",
        )
