"""Checks and warnings before training starts."""

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.metrics import vote_changes
from flip_flop.prompts import RenderedInstance, templates_differ_in_answer_words
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.distributed import world_size
from flip_flop.training.config import F2CConfig
from flip_flop.training.data import instances_per_step
from flip_flop.training.votes import VoteTable

log = logging.getLogger("flip_flop")

# Instances of a sample: enough to estimate shares to within a few points.
SAMPLE_SIZE = 200
# On CB, the smallest of the paper's datasets, 150 steps of 32 instances are 21 passes over 194 rows.
MANY_PASSES = 25


def require_one_device_each(args: F2CConfig) -> None:
    """Refuse several devices in one process, and a model split over devices (``E-DISTRIBUTED``)."""
    if args.n_gpu > 1:
        hint = "Start a process per GPU with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES to one."
        raise InputError("E-DISTRIBUTED", f"{args.n_gpu} GPUs are visible to one process.", hint)
    if args.fsdp or args.deepspeed or args.parallelism_config:
        message = "fsdp, deepspeed and parallelism_config are not supported: each device holds the whole model."
        raise InputError("E-DISTRIBUTED", message, "Leave them out; LoRA's optimizer state is small.")


def require_dtype(args: F2CConfig, dtype: torch.dtype) -> None:
    """Refuse a mixed precision that would have no effect (``E-CONFIG-VALUE``)."""
    if args.fp16 or (args.bf16 and dtype != torch.bfloat16):
        name, found = "fp16" if args.fp16 else "bf16", str(dtype).removeprefix("torch.")
        message = f"{name} has no effect: the model's weights are {found}."
        hint = "Load the model with --dtype bfloat16 and leave the setting out. The adapter stays in float32."
        raise InputError("E-CONFIG-VALUE", message, hint)


def require_data(instances: Sequence[EncodedInstance], args: F2CConfig) -> None:
    """Refuse one template, a clean template that does not exist, and rows without the gold labels of a method.

    Raises:
        InputError: ``E-TOO-FEW-TEMPLATES``, ``E-CONFIG-VALUE`` or ``E-NO-GOLD``.
    """
    method, num_templates = find_method(args.method), len(instances[0].answers) if instances else 2
    if num_templates < 2:
        raise InputError("E-TOO-FEW-TEMPLATES", "Training needs at least two templates.")
    if instances and args.clean_template >= num_templates:
        message = f"clean_template is {args.clean_template}, but there are {num_templates} templates."
        raise InputError("E-CONFIG-VALUE", message, f"Use 0 to {num_templates - 1}.")
    if args.uses_labels and all(instance.label is None for instance in instances):
        reader = method.name if method.uses_labels else "supervised_weight"
        message = f"{reader} uses gold labels, but none of the {len(instances)} training instances has one."
        raise InputError("E-NO-GOLD", message)


def log_processes() -> None:
    """Log the number of processes, and warn if a launcher started one of several requested processes."""
    by_accelerate = "ACCELERATE_USE_CPU" in os.environ  # set by its launcher of one process
    if by_accelerate or "WORLD_SIZE" in os.environ:
        log.info("processes that train together: %d", world_size())
    if by_accelerate and "MASTER_PORT" in os.environ and world_size() == 1:  # set if several were requested
        log.warning(
            "W-ONE-PROCESS: accelerate started one of several requested processes, because of --cpu or missing GPUs. "
            "Start them with torchrun --nproc-per-node N."
        )


def has_dropout(model: nn.Module) -> bool:
    """Whether a layer or the attention has dropout."""
    in_attention = getattr(getattr(model, "config", None), "attention_dropout", 0.0)
    return bool(in_attention) or any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules())


