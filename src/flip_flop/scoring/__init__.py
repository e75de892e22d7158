"""Scoring: the boundary rule, answer rows, back ends, and the scores that all else is computed from."""

from flip_flop.scoring.models import LoadedModel, load_model
from flip_flop.scoring.scorer import ScoreTable, ScoringOptions, score, score_instances
from flip_flop.scoring.tokens import EncodedAnswer, EncodedInstance, PromptEncoder, encode_pair

__all__ = [
    "EncodedAnswer",
    "EncodedInstance",
    "LoadedModel",
    "PromptEncoder",
    "ScoreTable",
    "ScoringOptions",
    "encode_pair",
    "load_model",
    "score",
    "score_instances",
]
