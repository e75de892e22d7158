"""Scoring: the boundary rule, answer rows, back ends, and the scores that all else is computed from."""

from flip_flop.scoring.given import ModelGiven, as_loaded
from flip_flop.scoring.models import LoadedModel, load_model, load_tokenizer
from flip_flop.scoring.scorer import ScoreTable, score, score_instances
from flip_flop.scoring.tokens import EncodedAnswer, EncodedInstance, PromptEncoder, encode_pairs

__all__ = [
    "EncodedAnswer",
    "EncodedInstance",
    "LoadedModel",
    "ModelGiven",
    "PromptEncoder",
    "ScoreTable",
    "as_loaded",
    "encode_pairs",
    "load_model",
    "load_tokenizer",
    "score",
    "score_instances",
]
