"""The model that is trained, and its adapter, with weights in float32."""

import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

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
from flip_flop.scoring.bounds import ADAPTER_KINDS
from flip_flop.scoring.causal_lm import HALF, as_input_error, check_head, decoder_of, unwrap
from flip_flop.scoring.loading import LoadedModel, load_model
from flip_flop.scoring.scorer import ModelGiven, as_loaded
from flip_flop.training.config import F2CConfig, setting_errors

log = logging.getLogger("flip_flop")

# What model_init_kwargs may hold.
INIT_SETTINGS = ("revision", "dtype", "device", "quantization_config")
# A part that chooses experts, or the tokens that are attended to, by its class or its own name: an adapter on it would
# change who answers, not the answer, and most have no gradient. RecurrentGemma's recurrence has gates of three axes, as
# experts have; in PEFT's module it would keep its state from one forward to the next.
_ROUTER_CLASS, _ROUTER_NAME = re.compile("Router|Gating|Gate$|Indexer$|Rglru$"), re.compile("router|expert_gate")
# Here PEFT refuses `out_proj`, whose weight the layers' kernels read by themselves.
_STATE_SPACE = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
# Beside fused experts PEFT takes these names for those of single experts, as transformers 4 had them.
_EXPERT_NAMES = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}


@dataclass(frozen=True)
class Projections:
    """All attention and MLP projections of a decoder, by name.

    Attributes:
        modules: Linear layers.
        experts: Tensors ``[experts, ., .]`` that hold the projections of a layer's experts.
        left_out: Other weights with two axes or more that are neither embeddings nor routers, and their sizes; also
            projections whose weight a layer reads without calling them, as an adapter would have no effect there.
        share: Of all these weights, those in ``modules`` and ``experts``.
    """

    modules: list[str]
    experts: list[str]
    left_out: Counter[str]
    share: float

    @classmethod
    def of(cls, causal_lm: PreTrainedModel) -> "Projections":
        """Those of a causal LM without an adapter."""
        inside = {id(parameter) for parameter in decoder_of(causal_lm).parameters()}
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
    """The modules that are called when the model reads three tokens in training."""
    called = set[nn.Module]()
    was_training = causal_lm.training
    hook = register_module_forward_pre_hook(lambda module, given: called.add(module))
    try:
        causal_lm.train()
        with torch.random.fork_rng():  # of dropout
            ids = torch.zeros(1, 3, dtype=torch.long, device=next(causal_lm.parameters()).device)
            decoder_of(causal_lm)(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
        causal_lm.train(was_training)
    return called


def _is_router(causal_lm: nn.Module, path: str) -> bool:
    parts = path.split(".")
    owners = [type(causal_lm.get_submodule(".".join(parts[: end + 1]))).__name__ for end in range(len(parts))]
    return any(map(_ROUTER_CLASS.search, owners)) or bool(_ROUTER_NAME.search(parts[-1]))


def with_adapter(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None = None) -> PeftModel:
    """The model with an adapter to train: its own, the one that is asked for, or the paper's LoRA.

    Raises:
        InputError: ``E-ADAPTER-KIND`` for an unsupported kind, and for what PEFT cannot put on this model;
            ``E-CONFIG-VALUE`` for dropout on fused experts; ``E-MODEL-KIND`` where the model cannot be read.
    """
    if peft_config is not None and peft_config.peft_type not in ADAPTER_KINDS:
        raise InputError("E-ADAPTER-KIND", f"{type(peft_config).__name__} is not supported.")
    if isinstance(model, PeftModel):
        return _settled(model)
    check_head(model)
    config = peft_config or _lora(unwrap(model), args)
    what = f"PEFT cannot put the adapter on {type(model).__name__}"
    with (
        as_input_error("E-ADAPTER-KIND", what, "Give another peft_config.", ValueError),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(derive_seed(args.seed, "lora"))
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    _settled(adapted)
    _try_step(adapted)
    return adapted


def checkpoint_activations(adapted: PeftModel, given: Any) -> None:
    """Compute activations again in the backward; the library does so only when the training starts.

    Raises:
        InputError: ``E-CONFIG-VALUE`` for options that torch or this model does not take.
    """
    model = unwrap(adapted)
    # Its name changed in transformers 5.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    hint = "Correct activation_checkpointing_kwargs, or leave activation_checkpointing out."
    with setting_errors("activation checkpointing", hint):
        options = dict(given or {})
        of_layers = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        checkpoint(torch.neg, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **options})
        adapted.enable_input_require_grads()
        enable(options or None, **of_layers)


def _try_step(adapted: PeftModel) -> None:
    """One backward pass over three tokens: what PEFT puts on a model cannot always be computed there.

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
    """The paper's LoRA: on all attention and MLP projections, those of fused experts included."""
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


def _settled(adapted: PeftModel) -> PeftModel:
    """The adapter as it is trained and saved.

    Half-precision weights that are trained are made float32: at a rate of 1e-5 a bfloat16 weight does not move. Sets of
    names are sorted: a file that PEFT writes them to would follow the hash seed.
    """
    for config in adapted.peft_config.values():
        for name, value in vars(config).items():
            if isinstance(value, set):
                setattr(config, name, sorted(value))
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
    """The model to train, read where a name or a folder is given: as ``model_init_kwargs`` say, in TRL's way.

    Raises:
        InputError: ``E-CONFIG-VALUE`` where they are given for a model that is loaded already, or are none of
            :func:`load_model`'s.
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
