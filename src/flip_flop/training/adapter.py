"""The model to train and its adapter, whose weights are float32."""

import copy
import hashlib
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import QuantizationConfigMixin

from flip_flop.errors import InputError, log, require_known
from flip_flop.scoring.adapters import ADAPTER_KINDS
from flip_flop.scoring.causal_lm import HALF, as_input_error, unwrap
from flip_flop.scoring.distributed import sharding_of
from flip_flop.scoring.models import LoadedModel, ModelGiven, as_loaded, load_model
from flip_flop.training.config import F2CConfig, setting_errors
from flip_flop.training.step import drawn_for

# Keys of model_init_kwargs.
INIT_SETTINGS = ("revision", "dtype", "device", "quantization_config")
# These models read the weights of `out_proj` and `dt_proj` directly, so an adapter there has no effect.
STATE_SPACE = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
# Share of a model's matrices below which a warning says that the adapter leaves much of it unchanged.
MIN_SHARE = 0.99


def prepare_model(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None = None) -> PeftModel:
    """Return the model with an adapter to train: its own, the given one, or the paper's LoRA.

    Raises:
        InputError: ``E-ADAPTER`` for an unsupported kind or model; ``E-MODEL-KIND`` if the model cannot be read.
    """
    if peft_config is not None and getattr(peft_config, "peft_type", None) not in ADAPTER_KINDS:
        raise InputError("E-ADAPTER", f"{type(peft_config).__name__} is not supported.")
    if peft_config is not None and isinstance(model, PeftModel):
        raise InputError(
            "E-ADAPTER", "the model has an adapter, and peft_config describes a second one.", "Leave one of them out."
        )
    if hasattr(model, "peft_config") and not isinstance(model, PeftModel):  # PEFT would write over its adapter
        raise InputError(
            "E-ADAPTER",
            "the model has an adapter, maybe of another trainer.",
            "Load the model again for each.",
        )
    if isinstance(model, PeftModel) and model.active_adapters != ["default"]:  # PEFT would save the default one
        names = " and ".join(map(repr, model.active_adapters))
        raise InputError("E-ADAPTER", f"the active adapter is {names}.", "Name the adapter to train 'default'.")
    adapted = prepare_for_saving(model if isinstance(model, PeftModel) else _with_adapter(model, args, peft_config))
    parts = [name for name, value in adapted.named_parameters() if value.requires_grad and isinstance(value, DTensor)]
    if parts:  # its gradient would be of the rows of all processes
        raise InputError("E-ADAPTER", f"{parts[0]} is divided between the processes.", "Train an adapter with LoRA.")
    if adapted is not model:
        _try_step(adapted)
    if args.gradient_checkpointing:
        _checkpoint_activations(adapted, args.gradient_checkpointing_kwargs)
    return adapted


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Remove the adapter, hooks and settings that training adds to a model, when it ends.

    The states of random number generators, which the library seeds, are restored, too. Weights and buffers stay on
    their device. A model in parts keeps everything.
    """
    causal_lm = unwrap(model)
    owners = [*model.modules(), *filter(None, [causal_lm.config, causal_lm.generation_config])]
    dicts = [vars(owner) for owner in owners]  # and those within, such as a module's parts and hooks
    dicts += [part for parts in dicts for name, part in parts.items() if isinstance(part, dict) and name != "_buffers"]
    before = [(part, dict(part)) for part in dicts]
    trainable = {parameter: parameter.requires_grad for parameter in model.parameters()}
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    devices = [*range(torch.cuda.device_count())] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if sharding_of(model) is None:
            for part, content in before:
                part.clear()
                part.update(content)
            for parameter, is_trainable in trainable.items():
                parameter.requires_grad_(is_trainable)


def check_optimizer(optimizer: Any, adapted: nn.Module) -> None:
    """Refuse an optimizer that was made before the adapter, so that it has none of its parameters (``E-CONFIG``)."""
    optimized = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    if optimized and optimized.isdisjoint(id(weight) for weight in adapted.parameters() if weight.requires_grad):
        raise InputError(
            "E-CONFIG",
            "the optimizer has none of the adapter's parameters.",
            "Add the adapter to the model before you make the optimizer.",
        )


def _with_adapter(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None) -> PeftModel:
    config = peft_config or _lora(unwrap(model), args)
    with (
        as_input_error(
            "E-ADAPTER",
            f"PEFT cannot put the adapter on {type(model).__name__}",
            "Give another peft_config.",
            (ValueError, UserWarning, AttributeError),
        ),
        drawn_for(torch.device("cpu"), args.seed, "lora"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=".*did not match any targeted module.*")  # of fused experts
        adapted = cast(PeftModel, get_peft_model(model, copy.deepcopy(config)))  # which it changes
    if peft_config is None:
        _warn_of_share(adapted)
    return adapted


def _checkpoint_activations(adapted: PeftModel, kwargs: Any) -> None:
    """Recompute activations in the backward pass. The library enables this only when the training starts.

    Raises:
        InputError: ``E-CONFIG`` for options that torch or this model does not take.
    """
    model = unwrap(adapted)
    # Renamed in transformers 5.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    with setting_errors(
        "activation checkpointing", "Correct activation_checkpointing_kwargs, or leave activation_checkpointing out."
    ):
        options = dict(kwargs or {})
        of_layers = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        checkpoint(torch.neg, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **options})
        adapted.enable_input_require_grads()
        enable(options or None, **of_layers)


def _try_step(adapted: PeftModel) -> None:
    """Compute a backward pass over three tokens, which fails for some pairs of model and adapter.

    Raises:
        InputError: ``E-ADAPTER``; ``E-CONFIG`` if torch computes no gradients.
    """
    if not torch.is_grad_enabled():
        raise InputError("E-CONFIG", "gradients are off.", "Call torch.set_grad_enabled(True).")
    was_training = adapted.training
    adapted.train()
    devices = [parameter.device for parameter in adapted.parameters() if parameter.is_cuda][:1]
    failure = as_input_error(
        "E-ADAPTER",
        f"{type(unwrap(adapted)).__name__} cannot be trained with this adapter",
        "Try --dtype float32, or give another peft_config.",
        Exception,
    )
    try:
        with failure, torch.random.fork_rng(devices=devices):  # of dropout
            ids = torch.zeros(1, 3, dtype=torch.long, device=next(adapted.parameters()).device)
            adapted(input_ids=ids, use_cache=False).logits.float().sum().backward()
    finally:
        adapted.zero_grad(set_to_none=True)
        adapted.train(was_training)


def _lora(causal_lm: PreTrainedModel, args: F2CConfig) -> LoraConfig:
    """The paper's LoRA: on all linear layers but the head, that is, all attention and MLP projections.

    Routers of experts that are linear layers return several tensors, for which LoRA fails.
    """
    excluded = {
        name.rpartition(".")[2]
        for name, module in causal_lm.named_modules()
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
    }
    if causal_lm.config.model_type in STATE_SPACE:
        excluded |= {"out_proj", "dt_proj"}
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear",
        exclude_modules=sorted(excluded) or None,
    )


def _warn_of_share(adapted: PeftModel) -> None:
    """Warn if many weights get no adapter, such as experts in one tensor. Embeddings and the head do not count."""
    layers = [layer.get_base_layer() for layer in adapted.modules() if isinstance(layer, BaseTunerLayer)]
    covered = {id(parameter) for layer in layers for parameter in layer.parameters()}
    causal_lm = unwrap(adapted)
    tables = (causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings())
    outside = {id(parameter) for table in tables if table is not None for parameter in table.parameters()}
    matrices = [
        parameter
        for name, parameter in causal_lm.named_parameters()
        if parameter.dim() > 1 and "lora_" not in name and id(parameter) not in outside
    ]
    with_adapter = sum(parameter.numel() for parameter in matrices if id(parameter) in covered)
    share = with_adapter / max(1, sum(parameter.numel() for parameter in matrices))
    if share < MIN_SHARE:
        log.warning(
            "W-ADAPTER: %s: %.0f %% of the weights get no adapter.", type(causal_lm).__name__, 100 - 100 * share
        )


def sharded_state(adapted: nn.Module) -> dict[str, Tensor] | None:
    """Return the trainable weights of a sharded model. The library would gather the weights of the base, too."""
    if sharding_of(adapted) is None:
        return None
    return {name: value.detach() for name, value in adapted.named_parameters() if value.requires_grad}


def weights_digest(adapted: nn.Module) -> str:
    """Return the SHA-256 of the trainable weights."""
    digest = hashlib.sha256()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def prepare_for_saving(adapted: PeftModel) -> PeftModel:
    """Make trainable weights float32, and the order of names in the adapter's configuration fixed."""
    # PEFT writes sets of names in an order that depends on the hash seed.
    for config in adapted.peft_config.values():
        for name, value in vars(config).items():
            if isinstance(value, set):
                setattr(config, name, sorted(value))
    # Updates of 1e-5 are lost in bfloat16.
    for parameter in adapted.parameters():
        if parameter.requires_grad and parameter.dtype in HALF:
            parameter.data = parameter.data.float()
    return adapted


