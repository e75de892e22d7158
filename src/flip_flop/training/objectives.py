"""The methods: from one pass over a batch of instances to a loss per instance. They differ here and nowhere else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flip_flop.method import (
    Consensus,
    TemplateSplit,
    aggregate_answer_log_probs,
    cce_loss,
    f2c_loss,
    label_log_probs,
    split_templates,
    swarm_loss,
    swarm_teachers,
)
from flip_flop.randomness import generator
from flip_flop.scoring.answers import AnswerStates
from flip_flop.training.config import F2CConfig


@dataclass(frozen=True)
class Batch:
    """What a method may read. Gold labels are not among it.

    Attributes:
        model: The model in training.
        states: One pass over the instances, with gradient.
        consensus: The votes, taken from scores without gradient.
        splits: What Algorithm 1 makes of each instance.
        ids: The instances' ids.
        epoch: Counted from 0.
    """

    model: nn.Module
    states: AnswerStates
    consensus: Consensus
    splits: Sequence[TemplateSplit]
    ids: Sequence[str]
    epoch: int


# The loss of one instance, and its terms by name for the log.
InstanceLoss = tuple[Float[Tensor, ""], dict[str, float]]


def f2c_objective(batch: Batch, number: int, config: F2CConfig) -> InstanceLoss:
    """Flip-Flop Consistency, Eq. 10: consensus cross-entropy, JSD within the CC set, KL toward it."""
    read = _over_labels if config.divergence_space == "labels" else _over_vocabulary
    nll, log_probs = read(batch, number, config)
    loss = f2c_loss(
        nll,
        log_probs,
        batch.splits[number],
        cce_weight=config.cce_weight,
        jsd_weight=config.jsd_weight,
        detach_cc_mixture=config.detach_cc_mixture,
    )
    terms = {"cce": loss.cce, "jsd": loss.jsd, "flip": loss.flip}
    return loss.total, {name: float(term.detach()) for name, term in terms.items()}


def cce_objective(batch: Batch, number: int, config: F2CConfig) -> InstanceLoss:
    """Consensus cross-entropy alone, Eq. 6."""
    answer = batch.states.of(number, int(batch.consensus.label[number]))
    nll = _nll(answer.scores(batch.model)[0, :, 0], answer, config)
    loss = cce_loss(nll, weight=config.cce_weight)
    return loss, {"cce": float(loss.detach())}


def swarm_objective(batch: Batch, number: int, config: F2CConfig) -> InstanceLoss:
    """Swarm distillation: each template learns from another one's label distribution, right or wrong."""
    scores = batch.states.of(number).scores(batch.model)[0]
    draw = generator(config.seed, "teachers", batch.epoch, batch.ids[number])
    teachers = swarm_teachers(scores.shape[0], pairs=config.swarm_pairs, seed_generator=draw)
    loss = swarm_loss(scores, teachers.to(scores.device))
    return loss, {"swarm": float(loss.detach())}


OBJECTIVES: dict[str, Callable[[Batch, int, F2CConfig], InstanceLoss]] = {
    "f2c": f2c_objective,
    "cce": cce_objective,
    "swarm": swarm_objective,
}


def split_by_votes(scores: Float[Tensor, "instances templates labels"], config: F2CConfig) -> list[TemplateSplit]:
    """Algorithm 1 for each instance, with the run's settings."""
    return [
        split_templates(
            votes,
            unanimous_margin=config.unanimous_margin,
            max_cc_size=config.max_cc_size,
            flip_weight_min=config.flip_weight_min,
            flip_weight_max=config.flip_weight_max,
            flip_temperature=config.flip_temperature,
        )
        for votes in scores
    ]


def batch_losses(batch: Batch, config: F2CConfig) -> list[InstanceLoss]:
    """The loss of each instance, in order.

    Without a strict majority (Case 1) the consensus methods trust no label: the loss is exactly 0, and nothing is
    computed for it. Swarm distillation asks for no consensus.
    """
    objective = OBJECTIVES[config.method]
    skipped = (torch.zeros((), device=batch.states.hidden.device), dict[str, float]())
    return [
        skipped if split.case == 1 and config.method != "swarm" else objective(batch, number, config)
        for number, split in enumerate(batch.splits)
    ]


def _over_labels(
    batch: Batch, number: int, config: F2CConfig
) -> tuple[Float[Tensor, " templates"], Float[Tensor, "templates labels"]]:
    """l_{i,v} of the consensus answer, and the distribution over labels (Eq. 14) under each template."""
    label = int(batch.consensus.label[number])
    scores = batch.states.of(number).scores(batch.model)[0]
    return _nll(scores[:, label], batch.states.of(number, label), config), label_log_probs(scores)


def _over_vocabulary(
    batch: Batch, number: int, config: F2CConfig
) -> tuple[Float[Tensor, " templates"], Float[Tensor, "templates vocab"]]:
    """l_{i,v} of the consensus answer, and log q*_{i,v} over the vocabulary on that answer's tokens."""
    answer = batch.states.of(number, int(batch.consensus.label[number]))
    log_probs = answer.token_log_softmax(batch.model)
    targets = log_probs.gather(1, answer.token_target[:, None]).squeeze(1)
    lengths = cast(list[int], answer.token_counts[0, :, 0].tolist())
    scores = torch.stack([tokens.mean() for tokens in targets.split(lengths)])
    distributions = [
        aggregate_answer_log_probs(tokens, reading=config.answer_aggregation) for tokens in log_probs.split(lengths)
    ]
    return _nll(scores, answer, config), torch.stack(distributions)


def _nll(scores: Float[Tensor, " templates"], answer: AnswerStates, config: F2CConfig) -> Float[Tensor, " templates"]:
    """l_{i,v}: the negative mean over the answer's tokens, or their sum."""
    return -scores * answer.token_counts[0, :, 0] if config.cce_reduction == "sum" else -scores
