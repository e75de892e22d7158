"""Scoring: prompts in tokens, one pass of the decoder, and the scores of all answers. Names are imported on first use.

The modules ``options`` and ``too_long`` need no torch.
"""

from typing import TYPE_CHECKING

from flip_flop import exports

if TYPE_CHECKING:
    from flip_flop.scoring.boundary import EncodedAnswer
    from flip_flop.scoring.endpoint import EndpointScorer
    from flip_flop.scoring.given import ModelGiven, as_loaded
    from flip_flop.scoring.interface import Scorer
    from flip_flop.scoring.local import CausalLMScorer, as_scorer
    from flip_flop.scoring.models import LoadedModel, load_model, load_tokenizer
    from flip_flop.scoring.scorer import ScoreTable, score, score_instances
    from flip_flop.scoring.stored_calibration import store_calibration
    from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "boundary": ("EncodedAnswer",),
        "endpoint": ("EndpointScorer",),
        "given": ("ModelGiven", "as_loaded"),
        "interface": ("Scorer",),
        "local": ("CausalLMScorer", "as_scorer"),
        "models": ("LoadedModel", "load_model", "load_tokenizer"),
        "scorer": ("ScoreTable", "score", "score_instances"),
        "stored_calibration": ("store_calibration",),
        "tokens": ("EncodedInstance", "PromptEncoder"),
    },
)
