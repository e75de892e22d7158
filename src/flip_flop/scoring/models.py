"""A causal LM and its tokenizer, from the hub or a folder, with an adapter or without; and a record of them."""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.files import sha256_file, sha256_json
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.head import check_head, unwrap
from flip_flop.scoring.linears import fast_frozen_linears
from flip_flop.scoring.scorer import BATCH_TOKENS, ScoreTable, score_instances
from flip_flop.scoring.support import Backend
from flip_flop.scoring.tokens import ChatTemplate, PromptEncoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be scored or trained.

    Attributes:
        model: A causal LM, or a ``PeftModel`` around one.
        tokenizer: Its tokenizer.
        record: Name, revision, digest, size and dtype, for the run's record.
        adapter: Path, digest, method and chat template of the adapter; ``None`` without one.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    record: dict[str, Any]
    adapter: dict[str, Any] | None = None

    def encoder(self, chat_template: ChatTemplate = "auto") -> PromptEncoder:
        """The encoder for this model; ``auto`` follows the training of an adapter that knows how it was trained."""
        trained_with = (self.adapter or {}).get("chat_template")
        if chat_template == "auto" and trained_with is not None:
            chat_template = "on" if trained_with else "off"
        return PromptEncoder.of(self.model, self.tokenizer, chat_template)


def load_model(
    name: str,
    *,
    adapter: str | Path | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    display_name: str | None = None,
) -> LoadedModel:
    """Load a causal LM, its tokenizer and an adapter; safetensors only, no remote code.

    Args:
        name: A hub name or a folder.
        adapter: A folder in PEFT's format, made for this very model.
        revision: The hub's commit, branch or tag.
        dtype: ``float32``, ``bfloat16``, ``float16``; ``auto`` is bfloat16 on a GPU and float32 on a CPU.
        device: ``cpu``, ``cuda``, ...; ``auto`` takes a GPU where there is one.
        display_name: The name for records, where it is not ``name``.

    Raises:
        InputError: ``E-MODEL-...`` and ``E-ADAPTER-...``, each in one line.
    """
    if device == "auto":
        # A launcher of several processes numbers those of one machine.
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    if dtype not in DTYPES:
        raise InputError("E-MODEL-DTYPE", f"Unknown dtype {dtype!r}.", f"Use one of {', '.join(DTYPES)}.")
    _check_device(device)
    if adapter is not None:
        _check_adapter_folder(Path(adapter))
    config = _pretrained(AutoConfig, name, revision)
    if config.is_encoder_decoder:
        raise InputError(
            "E-MODEL-KIND",
            f"{name} is an encoder-decoder model.",
            "Use a causal (decoder-only) language model.",
        )
    tokenizer = load_tokenizer(name, revision)
    model = _load_weights(name, revision, DTYPES[dtype]).to(device)
    check_head(model)
    record: dict[str, Any] = {
        "name": display_name or name,
        "revision": getattr(config, "_commit_hash", None) or revision,
        "digest": weights_digest(name, model),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": dtype,
    }
    if adapter is None:
        return LoadedModel(model, tokenizer, record)
    peft_model, description = _with_adapter(model, Path(adapter), record["digest"], record["revision"])
    return LoadedModel(peft_model, tokenizer, record, description)


def score(
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    chat_template: ChatTemplate = "auto",
    *,
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
    fast_linear: bool = False,
    label: str = "scoring",
    quiet: bool = True,
) -> ScoreTable:
    """Score rendered instances: the whole way from text to ``[instances, templates, labels]``.

    Args:
        loaded: From :func:`load_model`.
        instances: All with the same numbers of templates and of labels.
        chat_template: ``auto``, ``on`` or ``off``.
        backend: ``packed`` or ``padded``; see :func:`~flip_flop.scoring.scorer.score_instances`.
        batch_tokens: Tokens of one forward.
        fast_linear: See :func:`~flip_flop.scoring.linears.fast_frozen_linears`.
        label: What the progress bar says.
        quiet: Show no progress.
    """
    encoder = loaded.encoder(chat_template)
    encoded = [encoder.encode(instance) for instance in instances]
    with fast_frozen_linears(loaded.model, fast_linear):
        return score_instances(
            loaded.model, encoded, backend=backend, batch_tokens=batch_tokens, label=label, quiet=quiet
        )


def weights_digest(name: str, model: nn.Module) -> str:
    """What the weights are: a digest of a folder's weight files, or of the hub's name and commit."""
    folder = Path(name)
    if folder.is_dir():
        files = sorted(folder.glob("*.safetensors"))
        return sha256_json({file.name: sha256_file(file) for file in files})
    return sha256_json({"name": name, "commit": getattr(unwrap(model).config, "_commit_hash", None)})


