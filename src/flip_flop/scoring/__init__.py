"""Scoring: the boundary rule, answer rows, back ends, and the scores that all else is computed from."""

from flip_flop.scoring.boundary import EncodedAnswer
from flip_flop.scoring.endpoint import EndpointScorer
from flip_flop.scoring.given import ModelGiven, as_loaded
from flip_flop.scoring.interface import Scorer
from flip_flop.scoring.local import CausalLMScorer, as_scorer
from flip_flop.scoring.models import LoadedModel, load_model, load_tokenizer
from flip_flop.scoring.scorer import ScoreTable, score, score_instances
from flip_flop.scoring.stored_calibration import store_calibration
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder

__all__ = [
    "CausalLMScorer",
    "EncodedAnswer",
    "EncodedInstance",
    "EndpointScorer",
    "LoadedModel",
    "ModelGiven",
    "PromptEncoder",
    "ScoreTable",
    "Scorer",
    "as_loaded",
    "as_scorer",
    "load_model",
    "load_tokenizer",
    "score",
    "score_instances",
    "store_calibration",
]