def log_passes(num_instances: int, config: F2CConfig) -> None:
    """Log the number of passes over the instances, and warn if it is unusual."""
    step = instances_per_step(config)
    if config.max_steps > 0:
        in_a_pass = math.ceil(num_instances / step)  # steps; the last may have fewer instances
        is_whole = config.max_steps >= in_a_pass
        passes = config.max_steps / in_a_pass if is_whole else config.max_steps * step / num_instances
        counted = f"{config.max_steps} steps of {step} instances"
        all_seen = f"--max-steps {in_a_pass}"
    else:
        passes, counted, all_seen = config.num_train_epochs, f"steps of {step} instances", "--num-train-epochs 1"
    log.info("at most %.3g passes over %d training instances, in %s", passes, num_instances, counted)
    if passes < 1:
        log.warning(
            "W-PASSES: %d of the %d training instances are never seen. To use all of them, set %s.",
            round(num_instances * (1 - passes)),
            num_instances,
            all_seen,
        )
    elif passes > MANY_PASSES:
        log.warning(
            "W-PASSES: every training instance is seen %.0f times, more than on any of the paper's datasets. "
            "Lower --max-steps or set --num-train-epochs.",
            passes,
        )


def warn_of_answer_words(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Warn if a divergence over the vocabulary mixes the answer words of different templates."""
    mixes = find_method(config.method).mixes_answer_vocabularies
    if mixes and mixes(config) and templates_differ_in_answer_words(instances[:SAMPLE_SIZE]):
        log.warning(
            "W-ANSWER-WORDS: templates use different answer words, so a vocabulary-level divergence mixes them. "
            "Use --divergence-space labels (swarm: --swarm-space labels), or watch own_label_mass."
        )


def warn_of_two_templates(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Warn if there are only two templates, because a tie has no majority."""
    if instances and len(instances[0].prompts) == 2:
        needs_consensus = find_method(config.method).needs_consensus
        effect = "these instances get no loss" if needs_consensus else "both count equally"
        message = "W-TWO-TEMPLATES: two templates cannot break a tie: if they disagree, %s. Add a third template."
        log.warning(message, effect)


def draw_sample(instances: Sequence[EncodedInstance], seed: int) -> list[EncodedInstance]:
    """Draw a seeded sample of the instances, in their order."""
    chosen = generator(seed, "survey").permutation(len(instances))[:SAMPLE_SIZE]
    return [instances[number] for number in sorted(chosen)]


def initial_vote_stats(votes: VoteTable, config: F2CConfig) -> dict[str, Any]:
    """Compute and log shares of the first votes: of a consensus, of each case, and of each label.

    Without labels, a label bias that all templates share cannot be distinguished from class imbalance, so the user sees
    the label frequencies. For calibrated votes, the effect of the calibration is included.

    Raises:
        InputError: ``E-NO-CONSENSUS`` if no instance has a consensus and the method needs it.
    """
    scores = torch.from_numpy(votes.scores)
    num_with_consensus = int(find_consensus(scores).exists.sum())
    if num_with_consensus == 0 and find_method(config.method).needs_consensus:
        message = f"none of the {len(scores)} instances has a strict majority."
        raise InputError("E-NO-CONSENSUS", message)
    cases = [split_templates(votes, config.split_settings).case for votes in scores]
    consensus_share = num_with_consensus / len(scores)
    case_shares = [cases.count(case) / len(cases) for case in (1, 2, 3)]
    shares = votes.shares.tolist()
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%, labels %s",
        len(scores),
        100 * consensus_share,
        100 * case_shares[1],
        " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if case_shares[1] == 1.0:
        log.warning("W-NOTHING-TO-FLIP: every instance is unanimous and confident, so training has almost no effect.")
    if max(shares) > 0.9:
        log.warning(
            "W-COLLAPSE: one label has %.0f %% of the votes. If the data are not that imbalanced, training amplifies "
            "the bias.",
            100 * max(shares),
        )
    calibration = None if votes.offsets is None else vote_changes(votes.uncalibrated.scores, votes.scores)
    if calibration is not None:
        log.info(
            "%s calibration changes %.0f %% of these votes; label drift %.2f",
            config.vote_calibration,
            100 * calibration["votes_changed"],
            calibration["vote_share_drift"],
        )
    return {
        "num_instances": len(scores),
        "consensus_share": consensus_share,
        "case_shares": case_shares,
        "vote_label_shares": shares,
        "calibration": calibration,
    }