def _pretrained(factory: Any, name: str, revision: str | None, **arguments: Any) -> Any:
    """``factory.from_pretrained`` with its many errors in one line."""
    part = {"AutoConfig": "model", "AutoTokenizer": "tokenizer"}.get(factory.__name__, "weights")
    # The hub's names are OWNER/NAME or NAME; where OWNER is a folder here, a folder was meant.
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and Path(name).parent.is_dir())
    if is_path and not Path(name).is_dir():
        raise InputError("E-MODEL-FILE", f"No folder {name}.", "Give a model's folder or its name on the hub.")
    try:
        return factory.from_pretrained(name, revision=revision, trust_remote_code=False, **arguments)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        code = "E-MODEL-TOKENIZER" if part == "tokenizer" else "E-MODEL-FILE"
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            code,
            f"Cannot load the {part} of {name}: {reason.rstrip('.')}.",
            "Give a folder with config.json, safetensors weights and a tokenizer, or a name on the hub.",
        ) from error


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0][:160]
        message = f"Device {device!r} cannot be used: {reason.rstrip('.')}."
        raise InputError("E-MODEL-DEVICE", message, "Use cpu, or cuda where there is a GPU.") from error


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer alone.

    Raises:
        InputError: ``E-MODEL-TOKENIZER``.
    """
    tokenizer: PreTrainedTokenizerBase = _pretrained(AutoTokenizer, name, revision)
    # Where a folder holds no tokenizer, transformers makes one without a vocabulary, and every text is empty.
    if not tokenizer("No, yes", add_special_tokens=False)["input_ids"]:
        raise InputError(
            "E-MODEL-TOKENIZER",
            f"{name} has no tokenizer, or one without a vocabulary.",
            "Save the model's tokenizer beside its weights.",
        )
    return tokenizer


def _load_weights(name: str, revision: str | None, dtype: torch.dtype) -> nn.Module:
    model, loading = _pretrained(
        AutoModelForCausalLM,
        name,
        revision,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused here, by name
    )
    # transformers only warns where weights are missing: the model would run on with random ones.
    faults = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if faults:
        raise InputError(
            "E-MODEL-FILE",
            f"The weights of {name} lack {faults[0]} or hold it in another shape; so with {len(faults)} in all.",
            "Give the complete weights of a causal language model, with the config.json that belongs to them.",
        )
    return model


def _check_adapter_folder(adapter: Path) -> None:
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (adapter / file).is_file():
            raise InputError(
                "E-ADAPTER-FILE",
                f"{adapter} has no {file}.",
                "Give the adapter/ folder of a training run.",
            )


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


def _with_adapter(
    model: nn.Module, adapter: Path, base_digest: str, revision: str | None
) -> tuple[nn.Module, dict[str, Any]]:
    from peft import PeftModel

    description = {
        "path": str(adapter),
        "digest": sha256_file(adapter / "adapter_model.safetensors"),
        "method": None,
    }
    trained = training_record(adapter)
    if trained is not None:
        description["method"] = (trained.get("training") or {}).get("method")
        description["chat_template"] = (trained.get("scoring") or {}).get("chat_template")
        base = trained.get("model") or {}
        comparable = bool(base.get("revision")) == bool(revision)  # a hub's commit and a folder's files are not
        if comparable and base.get("digest") not in (None, base_digest):
            raise InputError(
                "E-ADAPTER-BASE",
                f"{adapter} was trained on {base.get('name')}, whose weights are not those of this model.",
                "Give --model the model it was trained on.",
            )
    try:
        with warnings.catch_warnings():
            # PEFT only warns where the adapter lacks a tensor: the model would run on with random ones.
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            peft_model = PeftModel.from_pretrained(model, str(adapter))
    except (UserWarning, RuntimeError, ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise InputError(
            "E-ADAPTER-KEYS",
            f"{adapter} does not fit the model: {' '.join(str(error).split())[:160].rstrip('.')}.",
            "Give --model the model it was trained on.",
        ) from error
    if peft_model.active_peft_config.is_prompt_learning:
        raise InputError(
            "E-ADAPTER-KIND",
            f"{adapter} puts virtual tokens before the prompt, which scoring does not.",
            "Use LoRA or another adapter of the weights.",
        )
    _check_tensors(peft_model, adapter)
    return peft_model, description


def _check_tensors(peft_model: nn.Module, adapter: Path) -> None:
    """Refuse tensors that the model has no place for, which PEFT passes over, and tensors that are not finite."""
    from peft import get_peft_model_state_dict

    with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        stored = {key for key in file.keys() if "lora_" in key}  # noqa: SIM118 - no mapping
    homeless = sorted(stored - set(get_peft_model_state_dict(peft_model, save_embedding_layers=False)))
    if homeless:
        raise InputError(
            "E-ADAPTER-KEYS",
            f"{adapter} does not fit the model, which has no place for {homeless[0]}.",
            "Give --model the model it was trained on.",
        )
    for key, parameter in peft_model.named_parameters():
        if "lora_" in key and not torch.isfinite(parameter).all():
            raise InputError("E-ADAPTER-KEYS", f"{adapter}: {key} is not finite.", "Train the adapter again.")
