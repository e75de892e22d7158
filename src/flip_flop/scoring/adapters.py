"""Check an adapter in PEFT's format, load it onto its model, and record it."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from flip_flop.errors import InputError, log
from flip_flop.files import Json, read_json, sha256_file
from flip_flop.prompts import CHAT_KEYS
from flip_flop.record import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterRecord,
    ModelRecord,
    RunRecord,
    TaskRecord,
    find_change,
)
from flip_flop.scoring.causal_lm import as_input_error

# Kinds that change weights. PEFT reads only the adapter's two files for them.
ADAPTER_KINDS = (  # noqa: SIM905 - quotes round twenty words hide the words
    "ADALORA BOFT C3A DELORA FOURIERFT HRA IA3 LN_TUNING LOHA LOKR LORA MISS OFT RANDLORA ROAD SHIRA TRAINABLE_TOKENS "
    "VBLORA VERA WAVEFT"
).split()

OTHER_MODEL = "Give --model the model it was trained on."


def describe_adapter(adapter: Path, **more: Any) -> AdapterRecord:
    """Return the record of an adapter, with the digest of its weights."""
    return AdapterRecord(digest=sha256_file(adapter / ADAPTER_WEIGHTS), **more)


def chat_of_training(task: TaskRecord, in_chat: bool | None) -> Json:
    """Return ``chat_template`` and ``chat`` of the record of an adapter that was trained on this task."""
    if in_chat:
        chat = {key: value for key in CHAT_KEYS if (value := getattr(task, key)) is not None}
    else:
        chat = {}
    return {"chat_template": in_chat, "chat": chat or None}


def identify_adapter(adapter: Path, base: ModelRecord) -> tuple[AdapterRecord, tuple[str, ...]]:
    """Return the record of an adapter, and ``("weights",)`` if it was trained on other weights (``W-ADAPTER``).

    Raises:
        InputError: ``E-ADAPTER`` if its files have changed since its training, or ``E-RUN-BROKEN`` from the
            record of its run.
    """
    trained = RunRecord.of_adapter(adapter)
    if trained is None:
        return describe_adapter(adapter, path=str(adapter)), ()
    training = trained.training or {}
    record = describe_adapter(
        adapter,
        path=str(adapter),
        method=training.get("method"),
        uses_labels=training.get("uses_labels") or None,
        **chat_of_training(trained.task, trained.scoring.get("chat_template")),
    )
    files = [f"adapter/{name}" for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    if damage := find_change(adapter.resolve().parent, files):
        raise InputError("E-ADAPTER", f"{adapter}: {damage}.", "Restore it, or run its training again with --resume.")
    changed = trained.model.differs_from(base)
    if changed:
        log.warning("W-ADAPTER: %s was trained on other weights, of %s.", adapter, trained.model.name)
    bits = [model.quantization and model.dtype for model in (trained.model, base)]
    if bits[0] != bits[1]:
        trained_on, loaded_on = (
            f"a base in {quantization}" if quantization else "an unquantized base" for quantization in bits
        )
        log.warning("W-ADAPTER: the adapter was trained on %s, and is now on %s.", trained_on, loaded_on)
    return record, ("weights",) if changed else ()


def load_adapter(model: nn.Module, adapter: Path) -> nn.Module:
    """Load an adapter onto its base model.

    Raises:
        InputError: ``E-ADAPTER`` for tensors that do not fit or are not finite, or for virtual
            tokens and for kinds that may load other files.
    """
    from peft import PeftModel

    what = f"{adapter} does not fit the model"
    with as_input_error("E-ADAPTER", what, OTHER_MODEL, Exception), warnings.catch_warnings():
        # PEFT only warns about missing tensors, and would keep random ones.
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        config = read_json(adapter / ADAPTER_CONFIG)
        if (kind := config.get("peft_type")) not in ADAPTER_KINDS:
            raise InputError("E-ADAPTER", f"{adapter}: an adapter of kind {kind!r} is not supported.")
        peft_model = PeftModel.from_pretrained(model, str(adapter))
    _check_tensors(peft_model, adapter)
    return peft_model


def changes_embeddings(peft_model: Any) -> bool:
    """Return whether an adapter changes the embeddings or the output layer."""
    layers = (peft_model.get_input_embeddings(), peft_model.get_output_embeddings())
    return any(hasattr(layer, "base_layer") for layer in layers)


def _check_tensors(peft_model: Any, adapter: Path) -> None:
    """Refuse tensors that are not the adapter's by its configuration, and tensors that are not finite.

    PEFT ignores tensors that the model does not have, and loads others over the weights of the base.
    """
    from peft import get_peft_model_state_dict

    # PEFT stores the embeddings that an adapter changes together with it.
    expected = get_peft_model_state_dict(peft_model, save_embedding_layers=changes_embeddings(peft_model))
    with safe_open(adapter / ADAPTER_WEIGHTS, "pt") as file:
        unknown = sorted(set(file.keys()) - set(expected))
    if unknown:
        raise InputError(
            "E-ADAPTER",
            f"{adapter} holds {unknown[0]}, which its adapter_config.json does not make on this model.",
            f"Remove it, or name its module in modules_to_save. {OTHER_MODEL}",
        )
    for key, tensor in expected.items():
        if not torch.isfinite(tensor).all():
            raise InputError("E-ADAPTER", f"{adapter}: {key} is not finite.", "Train the adapter again.")
