"""Scores and distributions to test on."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from flip_flop.files import generator
from flip_flop.method.algorithm import find_consensus, split_templates

# Settings of Algorithm 1.
LIMITS = {
    "unanimous_margin": 0.5,
    "max_cc_size": 3,
    "flip_weight_min": 0.2,
    "flip_weight_max": 0.9,
    "flip_temperature": 0.6,
    "cc_size_bound": "templates",
}
# The settings of the losses in the paper.
PAPER = {
    "divergence_space": "vocab",
    "answer_aggregation": "mean_log_prob",
    "cce_space": "vocab",
    "cce_reduction": "mean",
    "swarm_pairs": "derangement",
}


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


class MadeInstance:
    """An instance as the methods read it. A subclass has ``scores``."""

    def decide(self, vote_scores, limits, templates=None):
        """All templates vote on the label of these ones."""
        templates = list(range(len(vote_scores))) if templates is None else templates
        self.vote_scores = vote_scores[templates]
        self.consensus = find_consensus(vote_scores).under(templates)
        self.split = split_templates(self.vote_scores, limits, self.consensus)

    def nll(self, label, reduction="mean"):
        return -self.scores()[:, label] * (self.token_counts[:, label] if reduction == "sum" else 1)

    def answer_log_probs(self, label):
        raise AssertionError("no method here reads the vocabulary")

    def random(self, purpose):
        return random_of(purpose, self.id)


@dataclass
class LogitInstance(MadeInstance):
    """An instance with logits at its answers' positions: ``[template][label][position]``."""

    logits: list[list[torch.Tensor]]
    targets: list[list[list[int]]]
    limits: SimpleNamespace
    id: str = "made"
    gold: int | None = None

    def __post_init__(self):
        self.token_counts = torch.tensor([[len(rows) for rows in answers] for answers in self.logits])
        self.decide(self.scores().detach(), self.limits)

    def _picked(self, template, label):
        rows = self.logits[template][label].log_softmax(-1)
        return rows.gather(1, torch.tensor(self.targets[template][label])[:, None]).squeeze(1)

    def scores(self):
        counts = self.token_counts
        rows = [[self._picked(v, c).mean() for c in range(counts.shape[1])] for v in range(counts.shape[0])]
        return torch.stack([torch.stack(row) for row in rows])

    def answer_log_probs(self, label):
        return [answers[label].log_softmax(-1) for answers in self.logits]
