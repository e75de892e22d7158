"""The model that is trained, and its adapter, with weights in float32."""

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.randomness import derive_seed
from flip_flop.scoring.causal_lm import HALF, unwrap
from flip_flop.scoring.models import load_model
from flip_flop.training.config import F2CConfig


def with_adapter(model: nn.Module, args: F2CConfig, peft_config: PeftConfig | None = None) -> PeftModel:
    """The model with an adapter to train: its own, the one that is asked for, or the paper's LoRA.

    Raises:
        InputError: ``E-ADAPTER-KIND`` for prompt learning.
    """
    if peft_config is not None and peft_config.is_prompt_learning:
        message = f"{peft_config.peft_type} puts virtual tokens before the prompt, which scoring does not."
        raise InputError("E-ADAPTER-KIND", message)
    if isinstance(model, PeftModel):
        return _in_float32(model)
    config = peft_config or LoraConfig(
        task_type="CAUSAL_LM",
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(args.seed, "lora"))
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    if args.gradient_checkpointing:
        adapted.enable_input_require_grads()
    return _in_float32(adapted)


def _in_float32(adapted: PeftModel) -> PeftModel:
    """Half-precision weights that are trained, made float32: at a rate of 1e-5 a bfloat16 weight does not move."""
    for parameter in adapted.parameters():
        if parameter.requires_grad and parameter.dtype in HALF:
            parameter.data = parameter.data.float()
    return adapted


def load_trained(
    model: str | PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[nn.Module, PreTrainedTokenizerBase, str]:
    """The model, its tokenizer and its name, read where a name is given."""
    if isinstance(model, str):
        loaded = load_model(model)
        return loaded.model, tokenizer or loaded.tokenizer, model
    if tokenizer is None:
        raise ValueError("A model that is not given by name needs its tokenizer: pass processing_class.")
    return model, tokenizer, unwrap(model).config._name_or_path
