"""Scoring: prompts in tokens, one pass of the model, and the scores of all answers. Names are imported on first use.

The modules ``options`` and ``too_long`` need no torch.
"""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.scoring.adapters import store_calibration
    from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance, PromptEncoder
    from flip_flop.scoring.models import LoadedModel, ModelGiven, as_loaded, load_model, load_tokenizer
    from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
    from flip_flop.scoring.scorer import Scorer
    from flip_flop.scoring.scores import CausalLMScorer, as_scorer, score, score_instances
    from flip_flop.scoring.served import EndpointScorer
    from flip_flop.scoring.too_long import ids_of, listed_beside, words

__all__ = [
    "DEFAULT_SCORING",
    "CausalLMScorer",
    "EncodedAnswer",
    "EncodedInstance",
    "EndpointScorer",
    "LoadedModel",
    "ModelGiven",
    "PromptEncoder",
    "Scorer",
    "ScoringOptions",
    "as_loaded",
    "as_scorer",
    "ids_of",
    "listed_beside",
    "load_model",
    "load_tokenizer",
    "score",
    "score_instances",
    "store_calibration",
    "words",
]

_, __getattr__, __dir__ = exports(
    __name__,
    {
        "adapters": ("store_calibration",),
        "encode": ("EncodedAnswer", "EncodedInstance", "PromptEncoder"),
        "models": ("LoadedModel", "ModelGiven", "as_loaded", "load_model", "load_tokenizer"),
        "options": ("DEFAULT_SCORING", "ScoringOptions"),
        "scorer": ("Scorer",),
        "scores": ("CausalLMScorer", "as_scorer", "score", "score_instances"),
        "served": ("EndpointScorer",),
        "too_long": ("ids_of", "listed_beside", "words"),
    },
)
