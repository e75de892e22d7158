"""The model's votes before training: whether there is a consensus, something to flip, a bias."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flip_flop.errors import InputError
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.metrics import label_shares, majority_vote
from flip_flop.randomness import generator
from flip_flop.scoring.scorer import score_instances
from flip_flop.scoring.tokens import EncodedInstance
from flip_flop.training.config import F2CConfig

log = logging.getLogger("flip_flop")

# Enough to see a share to within a few points, cheap beside an epoch.
SAMPLE_SIZE = 200


def initial_vote_stats(model: nn.Module, instances: Sequence[EncodedInstance], config: F2CConfig) -> dict[str, Any]:
    """Shares over a seeded sample of the instances: of those with a consensus, of each case, of each label voted for.

    Without labels, a label bias that all templates share looks like data with few of the other labels. So the
    shares are shown to the user, who may know better.

    Raises:
        InputError: ``E-NO-CONSENSUS`` where no instance has one and the method needs it.
    """
    chosen = generator(config.seed, "survey").permutation(len(instances))[:SAMPLE_SIZE]
    sample = [instances[number] for number in sorted(chosen)]
    scores = score_instances(
        model,
        sample,
        backend=config.backend,
        batch_tokens=config.batch_tokens,
        label="first votes",
        quiet=not sys.stderr.isatty(),
    ).scores
    consensus = find_consensus(torch.from_numpy(scores))
    if not bool(consensus.exists.any()) and find_method(config.method).needs_consensus:
        raise InputError(
            "E-NO-CONSENSUS",
            f"No instance of {len(sample)} has a label that more than half of the templates predict.",
            "Audit the model first: look for templates with reversed or shuffled answer choices, "
            "or use a stronger model.",
        )
    cases = [
        split.case for split in (split_templates(votes, config.split_settings) for votes in torch.from_numpy(scores))
    ]
    shares = label_shares(majority_vote(scores)[:, None], scores.shape[-1]).tolist()
    stats = {
        "num_instances": len(sample),
        "consensus_share": int(consensus.exists.sum()) / len(sample),
        "case_shares": [cases.count(case) / len(cases) for case in (1, 2, 3)],
        "vote_label_shares": shares,
    }
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%, labels %s",
        len(sample),
        100 * stats["consensus_share"],
        100 * stats["case_shares"][1],
        " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if stats["case_shares"][1] == 1.0:
        log.warning("W-NOTHING-TO-FLIP: every instance is unanimous and confident: there is next to nothing to train.")
    if max(shares) > 0.9:
        log.warning(
            "W-COLLAPSE: the votes give one label to %.0f %% of the instances. Where the data are not like that, "
            "training will make it worse.",
            100 * max(shares),
        )
    return stats
