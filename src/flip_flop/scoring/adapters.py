"""An adapter in PEFT's format: checked, put on its model, and described for the run's record."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from flip_flop.errors import InputError
from flip_flop.files import sha256_file

WEIGHTS = "adapter_model.safetensors"
OTHER_MODEL = "Give --model the model it was trained on."


def check_adapter_folder(adapter: Path) -> None:
    """Look for an adapter's files before a model is loaded; raises ``E-ADAPTER-FILE``."""
    for file in ("adapter_config.json", WEIGHTS):
        if not (adapter / file).is_file():
            message = f"{adapter} has no {file}."
            raise InputError("E-ADAPTER-FILE", message, "Give the adapter/ folder of a training run.")


def load_adapter(
    model: nn.Module, adapter: Path, base_digest: str, revision: str | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The model with the adapter on it, and the adapter's description; digest and revision are the base model's.

    Raises:
        InputError: ``E-ADAPTER-BASE`` where it was trained on other weights, ``E-ADAPTER-KEYS`` where its tensors do
            not fit or are not finite, ``E-ADAPTER-KIND`` for virtual tokens, ``E-RUN-BROKEN`` from its run's record.
    """
    from peft import PeftModel

    description = {"path": str(adapter), "digest": sha256_file(adapter / WEIGHTS), "method": None}
    trained = training_record(adapter)
    if trained is not None:
        description["method"] = (trained.get("training") or {}).get("method")
        description["chat_template"] = (trained.get("scoring") or {}).get("chat_template")
        base = trained.get("model") or {}
        comparable = bool(base.get("revision")) == bool(revision)  # a hub's commit and a folder's files are not
        if comparable and base.get("digest") not in (None, base_digest):
            message = f"{adapter} was trained on {base.get('name')}, whose weights are not those of this model."
            raise InputError("E-ADAPTER-BASE", message, OTHER_MODEL)
    try:
        with warnings.catch_warnings():
            # PEFT only warns where the adapter lacks a tensor: the model would run on with random ones.
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            peft_model = PeftModel.from_pretrained(model, str(adapter))
    except (UserWarning, RuntimeError, ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InputError("E-ADAPTER-KEYS", f"{adapter} does not fit the model: {reason}.", OTHER_MODEL) from error
    if peft_model.active_peft_config.is_prompt_learning:
        raise InputError(
            "E-ADAPTER-KIND",
            f"{adapter} puts virtual tokens before the prompt, which scoring does not.",
            "Use LoRA or another adapter of the weights.",
        )
    _check_tensors(peft_model, adapter)
    return peft_model, description


def training_record(adapter: Path) -> dict[str, Any] | None:
    """The record of the training run that an ``adapter/`` folder lies in; ``None`` where it lies elsewhere.

    Raises:
        InputError: ``E-RUN-BROKEN`` where the record cannot be read.
    """
    run = adapter.resolve().parent / "run.json"
    if not run.is_file():
        return None
    try:
        record = json.loads(run.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError("E-RUN-BROKEN", f"{run} is not readable JSON.", "Restore it, or train again.") from error
    return record if isinstance(record, dict) and record.get("kind") == "train" else None


def _check_tensors(peft_model: nn.Module, adapter: Path) -> None:
    """Refuse tensors that the model lacks, which PEFT passes over, and tensors that are not finite."""
    from peft import get_peft_model_state_dict

    with safe_open(adapter / WEIGHTS, "pt") as file:
        stored = {key for key in file.keys() if "lora_" in key}  # noqa: SIM118 - no mapping
    unknown = sorted(stored - set(get_peft_model_state_dict(peft_model, save_embedding_layers=False)))
    if unknown:
        message = f"{adapter} does not fit the model, which has no tensor {unknown[0]}."
        raise InputError("E-ADAPTER-KEYS", message, OTHER_MODEL)
    for key, parameter in peft_model.named_parameters():
        if "lora_" in key and not torch.isfinite(parameter).all():
            raise InputError("E-ADAPTER-KEYS", f"{adapter}: {key} is not finite.", "Train the adapter again.")
