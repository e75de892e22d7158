"""Scores and distributions to test on."""

import itertools

import numpy as np
import torch

from flip_flop.files import generator


def random_of(*keys):
    return generator(0, "tests/method", *keys)


def vote_patterns():
    """All 3^5 ways in which 5 templates can vote among 3 labels."""
    return list(itertools.product(range(3), repeat=5))


def scores_for_votes(votes, num_labels, random):
    """Scores under which the templates vote so, with margins from almost none to many nats, no two equal."""
    num_templates = len(votes)
    scores = -random.uniform(1, 4, size=(num_templates, num_labels))
    margins = random.permutation(np.geomspace(1e-3, 5, num_templates)) * random.uniform(0.5, 1.5)
    rows = np.arange(num_templates)
    scores[rows, votes] = -np.inf
    scores[rows, votes] = scores.max(axis=1) + margins
    return torch.tensor(scores - scores.max() - 0.01)


def log_distributions(random, *shape, dtype=torch.float64, scale=2.0):
    """Random log-probabilities, normalised over the last axis."""
    logits = torch.tensor(random.normal(scale=scale, size=shape), dtype=dtype)
    return logits.log_softmax(dim=-1)
