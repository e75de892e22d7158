"""What a training needs, and says before it begins."""

import logging
from collections.abc import Sequence

import torch

from flip_flop.errors import InputError
from flip_flop.method import find_method
from flip_flop.prompts import RenderedInstance, templates_differ_in_answer_words
from flip_flop.training.config import F2CConfig
from flip_flop.training.data import InstanceDataset
from flip_flop.training.initial_votes import SAMPLE_SIZE

log = logging.getLogger("flip_flop")


def require_one_device_each(args: F2CConfig) -> None:
    """Refuse several devices in one process, and a model that is divided (``E-DISTRIBUTED``)."""
    if args.n_gpu > 1:
        raise InputError(
            "E-DISTRIBUTED",
            f"{args.n_gpu} GPUs are visible to one process.",
            "Start a process per GPU with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES to one.",
        )
    if args.fsdp or args.deepspeed:
        raise InputError(
            "E-DISTRIBUTED",
            "fsdp and deepspeed divide the model over the devices, and training keeps it whole on each.",
            "Leave fsdp and deepspeed out; LoRA's optimizer state is small.",
        )


def require_dtype(args: F2CConfig, dtype: torch.dtype) -> None:
    """Refuse another dtype than the weights' (``E-CONFIG-VALUE``): the loss calls decoder and head, not the model."""
    if args.fp16 or (args.bf16 and dtype != torch.bfloat16):
        name = "fp16" if args.fp16 else "bf16"
        raise InputError(
            "E-CONFIG-VALUE",
            f"{name} is set, but the model's weights are {str(dtype).removeprefix('torch.')}: they stay so.",
            "Load it in bfloat16 (--dtype bfloat16) and leave the setting out; the adapter stays in float32.",
        )


def require_two_templates(dataset: InstanceDataset) -> None:
    """Refuse instances of one template (``E-TOO-FEW-TEMPLATES``)."""
    if len(dataset) and len(dataset[0].answers) < 2:
        raise InputError(
            "E-TOO-FEW-TEMPLATES",
            "Training needs at least two templates: one has nothing to agree with.",
            "Add templates.",
        )


def warn_of_answer_words(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Warn where the method pulls a template toward other templates' answer words."""
    pulls_words = find_method(config.method).pulls_words
    if pulls_words and pulls_words(config) and templates_differ_in_answer_words(instances[:SAMPLE_SIZE]):
        log.warning(
            "W-ANSWER-WORDS: the templates answer in different words, and divergences over the vocabulary pull "
            "each toward the others' words. Watch own_label_mass, or use --divergence-space labels."
        )
