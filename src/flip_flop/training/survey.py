"""A look at the base model's votes before training: is there a consensus, is there anything left to flip, a bias?"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from flip_flop.method import find_consensus
from flip_flop.metrics import label_shares, majority_vote
from flip_flop.prompts import RenderedInstance, templates_differ_in_answer_words
from flip_flop.randomness import generator
from flip_flop.scoring.scorer import score_instances
from flip_flop.scoring.tokens import EncodedInstance
from flip_flop.training.callbacks import no_consensus
from flip_flop.training.config import F2CConfig
from flip_flop.training.objectives import split_by_votes

log = logging.getLogger("flip_flop")

# Enough to see a share to within a few points, cheap beside an epoch.
SURVEYED = 200


def survey_votes(model: nn.Module, instances: Sequence[EncodedInstance], config: F2CConfig) -> dict[str, Any]:
    """Shares over a seeded sample of the instances: consensus, cases, and what the votes say.

    A label bias that all templates share looks, without labels, like data with few of the other labels. So the
    shares are shown to the user, who may know better.

    Raises:
        InputError: ``E-NO-CONSENSUS`` where no instance has one and the method needs it.
    """
    chosen = generator(config.seed, "survey").permutation(len(instances))[:SURVEYED]
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
    if not bool(consensus.exists.any()) and config.method != "swarm":
        raise no_consensus(len(sample))
    cases = [split.case for split in split_by_votes(torch.from_numpy(scores), config)]
    num_labels = scores.shape[-1]
    shares = label_shares(majority_vote(scores)[:, None], num_labels)
    consensus_share = int(consensus.exists.sum()) / len(sample)
    case_shares = [cases.count(case) / len(cases) for case in (1, 2, 3)]
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%, labels %s",
        len(sample),
        100 * consensus_share,
        100 * case_shares[1],
        " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if case_shares[1] == 1.0:
        log.warning("W-NOTHING-TO-FLIP: every instance is unanimous and confident: there is next to nothing to train.")
    if np.max(shares) > 0.9:
        log.warning(
            "W-COLLAPSE: the votes give one label to %.0f %% of the instances. Where the data are not like that, "
            "training will make it worse.",
            100 * np.max(shares),
        )
    return {
        "num_instances": len(sample),
        "consensus_share": consensus_share,
        "case_shares": case_shares,
        "vote_label_shares": shares.tolist(),
    }


def warn_of_answer_words(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Say, in one line, that divergences over the vocabulary pull a template toward other templates' words."""
    divergences = config.jsd_weight > 0 or config.flip_weight_max > 0
    in_vocabulary = config.method == "f2c" and config.divergence_space == "vocab" and divergences
    if in_vocabulary and templates_differ_in_answer_words(instances[:SURVEYED]):
        log.warning(
            "W-ANSWER-WORDS: the templates answer in different words, and divergences over the vocabulary pull "
            "each toward the others' words. Watch own_label_mass, or use --divergence-space labels."
        )
