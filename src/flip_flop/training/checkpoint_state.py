"""The check that the files of a checkpoint fit a run, before they are loaded."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pydantic
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import _init_optim_state
from transformers import TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_pt_utils import safe_globals

from flip_flop.manifest import ADAPTER_WEIGHTS
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.training.checkpoints import checkpoint_step

# The types of the fields of trainer_state.json. Its whole numbers may be floats, and its callbacks are a dictionary.
FIELDS: Any = {item.name: (float if item.type is int else item.type, ...) for item in fields(TrainerState)}
FIELDS["stateful_callbacks"] = (dict[str, Any], ...)
StoredState = pydantic.create_model("StoredState", **FIELDS)


def check_checkpoint(checkpoint: Path, trainer: Any) -> None:
    """Refuse a checkpoint whose files do not fit the run. Tensors of other shapes may end the process.

    Raises:
        InputError: ``E-RUN-BROKEN``.
    """
    what, hint = f"{checkpoint} does not fit this run", "Remove it, and resume from the one before it."
    with as_input_error("E-RUN-BROKEN", what, hint, Exception), safe_globals():
        StoredState.model_validate_json((checkpoint / TRAINER_STATE_NAME).read_bytes(), strict=True)
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step != checkpoint_step(checkpoint) or not all((state.logging_steps, state.save_steps)):
            raise ValueError(f"{TRAINER_STATE_NAME} has other steps")
        trainer.create_optimizer_and_scheduler(max(trainer.args.max_steps, 1))
        _init_optim_state(trainer.optimizer)
        fresh: dict[str, Any] = {ADAPTER_WEIGHTS: get_peft_model_state_dict(trainer.model)}
        stored: dict[str, Any] = {ADAPTER_WEIGHTS: load_file(checkpoint / ADAPTER_WEIGHTS)}
        for name, part in ((OPTIMIZER_NAME, trainer.optimizer), (SCHEDULER_NAME, trainer.lr_scheduler)):
            fresh[name], stored[name] = part.state_dict(), torch.load(checkpoint / name, "cpu", weights_only=True)
        states = fresh[OPTIMIZER_NAME]["state"]  # of all parameters, also those that had no gradient yet
        fresh[OPTIMIZER_NAME]["state"] = {number: states[number] for number in stored[OPTIMIZER_NAME]["state"]}
        for name, state in stored.items():
            if _form(state) != _form(fresh[name]):
                raise ValueError(f"{name} has other parts or shapes")
        trainer.optimizer = trainer.lr_scheduler = None
        trainer._load_rng_state(str(checkpoint))


def _form(state: Any) -> Any:
    """Return a nested state with shapes instead of tensors, and whether each other value is a number."""
    if isinstance(state, dict):
        return {name: _form(each) for name, each in state.items()}
    if isinstance(state, list | tuple):
        return [_form(each) for each in state]
    return state.shape if torch.is_tensor(state) else isinstance(state, float | int | None)
