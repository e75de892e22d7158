"""An adapter in PEFT's format: checked, put on its model, and described for the run's record."""

import warnings
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from flip_flop.errors import InputError
from flip_flop.files import sha256_file
from flip_flop.run_record import AdapterRecord, ModelRecord, RunRecord
from flip_flop.scoring.bounds import check_adapter_size

WEIGHTS = "adapter_model.safetensors"
OTHER_MODEL = "Give --model the model it was trained on."


def check_adapter_folder(adapter: Path) -> None:
    """Look for an adapter's files before a model is loaded; raises ``E-ADAPTER-FILE``."""
    for file in ("adapter_config.json", WEIGHTS):
        if not (adapter / file).is_file():
            message = f"{adapter} has no {file}."
            raise InputError("E-ADAPTER-FILE", message, "Give the adapter/ folder of a training run.")


def load_adapter(model: nn.Module, adapter: Path, base: ModelRecord) -> tuple[nn.Module, AdapterRecord]:
    """The base model with the adapter on it, and the adapter's record.

    Raises:
        InputError: ``E-ADAPTER-BASE`` where it was trained on other weights, ``E-ADAPTER-KEYS`` where its tensors do
            not fit or are not finite, ``E-ADAPTER-KIND`` for virtual tokens, ``E-RUN-BROKEN`` from its run's record.
    """
    from peft import PeftModel

    method, known = None, {}
    trained = RunRecord.of_adapter(adapter)
    if trained is not None:
        method = (trained.training or {}).get("method")
        known = {"chat_template": trained.scoring.get("chat_template")}
        comparable = bool(trained.model.revision) == bool(base.revision)  # a hub's commit and files are not
        if comparable and trained.model.digest not in (None, base.digest):
            message = f"{adapter} was trained on {trained.model.name}, whose weights are not those of this model."
            raise InputError("E-ADAPTER-BASE", message, OTHER_MODEL)
    try:
        with warnings.catch_warnings():
            # PEFT only warns where the adapter lacks a tensor: the model would run on with random ones.
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            check_adapter_size(adapter, WEIGHTS, model)
            peft_model = PeftModel.from_pretrained(model, str(adapter))
    except InputError:
        raise
    except Exception as error:  # whatever a file's wrong values lead to
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InputError("E-ADAPTER-KEYS", f"{adapter} does not fit the model: {reason}.", OTHER_MODEL) from error
    if peft_model.active_peft_config.is_prompt_learning:
        raise InputError(
            "E-ADAPTER-KIND",
            f"{adapter} puts virtual tokens before the prompt, which scoring does not.",
            "Use LoRA or another adapter of the weights.",
        )
    _check_tensors(peft_model, adapter)
    digest = sha256_file(adapter / WEIGHTS)
    return peft_model, AdapterRecord(path=str(adapter), digest=digest, method=method, extra=known)


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
