"""This package's side: its back ends as scorers, and its trainer's step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from benchmarks.models import LORA_R, make_tokenizer, randomize_adapter
from flip_flop import F2CConfig, F2CTrainer
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.scores import score_instances

Backend = Literal["packed", "padded"]
DIVERGENCE_WEIGHT = 10.0


def our_scores(model: nn.Module, instances: Sequence[EncodedInstance], backend: Backend) -> np.ndarray:
    """Scores as an audit computes them. The instances are fresh ones, so that nothing is left from the last round."""
    return score_instances(model, [replace(instance) for instance in instances], backend=backend, quiet=True).values


def make_trainer(model: PreTrainedModel, backend: Backend, folder: str) -> F2CTrainer:
    """The trainer with the paper's adapter, without dropout so that gradients can be compared."""
    config = F2CConfig(
        output_dir=folder,
        protocol="paper",
        backend=backend,
        use_cpu=model.device.type == "cpu",
        lora_r=LORA_R,
        lora_dropout=0.0,
        # A random model's templates hardly differ: with the default weights no error in these terms would be noticed.
        jsd_weight=DIVERGENCE_WEIGHT,
        flip_weight_min=DIVERGENCE_WEIGHT,
        flip_weight_max=2 * DIVERGENCE_WEIGHT,
        eval_strategy="no",
        save_strategy="no",
    )
    fresh = not hasattr(model, "peft_config")
    trainer = F2CTrainer(model, args=config, processing_class=make_tokenizer())
    if fresh:
        randomize_adapter(trainer.adapted)
    trainer.adapted.train()
    return trainer


def our_step(trainer: F2CTrainer, instances: Sequence[EncodedInstance]) -> float:
    """Forward and backward of a micro-batch, as training does it; the gradients are left in the adapter."""
    loss = trainer.training_step(trainer.adapted, {"instances": list(instances)}, len(instances))
    return float(loss)


def gradient(model: nn.Module) -> torch.Tensor:
    """All gradients of the adapter in one vector, taken away from it."""
    parts = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            parts.append(parameter.grad.float().flatten())
            parameter.grad = None
    return torch.cat(parts)
