"""A training step as others do it: votes from one pass, the loss from another; gradients are left in the adapter."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers import mean_of_targets, naive_log_probs, naive_scores, strong_log_probs, strong_scores
from flip_flop import F2CConfig
from flip_flop.method.algorithm import Consensus, find_consensus, split_templates
from flip_flop.method.divergences import answer_distributions
from flip_flop.method.losses import f2c_loss
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance

FORCED_LABEL = 0
# This part of the templates votes for the label, the others for the next one: Algorithm 1's Case 3, with all terms.
FORCED_SHARE = 0.7


def forced_consensus(scores: Tensor, predictions: Tensor | None = None) -> Consensus:
    """Votes that a trained model might give; a random model's are a coin's, and half the steps would be empty."""
    *batch, num_templates, num_labels = scores.shape
    in_favour = max(num_templates // 2 + 1, round(FORCED_SHARE * num_templates))
    predictions = torch.full((*batch, num_templates), FORCED_LABEL, device=scores.device)
    predictions[..., in_favour:] = FORCED_LABEL + 1
    counts = torch.zeros(*batch, num_labels, dtype=torch.long, device=scores.device)
    counts[..., FORCED_LABEL], counts[..., FORCED_LABEL + 1] = in_favour, num_templates - in_favour
    label = torch.full(tuple(batch), FORCED_LABEL, device=scores.device)
    return Consensus(predictions, counts, label, torch.ones_like(label, dtype=torch.bool))


@contextlib.contextmanager
def with_forced_consensus() -> Iterator[None]:
    """Every variant votes by :func:`forced_consensus` while the context is open."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in ("flip_flop", "benchmarks") and hasattr(module, "find_consensus"):
                stack.enter_context(mock.patch.object(module, "find_consensus", forced_consensus))
        yield


def naive_step(model: nn.Module, instances: Sequence[EncodedInstance], config: F2CConfig) -> float:
    """T0: each instance by itself, a padded batch of all answers, then one of the consensus answers; full logits."""
    total = 0.0
    for instance in instances:
        scores = naive_scores(model, [instance])[0]
        chosen = _consensus_answers(instance, scores)
        loss = _loss(naive_log_probs(model, chosen), chosen, scores, config) / len(instances)
        loss.backward()
        total += float(loss.detach())
    return total


def strong_step(model: nn.Module, instances: Sequence[EncodedInstance], config: F2CConfig) -> float:
    """T1: the strong scorer, then the consensus answers in the same way with gradient; logits at answers' rows."""
    scores = strong_scores(model, instances)
    chosen = [_consensus_answers(*pair) for pair in zip(instances, scores, strict=True)]
    log_probs = iter(strong_log_probs(model, [answer for answers in chosen for answer in answers]))
    losses = [
        _loss([next(log_probs) for _ in answers], answers, votes, config)
        for answers, votes in zip(chosen, scores, strict=True)
    ]
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach())


def _consensus_answers(instance: EncodedInstance, scores: np.ndarray) -> list[EncodedAnswer]:
    label = int(find_consensus(torch.from_numpy(scores)).label)
    return [row[label] for row in instance.answers]


def _loss(
    log_probs: Sequence[Tensor], answers: Sequence[EncodedAnswer], scores: np.ndarray, config: F2CConfig
) -> Tensor:
    """Eq. 10 of one instance, from ``[tokens, vocab]`` for each template's consensus answer."""
    split = split_templates(torch.from_numpy(scores), config)
    terms = f2c_loss(
        -torch.stack([mean_of_targets(part, answer) for part, answer in zip(log_probs, answers, strict=True)]),
        answer_distributions(log_probs, config.answer_aggregation),
        split,
        cce_weight=config.cce_weight,
        jsd_weight=config.jsd_weight,
    )
    return torch.stack(list(terms.values())).sum()
