"""The model to train and its adapter, whose weights are float32."""

import hashlib
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D
from transformers.utils.quantization_config import QuantizationConfigMixin

from flip_flop.errors import InputError, nearest
from flip_flop.files import derive_seed
from flip_flop.scoring.adapters import ADAPTER_KINDS
from flip_flop.scoring.causal_lm import HALF, as_input_error, unwrap
from flip_flop.scoring.loading import LoadedModel, load_model
from flip_flop.scoring.scorer import ModelGiven, as_loaded
from flip_flop.training.config import F2CConfig, setting_errors

log = logging.getLogger("flip_flop")

# Keys of model_init_kwargs.
INIT_SETTINGS = ("revision", "dtype", "device", "quantization_config")
# Routers select experts or attended tokens. They get no adapter, because most have no gradient. The gates of
# RecurrentGemma's recurrence have three axes, as experts have. PEFT's module would keep their state between forwards.
_ROUTER_CLASS, _ROUTER_NAME = re.compile("Router|Gating|Gate$|Indexer$|Rglru$"), re.compile("router|expert_gate")
# PEFT refuses `out_proj` of these models, because their kernels read its weight directly.
_STATE_SPACE = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
# In a model with fused experts, PEFT takes these names for the single experts of transformers 4.
_EXPERT_NAMES = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}


@dataclass(frozen=True)
class Projections:
    """All attention and MLP projections of a decoder, by name.

    Attributes:
        modules: Linear layers.
        experts: Tensors ``[experts, ., .]`` that hold the projections of a layer's experts.
        left_out: Sizes of other weights with two or more axes, except embeddings and routers. Projections
            whose weight a layer reads without calling them are here too: an adapter would have no effect on them.
        share: Share of ``modules`` and ``experts`` in all these weights.
    """

    modules: list[str]
    experts: list[str]
    left_out: Counter[str]
    share: float

    @classmethod
    def of(cls, causal_lm: PreTrainedModel) -> "Projections":
        """Find the projections of a causal LM without an adapter."""
        inside = {id(parameter) for parameter in causal_lm.base_model.parameters()}
        state_space = causal_lm.config.model_type in _STATE_SPACE
        called = _called(causal_lm)
        modules, experts, left_out, total = [], [], Counter[str](), 0
        for name, parameter in causal_lm.named_parameters():
            path, _, _ = name.rpartition(".")
            owner = causal_lm.get_submodule(path)
            if id(parameter) not in inside or parameter.dim() < 2 or isinstance(owner, nn.Embedding):
                continue
            if _is_router(causal_lm, path):
                continue
            total += parameter.numel()
            passed_by = owner not in called and causal_lm.get_submodule(path.rpartition(".")[0]) in called
            refused = passed_by or (state_space and path.endswith("out_proj"))
            if isinstance(owner, nn.Linear | Conv1D) and not refused:
                modules.append(path)
            elif parameter.dim() == 3 and min(parameter.shape) > 1 and not isinstance(owner, nn.Conv1d) and not refused:
                experts.append(name)
            else:
                left_out[re.sub(r"\.\d+\.", ".*.", name)] += parameter.numel()
        return cls(modules, experts, left_out, 1 - left_out.total() / max(total, 1))