def load_trained(
    model: ModelGiven,
    tokenizer: PreTrainedTokenizerBase | None,
    args: F2CConfig,
    quantization_config: QuantizationConfigMixin | None = None,
) -> LoadedModel:
    """Return the model to train; load a named model with ``model_init_kwargs``, as in TRL.

    Raises:
        InputError: ``E-CONFIG`` for keys unknown to :func:`load_model`, or any keys with a loaded model.
    """
    settings = dict(args.model_init_kwargs or {})
    if quantization_config is not None:
        settings["quantization_config"] = quantization_config
    if not isinstance(model, str | os.PathLike):
        if settings:
            raise InputError(
                "E-CONFIG",
                f"{', '.join(settings)}: the model is loaded already.",
                "Give the model's name, or load it so.",
            )
        return as_loaded(model, tokenizer)
    require_known(settings, INIT_SETTINGS, "E-CONFIG", "model_init_kwargs does not pass on")
    if args.bf16:
        settings.setdefault("dtype", "bfloat16")
    if args.use_cpu:
        settings.setdefault("device", "cpu")
    return as_loaded(load_model(model, **settings), tokenizer)


def has_dropout(model: nn.Module) -> bool:
    """Whether a layer or the attention has dropout."""
    in_attention = getattr(getattr(model, "config", None), "attention_dropout", 0.0)
    return bool(in_attention) or any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules())