@torch.no_grad()
def _called(causal_lm: PreTrainedModel) -> set[nn.Module]:
    """Return the modules that are called in a forward pass of three tokens."""
    called = set[nn.Module]()
    was_training = causal_lm.training
    hook = register_module_forward_pre_hook(lambda module, given: called.add(module))
    try:
        causal_lm.train()
        with torch.random.fork_rng():  # of dropout
            ids = torch.zeros(1, 3, dtype=torch.long, device=next(causal_lm.parameters()).device)
            causal_lm.base_model(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
        causal_lm.train(was_training)
    return called


def _is_router(causal_lm: nn.Module, path: str) -> bool:
    parts = path.split(".")
    owners = [type(causal_lm.get_submodule(".".join(parts[: end + 1]))).__name__ for end in range(len(parts))]
    return any(map(_ROUTER_CLASS.search, owners)) or bool(_ROUTER_NAME.search(parts[-1]))


def prepare_model(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None = None) -> PeftModel:
    """Return the model with an adapter to train: its own, the given one, or the paper's LoRA.

    Raises:
        InputError: ``E-ADAPTER-KIND`` for an unsupported kind or model; ``E-CONFIG-VALUE`` for dropout on fused
            experts; ``E-MODEL-KIND`` if the model cannot be read.
    """
    if peft_config is not None and peft_config.peft_type not in ADAPTER_KINDS:
        raise InputError("E-ADAPTER-KIND", f"{type(peft_config).__name__} is not supported.")
    if isinstance(model, PeftModel):
        adapted = prepare_for_saving(model)
    else:
        adapted = prepare_for_saving(_with_adapter(model, args, peft_config))
        _try_step(adapted)
    if args.gradient_checkpointing:
        _checkpoint_activations(adapted, args.gradient_checkpointing_kwargs)
    return adapted


def _with_adapter(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None) -> PeftModel:
    config = peft_config or _lora(unwrap(model), args)
    what = f"PEFT cannot put the adapter on {type(model).__name__}"
    with (
        as_input_error("E-ADAPTER-KIND", what, "Give another peft_config.", ValueError),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(derive_seed(args.seed, "lora"))
        return cast(PeftModel, get_peft_model(model, config))


def _checkpoint_activations(adapted: PeftModel, given: Any) -> None:
    """Recompute activations in the backward pass. The library enables this only when the training starts.

    Raises:
        InputError: ``E-CONFIG-VALUE`` for options that torch or this model does not take.
    """
    model = unwrap(adapted)
    # Renamed in transformers 5.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    hint = "Correct activation_checkpointing_kwargs, or leave activation_checkpointing out."
    with setting_errors("activation checkpointing", hint):
        options = dict(given or {})
        of_layers = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        checkpoint(torch.neg, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **options})
        adapted.enable_input_require_grads()
        enable(options or None, **of_layers)


def _try_step(adapted: PeftModel) -> None:
    """Compute a backward pass over three tokens, which fails for some pairs of model and adapter.

    Raises:
        InputError: ``E-ADAPTER-KIND``.
    """
    was_training = adapted.training
    adapted.train()
    devices = [parameter.device for parameter in adapted.parameters() if parameter.is_cuda][:1]
    what = f"{type(unwrap(adapted)).__name__} cannot be trained with this adapter"
    hint = "Try --dtype float32, or give another peft_config."
    try:
        with as_input_error("E-ADAPTER-KIND", what, hint), torch.random.fork_rng(devices=devices):  # of dropout
            ids = torch.zeros(1, 3, dtype=torch.long, device=next(adapted.parameters()).device)
            adapted(input_ids=ids, use_cache=False).logits.float().sum().backward()
    finally:
        adapted.zero_grad(set_to_none=True)
        adapted.train(was_training)


def _lora(causal_lm: PreTrainedModel, args: F2CConfig) -> LoraConfig:
    """The paper's LoRA: on all attention and MLP projections, fused experts included."""
    found = Projections.of(causal_lm)
    kind = type(causal_lm).__name__
    if found.experts and args.lora_dropout:
        message = f"lora_dropout is {args.lora_dropout}, but PEFT has none for fused experts, as {kind} has them."
        raise InputError("E-CONFIG-VALUE", message, "Set --lora-dropout 0.")
    widest = max((_full_rank(causal_lm.get_submodule(name)) for name in found.modules), default=args.lora_r)
    if args.lora_r > widest:
        message = f"lora_r is {args.lora_r:,}, but the widest projection of {kind} has full rank at {widest:,}."
        raise InputError("E-CONFIG-VALUE", message, "The paper has 16.")
    if found.share < 0.99:
        name, _ = found.left_out.most_common(1)[0]
        text = "W-ADAPTER-SHARE: %s: %.0f %% of the decoder's weights get no adapter, most of them in %s."
        log.warning(text, kind, 100 * (1 - found.share), name)
    by_weight = {name for name in found.modules if found.experts and name.rpartition(".")[2] in _EXPERT_NAMES}
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=[name for name in found.modules if name not in by_weight],
        target_parameters=[*found.experts, *(f"{name}.weight" for name in sorted(by_weight))] or None,
    )


def _full_rank(layer: nn.Module) -> int:
    # A quantized weight is packed into another shape.
    sizes = (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else layer.weight.shape
    return int(min(sizes))  # type: ignore[arg-type]


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
    args: F2CConfig | None = None,
    quantization_config: QuantizationConfigMixin | None = None,
) -> LoadedModel:
    """Return the model to train; load a named model with ``model_init_kwargs``, as in TRL.

    Raises:
        InputError: ``E-CONFIG-VALUE`` for keys unknown to :func:`load_model`, or any keys with a loaded model.
    """
    settings = dict((args and args.model_init_kwargs) or {})
    if quantization_config is not None:
        settings["quantization_config"] = quantization_config
    if not isinstance(model, str | os.PathLike):
        if settings:
            message = f"{', '.join(settings)}: the model is loaded already."
            raise InputError("E-CONFIG-VALUE", message, "Give the model's name, or load it so.")
        return as_loaded(model, tokenizer)
    for name in settings:
        if name not in INIT_SETTINGS:
            hint = nearest(name, INIT_SETTINGS)
            raise InputError("E-CONFIG-VALUE", f"model_init_kwargs has {name!r}, which is not passed on.", hint)
    if isinstance(settings.get("dtype"), torch.dtype):
        settings["dtype"] = str(settings["dtype"]).removeprefix("torch.")
    if args is not None and args.bf16:
        settings.setdefault("dtype", "bfloat16")
    if args is not None and args.use_cpu:
        settings.setdefault("device", "cpu")
    return as_loaded(load_model(model, **settings), tokenizer)
